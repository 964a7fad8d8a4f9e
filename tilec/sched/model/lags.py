"""Lags: how far each group of warps that runs the same code is behind the first group.

Of all lags that have a schedule, the most even ones are taken, which divide the interval into equal parts, so that no
group waits longer than another. Once chosen, lags are dependences that hold both ways, and `fold_groups` merges the ops
that move together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tilec.sched.budget import Budget
from tilec.sched.lower_bounds.bounds import compute_depth_limits
from tilec.sched.lower_bounds.paths import build_arcs, has_positive_cycle
from tilec.sched.model.model import Model
from tilec.sched.problem import Edge, Problem, Ring, Use, Value

_RingOrValue = TypeVar("_RingOrValue", Ring, Value)


def set_even_lags(problem: Problem, ii: int) -> Problem:
    """Return the problem with lags that divide the interval evenly; the same problem if it has lags or no groups."""
    if problem.lags or not problem.copies:
        return problem
    count = len(problem.copies[0])
    return replace(problem, lags=tuple(group * ii // count for group in range(count)))


def set_observed_lags(problem: Problem, start: Sequence[int]) -> Problem:
    """Return the problem with its groups' lags fixed to those of the given starts; unchanged without groups."""
    if not problem.copies:
        return problem
    first = problem.copies[0]
    return replace(problem, lags=tuple(start[op] - start[first[0]] for op in first))


def even_out_lags(
    problem: Problem, ii: int, stages: int, start: Sequence[int], effort: float, budget: Budget | None = None
) -> tuple[int, ...]:
    """Return starts with the most even, then smallest, lags that this II and number of stages allow; else the given."""
    even = set_even_lags(problem, ii)
    if set_observed_lags(problem, start).lags == even.lags:
        return tuple(start)
    # Even at their depth limits, rings can be too shallow for a group that is half an interval behind.
    if not has_positive_cycle(even, ii, build_arcs(even, compute_depth_limits(even, ii))):
        answer = Model(even, ii, stages, budget=budget).feasible(effort)
        if answer.outcome == "found":
            return answer.start
    model = Model(problem, ii, stages, budget=budget)
    unevenness = model.express_unevenness()
    answer = model.minimise(unevenness, effort, start)
    start = answer.start if answer.outcome == "found" else start
    lags = set_observed_lags(problem, start).lags
    model.settle(unevenness, sum(abs(lag - even_lag) for lag, even_lag in zip(lags, even.lags, strict=True)))
    answer = model.minimise(model.lags(), effort, start)
    return answer.start if answer.outcome == "found" else tuple(start)


def fold_groups(problem: Problem) -> tuple[Problem, Callable[[Sequence[int]], tuple[int, ...]]]:
    """Return the problem of the first group of warps alone, and a function from its starts to those of all groups.

    Each op also holds the slots of its copies, at their lags. A buffer that all groups read is done when the last group
    is: an op without uses stands for that end. The problem must have lags, or no groups.
    """
    leader = {op: (group[0], lag) for group in problem.copies for op, lag in zip(group, problem.lags, strict=True)}
    kept = [op for op in range(len(problem.ops)) if leader.get(op, (op, 0))[0] == op]
    place = {op: at for at, op in enumerate(kept)}
    position = [(place[first], lag) for first, lag in (leader.get(op, (op, 0)) for op in range(len(problem.ops)))]
    uses: list[list[Use]] = [[] for _ in kept]
    for op, (at, lag) in zip(problem.ops, position, strict=True):
        uses[at] += (replace(use, offset=use.offset + lag) for use in op.uses)
    ops = [replace(problem.ops[op], uses=tuple(op_uses)) for op, op_uses in zip(kept, uses, strict=True)]
    edges: dict[tuple[int, int, int], Edge] = {}
    for edge in problem.edges:
        (src, ahead), (dst, behind) = position[edge.src], position[edge.dst]
        moved = replace(edge, src=src, dst=dst, latency=edge.latency + ahead - behind)
        known = edges.get((src, dst, edge.distance))
        if known is None or known.latency < moved.latency:
            edges[src, dst, edge.distance] = moved
    ends: dict[tuple[int, int], int] = {}

    def fold_consumers(consumers: tuple[int, ...]) -> tuple[int, ...]:
        """Return ops of the folded problem that end when all of these consumers have ended, adding some if needed."""
        last: dict[int, int] = {}
        for op in consumers:
            at, lag = position[op]
            last[at] = max(last.get(at, 0), lag)
        for at, lag in last.items():
            if lag and (at, lag) not in ends:
                ends[at, lag] = end = len(ops)
                ops.append(replace(ops[at], uses=(), issue=0, latency=ops[at].latency + lag))
                edges[at, end, 0] = Edge(at, end, 0, 0, "lag")
        return tuple(ends.get(end, end[0]) for end in last.items())

    def fold_ops(ops: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ops of the folded problem that stand for these, each once."""
        return tuple(dict.fromkeys(position[op][0] for op in ops))

    def fold_lifetime(buffer: _RingOrValue) -> _RingOrValue:
        """Return the ring or value with the folded problem's producers and consumers."""
        return replace(buffer, producers=fold_ops(buffer.producers), consumers=fold_consumers(buffer.consumers))

    rings, values = tuple(map(fold_lifetime, problem.rings)), tuple(map(fold_lifetime, problem.values))
    same_stage = tuple(map(fold_ops, problem.same_stage))
    alone = replace(problem, rings=rings, values=values, tied=(), same_stage=same_stage, copies=(), lags=())
    folded = replace(alone, ops=tuple(ops), edges=tuple(edges.values()))
    return folded, lambda start: tuple(start[at] + lag for at, lag in position)
