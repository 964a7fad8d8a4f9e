"""mbarriers: counts, phases, transaction bytes, and the clocks that a phase hands from arrivals to waits.

Copies that report to an mbarrier stay in flight until the phase that they complete is needed: by a wait, or by an
arrival of the next phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.memory.memory import BARRIER, GUARD, IN_FLIGHT, SHARED_WINDOW, VALID, WINDOW_SHIFT
from tilec.emu.numbers import Array
from tilec.emu.races.races import describe_thread
from tilec.emu.scalar.semantics import decode_elementwise
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Group, Threads
    from tilec.emu.machine.timeline import EventKind

STATE_SPACES = "shared shared::cta shared::cluster"
ORDER_MODIFIERS = "acquire release relaxed cta cluster"
_STATE_BITS = 32
"""A state is the number of its phase in these bits, and above them the pending arrivals of that phase."""
_MAX_COUNT = 0xFFFFF
"""The largest count of arrivals and of transaction bytes."""


@dataclass(slots=True, eq=False)
class PendingCopy:
    """A bulk copy that a barrier will report; `finish` writes its bytes, given the barrier's clock column."""

    size: int
    line: int
    finish: Callable[[int], None]


@dataclass(slots=True, eq=False)
class DeferredArrivals:
    """Arrivals of pending operations: `cp.async` copies of some threads, or a tcgen05.commit. `finish` completes the
    operations. A wait then acquires the clock that it returns, or else everything that the `actors` did."""

    count: int
    actors: Array
    finish: Callable[[], Array | None]


