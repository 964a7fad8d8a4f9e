"""Leaves out dependences that follow from others, in problems of so many that looking at them is most of the work.

In a loop that changes one tile a hundred times every statement depends on every other one: ten thousand edges, of which
all but a hundred follow from paths of others. The problem without them has the same schedules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from tilec.sched.problem import Edge, Problem
from tilec.support.identity import Same

_MOST_EDGES = 2000
"""Fewer are not worth it; and what heuristics try first depends on which edges there are."""


@lru_cache(maxsize=2)
def without_implied(problem: Problem) -> Problem:
    """The problem without the edges that others imply, if it has many and all that lie within an iteration point
    forward. Edges whose latency depends on roles stay."""
    if len(problem.edges) <= _MOST_EDGES or any(e.distance == 0 and e.src >= e.dst for e in problem.edges):
        return problem
    kept = [edge for edge in problem.edges if edge.hand_over]
    plain = [edge for edge in problem.edges if not edge.hand_over]
    within, separation = _within(len(problem.ops), [edge for edge in plain if edge.distance == 0])
    kept += within
    for distance in sorted({edge.distance for edge in plain} - {0}):
        kept += _between([edge for edge in plain if edge.distance == distance], separation)
    chosen = {Same(edge) for edge in kept}
    return replace(problem, edges=tuple(edge for edge in problem.edges if Same(edge) in chosen))


def _within(count: int, edges: Iterable[Edge]) -> tuple[list[Edge], list[dict[int, int]]]:
    """The edges of an iteration without those that follow from the rest, and how long after each op each other one must
    issue at least, where anything says so. Edges point forward, so that one through an op nearer than its end is known
    before that end is reached, and none follows from itself."""
    out: list[list[Edge]] = [[] for _ in range(count)]
    for edge in edges:
        out[edge.src].append(edge)
    kept: list[Edge] = []
    separation: list[dict[int, int]] = [{} for _ in range(count)]
    for op in reversed(range(count)):
        mine = separation[op]
        for edge in sorted(out[op], key=lambda edge: (edge.dst, -edge.latency)):
            known = mine.get(edge.dst)
            if known is not None and known >= edge.latency:
                continue
            kept.append(edge)
            for other, beyond in ((edge.dst, 0), *separation[edge.dst].items()):
                reached = edge.latency + beyond
                if reached > mine.get(other, reached - 1):
                    mine[other] = reached
    return kept, separation


def _between(edges: Iterable[Edge], separation: list[dict[int, int]]) -> list[Edge]:
    """Of edges of one distance, those that do not follow from another one with a path before it and one behind it. Who
    ends later and begins earlier implies none of the others, so that two never imply each other."""
    longest: dict[tuple[int, int], Edge] = {}
    for edge in edges:
        known = longest.get((edge.src, edge.dst))
        if known is None or edge.latency > known.latency:
            longest[edge.src, edge.dst] = edge
    kept: list[Edge] = []
    # What implies an edge begins no earlier than it and ends no later.
    for edge in sorted(longest.values(), key=lambda edge: (-edge.src, edge.dst)):
        before, is_implied = separation[edge.src], False
        for other in kept:
            first = 0 if other.src == edge.src else before.get(other.src)
            last = 0 if other.dst == edge.dst else separation[other.dst].get(edge.dst)
            if first is not None and last is not None and first + other.latency + last >= edge.latency:
                is_implied = True
                break
        if not is_implied:
            kept.append(edge)
    return kept
