"""Decoders of control flow, barriers and fences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.barriers.mbarrier import collect_fenced_initialisations, publish_initialisations, record_event
from tilec.emu.fault import Fault
from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.machine.groups import compact_threads
from tilec.emu.machine.machine import NamedBarrier, release_barrier
from tilec.emu.numbers import Array
from tilec.ptx.module import Reg

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Group, Threads
    from tilec.emu.races.order import HappensBeforeOrder


_RESTRICTIONS = "sync_restrict::shared::cta sync_restrict::shared::cluster"


@register_decoder("bra", accepts="uni")
def _decode_bra(form: Form) -> None:
    """Decode `bra` into a step that moves threads to the label, and splits the group if only some of them jump."""
    target = form.step.target = form.find_label(form.operands[0])

    @form.set_control
    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        """Move the group to the label and return True, or split off the threads that jump and return False."""
        taken = cta.thread_ids[threads]
        if len(taken) == len(group.indices):
            group.pc = target
            return True
        # The group goes back to the scheduler, which picks the lower of the two paths.
        cta.split(group, taken, target)
        group.pc += 1
        return False


@register_decoder("exit")
def _decode_exit(form: Form) -> None:
    """Decode `exit` into a step that ends the threads whose guard is true."""

    @form.set_control
    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        """End these threads; return whether any of the group go on, at the next step."""
        group.pc += 1
        return cta.exit(group, threads)


@register_decoder("trap", "brkpt")
def _decode_trap(form: Form) -> None:
    """Decode `trap` and `brkpt` into a step that raises a fault when a thread reaches it."""

    @form.set_run
    def run_trap(cta: Cta, threads: Threads) -> None:
        raise Fault("trap", "the kernel executed trap")


@register_decoder("nanosleep", accepts="u32")
def _decode_nanosleep(form: Form) -> None:
    """Decode `nanosleep` into a step that gives the group back to the scheduler, behind other groups."""

    @form.set_control
    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        """Advance the group one step and one time slice, and return False, so that other groups run first."""
        # A sleeping group waits for others: let them run first.
        group.pc += 1
        group.time_slice += 1
        return False


@register_decoder("griddepcontrol", accepts="launch_dependents")
def _decode_griddepcontrol(form: Form) -> None:
    """Decode `griddepcontrol.wait` into a step that acquires the grid before; `.launch_dependents` does nothing."""
    if not form.has("wait"):
        _decode_no_effect(form)
        return

    @form.set_run
    def run_griddepcontrol(cta: Cta, threads: Threads) -> None:
        """Let these threads acquire all that the grid before wrote, if races are watched."""
        if cta.order is not None:
            cta.order.await_grid(cta.actors[threads])


# A prefetch or hint changes no value, and its address need not even be valid. No two addresses alias here.
@register_decoder("prefetch.param.tensormap", "fence.proxy.alias")
@register_decoder("prefetch", "prefetch.tensormap", accepts="global local const param L1 L2")
@register_decoder("pmevent", "prefetchu", "discard", "applypriority", accepts="L1 L2 global mask")
def _decode_no_effect(form: Form) -> None:
    """Decode prefetches, hints and `fence.proxy.alias` into a step that does nothing."""
    form.step.run = lambda cta, threads: None


@register_decoder("membar", "fence", accepts=f"sc acq_rel acquire release {_RESTRICTIONS} cta cluster gpu sys gl")
def _decode_fence(form: Form) -> None:
    """Decode `fence` and `membar` into a step that records a memory fence; any other proxy fence is unsupported."""
    if form.has("proxy"):
        raise form.unsupported("this proxy fence")
    is_narrow = form.has("cta")

    @form.set_run
    def run_fence(cta: Cta, threads: Threads) -> None:
        """Record a memory fence by these threads, and let other blocks see the mbarriers that they know initialised."""
        if cta.order is not None:
            cta.order.flags.fence(cta.actors[threads], is_narrow=is_narrow)
        publish_initialisations(cta, cta.actors[threads])


@register_decoder(
    "fence.proxy.async",
    "fence.proxy.async::generic",
    accepts=f"shared::cta shared::cluster acquire release {_RESTRICTIONS} cluster",
)
def _decode_fence_proxy(form: Form) -> None:
    """Decode `fence.proxy.async` into a step that fences shared memory, global memory, or both if it names no space."""
    covers_global = not form.has("shared::cta", "shared::cluster")
    covers_shared = not form.has("global")

    @form.set_run
    def run_fence_proxy(cta: Cta, threads: Threads) -> None:
        """Let asynchronous operations see what these threads wrote to the memories that the fence covers."""
        actors = cta.actors[threads]
        if covers_global and cta.order is not None:
            cta.order.fence_async(actors)
        if covers_shared:
            cta.shared.fence(actors)
            publish_initialisations(cta, actors)


_BARRIERS = ("bar", "bar.cta", "barrier", "barrier.cta")

# -- bar.sync and its relatives ----------------------------------------------------------------------------------------


def _arrive_at_barrier(cta: Cta, barrier_id: int, expected: int, members: Array, line: int) -> NamedBarrier:
    """Count arrivals of `members` at a named barrier, and return it, not yet released; fault on a bad number or count.
    Their clock is published to it. `expected` is the number of threads, 0 for all of the block."""
    if not 0 <= barrier_id < 16:
        raise Fault("bad-barrier", f"named barrier {barrier_id}; there are 0 to 15")
    if expected % 32:
        raise Fault("bad-barrier", f"named barrier {barrier_id} for {expected} threads, which is not whole warps")
    barrier = cta.barriers.setdefault(barrier_id, NamedBarrier())
    if barrier.arrived and barrier.expected != expected:
        message = f"named barrier {barrier_id} expects {barrier.expected or 'all'} threads, and this arrival says"
        raise Fault("bad-barrier", f"{message} {expected or 'all'}")
    barrier.expected = expected
    barrier.arrived += len(members)
    order = cta.order
    if order is not None:
        clock = order.release(cta.find_clock_rows(compact_threads(members)))
        if not expected and cta.exited_count:
            # Exited threads count as arrived, after all their accesses.
            clock[cta.actors[cta.exited]] = order.log.now
        barrier.clock = order.join_clocks(barrier.clock, clock)
    record_event(cta, members, "arrive", f"barrier {barrier_id}", line)
    return barrier


def _acquire_generation(cta: Cta, barrier: NamedBarrier, generation: int, members: Array) -> None:
    """Let `members` acquire the clock of a complete generation of a barrier, if races are watched."""
    if cta.order is not None:
        cta.order.acquire(cta.find_clock_rows(compact_threads(members)), barrier.clocks[generation])


def _park_at_barrier(
    group: Group, barrier: NamedBarrier, generation: int, reason: Callable[[], str], finish: Callable[[], None]
) -> bool:
    """Park a group until a generation of a barrier is complete, then call `finish` and move to the next step; return
    False."""
    here = group.pc

    def is_ready() -> bool:
        """Return whether the generation is complete; if so, call `finish` and advance the group."""
        if barrier.generation == generation:
            return False
        finish()
        group.pc = here + 1
        return True

    return group.park(reason, is_ready)


def _release_if_complete(cta: Cta, barrier: NamedBarrier, barrier_id: int) -> None:
    """Release a named barrier once the expected threads (0: all that have not exited) have arrived; fault if more have.
    One for 32 threads is released after each warp."""
    wanted = barrier.expected or cta.thread_count - cta.exited_count
    if barrier.arrived == wanted or (barrier.expected == 32 and barrier.arrived % 32 == 0):
        release_barrier(barrier)
    elif barrier.arrived > wanted:
        message = f"{barrier.arrived} threads arrive at named barrier {barrier_id}, which expects {wanted}"
        raise Fault("barrier-overflow", message)


def _describe_barrier_wait(barrier: NamedBarrier, barrier_id: int) -> str:
    """Return the words for a wait at a named barrier, with how many threads have arrived, for a deadlock report."""
    wanted = str(barrier.expected) if barrier.expected else "all"
    return f"named barrier {barrier_id}, where {barrier.arrived} of {wanted} threads have arrived"


@register_decoder(*(f"{name}.{act}" for name in _BARRIERS for act in ("sync", "arrive")))
def _decode_bar(form: Form) -> None:
    """Decode `bar.sync` and `bar.arrive` into a step that arrives at a named barrier, and for `sync` waits at it."""
    id_slot = form.read(form.operands[0], "u32")
    count_slot = form.read(form.operands[1], "u32") if len(form.operands) > 1 else -1
    is_waiting = form.stem.endswith("sync")

    @form.set_control
    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        """Arrive at the group's barrier, and for `sync` park until it completes; return True only after an `arrive`.
        Threads under a guard, or with another barrier or count, are split off and arrive on their own."""
        members = cta.thread_ids[threads]
        ids = cta.views[id_slot][threads]
        counts = cta.views[count_slot][threads] if count_slot >= 0 else np.zeros(len(members), np.uint32)
        if len(members) < len(group.indices):
            cta.split(group, members, group.pc)
            group.pc += 1
            return False
        same = (ids == ids[0]) & (counts == counts[0])
        if not same.all():
            # Threads with another barrier or count run this step again, in a group of their own.
            cta.split(group, members[~same], group.pc)
        barrier_id = int(ids[0])
        barrier = _arrive_at_barrier(cta, barrier_id, int(counts[0]), members[same], form.line)
        generation = barrier.generation
        _release_if_complete(cta, barrier, barrier_id)
        if not is_waiting or barrier.generation != generation:
            if is_waiting:
                _acquire_generation(cta, barrier, generation, members)
            group.pc += 1
            return not is_waiting
        since = cta.launch.timeline.now if cta.launch.timeline is not None else -1

        def finish_wait() -> None:
            """Acquire the clock of the barrier's generation and record the wait in the timeline."""
            _acquire_generation(cta, barrier, generation, members)
            record_event(cta, members, "wait", f"barrier {barrier_id}", form.line, since)

        describe_wait = partial(_describe_barrier_wait, barrier, barrier_id)
        return _park_at_barrier(group, barrier, generation, describe_wait, finish_wait)