@dataclass(slots=True, eq=False)
class MBarrier:
    """An mbarrier. `version` changes with every event, so that waiting groups know when to look again."""

    cta: Cta
    address: int
    expected: int
    pending: int
    init_by: int
    init_event: int
    init_step: int
    column: int = -1
    """The barrier's own clock column, for the copies that it reports."""
    tx: int = 0
    phase: int = 0
    version: int = 0
    copies: list[PendingCopy] = field(default_factory=list)
    deferred: list[DeferredArrivals] = field(default_factory=list)
    is_used: bool = False
    is_fenced: bool = False
    """Its initialisation is visible to other blocks of the cluster."""
    uses: Array | None = None
    """The event of the last use by each thread of the cluster."""
    fenced_by: frozenset[int] = frozenset()
    """Threads that ordered its initialisation, and nothing else, before their next accesses (fence.mbarrier_init)."""
    seen: int = -1
    """The latest phase whose completion some thread waited for."""
    sources: dict[int, int] = field(default_factory=dict)
    """The number of arrivals by step, for the report of a deadlock."""
    open_clock: Array | None = None
    done_clock: Array | None = None

    def arrive(self, count: int, clock: Array | None, step: int) -> None:
        """Count arrivals that publish `clock`, and advance the phase if it awaits nothing more; fault on too many
        arrivals. Operations in flight complete an earlier phase first where the present one has no room."""
        if self.pending < count:
            self.try_complete_phase()
        if self.pending < count:
            message = f"{count} arrivals on the mbarrier at {self.address:#x}, whose phase {self.phase} awaits"
            raise Fault("barrier-overflow", f"{message} {self.pending} more of {self.expected}{self._describe_bytes()}")
        self.pending -= count
        self.version += 1
        self.sources[step] = self.sources.get(step, 0) + count
        self._join_clock(clock)
        if self.pending == 0 and self.tx == 0:
            self._advance_phase()

    def expect_bytes(self, size: int) -> None:
        """Add bytes to the transaction count of the phase, or take off a negative size; fault above the largest
        count."""
        self.tx += size
        self.version += 1
        if self.tx > _MAX_COUNT:
            message = f"{self.tx} bytes expected by one phase of the mbarrier at {self.address:#x}"
            raise Fault("barrier-overflow", message)

    def add_copy(self, copy: PendingCopy) -> None:
        """Add a copy in flight that the barrier will report; fault if unannounced bytes exceed the largest count."""
        self.copies.append(copy)
        self.version += 1
        missing = sum(other.size for other in self.copies) - self.tx
        if missing > _MAX_COUNT:
            message = f"{missing} bytes that no expect_tx announced arrive at the mbarrier at {self.address:#x}"
            raise Fault("barrier-overflow", f"{message}, more than its count can hold")

    def try_complete_phase(self) -> None:
        """Finish deferred arrivals if they suffice for the phase, then copies if these do, and advance a complete
        phase."""
        if self.deferred and sum(deferred.count for deferred in self.deferred) >= self.pending:
            due, self.deferred = self.deferred, []
            for deferred in due:
                clock = deferred.finish()
                self.pending -= deferred.count
                if clock is None:
                    self._publish_actors(deferred.actors)
                else:
                    self._join_clock(clock)
            self.version += 1
        if self.pending == 0 and sum(copy.size for copy in self.copies) >= self.tx:
            while self.tx > 0:
                copy = self.copies.pop(0)
                copy.finish(self.column)
                self.tx -= copy.size
                self.version += 1
                self._publish_actors(np.array([self.column]))
            if self.tx == 0:
                self._advance_phase()

    def _advance_phase(self) -> None:
        """Begin the next phase: reset the pending arrivals, and let waits acquire the clock of the phase that ends."""
        self.phase += 1
        self.pending = self.expected
        self.version += 1
        order = self.cta.order
        if order is not None and self.open_clock is not None:
            self.done_clock = order.join_clocks(self.done_clock, self.open_clock)
        self.open_clock = None
        timeline = self.cta.launch.timeline
        if timeline is not None:
            name = f"mbarrier {self.address:#x} phase {self.phase - 1}"
            timeline.add(self.cta.position, -1, "", "phase", name, 0)

    def _join_clock(self, clock: Array | None) -> None:
        """Join a clock into the one that waiters of the current phase will acquire; None changes nothing."""
        order = self.cta.order
        if order is not None and clock is not None:
            self.open_clock = order.join_clocks(self.open_clock, clock)

    def _publish_actors(self, columns: Array) -> None:
        """Let waits for this phase acquire everything that the actors of these clock columns did until now."""
        order = self.cta.order
        if order is not None:
            clock = np.zeros(order.know.shape[1], np.int32)
            clock[columns] = order.log.now
            self._join_clock(clock)

    def _describe_bytes(self) -> str:
        """Return the bytes that the phase awaits as the end of a sentence, or "" if it awaits none."""
        if not self.tx:
            return ""
        if self.tx < 0:
            return f", but {-self.tx} bytes more have arrived than were expected"
        return f" and {self.tx} bytes, {sum(copy.size for copy in self.copies)} of them in flight"

    def describe_state(self) -> str:
        """Return the pending arrivals and bytes of the phase in words, and the PTX lines of the arrivals so far."""
        text = f"phase {self.phase} awaits {self.pending} of {self.expected} arrivals{self._describe_bytes()}"
        steps = self.cta.program.steps
        lines = [f"PTX line {steps[step].instruction.line} ({count})" for step, count in sorted(self.sources.items())]
        arrived = f"arrivals so far: {', '.join(lines)}" if lines else "no thread has arrived at it"
        return f"{text}; {arrived}"

    def explain_missed_phase(self, wanted: int) -> str:
        """Return a hint that a wait by parity may be for a phase that is over and nobody waited for, or ""."""
        if self.phase >= 2 and self.seen < self.phase - 2 and (wanted & 1) == (self.phase & 1):
            return f"; phase {self.phase - 2}, of the same parity, was missed: it is over, and no thread waited for it"
        return ""


def to_shared_address(address: int) -> int:
    """Convert a generic address of shared memory to a shared one; return any other address unchanged."""
    if address >> WINDOW_SHIFT == SHARED_WINDOW >> WINDOW_SHIFT:
        return address - SHARED_WINDOW
    return address


