"""Control flow, barriers between threads, fences, and what the threads of a warp do together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.decode import Form, semantics
from tilec.emu.fault import Fault
from tilec.emu.machine import NamedBarrier, release
from tilec.emu.numbers import Array
from tilec.ptx.module import Imm, Pair, Reg

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Group, Threads

_FULL = 0xFFFFFFFF


@semantics("bra")
def _bra(form: Form) -> None:
    target = form.label(form.operands[0])

    def control(cta: Cta, group: Group, threads: Threads) -> bool:
        taken = cta.thread_ids[threads]
        if len(taken) == len(group.indices):
            group.pc = target
            return True
        here = group.pc
        # The group goes back to the scheduler, which picks the lower of the two paths.
        cta.split(group, taken, target)
        group.pc = here + 1
        return False

    form.step.control = control


@semantics("exit")
def _exit(form: Form) -> None:
    def control(cta: Cta, group: Group, threads: Threads) -> bool:
        group.pc += 1
        return cta.exit(group, threads)

    form.step.control = control


@semantics("trap", "brkpt")
def _trap(form: Form) -> None:
    def run(cta: Cta, threads: Threads) -> None:
        raise Fault("trap", "the kernel gave up")

    form.step.run = run


@semantics("nanosleep")
def _nanosleep(form: Form) -> None:
    def control(cta: Cta, group: Group, threads: Threads) -> bool:
        # Whoever sleeps waits for others: let them go first.
        group.pc += 1
        group.turn += 1
        return False

    form.step.control = control


@semantics("membar", "fence", "fence.mbarrier_init", "griddepcontrol", "setmaxnreg", "prefetch", "prefetch.tensormap")
def _nothing(form: Form) -> None:
    if form.stem == "fence" and form.has("proxy"):
        raise form.unsupported("this proxy fence")

    def run(cta: Cta, threads: Threads) -> None:
        return

    form.step.run = run


@semantics("prefetch.param.tensormap")
def _prefetch_param(form: Form) -> None:
    _nothing(form)


@semantics("fence.proxy.async")
def _fence_proxy(form: Form) -> None:
    if form.has("global"):
        _nothing(form)
        return

    def run(cta: Cta, threads: Threads) -> None:
        cta.shared.fence()

    form.step.run = run


# -- bar.sync and its relatives ----------------------------------------------------------------------------------------


def _arrive(cta: Cta, barrier_id: int, expected: int, arriving: int) -> NamedBarrier:
    """Count arrivals; `expected` is 0 for all threads of the block."""
    if not 0 <= barrier_id < 16:
        raise Fault("bad-barrier", f"named barrier {barrier_id}; there are 0 to 15")
    if expected % 32:
        raise Fault("bad-barrier", f"named barrier {barrier_id} for {expected} threads, which is not whole warps")
    barrier = cta.barriers.setdefault(barrier_id, NamedBarrier())
    if barrier.arrived and barrier.expected != expected:
        message = f"named barrier {barrier_id} awaits {barrier.expected or 'all'} threads and is used for"
        raise Fault("bad-barrier", f"{message} {expected or 'all'}")
    barrier.expected = expected
    barrier.arrived += arriving
    return barrier


def _complete(cta: Cta, barrier: NamedBarrier, barrier_id: int) -> None:
    wanted = barrier.expected or cta.thread_count - cta.exited_count
    if barrier.expected == 32 and barrier.arrived % 32 == 0:
        # Each of several warps completes such a barrier on its own.
        release(barrier)
        return
    if barrier.arrived > wanted:
        raise Fault("barrier-overflow", f"{barrier.arrived} threads arrive at named barrier {barrier_id} for {wanted}")
    if barrier.arrived == wanted:
        release(barrier)


def _reason(barrier: NamedBarrier, barrier_id: int) -> str:
    wanted = str(barrier.expected) if barrier.expected else "all"
    return f"named barrier {barrier_id}, where {barrier.arrived} of {wanted} threads have arrived"


@semantics("bar.sync", "barrier.sync", "bar.arrive", "barrier.arrive")
def _bar(form: Form) -> None:
    id_slot = form.read(form.operands[0], "u32")
    count_slot = form.read(form.operands[1], "u32") if len(form.operands) > 1 else -1
    is_waiting = form.stem.endswith("sync")

    def control(cta: Cta, group: Group, threads: Threads) -> bool:
        members = cta.thread_ids[threads]
        ids = cta.views[id_slot][threads]
        counts = cta.views[count_slot][threads] if count_slot >= 0 else np.zeros(len(members), np.uint32)
        if len(members) < len(group.indices):
            here = group.pc
            cta.split(group, members, here)
            group.pc = here + 1
            return False
        if not (ids == ids[0]).all():
            cta.split(group, members[ids == ids[0]], group.pc)
            return False
        barrier_id = int(ids[0])
        barrier = _arrive(cta, barrier_id, int(counts[0]), len(members))
        generation = barrier.generation
        _complete(cta, barrier, barrier_id)
        if not is_waiting or barrier.generation != generation:
            group.pc += 1
            return not is_waiting
        group.pc += 1
        # The deadlock report must name the barrier, so the group stands at it until it is let through.
        waiting_at = group.pc - 1

        def ready() -> bool:
            if barrier.generation == generation:
                return False
            group.pc = waiting_at + 1
            return True

        group.pc = waiting_at
        return group.park(lambda: _reason(barrier, barrier_id), ready)

    form.step.control = control


@semantics("bar.red")
def _bar_red(form: Form) -> None:
    operation = form.first("and", "or", "popc")
    result_slot = form.write(form.operands[0], "u32" if operation == "popc" else "pred")
    id_slot = form.read(form.operands[1], "u32")
    source = form.operands[-1]
    predicate = source if isinstance(source, Reg) else getattr(source, "reg", None)
    if predicate is None:
        raise form.unsupported(f"{source}")
    value_slot = form.read(predicate, "pred")
    is_negated = not isinstance(source, Reg)
    count_slot = form.read(form.operands[2], "u32") if len(form.operands) > 3 else -1

    def control(cta: Cta, group: Group, threads: Threads) -> bool:
        members = cta.thread_ids[threads]
        barrier_id = int(cta.views[id_slot][threads][0])
        expected = int(cta.views[count_slot][threads][0]) if count_slot >= 0 else 0
        if len(members) < len(group.indices):
            raise Fault("bad-barrier", "bar.red under a predicate that differs between threads")
        values = cta.views[value_slot][threads] ^ is_negated
        barrier = _arrive(cta, barrier_id, expected, len(members))
        generation = barrier.generation
        barrier.contributions.append((group, values.copy()))
        here = group.pc

        def finish() -> None:
            everyone = np.concatenate(barrier.results[generation])
            result = everyone.sum() if operation == "popc" else everyone.all() if operation == "and" else everyone.any()
            cta.views[result_slot][members] = result
            group.pc = here + 1

        _complete(cta, barrier, barrier_id)
        if barrier.generation != generation:
            finish()
            return False

        def ready() -> bool:
            if barrier.generation == generation:
                return False
            finish()
            return True

        return group.park(lambda: _reason(barrier, barrier_id), ready)

    form.step.control = control


@semantics("barrier.cluster.arrive")
def _cluster_arrive(form: Form) -> None:
    def run(cta: Cta, threads: Threads) -> None:
        barrier = cta.cluster.barrier
        cta.cluster_arrivals[threads] = barrier.generation
        barrier.arrived += len(cta.thread_ids[threads])
        if barrier.arrived >= cta.thread_count * len(cta.cluster.ctas):
            barrier.arrived = 0
            barrier.generation += 1

    form.step.run = run


@semantics("barrier.cluster.wait")
def _cluster_wait(form: Form) -> None:
    def control(cta: Cta, group: Group, threads: Threads) -> bool:
        barrier = cta.cluster.barrier
        generation = int(cta.cluster_arrivals[threads].max())
        here = group.pc
        if barrier.generation > generation:
            group.pc += 1
            return True

        def ready() -> bool:
            if barrier.generation == generation:
                return False
            group.pc = here + 1
            return True

        def reason() -> str:
            return f"the cluster barrier, where {barrier.arrived} threads have arrived"

        return group.park(reason, ready)

    form.step.control = control


@semantics("bar.warp.sync")
def _warp_sync(form: Form) -> None:
    if form.operands[0] in (Imm(-1), Imm(_FULL)):
        form.step.gather = 32
    _nothing(form)


# -- within a warp -----------------------------------------------------------------------------------------------------


def _gather_full_mask(form: Form, operand: object) -> None:
    """With all lanes named the warp comes together first; a mask in a register names lanes that are here already."""
    if operand in (Imm(-1), Imm(_FULL)):
        form.step.gather = 32


@semantics("shfl.sync")
def _shfl(form: Form) -> None:
    mode = form.first("idx", "up", "down", "bfly")
    destination = form.operands[0]
    valid_slot = -1
    if isinstance(destination, Pair):
        valid_slot = form.write(destination.second, "pred")
        destination = destination.first
    result_slot = form.write(destination, "b32")
    source_slot, by_slot, clamp_slot = (form.read(operand, "u32") for operand in form.operands[1:4])
    _gather_full_mask(form, form.operands[4])

    def run(cta: Cta, threads: Threads) -> None:
        members = cta.thread_ids[threads]
        lane = members & 31
        by = cta.views[by_slot][threads].astype(np.int64) & 31
        packed = cta.views[clamp_slot][threads].astype(np.int64)
        segment, clamp = (packed >> 8) & 31, packed & 31
        top = (lane & segment) | (clamp & ~segment)
        bottom = lane & segment
        if mode == "idx":
            partner = bottom | (by & ~segment & 31)
            valid = partner <= top
        elif mode == "up":
            partner = lane - by
            valid = partner >= top
        elif mode == "down":
            partner = lane + by
            valid = partner <= top
        else:
            partner = lane ^ by
            valid = partner <= top
        partner = np.where(valid, partner, lane)
        values = cta.views[source_slot]
        chosen = np.minimum(members - lane + partner, cta.thread_count - 1)
        cta.views[result_slot][threads] = values[chosen]
        if valid_slot >= 0:
            cta.views[valid_slot][threads] = valid

    form.step.run = run


def _per_warp(members: Array) -> Array:
    """For each thread the position of its warp among the warps that are here."""
    positions: Array = np.unique(members >> 5, return_inverse=True)[1]
    return positions


def _ballot(members: Array, values: Array) -> Array:
    """For each thread the mask of its warp's lanes whose value is true."""
    warp = _per_warp(members)
    masks = np.zeros(int(warp.max()) + 1, np.int64)
    np.bitwise_or.at(masks, warp, np.where(values, np.left_shift(np.int64(1), members & 31), 0))
    ballot: Array = masks[warp]
    return ballot


