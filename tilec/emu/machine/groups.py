"""Groups: threads of a block that run one step together; and waits for the threads that a step needs together: whole
warpgroups, whole warps, or the lanes of a mask.

From sm_70 on, the lanes of a shuffle, a vote or `bar.warp.sync` need not stand at the same instruction: they wait for
each other wherever they execute one with the same qualifiers and mask (PTX ISA, shfl.sync and its relatives; only up to
sm_6x must they be converged). An `.aligned` instruction must be the same one for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.numbers import Array
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta
    from tilec.emu.machine.steps import Step


Threads = slice | Array
"""Some threads of a block: a slice where they are neighbours, so that registers are viewed and not copied."""


def compact_threads(indices: Array) -> Threads:
    """Return sorted thread numbers as a slice if they are neighbours, and unchanged otherwise."""
    first, last = int(indices[0]), int(indices[-1])
    if last - first + 1 == len(indices):
        return slice(first, last + 1)
    return indices


@dataclass(slots=True, eq=False)
class Group:
    """Threads at one step. Of a parked group, `reason` describes its wait and `ready` tells when to look again."""

    pc: int
    indices: Array
    threads: Threads
    time_slice: int = 0
    ready: Callable[[], bool] | None = None
    reason: Callable[[], str] = str
    is_gathering: bool = False
    poll_count: int = 0
    """The number of times that `test_wait` has parked the group since it last succeeded."""
    since: int = -1
    """The timeline event at which the group began to wait."""
    refused: tuple[tuple[int, int], ...] = ()
    """The mbarrier states (address, version) at which an adversary has let `try_wait` fail."""
    must_fail_wait: bool = False
    """The next `test_wait` of the group must fail, because nothing else can run."""
    spin_state: int | None = None
    """The hash of memory with which the group repeats itself for ever (see `progress`)."""

    def set_threads(self, indices: Array) -> None:
        """Replace the threads of the group by these, which are in order."""
        self.indices, self.threads = indices, compact_threads(indices)

    def park(self, reason: Callable[[], str], ready: Callable[[], bool]) -> bool:
        """Set the group's wait: its reason in words, and the test that ends it; return False, as a control step does
        then."""
        self.reason, self.ready = reason, ready
        return False


def make_group(pc: int, indices: Array, time_slice: int = 0) -> Group:
    """Return a group of these threads, in order, at step `pc`."""
    return Group(pc, indices, compact_threads(indices), time_slice)


_WARP = 32


def gather_threads(cta: Cta, group: Group, pc: int, step: Step) -> bool:
    """Return whether the group may run a step of whole warps or warpgroups, reduced to complete ones; park the other
    threads. Groups that wait there are joined first. A group for which it returns False is parked, or has run with
    lanes at other instructions."""
    size = step.gather
    threads = group.threads
    if (
        isinstance(threads, slice)
        and threads.start % size == 0
        and (threads.stop % size == 0 or threads.stop == cta.thread_count)
    ):
        return True
    for other in [other for other in cta.groups if other.is_gathering and other.pc == pc and other is not group]:
        cta.groups.remove(other)
        group.indices = np.sort(np.concatenate([group.indices, other.indices]))
    group.set_threads(group.indices)
    complete = _find_complete_threads(cta, group.indices, step, _mark_present(cta, size, group.indices))
    if complete.all():
        group.is_gathering = False
        return True
    if step.exchanged_slots is not None and _join_other_instructions(cta, group, pc, step):
        return False
    _park_group(cta, make_group(pc, group.indices[~complete], group.time_slice), step)
    if not complete.any():
        cta.groups.remove(group)
        return False
    group.set_threads(group.indices[complete])
    return True


def _park_group(cta: Cta, waiting: Group, step: Step) -> None:
    """Park a group that waits for the other threads of its warps or warpgroups, or for any exit, and add it to its
    block."""
    exits = cta.exited_count
    waiting.is_gathering = True
    unit = "warp" if step.gather == _WARP else "warpgroup"
    waiting.park(lambda: f"the other threads of its {unit}", lambda: cta.exited_count != exits)
    cta.groups.append(waiting)


def _mark_present(cta: Cta, size: int, indices: Array) -> Array:
    """Return, for each thread of the block, whether it need not be waited for: in `indices`, exited or not existing."""
    present = np.zeros(-(-cta.thread_count // size) * size, np.bool_)
    present[: cta.thread_count] = cta.exited
    present[cta.thread_count :] = True
    present[indices] = True
    return present


def _find_complete_threads(cta: Cta, indices: Array, step: Step, present: Array) -> Array:
    """Return, for each of `indices`, whether its partners are present: its warp or warpgroup, or the lanes its mask
    names. A thread that its guard holds back needs none."""
    if step.mask < 0:
        whole: Array = np.all(present.reshape(-1, step.gather), axis=1)
        ready: Array = whole[indices // step.gather]
        return ready
    lane = np.arange(_WARP)
    named = (cta.views[step.mask][indices][:, None] >> lane.astype(np.uint32)) & np.uint32(1) == 1
    here = present[(indices // _WARP * _WARP)[:, None] + lane]
    complete: Array = (here | ~named).all(axis=1)
    if step.guard >= 0:
        complete |= cta.views[step.guard][indices] == step.negated
    return complete


# -- at several instructions -------------------------------------------------------------------------------------------


def _join_other_instructions(cta: Cta, group: Group, pc: int, step: Step) -> bool:
    """Run the step together with groups that wait at other instructions of its kind; return False, with nothing run, if
    there are none. Threads whose partners are all present run and go on behind their instructions; the others are
    parked. It returns False too if another group can run alone and this one cannot."""
    group.pc = pc
    steps = cta.program.steps
    parts = [group, *(g for g in cta.groups if g.is_gathering and g.pc != pc and _can_converge(step, steps[g.pc]))]
    if len(parts) == 1:
        return False
    present = _mark_present(cta, step.gather, np.concatenate([part.indices for part in parts]))
    complete = [_find_complete_threads(cta, part.indices, steps[part.pc], present) for part in parts]
    complete_parts = [(steps[g.pc], g.indices[ready]) for g, ready in zip(parts, complete, strict=True) if ready.any()]
    if len(complete_parts) == 1 and not complete[0].any():
        return False
    _run_together(cta, [(step, _drop_held_back(cta, step, members)) for step, members in complete_parts])
    for part, ready in zip(parts, complete, strict=True):
        cta.groups.remove(part)
        if ready.any():
            cta.groups.append(make_group(part.pc + 1, part.indices[ready], part.time_slice))
        if not ready.all():
            _park_group(cta, make_group(part.pc, part.indices[~ready], part.time_slice), steps[part.pc])
    return True


def _can_converge(step: Step, other: Step) -> bool:
    """Return whether lanes at two instructions may synchronise: the same opcode and the same number of operands."""
    mine, theirs = step.exchanged_slots, other.exchanged_slots
    if mine is None or theirs is None or step.instruction.opcode != other.instruction.opcode:
        return False
    return list(map(len, mine)) == list(map(len, theirs))


def _drop_held_back(cta: Cta, step: Step, members: Array) -> Array:
    """Return the threads whose guard lets them run the step."""
    return members if step.guard < 0 else members[cta.views[step.guard][members] != step.negated]


def _run_together(cta: Cta, parts: list[tuple[Step, Array]]) -> None:
    """Run the first part's instruction for the threads of all parts, each with its own operands and results. Operands
    of the other parts are copied to its registers, and results copied back."""
    parts = [(step, members) for step, members in parts if len(members)]
    if not parts:
        return
    first = parts[0][0]
    assert first.run is not None and first.exchanged_slots is not None
    reads, writes = first.exchanged_slots
    views = cta.views
    kept = []
    for step, members in parts[1:]:
        assert step.exchanged_slots is not None
        kept.append([views[slot][members].copy() for slot in (*reads, *writes)])
        values = [views[slot][members].copy() for slot in step.exchanged_slots[0]]
        for slot, value in zip(reads, values, strict=True):
            is_other_sense = value.dtype == np.bool_ and step.is_inverted != first.is_inverted
            views[slot][members] = ~value if is_other_sense else value
    first.run(cta, compact_threads(np.sort(np.concatenate([members for _, members in parts]))))
    for (step, members), before in zip(parts[1:], kept, strict=True):
        assert step.exchanged_slots is not None
        results = [views[slot][members].copy() for slot in writes]
        for slot, value in zip((*reads, *writes), before, strict=True):
            views[slot][members] = value
        for slot, value in zip(step.exchanged_slots[1], results, strict=True):
            views[slot][members] = value