def find_barrier(cta: Cta, address: int, actors: Array) -> MBarrier:
    """Return the mbarrier at a cluster address and record that these threads use it; fault if it is not initialised for
    them."""
    owner, local = cta.find_peer(to_shared_address(address))
    barrier = owner.asynchronous.find_barrier(local)
    barrier.is_used = True
    if owner is not cta and not barrier.is_fenced:
        message = f"block {cta.position} uses the mbarrier at {local:#x} of block {owner.position}, which was"
        raise Fault("missing-init-fence", f"{message} initialised with no fence.mbarrier_init after it")
    order = cta.order
    if order is not None and barrier.init_event > int(order.floor[actors].min()):
        known = np.maximum(order.know[actors, barrier.init_by], order.know[actors, barrier.column])
        unaware = actors[known < barrier.init_event]
        if len(unaware):
            message = f"{describe_thread(order, int(unaware[0]))} uses the mbarrier at {local:#x}, and"
            step = cta.program.steps[barrier.init_step]
            by = f"{describe_thread(order, barrier.init_by)} initialised it at PTX line {step.instruction.line}"
            cta.shared.report_fault(Fault("data-race", f"{message} {by}: no barrier orders the two"))
    if order is not None:
        if barrier.uses is None:
            barrier.uses = np.zeros(order.threads, np.int32)
        barrier.uses[actors] = order.log.tick()
    return barrier


def end_overwritten_barriers(cta: Cta, addresses: Array, actors: Array) -> None:
    """End the mbarriers at addresses that `actors`, one each, will write; fault on unknown earlier uses or copies in
    flight. Later uses of such a barrier then fault."""
    state, order, events = cta.asynchronous, cta.order, cta.launch.events
    for address in np.unique(addresses & ~7).tolist():
        barrier = state.barriers.pop(address, None)
        if barrier is None:
            continue
        barrier.try_complete_phase()
        writers = np.unique(actors[addresses & ~7 == address])
        if barrier.copies or barrier.deferred or barrier.tx:
            message = f"shared address {address:#x} holds a live mbarrier, to which an operation in flight reports"
            raise Fault("barrier-overwrite", message)
        if order is not None and barrier.uses is not None:
            users = np.flatnonzero(barrier.uses)
            late = users[order.clock_of_any(writers)[users] < barrier.uses[users]]
            if len(late):
                message = f"{describe_thread(order, int(writers[0]))} overwrites the mbarrier at {address:#x}, and"
                place = cta.program.steps[order.log.find_step(int(barrier.uses[late[0]]))].description
                by = f"{describe_thread(order, int(late[0]))} used it at {place}: no barrier orders the two"
                cta.shared.report_fault(Fault("data-race", f"{message} {by}"))
        # Waiting groups look again, and fault.
        barrier.version += 1
        state.overwritten[address] = cta.program.steps[events.pc].description
        cta.shared.shadow[address : address + 8] &= 0xFF ^ BARRIER


def group_by_address(addresses: Array) -> Iterator[tuple[int, Array]]:
    """Yield each distinct address, with a mask over the threads whose address it is."""
    first = int(addresses[0])
    same = addresses == first
    if same.all():
        yield first, same
        return
    for address in np.unique(addresses).tolist():
        yield int(address), addresses == address


def publish_initialisations(cta: Cta, actors: Array) -> None:
    """Mark the block's mbarriers whose initialisation one of these threads knows as visible to other blocks. All are
    marked if races are not watched: the effect of a fence."""
    order = cta.order
    for barrier in cta.asynchronous.barriers.values():
        if not barrier.is_fenced:
            barrier.is_fenced = order is None or int(order.know[actors, barrier.init_by].max()) >= barrier.init_event


@register_decoder("fence.mbarrier_init", accepts="release cluster")
def _decode_fence_init(form: Form) -> None:
    """Decode `fence.mbarrier_init` into a step that lets other blocks use the mbarriers that threads know
    initialised."""

    @form.set_run
    def run_fence_init(cta: Cta, threads: Threads) -> None:
        """Publish the initialisations that these threads know, and note who fenced them for a relaxed arrival."""
        actors = cta.actors[threads]
        publish_initialisations(cta, actors)
        order = cta.order
        if order is None:
            return
        for barrier in cta.asynchronous.barriers.values():
            knowing = actors[order.know[actors, barrier.init_by] >= barrier.init_event]
            barrier.fenced_by |= frozenset(knowing.tolist())


def collect_fenced_initialisations(cta: Cta, actors: Array) -> Array | None:
    """Return a clock of the mbarrier initialisations that these threads fenced, None if none or races are not watched.
    The column of a barrier counts from its initialisation on."""
    order = cta.order
    members = frozenset(actors.tolist())
    fenced = [barrier for barrier in cta.asynchronous.barriers.values() if barrier.fenced_by & members]
    if order is None or not fenced:
        return None
    clock = np.zeros(order.know.shape[1], np.int32)
    for barrier in fenced:
        clock[barrier.column] = barrier.init_event
    return clock


