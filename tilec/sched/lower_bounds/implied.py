"""Drops dependences that others imply, in problems with so many that looking at them is most of the work.

In a loop that changes one tile a hundred times, every statement depends on every other: ten thousand edges, all but a
hundred of which follow from paths of others. The reduced problem has the same schedules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from tilec.sched.problem import Edge, Problem
from tilec.support.identity import IdentityKey

_MAX_EDGES = 2000
"""Fewer edges are not worth it, and would change which order heuristics try first."""


@lru_cache(maxsize=2)
def drop_implied_edges(problem: Problem) -> Problem:
    """Return the problem without the edges that others imply, if it has over 2000 edges and all point forward.

    Edges within an iteration must point forward. Edges whose latency depends on roles stay.
    """
    if len(problem.edges) <= _MAX_EDGES or any(e.distance == 0 and e.src >= e.dst for e in problem.edges):
        return problem
    kept = [edge for edge in problem.edges if edge.hand_over]
    plain = [edge for edge in problem.edges if not edge.hand_over]
    reduced, separation = _reduce_iteration_edges(len(problem.ops), [edge for edge in plain if edge.distance == 0])
    kept += reduced
    for distance in sorted({edge.distance for edge in plain} - {0}):
        kept += _reduce_carried_edges([edge for edge in plain if edge.distance == distance], separation)
    chosen = {IdentityKey(edge) for edge in kept}
    return replace(problem, edges=tuple(edge for edge in problem.edges if IdentityKey(edge) in chosen))


def _reduce_iteration_edges(count: int, edges: Iterable[Edge]) -> tuple[list[Edge], list[dict[int, int]]]:
    """Return the edges within an iteration that others do not imply, and the longest paths from each op.

    Edges point forward, and the shorter ones of an op come first, so a path through a nearer op is known before the
    direct edge is looked at.
    """
    out: list[list[Edge]] = [[] for _ in range(count)]
    for edge in edges:
        out[edge.src].append(edge)
    kept: list[Edge] = []
    separation: list[dict[int, int]] = [{} for _ in range(count)]
    for op in reversed(range(count)):
        separation_from = separation[op]
        for edge in sorted(out[op], key=lambda edge: (edge.dst, -edge.latency)):
            known = separation_from.get(edge.dst)
            if known is not None and known >= edge.latency:
                continue
            kept.append(edge)
            for other, beyond in ((edge.dst, 0), *separation[edge.dst].items()):
                reached = edge.latency + beyond
                if reached > separation_from.get(other, reached - 1):
                    separation_from[other] = reached
    return kept, separation


def _reduce_carried_edges(edges: Iterable[Edge], separation: list[dict[int, int]]) -> list[Edge]:
    """Return the edges of one distance that no other edge implies together with paths before and behind it.

    Edges are visited by falling source and rising destination: an implying edge starts no earlier and ends no later, so
    that two edges never imply each other.
    """
    longest: dict[tuple[int, int], Edge] = {}
    for edge in edges:
        known = longest.get((edge.src, edge.dst))
        if known is None or edge.latency > known.latency:
            longest[edge.src, edge.dst] = edge
    kept: list[Edge] = []
    # An edge that implies another starts no earlier and ends no later.
    for edge in sorted(longest.values(), key=lambda edge: (-edge.src, edge.dst)):
        before = separation[edge.src]
        for other in kept:
            first = 0 if other.src == edge.src else before.get(other.src)
            last = 0 if other.dst == edge.dst else separation[other.dst].get(edge.dst)
            if first is not None and last is not None and first + other.latency + last >= edge.latency:
                break
        else:
            kept.append(edge)
    return kept
