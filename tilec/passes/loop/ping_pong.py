"""Ping-pong at the tensor cores: warpgroups that run the same code at different times, as their schedule says.

In each interval a group has runs of products without a product of another group in between. Where the groups' runs
alternate in a fixed order, one named barrier a group keeps that order: a group waits at its own barrier before the
first product of a run, and arrives at the next group's barrier once it has issued the last."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule


def find_tensor_core_runs(problem: Problem, schedule: Schedule, products: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the runs of the first group in an interval, each the ops in issue order; none where groups do not
    alternate. `products` are ops of the first group."""
    place = {op: at for at, op in enumerate(schedule.order)}
    copies = {of[0]: of for of in problem.copies}
    group_of = {op: group for product in products for group, op in enumerate(copies.get(product, ()))}
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
    return tuple(tuple(run) for run in runs[::groups])