@register_decoder("mbarrier.init", accepts="shared shared::cta")
def _decode_init(form: Form) -> None:
    """Decode `mbarrier.init` into a step that makes an mbarrier at each thread's address."""
    pointer = form.build_address(form.operands[0])
    count_slot = form.read(form.operands[1], "u32")

    @form.set_run
    def run_init(cta: Cta, threads: Threads) -> None:
        """Initialise an mbarrier at each distinct address, with the count of the first thread that names it."""
        counts = cta.views[count_slot][threads]
        for address, chosen in group_by_address(pointer(cta, threads)):
            count, actor = int(counts[chosen][0]), int(cta.actors[threads][chosen][0])
            _initialise_barrier(cta, to_shared_address(address), count, actor)


def _initialise_barrier(cta: Cta, address: int, count: int, actor: int) -> None:
    """Make an mbarrier for `count` arrivals at a shared address; fault on a bad address or count, or one in use."""
    state = cta.asynchronous
    if address % 8:
        raise Fault("misaligned", f"an mbarrier at {address:#x}, which is not a multiple of 8")
    if not 0 < count <= _MAX_COUNT:
        raise Fault("bad-barrier", f"an mbarrier for {count} arrivals")
    shadow = cta.shared.shadow
    if address + 8 > len(shadow) or (shadow[address : address + 8] & GUARD).any():
        raise Fault("out-of-bounds", f"an mbarrier at {address:#x}, outside of shared memory")
    if (shadow[address : address + 8] & IN_FLIGHT).any():
        raise Fault("unarrived-write", f"an mbarrier at {address:#x}{state.explain(address)}")
    live = state.barriers.get(address)
    if live is not None and live.is_used:
        message = f"the mbarrier at {address:#x} is in use and is initialised again with no mbarrier.inval"
        raise Fault("bad-barrier", message)
    shadow[address : address + 8] = VALID | BARRIER
    order, events = cta.order, cta.launch.events
    # Before the event: a new column starts at the present event, and no thread knows this one yet.
    column = -1 if order is None else live.column if live is not None else order.add_column()
    state.barriers[address] = MBarrier(cta, address, count, count, actor, events.tick(), events.pc, column)
    state.overwritten.pop(address, None)


@register_decoder("mbarrier.inval", accepts="shared shared::cta")
def _decode_inval(form: Form) -> None:
    """Decode `mbarrier.inval` into a step that ends the mbarriers at the threads' addresses."""
    pointer = form.build_address(form.operands[0])

    @form.set_run
    def run_inval(cta: Cta, threads: Threads) -> None:
        """End the mbarriers at these threads' addresses, a fault with a copy in flight, and make the bytes
        unwritten."""
        for address, chosen in group_by_address(pointer(cta, threads)):
            barrier = find_barrier(cta, address, cta.actors[threads][chosen])
            barrier.try_complete_phase()
            if barrier.copies:
                message = f"the mbarrier at {barrier.address:#x} ends while the copy of PTX line"
                raise Fault("bad-barrier", f"{message} {barrier.copies[0].line} is in flight")
            del cta.asynchronous.barriers[barrier.address]
            cta.shared.shadow[barrier.address : barrier.address + 8] = 0


