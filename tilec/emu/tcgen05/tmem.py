"""Tensor memory of a block: 128 lanes of 512 columns of 32 bits, its allocations and the order of its operations.

Operations on tensor memory are asynchronous and hardly ordered, even within a thread ("Memory Consistency Model for 5th
generation of TensorCore operations" in the PTX manual). Each cell therefore records the operations that wrote and read
it last. The next access must know that they are complete: by the pairs that the hardware keeps in order, by
`tcgen05.wait`, or by a commit whose mbarrier was waited for; and across threads by the two fences.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.numbers import Array
from tilec.emu.races.order import WARP, WARPGROUP, HappensBeforeOrder
from tilec.emu.races.races import describe_thread
from tilec.emu.tma.asyncops import AsyncEffect
from tilec.support.identity import IdentityKey
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilec.emu.machine.machine import Cta

LANES, COLUMNS = 128, 512
UNIT = 32
"""Columns are allocated in multiples of this."""
_MIN_COLUMNS, _MAX_COLUMNS = 32, 512


@dataclass(slots=True, eq=False)
class TensorOperation:
    """One asynchronous operation on tensor memory. `actors` are the threads that issued it: a warp, or one thread."""

    name: str
    line: int
    step: int
    actors: Array
    clock: Array | None
    """The issuing threads' knowledge of others as of their last `fence::after_thread_sync`."""
    signature: tuple[object, ...] = ()
    """Accumulator, shape and kind of an mma; two with the same signature stay in order."""
    effect: AsyncEffect = field(default_factory=lambda: AsyncEffect(lambda: None))
    ends: list[Callable[[], None]] = field(default_factory=list)
    rows: list[tuple[Cta, Array]] = field(default_factory=list)
    """The rows of shared memory that it reads."""
    done: int = 0
    """The event from which the program may know that it is complete: a wait of its warp, or a commit that arrived."""
    published: int = 0
    """The event of the first `fence::before_thread_sync` or commit after it."""

    @property
    def is_warps(self) -> bool:
        """Return whether this is a load or store, which `tcgen05.wait` of its warp waits for, and not a commit."""
        return self.name in ("tcgen05.ld", "tcgen05.st")


def is_pipelined(earlier: TensorOperation, later: TensorOperation) -> bool:
    """Return whether the hardware keeps two operations of one thread in order without a wait, as two equal mma are."""
    match earlier.name, later.name:
        case ("tcgen05.mma", "tcgen05.mma"):
            return earlier.signature == later.signature
        case ("tcgen05.cp" | "tcgen05.shift", "tcgen05.mma") | ("tcgen05.mma", "tcgen05.shift"):
            return True
        case ("tcgen05.mma" | "tcgen05.cp", "tcgen05.cp"):
            # The manual does not list it, but block-scaled kernels copy the next scales over those of an earlier mma.
            return True
        case ("tcgen05.shift", "tcgen05.cp"):
            return later.signature == ("4x256b",)
    return False


@dataclass(frozen=True, slots=True)
class ColumnAllocation:
    start: int
    columns: int
    line: int


@dataclass(frozen=True, slots=True)
class CellRegion:
    """Cells of tensor memory: two index arrays that broadcast against each other."""

    lanes: Array
    columns: Array


def make_rectangle(lanes: Array, first: int, columns: int) -> CellRegion:
    """Return the cells of `columns` columns from `first` on, in each of these lanes."""
    return CellRegion(lanes[:, None], np.arange(first, first + columns)[None, :])