@semantics("vote.sync")
def _vote(form: Form) -> None:
    mode = form.first("all", "any", "uni", "ballot")
    result_slot = form.write(form.operands[0], "b32" if mode == "ballot" else "pred")
    source = form.operands[1]
    value_slot = form.read(source if isinstance(source, (Reg, Imm)) else getattr(source, "reg", source), "pred")
    is_negated = not isinstance(source, (Reg, Imm))
    _gather_full_mask(form, form.operands[2])

    def run(cta: Cta, threads: Threads) -> None:
        members = cta.thread_ids[threads]
        values = cta.views[value_slot][threads] ^ is_negated
        ballot = _ballot(members, values)
        everyone = _ballot(members, np.ones(len(members), np.bool_))
        result = {
            "ballot": ballot,
            "all": ballot == everyone,
            "any": ballot != 0,
            "uni": (ballot == everyone) | (ballot == 0),
        }[mode]
        cta.views[result_slot][threads] = result

    form.step.run = run


@semantics("match.any.sync")
def _match_any(form: Form) -> None:
    result_slot = form.write(form.operands[0], "b32")
    value_slot = form.read(form.operands[1], form.types[-1])
    _gather_full_mask(form, form.operands[2])

    def run(cta: Cta, threads: Threads) -> None:
        members = cta.thread_ids[threads]
        values = cta.views[value_slot][threads]
        same = (values[:, None] == values[None, :]) & ((members >> 5)[:, None] == (members >> 5)[None, :])
        bits = np.left_shift(np.int64(1), members & 31)
        cta.views[result_slot][threads] = np.where(same, bits[None, :], 0).sum(axis=1)

    form.step.run = run


