"""Asynchronous operations in flight in a block, and the decoders of cp.async.

A copy owns its destination from its issue until a wait has seen it arrive, and no access is allowed in between. So a
kernel that reads too early always faults, though hardware would be right most of the time.

Effects may come anywhere between the issue of an operation and the wait for it. Without an adversary each comes as late
as the kernel's waits allow, which exposes a source that is reused too early. An adversary draws for each: at once, as
late as possible, or at some step in between.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from tilec.emu.barriers import mbarrier
from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.machine.steps import RegisterIndex, Step
from tilec.emu.numbers import Array
from tilec.ptx.module import Reg
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Group, Threads
    from tilec.emu.tcgen05.tmem import TensorMemory

T = TypeVar("T")


class AsyncEffect:
    """An effect that happens once: an asynchronous operation reads its sources or writes its destination."""

    __slots__ = ("_act", "is_done")

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.is_done = False

    def do(self) -> None:
        """Run the effect, unless it has run before."""
        if not self.is_done:
            self.is_done = True
            self._act()


class EffectScheduler:
    """Schedules the effects of asynchronous operations in one launch."""

    def __init__(self, generator: random.Random | None) -> None:
        self._generator = generator
        self._drifting: list[AsyncEffect] = []

    def schedule_effects(self, *effects: AsyncEffect) -> None:
        """Run each effect at once, queue it, or leave it to the wait, as an adversary draws; without one leave all to
        the wait."""
        if self._generator is None:
            return
        for effect in effects:
            choice = self._generator.randrange(3)
            if choice == 0:
                effect.do()
            elif choice == 1:
                self._drifting.append(effect)

    def run_some_effects(self) -> None:
        """Run up to two of the queued effects, drawn by chance; do nothing without an adversary."""
        if self._generator is None or not self._drifting:
            return
        self._drifting = [effect for effect in self._drifting if not effect.is_done]
        for _ in range(self._generator.randrange(3)):
            if self._drifting:
                self._drifting.pop(self._generator.randrange(len(self._drifting))).do()

    def drop_effects(self) -> None:
        """Forget the queued effects of a cluster that has ended; they were waited for or reported."""
        self._drifting = []


@dataclass(slots=True, eq=False)
class ThreadCopies:
    """One `cp.async` of many threads. Arrays are over all threads of the block; `active` marks pending copies."""

    line: int
    pc: int
    width: int
    active: Array
    destination: Array
    source: Array
    source_bytes: Array
    batch: Array
    sequence: int
    is_written: Array
    """Marks copies whose bytes are written, although no thread may read them yet."""


@dataclass(slots=True)
class PendingGroups(Generic[T]):
    """A thread's bulk stores or a warpgroup's wgmma: the uncommitted, and the committed groups, oldest first."""

    open: list[T] = field(default_factory=list)
    committed: list[list[T]] = field(default_factory=list)

    def commit(self) -> None:
        """Move the open operations to a new committed group."""
        self.committed.append(self.open)
        self.open = []

    def list_all(self) -> list[T]:
        """Return the operations in flight, oldest first."""
        return [operation for batch in (*self.committed, self.open) for operation in batch]

    def list_due(self, left: int) -> list[list[T]]:
        """Return the committed groups that end where the latest `left` may stay in flight."""
        return self.committed[: max(len(self.committed) - left, 0)]


@dataclass(slots=True, eq=False)
class BulkStore:
    """A copy out of shared memory: `read` takes the bytes, `write` writes them. `release` ends the read of the source
    when the program has waited for it."""

    line: int
    read: AsyncEffect
    write: AsyncEffect
    release: Callable[[], None]
    is_read: bool = False
    is_written: bool = False
    arrive: Callable[[], None] = lambda: None
    """Tells the race detector that the store has been waited for."""

    def finish_read(self) -> None:
        """Take the bytes from shared memory and release the source, unless that has happened."""
        if not self.is_read:
            self.is_read = True
            self.read.do()
            self.release()

    def finish_write(self) -> None:
        """Take and write the bytes, as far as that has not happened, and tell the race detector that the store is
        over."""
        self.finish_read()
        self.write.do()
        self.arrive()
        self.is_written = True


class RegisterOwner:
    """A pending operation that owns registers: an issued `wgmma`, or a `tcgen05.ld`."""

    line: int
    accumulators: frozenset[RegisterIndex]
    inputs: frozenset[RegisterIndex]
    size = 128
    """The threads of its unit: a warpgroup or a warp."""

    def check_access(self, step: Step) -> None:
        """Raise the fault of an ordinary instruction that accesses registers of a pending wgmma."""
        name = "an accumulator" if self.accumulators & step.registers else "an A register"
        message = f"touches {name} of the wgmma of PTX line {self.line}"
        raise Fault("unarrived-read", f"{message}, which has not been waited for (wgmma.wait_group)")


class AsyncState:
    """The operations in flight in one block."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.barriers: dict[int, mbarrier.MBarrier] = {}
        self.overwritten: dict[int, str] = {}
        """Addresses of mbarriers that data has overwritten, with the step that did it."""
        self.copies: list[ThreadCopies] = []
        self.committed = np.zeros(cta.thread_count, np.int64)
        self.sequence = 0
        self.bulk: defaultdict[int, PendingGroups[BulkStore]] = defaultdict(PendingGroups)
        self.regions: list[tuple[Array, int, str]] = []
        """The shared rows that bulk copies own, with the line that issued them."""
        self.readers: list[tuple[Array, int, str]] = []
        """The shared rows that asynchronous operations may still read, with the line that issued them."""
        self.matrix: defaultdict[int, PendingGroups[Any]] = defaultdict(PendingGroups)
        """The pending `wgmma`, by warpgroup."""
        self.owned: list[tuple[int, RegisterOwner]] = []
        self.owned_registers: set[RegisterIndex] = set()
        self.unfenced_registers: dict[int, set[RegisterIndex]] = {}
        """Matrix registers that ordinary instructions wrote since the last `wgmma.fence`, by warpgroup."""
        self.tensor: TensorMemory | None = None
        shared = cta.shared
        shared.explain, shared.explain_reader = self.explain, self.explain_reader
        shared.end_barriers = partial(mbarrier.end_overwritten_barriers, cta)

    # -- faults --------------------------------------------------------------------------------------------------------

    def explain(self, address: int) -> str:
        """Return the copy in flight that owns a shared address, as the end of a sentence; "" if none does."""
        for copies in self.copies:
            inside = copies.active & (copies.destination <= address) & (address < copies.destination + copies.width)
            if inside.any():
                return f" before cp.async of PTX line {copies.line} was waited for"
        for rows, line, what in self.regions:
            if (rows == (address - self.cta.shared.base) // 16).any():
                return f" before {what} of PTX line {line} was waited for"
        return ""

    def explain_reader(self, row: int) -> str:
        """Return the name and PTX line of the operation that may still read a 16-byte shared row, or general words if
        none does."""
        for rows, line, what in self.readers:
            if (rows == row).any():
                return f"{what} of PTX line {line}"
        return "an asynchronous operation"

    def begin_reading(self, rows: Array, line: int, what: str) -> Callable[[], None]:
        """Record that an operation reads these shared rows, and return the function that ends the read."""
        region = (rows, line, what)
        self.readers.append(region)
        self.cta.shared.begin_reading(rows)

        def end_reading() -> None:
            """Forget the read, so that the rows may be written."""
            self.readers[:] = [other for other in self.readers if other is not region]
            self.cta.shared.end_reading(rows)

        return end_reading

    def own_registers(self, number: int, owner: RegisterOwner) -> None:
        """Record that a pending operation owns its registers in the warpgroup, or warp, with this number."""
        self.owned.append((number, owner))
        self.owned_registers |= owner.accumulators | owner.inputs

    def release_registers(self, finished: Sequence[RegisterOwner]) -> None:
        """Take registers back from owners that the program has waited for."""
        self.owned = [(number, owner) for number, owner in self.owned if owner not in finished]
        self.owned_registers = set().union(*(owner.accumulators | owner.inputs for _, owner in self.owned))

    def require_registers(self, step: Step, group: Group) -> None:
        """Let pending owners check an instruction that accesses their registers: a wgmma faults, a tcgen05.ld
        completes. Other wgmma are exempt."""
        if step.stem in ("wgmma.mma_async", "wgmma.mma_async.sp"):
            return
        for number, owner in list(self.owned):
            taken = not step.registers.isdisjoint(owner.accumulators | owner.inputs)
            if taken and (group.indices // owner.size == number).any():
                owner.check_access(step)

    def note_unfenced_registers(self, step: Step, indices: Array) -> None:
        """Record, for each warpgroup that has run a wgmma.fence, that an ordinary instruction has written wgmma
        registers."""
        for warpgroup in np.unique(indices // 128).tolist():
            if warpgroup in self.unfenced_registers:
                self.unfenced_registers[warpgroup] |= step.written_matrix_registers

    def check_at_end(self) -> None:
        """Fault if the block ends with a bulk copy that has not arrived, leaked tensor memory, or a bulk store with
        unread source. Writes of bulk stores are kept for the end of the grid."""
        for barrier in self.barriers.values():
            barrier.try_complete_phase()
            if barrier.copies:
                copy = barrier.copies[0]
                message = f"the block ends before the bulk copy of PTX line {copy.line} has arrived, which the mbarrier"
                raise Fault("exit-before-arrival", f"{message} at {barrier.address:#x} reports", copy.line)
        if self.tensor is not None:
            self.tensor.require_no_leak()
        for thread, groups in sorted(self.bulk.items()):
            stores = [*groups.open, *(store for batch in groups.committed for store in batch)]
            for store in stores:
                if not store.is_read:
                    message = f"thread {thread} ends before its bulk store of PTX line {store.line} has read its source"
                    raise Fault("exit-before-read", f"{message} (cp.async.bulk.wait_group.read)", store.line)
                if not store.is_written:
                    store.arrive()
                    self.cta.launch.late_stores.append(store.write.do)

    # -- cp.async ------------------------------------------------------------------------------------------------------

    def finish_copies(self, limit: Array, sequence: int = 1 << 62) -> None:
        """Complete each thread's `cp.async` of batches below its `limit` that are older than `sequence`, so that it may
        read them."""
        remaining = []
        for copies in self.copies:
            if copies.sequence < sequence:
                due = copies.active & (copies.batch < limit)
                if due.any():
                    self.copy_bytes(copies, due)
                    self.cta.shared.arrive(copies.destination[due], copies.width, self.cta.actors[due], copies.pc)
                    copies.active &= ~due
            if copies.active.any():
                remaining.append(copies)
        self.copies = remaining

    def copy_bytes(self, copies: ThreadCopies, due: Array) -> None:
        """Copy the bytes of those threads' `cp.async` that are in `due` and not yet written."""
        due = due & ~copies.is_written
        if not due.any():
            return
        copies.is_written |= due
        width = copies.width
        source, count = copies.source[due], copies.source_bytes[due]
        data = np.zeros((len(source), width), np.uint8)
        whole = count == width
        memory = self.cta.launch.memory
        if whole.any():
            data[whole] = memory.load(source[whole], width).reshape(int(whole.sum()), -1).view(np.uint8)
        for index in np.flatnonzero(~whole & (count > 0)).tolist():
            addresses = source[index] + np.arange(count[index])
            data[index, : count[index]] = memory.load(addresses, 1)
        self.cta.shared.fill(copies.destination[due], width, data)

    # -- mbarrier ------------------------------------------------------------------------------------------------------

    def find_barrier(self, address: int) -> mbarrier.MBarrier:
        """Return the mbarrier at an address of this block; fault if there is none, or data has overwritten it."""
        found = self.barriers.get(address)
        if found is None:
            if address in self.overwritten:
                message = f"the mbarrier at shared address {address:#x} is used, and {self.overwritten[address]}"
                raise Fault("barrier-overwrite", f"{message} has written data over it")
            raise Fault("bad-barrier", f"no mbarrier was initialised at shared address {address:#x}")
        return found


# -- cp.async ----------------------------------------------------------------------------------------------------------


@register_decoder("cp.async", accepts="ca shared shared::cta global")
def _decode_cp_async(form: Form) -> None:
    """Decode `cp.async` into a step that starts a copy for each thread; fault unless it is of 4, 8 or 16 bytes. A byte
    count of the source is optional. `.cg` takes 16 bytes only."""
    destination, source = form.build_address(form.operands[0]), form.build_address(form.operands[1])
    width = form.parse_constant(form.operands[2])
    if width not in (4, 8, 16) or (form.has("cg") and width != 16):
        raise form.unsupported(f"a copy of {width} bytes")
    # After the size comes the number of bytes to read, or, as the last operand, a cache policy.
    rest = form.operands[3:]
    has_policy = form.has("L2::cache_hint")
    sizes = rest[: len(rest) - has_policy]
    # A predicate says whether to ignore the source and fill with zeros.
    ignores = bool(sizes) and isinstance(sizes[0], Reg) and form.find_register(sizes[0])[0] == "pred"
    size_slot = form.read(sizes[0], "pred" if ignores else "u32") if sizes else -1

    @form.set_run
    def run_cp_async(cta: Cta, threads: Threads) -> None:
        """Claim each thread's destination, check its source, and add the copies to those in flight; fault if a check
        fails."""
        state = cta.asynchronous
        to, source_at = destination(cta, threads), source(cta, threads)
        count = np.full(len(to), width) if size_slot < 0 else cta.views[size_slot][threads].astype(np.int64)
        if ignores:
            count = np.where(count, 0, width)
        if (count > width).any():
            raise Fault("out-of-bounds", f"cp.async reads {int(count.max())} bytes for a copy of {width}")
        actors = cta.actors[threads]
        cta.shared.claim(to, width, actors)
        read = source_at[count > 0]
        if len(read):
            cta.launch.memory.load(read, width if size_slot < 0 else 1, actors[count > 0])
            if size_slot >= 0 and (read & (width - 1)).any():
                raise Fault("misaligned", f"a source address of cp.async is not a multiple of {width}")
        active = np.zeros(cta.thread_count, np.bool_)
        active[threads] = True
        destinations, sources, counts = (np.zeros(cta.thread_count, np.int64) for _ in range(3))
        destinations[threads], sources[threads], counts[threads] = to, source_at, count
        state.sequence += 1
        batch = state.committed.copy()
        written = np.zeros(cta.thread_count, np.bool_)
        layout = (form.line, cta.launch.events.pc, width)
        copies = ThreadCopies(*layout, active, destinations, sources, counts, batch, state.sequence, written)
        state.copies.append(copies)
        cta.launch.effect_scheduler.schedule_effects(AsyncEffect(lambda: state.copy_bytes(copies, copies.active)))


@register_decoder("cp.async.commit_group")
def _decode_cp_async_commit(form: Form) -> None:
    """Decode `cp.async.commit_group` into a step that closes each thread's batch of copies."""

    @form.set_run
    def run_cp_async_commit(cta: Cta, threads: Threads) -> None:
        cta.asynchronous.committed[threads] += 1


@register_decoder("cp.async.wait_group", "cp.async.wait_all")
def _decode_cp_async_wait(form: Form) -> None:
    """Decode `cp.async.wait_group` and `wait_all` into a step that completes all but the latest groups of copies."""
    groups_left = form.parse_constant(form.operands[0]) if form.operands else None

    @form.set_run
    def run_cp_async_wait(cta: Cta, threads: Threads) -> None:
        """Complete these threads' copies, except those of the latest groups that may stay in flight."""
        state = cta.asynchronous
        limit = np.full(cta.thread_count, -1, np.int64)
        limit[threads] = 1 << 60 if groups_left is None else state.committed[threads] - groups_left
        state.finish_copies(limit)


@register_decoder("cp.async.mbarrier.arrive", accepts="shared shared::cta b64")
def _decode_cp_async_arrive(form: Form) -> None:
    """Decode `cp.async.mbarrier.arrive` into a step whose arrivals wait for the threads' earlier copies."""
    pointer = form.build_address(form.operands[0])
    is_counted = form.has("noinc")

    @form.set_run
    def run_cp_async_arrive(cta: Cta, threads: Threads) -> None:
        """Add to each mbarrier an arrival that completes the thread's earlier copies; without `.noinc` one more is
        awaited."""
        state = cta.asynchronous
        members = cta.thread_ids[threads]
        for address, chosen in mbarrier.group_by_address(pointer(cta, threads)):
            actors = cta.actors[threads][chosen]
            barrier = mbarrier.find_barrier(cta, address, actors)
            limit = np.full(cta.thread_count, -1, np.int64)
            limit[members[chosen]] = 1 << 60
            count = int(chosen.sum())
            if not is_counted:
                barrier.pending += count
            finish_earlier_copies = partial(state.finish_copies, limit, state.sequence + 1)
            barrier.deferred.append(mbarrier.DeferredArrivals(count, actors, finish_earlier_copies))
            barrier.version += 1
