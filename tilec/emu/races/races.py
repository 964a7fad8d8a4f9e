"""Data races: for each granule of a memory, the last write and the last read by each warp.

Two accesses race when one of them writes, at least one is not strong (atomic, volatile, relaxed, acquire, release), and
no chain of synchronisation orders them. Races are found in whatever order the emulator runs the threads. Several
threads that write the same value do not race.

A grid that begins early races with all of the previous grid, which may write any global memory until it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.numbers import TYPES, Array
from tilec.emu.races import flags
from tilec.emu.races.order import FOREVER, WARP, WARPGROUP, HappensBeforeOrder
from tilec.ptx.module import Imm

if TYPE_CHECKING:
    from tilec.emu.machine.steps import Step
    from tilec.emu.memory.memory import Memory


_STRONG_BIT = 1 << 24
"""Marks the actor of a strong write."""
_ASYNC_BIT = 1 << 25
"""Marks the actor of a write through the asynchronous proxy."""
_ACTOR_MASK = _STRONG_BIT - 1
_PENDING_TIME = FOREVER - 1
"""The time of a bulk store that no thread has waited for: later than all known events."""
_SEVERAL_LANES = 255
"""Several lanes read, in place of a lane."""
_STRONG_WORDS = frozenset(("volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio"))
_ACCESSES = frozenset(("ld", "st", "atom", "red", "ldu", "multimem", "wmma", "tensormap"))
_ORDERING_WORDS = frozenset(("volatile", "acquire", "release", "acq_rel", "sc"))


def is_strong_access(step: Step) -> bool:
    """Return whether a step is atomic or of a strong memory order, so that such accesses never race with each other."""
    words = step.instruction.opcode.split(".")
    return step.stem.startswith(("atom", "red", "multimem")) or not _STRONG_WORDS.isdisjoint(words)


def uses_memory_flags(steps: Sequence[Step]) -> bool:
    """Return whether threads may synchronise through memory: by a fence or an ordering access."""
    return any(step.stem in ("fence", "membar") or _is_ordering_access(step) for step in steps)


def _is_ordering_access(step: Step) -> bool:
    """Return whether a step is a load, store or atomic whose order (acquire, release, volatile, sc) synchronises
    threads."""
    words = step.instruction.opcode.split(".")
    return step.stem.startswith(("ld", "st", "atom", "red")) and not _ORDERING_WORDS.isdisjoint(words)


def find_granule(steps: Sequence[Step], space: str) -> int:
    """Return the width in bytes of the narrowest access to "shared" or "global" memory, at most 16: the unit of race
    detection."""
    narrowest = 16
    for step in steps:
        words = step.instruction.opcode.split(".")
        if step.stem == "cp.async" and space == "shared":
            size = step.instruction.operands[2]
            narrowest = min(narrowest, size.value if isinstance(size, Imm) else 4)
        if words[0] not in _ACCESSES and step.stem != "tcgen05.alloc":
            continue
        spaces = [word.partition("::")[0] for word in words]
        if space in spaces or not {"shared", "global", "param", "local", "const"}.intersection(spaces):
            bits = [TYPES[word].bits for word in words if word in TYPES]
            narrowest = min(narrowest, *(max(width // 8, 1) for width in bits or [8]))
    return narrowest


class StepAccesses:
    """The strength, order and granule of the accesses of a kernel's steps."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.strong = [is_strong_access(step) for step in steps]
        self.flags = [flags.parse_access_order(step.stem, step.instruction.opcode) for step in steps]
        self.has_flags = uses_memory_flags(steps)
        self.has_narrow = any(strong and one.is_narrow for strong, one in zip(self.strong, self.flags, strict=True))
        self.granules = {space: find_granule(steps, space) for space in ("shared", "global")}