@semantics("redux.sync")
def _redux(form: Form) -> None:
    operation = form.first("add", "min", "max", "and", "or", "xor")
    result_slot = form.write(form.operands[0], form.types[-1])
    value_slot = form.read(form.operands[1], form.types[-1])
    _gather_full_mask(form, form.operands[2])
    combine = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[operation]

    def run(cta: Cta, threads: Threads) -> None:
        members = cta.thread_ids[threads]
        values = cta.views[value_slot][threads]
        result = values.copy()
        for warp in np.unique(members >> 5).tolist():
            lanes = (members >> 5) == warp
            result[lanes] = combine.reduce(values[lanes])
        cta.views[result_slot][threads] = result

    form.step.run = run


@semantics("activemask")
def _activemask(form: Form) -> None:
    result_slot = form.write(form.operands[0], "b32")

    def run(cta: Cta, threads: Threads) -> None:
        members = cta.thread_ids[threads]
        cta.views[result_slot][threads] = _ballot(members, np.ones(len(members), np.bool_))

    form.step.run = run


@semantics("elect.sync")
def _elect(form: Form) -> None:
    destination = form.operands[0]
    if not isinstance(destination, Pair):
        raise form.unsupported("elect.sync without a predicate")
    lane_slot = form.write(destination.first, "b32")
    elected_slot = form.write(destination.second, "pred")
    mask_slot = form.read(form.operands[1], "u32")
    _gather_full_mask(form, form.operands[1])

    def run(cta: Cta, threads: Threads) -> None:
        members = cta.thread_ids[threads]
        named = (cta.views[mask_slot][threads] >> (members & 31).astype(np.uint32)) & 1
        ballot = _ballot(members, named == 1)
        lowest = np.log2((ballot & -ballot).astype(np.float64)).astype(np.int64)
        cta.views[lane_slot][threads] = lowest
        cta.views[elected_slot][threads] = (members & 31) == lowest

    form.step.run = run
