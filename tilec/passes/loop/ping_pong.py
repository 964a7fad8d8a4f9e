"""Ping-pong: warpgroups that run the same code at different times, as their schedule says.

In each interval a group has runs of ops on the unit that the groups contend for, without such an op of another group in
between. Where the groups' runs alternate in a fixed order, one named barrier a group keeps that order: a group waits at
its own barrier before the first op of a run, and arrives at the next group's barrier once it has issued the last.

The unit is the tensor cores, also where exponentials fill the interval: turns at the special function units, tried on
an H200, made attention with heads of 64 columns 16 % slower, and that of 8-bit floats 5 %.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.passes.loop.rotate_loop import keeps_groups, keeps_ping_pong
from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule

CONTENDED_SLOT = "tc_and_mma"
LEAST_SHARE = 1 / 16
"""The least part of a group's use of the unit by which an op belongs to the group's turn."""


def find_contending_ops(problem: Problem) -> tuple[int, ...]:
    """Return the first warpgroup's ops with 1/16 or more of its use of the unit at which groups take turns."""
    own = [copies[0] for copies in problem.copies]
    contended = next((number for number, slot in enumerate(problem.slots) if slot.name == CONTENDED_SLOT), None)
    held = {op: sum(use.cycles for use in problem.ops[op].uses if use.slot == contended) for op in own}
    return tuple(op for op in own if held[op] and held[op] >= LEAST_SHARE * sum(held.values()))


def find_ping_pong_runs(problem: Problem, schedule: Schedule, ops: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the first warpgroup's runs of contending ops in issue order; () where groups do not alternate, or every
    iteration would cut a run or part a bind from its users. `ops` are those of the first group that runs consist of."""
    place = {op: at for at, op in enumerate(schedule.order)}
    copies = {of[0]: of for of in problem.copies}
    group_of = {op: group for first in ops for group, op in enumerate(copies.get(first, ()))}
    sequence = sorted(group_of, key=lambda op: place[op])
    # Rotate the interval to begin with a run of the first group.
    begins = [at for at, op in enumerate(sequence) if group_of[op] == 0 != group_of[sequence[at - 1]]]
    if not begins:
        return ()
    runs: list[list[int]] = []
    for op in sequence[begins[0] :] + sequence[: begins[0]]:
        if runs and group_of[runs[-1][0]] == group_of[op]:
            runs[-1].append(op)
        else:
            runs.append([op])
    groups = len(problem.copies[0])
    if any(group_of[run[0]] != at % groups for at, run in enumerate(runs)) or len(runs) % groups:
        return ()
    first_runs = tuple(tuple(run) for run in runs[::groups])
    return first_runs if not problem.same_stage or _can_be_kept(problem, schedule, first_runs) else ()


def _can_be_kept(problem: Problem, schedule: Schedule, runs: Sequence[Sequence[int]]) -> bool:
    """Return whether an iteration can begin at an op of the interval so that it cuts no run and parts no bind from its
    users."""
    place = {op: at for at, op in enumerate(schedule.order)}
    issued = sorted(place, key=lambda op: (schedule.start[op] % schedule.ii, place[op]))
    run_places = {op: (number, at) for number, run in enumerate(runs) for at, op in enumerate(run)}
    steps = [run_places.get(op) for op in issued]
    groups = [[issued.index(op) for op in group] for group in problem.same_stage]
    return any(keeps_ping_pong(steps, at) and keeps_groups(groups, at) for at in range(len(steps)))