@register_decoder("mbarrier.arrive", "mbarrier.arrive_drop", accepts=f"{STATE_SPACES} {ORDER_MODIFIERS}")
def _decode_arrive(form: Form) -> None:
    """Decode `mbarrier.arrive` and `arrive_drop` into a step that counts arrivals, and may add expected bytes."""
    pointer = form.build_address(form.operands[1])
    state_slot = form.write(form.operands[0], "u64")
    is_expecting, is_dropping = form.has("expect_tx"), form.stem == "mbarrier.arrive_drop"
    may_not_complete = form.has("noComplete")
    amount_slot = form.read(form.operands[2], "u32") if len(form.operands) > 2 else -1

    @form.set_run
    def run_arrive(cta: Cta, threads: Threads) -> None:
        """Count threads' arrivals, add expected bytes, write the states from before; fault if noComplete completes a
        phase. A dropped arrival is not awaited in later phases."""
        addresses = pointer(cta, threads)
        states = np.zeros(len(addresses), np.uint64)
        for address, chosen in group_by_address(addresses):
            actors = cta.actors[threads][chosen]
            barrier = find_barrier(cta, address, actors)
            states[chosen] = barrier.pending << _STATE_BITS | barrier.phase
            count = amount = int(chosen.sum())
            if amount_slot >= 0:
                amounts = cta.views[amount_slot][threads][chosen].astype(np.int64)
                amount = int(amounts.sum())
                if not is_expecting and not 1 <= int(amounts.min()) <= int(amounts.max()) <= _MAX_COUNT:
                    message = f"{amounts.min()} arrivals at once on the mbarrier at {barrier.address:#x}"
                    raise Fault("bad-barrier", f"{message}: each instruction counts 1 to {_MAX_COUNT}")
            if is_expecting:
                # The expectation belongs to the phase that this arrival belongs to.
                if barrier.pending == 0:
                    barrier.try_complete_phase()
                barrier.expect_bytes(amount)
            else:
                count = amount
            if is_dropping:
                barrier.expected -= count
            record_event(cta, cta.thread_ids[threads][chosen], "arrive", describe_barrier(barrier), form.line)
            if may_not_complete and count >= barrier.pending:
                message = f"an arrival with noComplete is the last of the {barrier.expected} that phase {barrier.phase}"
                raise Fault("bad-barrier", f"{message} of the mbarrier at {barrier.address:#x} awaits")
            clock = None if cta.order is None or form.has("relaxed") else cta.order.release(actors)
            barrier.arrive(count, clock, cta.launch.events.pc)
        cta.views[state_slot][threads] = states


@register_decoder("mbarrier.pending_count", accepts="b64")
def _decode_pending_count(form: Form) -> None:
    """Decode `mbarrier.pending_count` into a step that extracts the pending arrivals from a state word's upper half."""
    decode_elementwise(form, lambda state: (state >> np.uint64(_STATE_BITS)).astype(np.uint32), "u32", "u64")


def describe_barrier(barrier: MBarrier) -> str:
    """Return the address and phase of an mbarrier in words, for a timeline."""
    return f"mbarrier {barrier.address:#x} phase {barrier.phase}"


def record_event(cta: Cta, members: Array, kind: EventKind, name: str, line: int, since: int = -1) -> None:
    """Add an event of `members`, begun at event `since` (-1: now), to the launch's timeline, if it keeps one."""
    timeline = cta.launch.timeline
    if timeline is not None:
        thread, threads = int(members[0]), f"{int(members[0])}-{int(members[-1])}"
        timeline.add(cta.position, thread, threads, kind, name, line, since)


@register_decoder("mbarrier.expect_tx", "mbarrier.complete_tx", accepts=f"{STATE_SPACES} {ORDER_MODIFIERS}")
def _decode_expect(form: Form) -> None:
    """Decode `mbarrier.expect_tx` and `complete_tx` into a step that raises or lowers the transaction count."""
    pointer = form.build_address(form.operands[0])
    size_slot = form.read(form.operands[1], "u32")
    sign = 1 if form.stem == "mbarrier.expect_tx" else -1

    @form.set_run
    def run_expect(cta: Cta, threads: Threads) -> None:
        """Add the threads' bytes to the mbarrier's transaction count, or take them off and try to complete the
        phase."""
        sizes = cta.views[size_slot][threads].astype(np.int64)
        for address, chosen in group_by_address(pointer(cta, threads)):
            barrier = find_barrier(cta, address, cta.actors[threads][chosen])
            if barrier.pending == 0 and sign > 0:
                barrier.try_complete_phase()
            barrier.expect_bytes(sign * int(sizes[chosen].sum()))
            if sign < 0:
                barrier.try_complete_phase()