@register_decoder(*(f"{name}.red" for name in _BARRIERS))
def _decode_bar_red(form: Form) -> None:
    """Decode `bar.red` into a step that waits and writes the and, or, or count of predicates; other sources are
    refused."""
    operation = form.find_modifier("and", "or", "popc")
    result_slot = form.write(form.operands[0], "u32" if operation == "popc" else "pred")
    id_slot = form.read(form.operands[1], "u32")
    source = form.operands[-1]
    predicate = source if isinstance(source, Reg) else getattr(source, "reg", None)
    if predicate is None:
        raise form.unsupported(f"{source}")
    value_slot = form.read(predicate, "pred")
    is_negated = not isinstance(source, Reg)
    count_slot = form.read(form.operands[2], "u32") if len(form.operands) > 3 else -1

    @form.set_control
    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        """Arrive with a group's predicates, and park it unless it is the last; return False; fault if a guard splits
        the group."""
        members = cta.thread_ids[threads]
        barrier_id = int(cta.views[id_slot][threads][0])
        expected = int(cta.views[count_slot][threads][0]) if count_slot >= 0 else 0
        if len(members) < len(group.indices):
            raise Fault("bad-barrier", "bar.red under a predicate that differs between threads")
        values = cta.views[value_slot][threads] ^ is_negated
        barrier = _arrive_at_barrier(cta, barrier_id, expected, members, form.line)
        generation = barrier.generation
        barrier.contributions.append((group, values.copy()))

        def finish_reduction() -> None:
            """Reduce the predicates of the generation's threads, write the result to this group and acquire the
            clock."""
            everyone = np.concatenate(barrier.results[generation])
            result = everyone.sum() if operation == "popc" else everyone.all() if operation == "and" else everyone.any()
            cta.views[result_slot][members] = result
            _acquire_generation(cta, barrier, generation, members)

        _release_if_complete(cta, barrier, barrier_id)
        if barrier.generation != generation:
            finish_reduction()
            group.pc += 1
            return False
        describe_wait = partial(_describe_barrier_wait, barrier, barrier_id)
        return _park_at_barrier(group, barrier, generation, describe_wait, finish_reduction)