class RaceDetector:
    """Detects races in one memory. For global memory, `order` changes with the running cluster."""

    def __init__(self, memory: Memory, order: HappensBeforeOrder, accesses: StepAccesses, keeps_readers: bool) -> None:
        self.memory = memory
        self.order = order
        self.steps = accesses.steps
        self.strong = accesses.strong
        self.access = accesses.flags
        self.has_flags = accesses.has_flags
        self.granule = size = accesses.granules[memory.name]
        self._shift = size.bit_length() - 1
        count = memory.size // size
        self._rows = order.warps + order.engines if keeps_readers else 0
        self._write_time: Array = np.zeros(count, np.int32)
        self._write_actor: Array = np.zeros(count, np.int32)
        self._read_last: Array = np.zeros(count, np.int32)
        self._reader: Array = np.zeros(0 if keeps_readers else count, np.int32)
        self._read_time: Array = np.zeros((max(self._rows, 1), count if keeps_readers else 0), np.int32)
        self._read_lane: Array = np.zeros(self._read_time.shape, np.uint8)
        self._bulk_stores: list[tuple[int, int]] = []
        """The step and the thread of each bulk store. A pending write has its number, counted down from the largest
        actor, as its actor."""
        self._overwritten: dict[int, dict[int, int]] = {}
        """For each bulk store: the time of the write to each granule that it overwrites."""
        self._crowds: list[frozenset[int]] = []
        self._crowd_codes: dict[frozenset[int], int] = {}
        self._narrow_blocks: Array | None = None
        if accesses.has_narrow and not memory.is_shared:
            self._narrow_blocks, self._strong_blocks = np.zeros(count, np.int32), np.zeros(count, np.int32)

    def _find_granules(self, index: Array, width: int) -> Array:
        """Return the granule numbers, [access, granule], of accesses of `width` bytes at addresses `index * width`."""
        per_access = width >> self._shift
        if per_access <= 1:
            return (index * width >> self._shift)[:, None]
        return index[:, None] * per_access + np.arange(per_access)

    # -- ordinary accesses ---------------------------------------------------------------------------------------------

    def read(self, actors: Array, index: Array, width: int, *, is_collective: bool = False) -> None:
        """Report a race of these threads' reads with earlier writes, and record them; a strong read also observes
        flags. A collective read is the warp's, and no lane's in particular."""
        log, order = self.order.log, self.order
        self._require_grid(actors, "reads")
        is_strong = self.strong[log.pc]
        granules = self._find_granules(index, width)
        if is_strong and self.has_flags:
            order.flags.observe_reads(self.access[log.pc], actors, self.memory.name, index * width)
        if is_strong and self._narrow_blocks is not None:
            self._check_scopes(actors, granules, is_write=False)
        times = self._write_time[granules]
        if np.count_nonzero(times > order.floor[actors][:, None]):  # quicker than any() on short arrays
            self._check_writes(actors, granules, times, is_strong, "reads")
        if is_strong:
            return
        event = log.tick()
        self._read_last[granules] = event
        if not self._rows:
            self._reader[granules] = actors[:, None]
            return
        warps = (actors // WARP)[:, None]
        lanes = actors % WARP
        if is_collective:
            self._read_lane[warps, granules] = _SEVERAL_LANES
        else:
            self._read_lane[warps, granules] = lanes[:, None]
            crowded = self._read_lane[warps, granules] != lanes[:, None]
            if np.count_nonzero(crowded):
                rows = np.broadcast_to(warps, granules.shape)
                self._read_lane[rows[crowded], granules[crowded]] = _SEVERAL_LANES
        self._read_time[warps, granules] = event

    def write(self, actors: Array, index: Array, width: int, values: Array, old: Array) -> None:
        """Report races of a write of `values` over `old`, before it happens, and record it; a strong one publishes
        flags."""
        log = self.order.log
        self._require_grid(actors, "writes")
        is_strong = self.strong[log.pc]
        granules = self._find_granules(index, width)
        benign, times, writers = None, granules, granules
        if not is_strong:
            same = (values == old) if values.ndim == 1 else (values == old).all(axis=-1)
            times, writers = self._write_time[granules], self._write_actor[granules]
            benign = self._check_before_write(actors, granules, times, same, "writes")
        elif self.has_flags:
            self.order.flags.publish_writes(self.access[log.pc], actors, self.memory.name, index * width)
        if is_strong and self._narrow_blocks is not None:
            self._check_scopes(actors, granules, is_write=True)
        self._write_time[granules] = log.tick()
        self._write_actor[granules] = (actors | _STRONG_BIT if is_strong else actors)[:, None]
        if is_strong:
            return
        winners = self._write_actor[granules[:, 0]]
        crowded = winners != actors
        if np.count_nonzero(crowded):
            self._check_same_step_writes(actors, granules, index * width, values, winners, crowded)
        if benign is not None and benign.any():
            # Two writes of one value: a thread that knows either one may read it.
            for access, part in np.argwhere(benign).tolist():
                place = granules[access, part]
                warps = self._warps_of(int(writers[access, part])) | self._warps_of(int(self._write_actor[place]))
                self._write_actor[place] = self._find_crowd_code(warps)
                self._write_time[place] = times[access, part]

    def _check_same_step_writes(
        self, actors: Array, granules: Array, offsets: Array, values: Array, winners: Array, crowded: Array
    ) -> None:
        """Report a race if threads write different values to one address in one step; otherwise attribute the write to
        all their warps."""
        position = np.searchsorted(actors, winners)
        differs = values != values[position]
        if values.ndim > 1:
            differs = differs.any(axis=-1)
        if differs.any():
            place = int(np.flatnonzero(differs)[0])
            pair = f"{self._describe_actor(int(actors[place]))} and {self._describe_actor(int(winners[place]))}"
            address = self.memory.base + int(offsets[place])
            message = f"{pair} write different values to {self.memory.name} address {address:#x} at the same time"
            self.memory.report_fault(Fault("data-race", message))
        first = granules[:, 0]
        groups: dict[int, set[int]] = {}
        for actor, place in zip(actors.tolist(), first.tolist(), strict=True):
            groups.setdefault(place, set()).add(actor // WARP)
        codes = [self._find_crowd_code(frozenset(groups[place])) for place in first[crowded].tolist()]
        self._write_actor[granules[crowded]] = np.array(codes)[:, None]

    def _find_crowd_code(self, warps: frozenset[int]) -> int:
        """Return the negative number that stands for any lane of these warps as the writer, the same at each call."""
        code = self._crowd_codes.get(warps)
        if code is None:
            code = self._crowd_codes[warps] = -1 - len(self._crowds)
            self._crowds.append(warps)
        return code

    def _warps_of(self, writer: int) -> frozenset[int]:
        """Return the warps that a recorded writer stands for: one of a thread, several of a crowd."""
        return self._crowds[-1 - writer] if writer < 0 else frozenset(((writer & _ACTOR_MASK) // WARP,))

    # -- asynchronous accesses -----------------------------------------------------------------------------------------

    def claim(self, actors: Array, index: Array, width: int) -> None:
        """Report a race of an asynchronous copy into these addresses with earlier accesses that the actors do not
        know."""
        granules = self._find_granules(index, width)
        differs = np.zeros(len(index), np.bool_)
        self._check_before_write(actors, granules, self._write_time[granules], differs, "copies over")

    def record_arrival(self, actors: Array, index: Array, width: int, pc: int) -> None:
        """Record the bytes of a finished copy of step `pc` as written by these actors, threads or the column of an
        mbarrier."""
        granules = self._find_granules(index, width)
        self._write_time[granules] = self.order.log.tick(pc)
        self._write_actor[granules] = actors[:, None]

    def require_known(self, clock: Array, index: Array, who: str) -> None:
        """Report a race unless `clock` knows the last writes to 16-byte rows that an asynchronous operation reads.
        `who` names the operation."""
        self._require_known(clock, self._find_granules(index.reshape(-1), 16), who)

    def _require_known(self, clock: Array, granules: Array, who: str) -> None:
        """Report a race unless `clock` knows the last writes to granules that `who`, an asynchronous operation,
        reads."""
        times, writers = self._write_time[granules], self._write_actor[granules]
        known = self._known_by(clock, writers)
        late = times > known
        if late.any():
            self.memory.report_fault(self._build_conflict_fault(who, "reads", granules, late, times, writers, "wrote"))

    def read_by_engine(self, actor: int, index: Array, pc: int) -> None:
        """Record a finished asynchronous read of 16-byte rows, known to `actor`: a thread or a warpgroup's matrix
        unit."""
        granules = self._find_granules(index.reshape(-1), 16)
        event = self.order.log.tick(pc)
        self._read_last[granules] = event
        if self._rows:
            order = self.order
            row = actor // WARP if actor < order.threads else order.warps + actor - order.threads
            self._read_time[row, granules] = event
            self._read_lane[row, granules] = actor % WARP if actor < order.threads else _SEVERAL_LANES

    def find_fenced(self, actors: Array, offsets: Array) -> Array:
        """Return, for each byte, whether these threads know its last write, so that their fence covers it."""
        places = offsets >> self._shift
        clock = self.order.clock_of_any(actors)
        known = self._known_by(clock, self._write_actor[places][:, None])[:, 0]
        covered: Array = self._write_time[places] <= known
        return covered

    # -- bulk copies and global memory ---------------------------------------------------------------------------------

    def start_bulk_load(self, actor: int, places: Array, column: int, what: str) -> None:
        """Report races of a bulk copy that reads these granules, fault if they are unfenced, and record it until its
        mbarrier reports."""
        order = self.order
        self._require_grid(np.array([actor]), "reads")
        if (self._write_time[places] > order.start).any():
            granules, clock = places[:, None], order.clock_of_any(np.array([actor]))
            self._require_known(clock, granules, f"{what} of {self._describe_actor(actor)}")
            self._require_fenced(granules, what)
        self._read_last[places] = order.log.tick()
        self._reader[places] = column

    def start_bulk_store(self, actor: int, places: Array, what: str, *, is_reduction: bool) -> Callable[[], None]:
        """Report races of a bulk store to these granules and record it as pending; return the function that completes
        it. Call that when the program has waited for the store; until then no thread knows of it."""
        order, granules = self.order, places[:, None]
        self._require_grid(np.array([actor]), "writes")
        who = np.full(len(places), actor)
        if is_reduction:
            if (self._write_time[places] > order.start).any():
                self._check_writes(who, granules, self._write_time[granules], True, "reduces")
                self._require_fenced(granules, what)
            self._check_reads(who, granules, "reduces")
        else:
            differs = np.zeros(len(places), np.bool_)
            self._check_before_write(who, granules, self._write_time[granules], differs, "stores over")
        mark = _ASYNC_BIT | (_STRONG_BIT if is_reduction else 0)
        pending = mark | (_ACTOR_MASK - len(self._bulk_stores))
        self._bulk_stores.append((order.log.pc, actor))
        if self.memory.is_divided and (before := self._write_time[places]).any():
            self._overwritten[len(self._bulk_stores) - 1] = dict(zip(places.tolist(), before.tolist(), strict=True))
        self._write_time[places] = _PENDING_TIME
        self._write_actor[places] = pending
        step = order.log.pc

        def finish_store() -> None:
            """Record the store as complete now, by its thread, where nothing has overwritten it."""
            own_places = places[self._write_actor[places] == pending]
            self._write_time[own_places] = order.log.tick(step)
            self._write_actor[own_places] = mark | actor

        return finish_store

    def _require_fenced(self, granules: Array, what: str) -> None:
        """Fault if the last write of a granule, which the asynchronous proxy is about to read, is generic and
        unfenced."""
        times, writers = self._write_time[granules], self._write_actor[granules]
        order = self.order
        known = self._known_by(self._extend_clock(order.fenced), writers)
        bare = (times > known) & ((writers < 0) | (writers & _ASYNC_BIT == 0))
        if bare.any():
            access, part = np.argwhere(bare)[0].tolist()
            step = self._find_step(int(times[access, part]))
            message = f"{what} reads {self._describe_address(granules[access, part])}, written at {step.description}"
            raise Fault("missing-proxy-fence", f"{message} with no fence.proxy.async (.global) in between")

    def _require_grid(self, actors: Array, verb: str) -> None:
        """Fault if one of these threads accesses global memory before it has waited for a previous grid that may still
        run."""
        if not self.order.begins_early or self.memory.is_shared:
            return
        stranger = self.order.find_without_grid_wait(actors)
        if stranger is not None:
            message = f"{self._describe_actor(stranger)} {verb} global memory while the previous grid may still run"
            raise Fault("missing-grid-wait", f"{message}: no griddepcontrol.wait happens before it")

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check_before_write(self, actors: Array, granules: Array, times: Array, same: Array, verb: str) -> Array | None:
        """Report a race with an access a writer does not know; return a mask of unknown writes of the same value, or
        None. None if no write is later than the event up to which its writer knows every thread."""
        floor = self.order.floor[actors][:, None]
        excused = None
        if np.count_nonzero(times > floor):
            excused = self._check_writes(actors, granules, times, False, verb, same)
        reads = self._read_last[granules]
        unknown = reads > floor
        if np.count_nonzero(unknown):
            late = (unknown & ~same[:, None]).any(axis=1)
            if late.any():
                self._check_reads(actors[late] if len(actors) > 1 else actors, granules[late], verb)
        return excused

    def _check_writes(
        self, actors: Array, granules: Array, times: Array, is_strong: bool, verb: str, same: Array | None = None
    ) -> Array | None:
        """Report a race unless actors know the last writes or both are strong; return unknown writes of the `same`
        value, or None. They are a mask, left out of the report; without `same` it is None."""
        writers = self._write_actor[granules]
        who = np.broadcast_to(actors[:, None], (len(granules), 1))
        late = times > self._known_until(self.order.know, who, writers)
        if is_strong:
            late &= (writers < 0) | (writers & _STRONG_BIT == 0)
        excused: Array | None = None
        if same is not None:
            excused = late & same[:, None] & (times != _PENDING_TIME)
            late = late & ~excused
        if late.any():
            name = self._describe_first(who, late)
            self.memory.report_fault(self._build_conflict_fault(name, verb, granules, late, times, writers, "wrote"))
        return excused

    def _known_by(self, clock: Array, writers: Array) -> Array:
        """Return the event up to which one clock knows each writer, [access, granule]."""
        return self._known_until(clock[None, :], np.zeros((len(writers), 1), np.int64), writers)

    def _extend_clock(self, clock: Array | None) -> Array:
        """Return a clock with a column for every actor; missing ones, or None, know the events before this cluster."""
        extended = np.full(self.order.know.shape[1], self.order.start, np.int32)
        if clock is not None:
            extended[: len(clock)] = clock
        return extended

    def _known_until(self, know: Array, rows: Array, writers: Array) -> Array:
        """Return the event up to which the clocks in these rows of `know` know each writer, [access, granule]."""
        # The writer may be an engine that only an earlier cluster has, or a pending store, which no thread knows.
        known: Array = know[rows, np.minimum(np.where(writers < 0, 0, writers & _ACTOR_MASK), know.shape[1] - 1)]
        if (writers < 0).any():
            for row, column in np.argwhere(writers < 0).tolist():
                line = know[int(rows[row, 0])]
                warps = self._warps_of(int(writers[row, column]))
                known[row, column] = max(line[WARP * warp : WARP * (warp + 1)].max() for warp in warps)
        return known

    def _check_reads(self, actors: Array, granules: Array, verb: str) -> None:
        """Report a race unless these threads, which write, know the earlier reads of the granules."""
        order = self.order
        who = np.broadcast_to(actors[:, None], (len(granules), 1))
        if not self._rows:
            readers, times = self._reader[granules], self._read_last[granules]
            late = times > order.know[who, np.minimum(readers, order.know.shape[1] - 1)]
            if late.any():
                name = self._describe_first(who, late)
                self.memory.report_fault(self._build_conflict_fault(name, verb, granules, late, times, readers, "read"))
            return
        known = order.clock_of_warps(actors)[:, :, None]
        times = self._read_time[:, granules].transpose(1, 0, 2)  # [access, warp or engine, granule]
        late = times > known
        self._check_own_warp(who[:, 0], granules, times, late)
        if late.any():
            access, row, part = np.argwhere(late)[0].tolist()
            reader = self._describe_reader(row, int(self._read_lane[row, granules[access, part]]))
            place = self._describe_address(granules[access, part])
            message = f"{self._describe_actor(int(who[access, 0]))} {verb} {place}"
            event = int(times[access, row, part])
            self.memory.report_fault(self._build_race_fault(message, f"{reader} read it", event))

    def _check_own_warp(self, who: Array, granules: Array, times: Array, late: Array) -> None:
        """Set in `late` whether a lane that writes does not know reads by other lanes of its own warp."""
        places, own = np.arange(len(granules)), who // WARP
        lanes = self._read_lane[own[:, None], granules].astype(np.int64)
        # Where several lanes read together, a neighbour stands for all of them.
        lanes = np.where(lanes == _SEVERAL_LANES, (who % WARP ^ 1)[:, None], lanes)
        known = self.order.know[who[:, None], own[:, None] * WARP + lanes]
        late[places, own] = times[places, own] > known

    def _check_scopes(self, actors: Array, granules: Array, *, is_write: bool) -> None:
        """Report a race of strong accesses by two blocks if the scope of one is only `.cta`; record these accesses if
        they write."""
        order, narrow = self.order, self._narrow_blocks
        assert narrow is not None
        blocks = (1 + order.cluster * order.blocks + actors // order.stride)[:, None]
        is_narrow = self.access[order.log.pc].is_narrow
        others = self._strong_blocks[granules] if is_narrow else narrow[granules]
        if ((others != 0) & (others != blocks)).any():
            access, part = np.argwhere((others != 0) & (others != blocks))[0].tolist()
            place = granules[access, part]
            at = self._find_step(int(self._write_time[place])).description
            message = (
                f"{self._describe_actor(int(actors[access]))} uses {self._describe_address(place)} with scope .cta"
            )
            reach = "scope .cta does not order two blocks"
            self.memory.report_fault(Fault("data-race", f"{message}, and another block does so at {at}: {reach}"))
        if is_write:
            self._strong_blocks[granules] = blocks
            if is_narrow:
                narrow[granules] = blocks

    # -- tensor maps ---------------------------------------------------------------------------------------------------

    def require_fenced_map(self, actor: int, start: int, size: int) -> None:
        """Fault unless the cluster's writes to a tensor map are known and fenced before a thread uses it."""
        granules = np.arange(start >> self._shift, start + size >> self._shift)[:, None]
        times, writers = self._write_time[granules], self._write_actor[granules]
        order = self.order
        if not (times > order.start).any():
            return
        clock = order.clock_of_any(np.array([actor]))
        self._require_known(clock, granules, f"the bulk copy of {self._describe_actor(actor)}")
        step = self._find_step(int(times.max()))
        fences = [("release", order.maps_released), ("acquire", order.maps_acquired.get(self.memory.base + start))]
        # `cp_fenceproxy` is a copy and its release in one.
        for form, fenced in fences[step.stem == "tensormap.cp_fenceproxy" :]:
            if (times > self._known_by(self._extend_clock(fenced), writers)).any():
                message = f"the tensor map at {self.memory.base + start:#x} was written at {step.description}, and no"
                raise Fault("missing-tensormap-fence", f"{message} fence.proxy.tensormap::generic.{form} follows")

    def share_writes(self, actors: Array, start: int, size: int) -> None:
        """Record all these threads' warps as writers of the last write to these bytes."""
        code = self._find_crowd_code(frozenset((actors // WARP).tolist()))
        self._write_actor[start >> self._shift : start + size >> self._shift] = code

    # -- what went wrong -----------------------------------------------------------------------------------------------

    def _find_step(self, event: int) -> Step:
        """Return the step that made an event."""
        return self.steps[self.order.log.find_step(event)]

    def find_writer(self, offset: int) -> str:
        """Return the description of the step that wrote a byte last; "" if this process does not know it."""
        event = int(self._write_time[offset >> self._shift])
        if event == _PENDING_TIME:
            number = _ACTOR_MASK - (int(self._write_actor[offset >> self._shift]) & _ACTOR_MASK)
            event = self._overwritten.get(number, {}).get(offset >> self._shift, 0)
        return self._find_step(event).description if event else ""

    def find_reader(self, offset: int) -> str:
        """Return the description of the step of an earlier cluster that read a byte last; "" if this process does not
        know it."""
        event = int(self._read_last[offset >> self._shift])
        return self._find_step(event).description if 0 < event <= self.order.start else ""

    def _describe_address(self, place: int) -> str:
        """Return the memory's name and the address of a granule, in words."""
        return f"{self.memory.name} address {self.memory.base + (int(place) << self._shift):#x}"

    def _describe_actor(self, actor: int) -> str:
        return describe_thread(self.order, actor)

    def _describe_first(self, actors: Array, late: Array) -> str:
        """Return the name of the thread, from `actors` [access, 1], that makes the first late access."""
        return self._describe_actor(int(actors[np.argwhere(late)[0][0], 0]))

    def _describe_reader(self, row: int, lane: int) -> str:
        """Return the name of the thread, warp or matrix unit that a row and lane of the read times stand for."""
        order = self.order
        if row >= order.warps:
            return f"the tensor cores, for {describe_thread(order, (row - order.warps) * WARPGROUP, is_group=True)}"
        if lane == _SEVERAL_LANES:
            return f"lanes of the warp of {describe_thread(order, row * WARP)}"
        return describe_thread(order, row * WARP + lane)

    def _build_conflict_fault(
        self, who: str, verb: str, granules: Array, late: Array, times: Array, others: Array, did: str
    ) -> Fault:
        """Return a fault for the first late access: the thread, its address, and the write or read that it races
        with."""
        access, part = np.argwhere(late)[0].tolist()
        other = int(others[access, part])
        message = f"{who} {verb} {self._describe_address(granules[access, part])}"
        if int(times[access, part]) == _PENDING_TIME:
            step, thread = self._bulk_stores[_ACTOR_MASK - (other & _ACTOR_MASK)]
            store = f"the bulk store of {self._describe_actor(thread)} at {self.steps[step].description} writes it"
            return Fault("data-race", f"{message}, and {store}: nothing has waited for it (cp.async.bulk.wait_group)")
        if other < 0:
            name = f"lanes of the warp of {describe_thread(self.order, min(self._warps_of(other)) * WARP)}"
        else:
            other &= _ACTOR_MASK
            name = "a bulk copy" if other >= self.order.threads else self._describe_actor(other)
        return self._build_race_fault(message, f"{name} {did} it", int(times[access, part]))

    def _build_race_fault(self, message: str, earlier: str, event: int) -> Fault:
        """Return a data race fault that names the earlier access and the step that made it."""
        place = self._find_step(event).description
        return Fault("data-race", f"{message}, and {earlier} at {place}: no barrier orders the two")


def describe_thread(order: HappensBeforeOrder, actor: int, *, is_group: bool = False) -> str:
    """Return `thread 5`, or its warpgroup's `threads 0-127`, with its block where the cluster has several."""
    thread = actor % order.stride
    name = f"threads {thread}-{thread + WARPGROUP - 1}" if is_group else f"thread {thread}"
    if order.threads > order.stride:
        name += f" of block {actor // order.stride} of the cluster"
    return name
