"""Longest paths: the distances that dependences enforce between ops at a given interval.

An arc u → v of latency l and distance d says start[v] − start[u] ≥ l − d · II. All arcs together imply the longest path
from u to v, which may be negative. A cycle of positive length is a contradiction: the interval is too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations, product
from typing import NamedTuple

from tilec.sched.problem import Problem

Distances = tuple[tuple[int | None, ...], ...]
"""[op][other] is the least number of cycles from the start of op to the start of other; None where unconstrained."""


class Arc(NamedTuple):
    """start[dst] + distance·II ≥ start[src] + latency: an edge, or a ring that must not be overwritten."""

    src: int
    dst: int
    latency: int
    distance: int
    why: str


def build_edge_arcs(problem: Problem) -> tuple[Arc, ...]:
    """Return an arc for each edge, and arcs that keep ops of one stage less than an interval apart."""
    edges = (Arc(e.src, e.dst, e.latency, e.distance, e.why) for e in problem.edges)
    pairs = (pair for group in problem.same_stage for pair in permutations(group, 2))
    return (*edges, *(Arc(one, other, 1, 1, "same stage") for one, other in pairs))


def build_arcs(problem: Problem, depth: Sequence[int | None] | None = None) -> tuple[Arc, ...]:
    """Return arcs for edges, lags of groups, and the wait of a ring's producers until its consumers free a version.

    A ring of depth d is the arc consumer → producer of distance d. `depth` overrides each ring's `max_depth`.
    """
    limits = [ring.max_depth for ring in problem.rings] if depth is None else depth
    found = [*build_edge_arcs(problem), *build_lag_arcs(problem)]
    for ring, limit in zip(problem.rings, limits, strict=True):
        if limit is not None:
            why = f"ring {ring.name} of depth {limit}"
            pairs = product(ring.consumers, ring.producers)
            found += (Arc(user, maker, problem.ops[user].latency, limit, why) for user, maker in pairs)
    return tuple(found)


def map_group_leaders(problem: Problem) -> dict[int, tuple[int, int]]:
    """Map each op that several groups of warps run to the first group's op and the number of its own group."""
    return {op: (copies[0], group) for copies in problem.copies for group, op in enumerate(copies)}


def build_lag_arcs(problem: Problem) -> tuple[Arc, ...]:
    """Return arcs that keep each group's ops at its lag behind the first group, or within an interval if undecided."""
    found = []
    for first, *others in problem.copies:
        for group, op in enumerate(others, 1):
            lag = problem.lags[group] if problem.lags else 0
            found.append(Arc(first, op, lag, 0, "lag"))
            found.append(Arc(op, first, -lag, 0, "lag") if problem.lags else Arc(op, first, 1, 1, "lag"))
    return tuple(found)


def find_earliest_starts(problem: Problem, ii: int, constraints: Sequence[Arc], floor: Sequence[int] = ()) -> list[int]:
    """Return the smallest starts that the arcs allow at this II, not below `floor` (or 0).

    The II must have no positive cycle.
    """
    starts, cycle = relax_arcs(len(problem.ops), constraints, ii, list(floor) or [0] * len(problem.ops))
    assert not cycle, f"II {ii} is below the recurrence bound"
    return [start for start in starts if start is not None]


def has_positive_cycle(problem: Problem, ii: int, constraints: Sequence[Arc]) -> bool:
    """Return whether some cycle of arcs has positive length at this II, which is then too small."""
    return bool(relax_arcs(len(problem.ops), constraints, ii, [0] * len(problem.ops))[1])


def find_distances_from(problem: Problem, ii: int, constraints: Sequence[Arc], op: int) -> list[int | None]:
    """Return the least distance from op's start to each op's start at this II (negative: a deadline; None: free)."""
    origin: list[int | None] = [None] * len(problem.ops)
    origin[op] = 0
    return relax_arcs(len(problem.ops), constraints, ii, origin)[0]


def find_all_distances(problem: Problem, ii: int, constraints: Sequence[Arc]) -> Distances:
    """Return the least distances between the starts of all ops at this II, which must have no positive cycle."""
    separation: dict[tuple[int, int], int] = {}
    for arc in constraints:
        least = arc.latency - ii * arc.distance
        separation[arc.src, arc.dst] = max(least, separation.get((arc.src, arc.dst), least))
    return _find_all_distances(len(problem.ops), tuple(separation.items()))


# Cached: every arm of the heuristics asks at each interval, and so does the solver's model.
@lru_cache(maxsize=8)
def _find_all_distances(count: int, separation: tuple[tuple[tuple[int, int], int], ...]) -> Distances:
    """Return the longest paths between all ops, from the largest distance of each pair with an arc."""
    onward: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for (src, dst), least in separation:
        onward[src].append((dst, least))
    return tuple(_find_longest_paths(onward, op) for op in range(count))


def _find_longest_paths(onward: Sequence[Sequence[tuple[int, int]]], op: int) -> tuple[int | None, ...]:
    """Return the longest path from an op to each op, None where there is none."""
    length: list[int | None] = [None] * len(onward)
    length[op] = 0
    longer = {op: 0}
    for _ in onward:  # no path without a cycle has more arcs
        now, longer = longer, {}
        for src, at in now.items():
            for dst, least in onward[src]:
                reached, known = at + least, length[dst]
                if known is None or reached > known:
                    length[dst] = longer[dst] = reached
    return tuple(length)


def relax_arcs(
    count: int, constraints: Sequence[Arc], ii: int, origin: list[int | None] | list[int]
) -> tuple[list[int | None], list[Arc]]:
    """Return the longest paths from the lengths `origin` (None: not reached), and a positive cycle or []."""
    length: list[int | None] = list(origin)
    via: list[Arc | None] = [None] * count
    steps = [(arc.src, arc.dst, arc.latency - ii * arc.distance, arc) for arc in constraints]
    while True:
        changed = False
        for src, dst, least, arc in steps:
            at, known = length[src], length[dst]
            if at is not None and (known is None or at + least > known):
                length[dst], via[dst], changed = at + least, arc, True
        if not changed:
            return length, []
        cycle = _find_cycle(via)
        if cycle:
            return length, cycle


def _find_cycle(via: Sequence[Arc | None]) -> list[Arc]:
    """Return a positive cycle among the arcs that last lengthened each op's path; empty if there is none."""
    seen = [-1] * len(via)
    for root in range(len(via)):
        op = root
        while (arc := via[op]) is not None and seen[op] < 0:
            seen[op] = root
            op = arc.src
        if arc is None or seen[op] != root:
            continue
        cycle = [arc]
        while cycle[-1].src != op:
            step = via[cycle[-1].src]
            assert step is not None
            cycle.append(step)
        # Start with the smallest op, so that messages do not depend on where the walk began.
        cycle.reverse()
        first = min(range(len(cycle)), key=lambda index: cycle[index].src)
        return cycle[first:] + cycle[:first]
    return []