class TensorMemory:
    """The tensor memory of one block."""

    def __init__(self, cta: Cta, is_fenced: bool) -> None:
        self.cta = cta
        self.is_fenced = is_fenced
        """The kernel uses tcgen05.fence. A kernel without it relies on mbarriers and barriers alone."""
        self.words: Array = np.zeros((LANES, COLUMNS), np.uint32)
        self.is_written: Array = np.zeros((LANES, COLUMNS), np.bool_)
        self.allocations: list[ColumnAllocation] = []
        self.is_free: Array = np.ones(COLUMNS // UNIT, np.bool_)
        self.last_size = _MAX_COLUMNS
        self.is_relinquished = False
        self.version = 0
        """Grows whenever columns are freed."""
        self.entered: dict[str, list[int]] = {}
        """The columns requested by each collective of a pair that a warp of this block has reached."""
        self.tickets: dict[tuple[int, int], int] = {}
        """The collective at which a waiting warp stands, by its first thread and step."""
        self.granted: dict[int, int] = {}
        """The first columns of a pair's allocations, by collective."""
        self.pending: list[TensorOperation] = []
        """Issued operations that have not been waited for, in order."""
        self.finished: dict[int, int] = {}
        """The latest event at which an operation of the matrix unit was complete, by thread."""
        self._unpublished: list[TensorOperation] = []
        self._operations: list[TensorOperation | None] = [None]
        self._numbers: dict[IdentityKey[TensorOperation], int] = {}
        self._writer: Array = np.zeros((LANES, COLUMNS), np.int32)
        self._readers: Array = np.zeros((2, LANES, COLUMNS), np.int32)
        """The last load and the last operation of the matrix unit that read each cell."""
        order = cta.order
        self._known: Array | None = None if order is None else _view_known_events(order).copy()
        """The clocks of the cluster's threads as of their last `fence::after_thread_sync`."""

    # -- allocation ----------------------------------------------------------------------------------------------------

    def check_request(self, columns: int) -> None:
        """Fault unless an allocation of this many columns is legal now, whether or not there is room."""
        if not _MIN_COLUMNS <= columns <= _MAX_COLUMNS or columns & (columns - 1):
            sizes = f"it must be a power of two from {_MIN_COLUMNS} to {_MAX_COLUMNS}"
            raise Fault("bad-tmem-allocation", f"an allocation of {columns} columns: {sizes}")
        if self.is_relinquished:
            raise Fault("bad-tmem-allocation", "an allocation after tcgen05.relinquish_alloc_permit")
        if columns > self.last_size:
            message = f"an allocation of {columns} columns after one of {self.last_size}"
            raise Fault("bad-tmem-allocation", f"{message}: allocations of a block must not grow")

    def allocate(self, start: int, columns: int, line: int) -> None:
        """Take free columns as an allocation by PTX line `line`, and fill them with garbage that counts as
        unwritten."""
        self.allocations.append(ColumnAllocation(start, columns, line))
        self.is_free[start // UNIT : (start + columns) // UNIT] = False
        self.last_size = columns
        self.is_written[:, start : start + columns] = False
        generator = self.cta.launch.random
        noise = 0x7FBADBAD if generator is None else generator.getrandbits(32)
        self.words[:, start : start + columns] = noise

    def find_allocation(self, address: int, columns: int) -> ColumnAllocation:
        """Return the allocation at this address with this many columns; fault if there is none."""
        for allocation in self.allocations:
            if allocation.start == address and allocation.columns == columns:
                return allocation
        live = ", ".join(f"{a.columns} columns at {a.start:#x}" for a in self.allocations) or "nothing"
        message = f"a dealloc of {columns} columns at {address:#x}, where {live} is allocated"
        raise Fault("bad-tmem-allocation", message)

    def free(self, allocation: ColumnAllocation) -> None:
        """Remove an allocation and mark its columns as free; warps that wait for columns look again."""
        self.allocations.remove(allocation)
        self.is_free[allocation.start // UNIT : (allocation.start + allocation.columns) // UNIT] = True
        self.version += 1

    def require_no_leak(self) -> None:
        """Fault if anything is allocated, at the end of the block."""
        if self.allocations:
            leak = self.allocations[0]
            message = f"the block ends with {leak.columns} columns of tensor memory allocated at PTX line {leak.line}"
            raise Fault("tmem-leak", f"{message} (tcgen05.dealloc)", leak.line)

    # -- threads -------------------------------------------------------------------------------------------------------

    def find_clock(self, actors: Array) -> Array | None:
        """Return these threads' joint clock for tensor memory, of their last fence if the kernel has some; None without
        race checks."""
        order = self.cta.order
        if order is None or self._known is None:
            return None
        known: Array = (self._known if self.is_fenced else _view_known_events(order))[actors].max(axis=0)
        return known

    def fence_after(self, actors: Array) -> None:
        """Let what these threads know of others now count for their next operations: a `fence::after_thread_sync`."""
        order = self.cta.order
        if order is not None and self._known is not None:
            self._known[actors] = _view_known_events(order)[actors]

    def fence_before(self, actors: Array) -> None:
        """Mark these threads' operations, loads and stores only if waited for, as published now:
        `fence::before_thread_sync`."""
        event = self.cta.launch.events.tick()
        own_actors = set(actors.tolist())
        remaining = []
        for operation in self._unpublished:
            is_due = not operation.is_warps or operation.done
            if is_due and not own_actors.isdisjoint(operation.actors.tolist()):
                operation.published = operation.published or event
            elif not operation.published:
                remaining.append(operation)
        self._unpublished = remaining

    def fence_before_commit(self, operations: list[TensorOperation]) -> None:
        """Mark the operations that a commit tracks as published, as `fence::before_thread_sync` does."""
        event = self.cta.launch.events.tick()
        for operation in operations:
            operation.published = operation.published or event

    def issue(self, operation: TensorOperation, effect: AsyncEffect) -> None:
        """Add an operation with its effect to the pending ones, and let an adversary run it early, after those before
        it."""
        operation.effect = effect
        self.pending.append(operation)
        if self.is_fenced:
            self._unpublished.append(operation)
        self.cta.launch.effect_scheduler.schedule_effects(AsyncEffect(lambda: self.advance_to(operation)))

    def advance_to(self, last: TensorOperation) -> None:
        """Run the effects of pending operations up to `last`: of the matrix unit all of them, of a warp only its own.
        They stay pending."""
        for operation in self.pending:
            if operation is last or not (operation.is_warps or last.is_warps):
                operation.effect.do()
            if operation is last:
                return

    def complete_operations(self, operations: list[TensorOperation]) -> int:
        """Run and end operations that the program has waited for, and return the latest event of their completions, 0
        for none."""
        order = self.cta.order
        for operation in operations:
            if operation.done:
                continue
            self.advance_to(operation)
            for cta, rows in operation.rows:
                if order is not None and cta.shared.race_detector is not None:
                    engine = order.threads + int(operation.actors[0]) // WARPGROUP
                    cta.shared.race_detector.read_by_engine(engine, rows, operation.step)
            for end in operation.ends:
                end()
            operation.done = self.cta.launch.events.tick(operation.step)
            if not operation.is_warps:
                self.finished[int(operation.actors[0])] = operation.done
        self.pending = [operation for operation in self.pending if not operation.done]
        return max((operation.done for operation in operations), default=0)

    # -- cells ---------------------------------------------------------------------------------------------------------

    def require_allocated(self, region: CellRegion, what: str) -> None:
        """Fault unless these cells lie in allocated columns."""
        columns = region.columns
        first, last = int(columns.min()), int(columns.max())
        lanes = int(region.lanes.max())
        if lanes >= LANES or last >= COLUMNS or self.is_free[np.unique(columns // UNIT)].any():
            live = ", ".join(f"{a.start:#x} to {a.start + a.columns:#x}" for a in self.allocations) or "none"
            message = f"{what} touches columns {first:#x} to {last + 1:#x} of tensor memory, up to lane {lanes};"
            raise Fault("out-of-bounds", f"{message} allocated columns: {live}")

    def record_read(self, operation: TensorOperation, region: CellRegion, what: str) -> None:
        """Record that an operation will read these cells; fault unless they are allocated, written, and ordered after
        writers."""
        self.require_allocated(region, what)
        self._require_order(self._writer, operation, region, f"{what} reads", "wrote")
        self._require_written(region, what)
        self._readers[int(not operation.is_warps), region.lanes, region.columns] = self._number_operation(operation)

    def record_write(self, operation: TensorOperation, region: CellRegion, what: str, *, keeps: bool = False) -> None:
        """Record that an operation will write cells, or with `keeps` add to them; fault unless allocated and after
        earlier ones. With `keeps` they must be written."""
        self.require_finished(operation, region, what)
        if keeps:
            self._require_written(region, what)
        self._writer[region.lanes, region.columns] = self._number_operation(operation)
        self.is_written[region.lanes, region.columns] = True

    def require_finished(self, operation: TensorOperation, region: CellRegion, what: str) -> None:
        """Fault unless cells are allocated and all earlier reads and writes of them come before this operation."""
        self.require_allocated(region, what)
        self._require_order(self._writer, operation, region, f"{what} writes", "wrote")
        for readers in self._readers:
            self._require_order(readers, operation, region, f"{what} writes", "reads")

    def require_peer_knows(self, ending: TensorOperation, region: CellRegion) -> None:
        """Fault if a peer warp that frees these cells, in both blocks, does not know that this block's operations on
        them are over. CUTLASS has each block notify the other before it frees."""
        for table in (self._writer, *self._readers):
            for number in np.unique(table[region.lanes, region.columns]).tolist():
                earlier = self._operations[number]
                if earlier is None or self.find_order_violation(earlier, ending) is None:
                    continue
                what = f"{earlier.name} of PTX line {earlier.line} of the peer block {self.cta.position} may still run"
                message = "tcgen05.dealloc for both blocks of a pair while"
                raise Fault("data-race", f"{message} {what}: both blocks must arrive at a barrier first")

    def _require_written(self, region: CellRegion, what: str) -> None:
        """Fault unless each of these cells has been written, or will be by an operation in flight."""
        written = self.is_written[region.lanes, region.columns]
        if not written.all():
            cell = self._describe_cell(region, ~written)
            raise Fault("unwritten-read", f"{what} reads {cell}, which was never written")

    def _number_operation(self, operation: TensorOperation) -> int:
        """Return the number that stands for an operation in the tables of writers and readers, a new one at the first
        call."""
        key = IdentityKey(operation)
        if key not in self._numbers:
            self._numbers[key] = len(self._operations)
            self._operations.append(operation)
        return self._numbers[key]

    def _require_order(self, table: Array, operation: TensorOperation, region: CellRegion, verb: str, did: str) -> None:
        """Fault unless the operations that a table records for these cells are ordered before this one."""
        numbers = table[region.lanes, region.columns]
        first = numbers.flat[0]
        others: Iterable[int] = (int(first),) if (numbers == first).all() else np.unique(numbers).tolist()
        for number in others:
            earlier = self._operations[number]
            if earlier is None or earlier is operation:
                continue
            complaint = self.find_order_violation(earlier, operation)
            if complaint is not None:
                kind, reason = complaint
                where = self._describe_cell(region, numbers == number)
                if kind == "unarrived":
                    kind = "unarrived-read" if verb.endswith("reads") else "unarrived-write"
                raise Fault(kind, f"{verb} {where}, which {earlier.name} of PTX line {earlier.line} {did}, {reason}")

    def find_order_violation(self, earlier: TensorOperation, later: TensorOperation) -> tuple[str, str] | None:
        """Return a kind of fault and a reason if `later` is not ordered after the completion of `earlier`, or None."""
        if not earlier.is_warps:
            return self._find_commit_violation(earlier, later)
        wait = "tcgen05.wait::ld" if earlier.name == "tcgen05.ld" else "tcgen05.wait::st"
        if not earlier.done:
            return "missing-tcgen05-wait", f"and no {wait} has waited for it"
        warp = int(earlier.actors[0]) // WARP
        if warp in (later.actors // WARP).tolist() or later.clock is None:
            return None
        is_fenced = self.is_fenced and later.name != "tcgen05.dealloc"
        lanes = slice(warp * WARP, warp * WARP + WARP)
        known = int(later.clock[lanes].max())
        if (earlier.published or not is_fenced) and known >= max(earlier.done, earlier.published):
            return None
        return self._describe_missing_sync(earlier, later, lanes)

    def _find_commit_violation(self, earlier: TensorOperation, later: TensorOperation) -> tuple[str, str] | None:
        """Return a kind of fault and a reason if the end of the matrix unit's `earlier` is not known to `later`, or
        None. Operations that the hardware keeps in order need no commit."""
        actor = int(earlier.actors[0])
        if is_pipelined(earlier, later):
            if actor in later.actors.tolist() or later.clock is None:
                return None
            event = earlier.published if self.is_fenced else earlier.done
            if event and int(later.clock[actor]) >= event:
                return None
        if not earlier.done:
            return "unarrived", "before a tcgen05.commit for it was waited for"
        if later.clock is None or self.cta.order is None:
            return None
        engine = self.cta.order.threads + actor // WARPGROUP
        if int(later.clock[engine]) >= earlier.done:
            return None
        return self._describe_missing_sync(earlier, later, slice(engine, engine + 1))

    def _describe_missing_sync(
        self, earlier: TensorOperation, later: TensorOperation, columns: slice
    ) -> tuple[str, str]:
        """Return the kind of fault, and in words the barrier or fence that is missing after a complete operation."""
        order = self.cta.order
        assert order is not None
        who = describe_thread(order, int(later.actors[0]))
        known = int(order.know[later.actors][:, columns].max())
        if known < earlier.done:
            return "data-race", f"and nothing orders {who} after its completion"
        if earlier.is_warps and not earlier.done <= earlier.published <= known:
            return "missing-tcgen05-fence", "with no tcgen05.fence::before_thread_sync before the two synchronise"
        return "missing-tcgen05-fence", f"with no tcgen05.fence::after_thread_sync by {who} after that"

    def _describe_cell(self, region: CellRegion, chosen: Array) -> str:
        """Return the lane and column of the first chosen cell of a region, in words."""
        index = tuple(np.argwhere(chosen)[0])
        lane, column = (int(part[index]) for part in np.broadcast_arrays(region.lanes, region.columns))
        return f"lane {lane}, column {column:#x} of tensor memory"


def _view_known_events(order: HappensBeforeOrder) -> Array:
    """Return the columns of the clocks for threads and matrix units, without mbarriers."""
    known: Array = order.know[:, : order.threads + order.engines]
    return known


def start_operation(
    cta: Cta, memory: TensorMemory, name: str, line: int, actors: Array, signature: tuple[object, ...] = ()
) -> TensorOperation:
    """Return a new operation of the running step, with what its threads know now; it is not yet issued."""
    return TensorOperation(name, line, cta.launch.events.pc, actors, memory.find_clock(actors), signature)


def get_tensor_memory(cta: Cta) -> TensorMemory:
    """Return the block's tensor memory, which the first call makes."""
    state = cta.asynchronous
    if state.tensor is None:
        is_fenced = any(step.stem.startswith("tcgen05.fence") for step in cta.program.steps)
        state.tensor = TensorMemory(cta, is_fenced)
    return state.tensor