@register_decoder("mbarrier.try_wait", "mbarrier.test_wait", accepts=f"{STATE_SPACES} {ORDER_MODIFIERS}")
def _decode_wait(form: Form) -> None:
    """Decode `mbarrier.try_wait` and `test_wait`, by parity or state, into a step that tests a phase or waits for
    it."""
    result_slot = form.write(form.operands[0], "pred")
    pointer = form.build_address(form.operands[1])
    by_parity = form.has("parity")
    wanted_slot = form.read(form.operands[2], "u32" if by_parity else "u64")
    is_blocking = form.stem == "mbarrier.try_wait"
    acquires = not form.has("relaxed")

    @form.set_control
    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        """Write whether the phases are complete, move on and return True; or park until a barrier changes and return
        False. Threads that need not wait go on without the others."""
        addresses = pointer(cta, threads)
        actors = cta.actors[threads]
        wanted = cta.views[wanted_slot][threads]
        if not by_parity:
            wanted = wanted & np.uint64((1 << _STATE_BITS) - 1)
        done = np.zeros(len(addresses), np.bool_)
        watched: list[tuple[MBarrier, int, int]] = []
        for address, chosen in group_by_address(addresses):
            barrier = find_barrier(cta, address, actors[chosen])
            if barrier.cta is not cta:
                message = f"a wait for the mbarrier at {barrier.address:#x} of block {barrier.cta.position}"
                raise Fault("bad-barrier", f"{message}: a block can wait only for its own mbarriers")
            for value in set(wanted[chosen].tolist()):
                if not _is_phase_complete(barrier, value, by_parity):
                    barrier.try_complete_phase()
                if not _is_phase_complete(barrier, value, by_parity):
                    watched.append((barrier, barrier.version, value))
                    continue
                passing = chosen & (wanted == value)
                done |= passing
                barrier.seen = max(barrier.seen, barrier.phase - 1)
                if cta.order is not None and acquires:
                    cta.order.acquire(actors[passing], barrier.done_clock)
                if group.since >= 0:
                    name = f"mbarrier {barrier.address:#x} phase {barrier.phase - 1}"
                    record_event(cta, cta.thread_ids[threads], "wait", name, form.line, group.since)
                    group.since = -1
        if not watched or group.must_fail_wait or (is_blocking and _times_out_early(cta, group, watched)):
            group.must_fail_wait = False
            group.poll_count = 0 if not watched else group.poll_count
            cta.views[result_slot][threads] = done
            group.pc += 1
            return True

        def describe_wait() -> str:
            """Return the words for the mbarriers that the group waits for, with their state."""
            waits = ((b, f"{b.describe_state()}{b.explain_missed_phase(value)}") for b, _, value in watched)
            return "; ".join(f"the mbarrier at {b.address:#x}, whose {state}" for b, state in waits)

        def is_ready() -> bool:
            """Return whether any awaited mbarrier has changed since the group parked."""
            return any(barrier.version != version for barrier, version, _ in watched)

        members = cta.thread_ids[threads]
        if len(members) < len(group.indices) or done.any():
            # Some threads need not wait: the others wait here in a group of their own.
            cta.views[result_slot][members[done]] = True
            cta.split(group, members[~done], group.pc)
            parked = cta.groups[-1]
            parked.poll_count = 0 if is_blocking else group.poll_count + 1
            parked.park(describe_wait, is_ready)
            group.pc += 1
            return True
        if not is_blocking:
            group.poll_count += 1
        if group.since < 0 and cta.launch.timeline is not None:
            group.since = cta.launch.timeline.now
        return group.park(describe_wait, is_ready)


def _times_out_early(cta: Cta, group: Group, watched: list[tuple[MBarrier, int, int]]) -> bool:
    """Return whether an adversary ends a `try_wait` early: by chance, once for a barrier state noted in
    `group.refused`. A hardware time limit may do so; only once, so that a deadlock still ends."""
    generator = cta.launch.random
    seen = tuple((barrier.address, version) for barrier, version, _ in watched)
    if generator is None or group.refused == seen:
        return False
    group.refused = seen
    return generator.random() < 0.5


def _is_phase_complete(barrier: MBarrier, wanted: int, by_parity: bool) -> bool:
    """Return whether the awaited phase, given as a parity or a state, is complete; fault on a state two or more phases
    old."""
    if by_parity:
        return (barrier.phase & 1) != (wanted & 1)
    if wanted < barrier.phase - 1:
        message = f"a wait for phase {wanted} of the mbarrier at {barrier.address:#x}, which is in phase"
        only = f"only phase {barrier.phase - 1} may still be waited for"
        raise Fault("phase-skipped", f"{message} {barrier.phase}: {only}")
    return barrier.phase > wanted
