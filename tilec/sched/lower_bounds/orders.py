"""Bounds of levels of the objective by the orders of ops that share slots of one unit.

In one order, each two ops that share such a slot are a known number of whole intervals apart. Only differences of
starts are left then, whose bounds are longest paths. Where the orders are few, the least over all of them often equals
what a schedule has, which proves it the best without the solver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from tilec.sched.collisions import AccessPair, count_certain_collisions
from tilec.sched.lower_bounds.paths import Arc, build_arcs, find_all_distances, has_positive_cycle
from tilec.sched.lower_bounds.windows import find_exclusive_slots, list_separations, tighten_distances
from tilec.sched.problem import Problem

_MAX_OPS = 48
_MAX_ORDERS = 64
"""Beyond these the solver is as fast."""

Order = list[list[int]]
"""[op][other] is the least number of cycles from the start of op to the start of other."""


def list_orders(problem: Problem, ii: int, span: int, depths: Sequence[int | None]) -> list[Order]:
    """Return all orders in which a schedule may exist whose starts are at most `span` cycles apart; [] if too many.

    Rings are no deeper than `depths` (None: any depth). The II must have a schedule.
    """
    count = len(problem.ops)
    arcs = build_arcs(problem, depths)
    arcs += tuple(Arc(op, other, -span, 0, "stages") for op, other in permutations(range(count), 2))
    if not 0 < count <= _MAX_OPS or has_positive_cycle(problem, ii, arcs):
        return []
    orders = [[[least or 0 for least in row] for row in find_all_distances(problem, ii, arcs)]]
    for u, v, ahead, behind in list_separations(problem, find_exclusive_slots(problem, ii, frozenset())):
        orders = [divided for order in orders for divided in _divide_order(order, ii, u, v, ahead, behind)]
        if len(orders) > _MAX_ORDERS:
            return []
    return orders


def _divide_order(order: Order, ii: int, u: int, v: int, ahead: int, behind: int) -> Iterator[Order]:
    """Yield the order once for each number of whole intervals between two ops, where start[v] − start[u] lies in
    [wrap·II + ahead, (wrap + 1)·II − behind]."""
    first = -(-(order[u][v] + behind - ii) // ii)
    last = (-order[v][u] - ahead) // ii
    for wrap in range(first, last + 1):
        divided = [list(row) for row in order]
        if tighten_distances(divided, u, v, wrap * ii + ahead) and tighten_distances(
            divided, v, u, behind - (wrap + 1) * ii
        ):
            yield divided


def bound_slot_pressure(orders: Sequence[Order], reaching_pairs: Sequence[tuple[int, int]]) -> int:
    """Return a lower bound, in cycles, of the longest distance between these pairs of ops; 0 without orders."""
    return min((max([0, *(order[first][last] for first, last in reaching_pairs)]) for order in orders), default=0)


def bound_collisions(orders: Sequence[Order], pairs: Sequence[AccessPair], ii: int) -> int:
    """Return a lower bound of how many of these accesses overlap."""
    least = min((sum(_must_collide(order, pair, ii) for pair in pairs) for order in orders), default=0)
    return count_certain_collisions(pairs, ii) + least


def _must_collide(order: Order, pair: AccessPair, ii: int) -> bool:
    """Return whether, at each distance that the order leaves to two accesses, one more overlaps than is certain."""
    low, high = order[pair.first][pair.second], -order[pair.second][pair.first]
    free = pair.first_cycles - pair.shift  # and the distances behind it, up to those that collide
    wrap = -(-(low - free - ii + 1 + pair.count_colliding_distances(ii)) // ii)
    return free + wrap * ii > high


def are_earliest_starts(orders: Sequence[Order], start: Sequence[int]) -> bool:
    """Return whether no order has starts from 0 onward that are smaller at the first op that differs."""
    left = list(orders)
    for op, at in enumerate(start):
        still = []
        for order in left:
            least = max([row[op] for row in order] + [start[one] + order[one][op] for one in range(op)])
            if least < at:
                return False
            if least == at and all(at + order[op][one] <= start[one] for one in range(op)):
                still.append(order)
        left = still
    return bool(left)