@register_decoder("barrier.cluster.arrive", accepts="release relaxed")
def _decode_cluster_arrive(form: Form) -> None:
    """Decode `barrier.cluster.arrive` into a step that counts arrivals; a relaxed one publishes only what fences
    cover."""
    is_relaxed = form.has("relaxed")

    @form.set_run
    def run_cluster_arrive(cta: Cta, threads: Threads) -> None:
        """Count these threads' arrivals at the cluster barrier, and complete its generation after the last one."""
        barrier = cta.cluster.barrier
        cta.cluster_arrivals[threads] = barrier.generation
        barrier.arrived += len(cta.thread_ids[threads])
        if cta.order is not None:
            if is_relaxed:
                clock = _relaxed_clock(cta, cta.order, cta.actors[threads])
            else:
                clock = cta.order.release(cta.find_clock_rows(threads))
            barrier.clock = barrier.clock if clock is None else cta.order.join_clocks(barrier.clock, clock)
        record_event(cta, cta.thread_ids[threads], "arrive", "cluster barrier", form.line)
        if barrier.arrived >= cta.thread_count * len(cta.cluster.ctas):
            release_barrier(barrier)


def _relaxed_clock(cta: Cta, order: HappensBeforeOrder, actors: Array) -> Array | None:
    """Return the clock that a relaxed arrival publishes: what the threads fenced earlier, None for nothing."""
    covered, initialised = order.flags.find_fenced_clock(actors), collect_fenced_initialisations(cta, actors)
    return covered if initialised is None else order.join_clocks(covered, initialised)


@register_decoder("barrier.cluster.wait", accepts="acquire")
def _decode_cluster_wait(form: Form) -> None:
    """Decode `barrier.cluster.wait` into a step that waits for the generation at which the threads arrived."""

    @form.set_control
    def move_group(cta: Cta, group: Group, threads: Threads) -> bool:
        """Advance a group whose generation is complete and return True; park any other one and return False."""
        barrier = cta.cluster.barrier
        generation = int(cta.cluster_arrivals[threads].max())
        members = cta.thread_ids[threads]
        finish_wait = partial(_acquire_generation, cta, barrier, generation, members)
        if barrier.generation > generation:
            finish_wait()
            group.pc += 1
            return True

        def describe_wait() -> str:
            """Return the words for a wait at the cluster barrier, with how many threads have arrived."""
            return f"the cluster barrier, where {barrier.arrived} threads have arrived"

        return _park_at_barrier(group, barrier, generation, describe_wait, finish_wait)
