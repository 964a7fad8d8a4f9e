"""Lower bounds on the initiation interval, each with the ops that cause it.

Every bound here is a proof that needs no solver: no schedule with a smaller II exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from tilec.records import dataclass
from tilec.sched.paths import Arc, arcs, earliest, edge_arcs, reach, relax
from tilec.sched.problem import Problem

BoundKind = Literal["slot", "recurrence", "ring", "pool", "stages"]


@dataclass(frozen=True, slots=True)
class Bound:
    """No II below `ii`, because of the thing `name`; `culprit` says why in words, `ops` are the ops it speaks of."""

    kind: BoundKind
    name: str
    ii: int
    culprit: str
    ops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """All bounds of a problem; `mii`, the largest of them, is where the search for a schedule begins."""

    mii: int
    each: tuple[Bound, ...]

    @property
    def binding(self) -> tuple[Bound, ...]:
        """The bounds that are as large as `mii`."""
        return tuple(bound for bound in self.each if bound.ii == self.mii)


class Unschedulable(Exception):
    """No II at all admits a schedule. `kind` and `name` say what forbids it, `ops` the ops involved."""

    def __init__(self, kind: BoundKind, name: str, reason: str, ops: tuple[int, ...]) -> None:
        super().__init__(reason)
        self.kind, self.name, self.reason, self.ops = kind, name, reason, ops


def bounds(problem: Problem) -> Bounds:
    """All bounds, in the order slots, recurrence, rings, pools, stages. Raises `Unschedulable`."""
    found = list(_slot_bounds(problem))
    floor = max((bound.ii for bound in found), default=1)
    edges, with_rings = edge_arcs(problem), arcs(problem)
    recurrence = _cycle_bound(problem, edges, "recurrence")
    if recurrence is not None:
        found.append(recurrence)
        floor = max(floor, recurrence.ii)
    if len(with_rings) > len(edges):
        ring = _cycle_bound(problem, with_rings, "ring")
        if ring is not None and (recurrence is None or ring.ii > recurrence.ii):
            found.append(ring)
            floor = max(floor, ring.ii)
    ceiling = max(floor, serial_ii(problem))
    for pool in range(len(problem.pools)):
        bound = _pool_bound(problem, pool, floor, ceiling)
        if bound is not None:
            found.append(bound)
            floor = max(floor, bound.ii)
    stages = _stage_bound(problem, floor, ceiling)
    if stages is not None:
        found.append(stages)
    return Bounds(max((bound.ii for bound in found), default=1), tuple(found))


# --- what other files build on ---


def serial_ii(problem: Problem) -> int:
    """An II that is large enough to run one op after the other, with nothing in flight at the end."""
    spans = [max([op.latency, 1, *(use.offset + use.cycles for use in op.uses)]) for op in problem.ops]
    for edge in problem.edges:
        spans[edge.src] = max(spans[edge.src], edge.latency)
    return max(1, sum(spans))


def ring_lifetimes(problem: Problem, ii: int) -> list[int]:
    """For each ring the shortest lifetime that the dependences allow."""
    within = arcs(problem)
    producers = sorted({producer for ring in problem.rings for producer in ring.producers})
    after = {producer: reach(problem, ii, within, producer) for producer in producers}
    lifetimes = []
    for ring in problem.rings:
        pairs = [(after[p][c], problem.ops[c].latency) for p in ring.producers for c in ring.consumers]
        lifetimes.append(max([0, *(apart + latency for apart, latency in pairs if apart is not None)]))
    return lifetimes


def depth_limits(problem: Problem, ii: int, without: frozenset[str] = frozenset()) -> list[int | None]:
    """The depth that no ring can exceed at this II: its own limit, and what the pool has left when every other ring is
    as shallow as its lifetime allows. `without` names pools that are no limit, as "pool NAME"."""
    lifetimes = ring_lifetimes(problem, ii)
    least = [ring.bytes * max(1, -(-life // ii)) for life, ring in zip(lifetimes, problem.rings, strict=True)]
    limits: list[int | None] = []
    for index, ring in enumerate(problem.rings):
        pool = problem.pools[ring.pool]
        if ring.bytes == 0 or f"pool {pool.name}" in without:
            limits.append(ring.max_depth)
            continue
        others = sum(size for at, size in enumerate(least) if at != index and problem.rings[at].pool == ring.pool)
        room = max(0, pool.capacity - pool.reserved - others) // ring.bytes
        limits.append(room if ring.max_depth is None else min(room, ring.max_depth))
    return limits


# --- one function a kind ---


def _slot_bounds(problem: Problem) -> list[Bound]:
    found = []
    for index, slot in enumerate(problem.slots):
        held = [(op, use) for op, spec in enumerate(problem.ops) for use in spec.uses if use.slot == index]
        total = sum(use.cycles for _, use in held)
        if total == 0:
            continue
        _check_single_op(problem, index)
        users = tuple(dict.fromkeys(op for op, use in held if use.cycles))
        width = f" of {slot.width}" if slot.width > 1 else ""
        parts = " + ".join(f"{use.cycles} {problem.ops[op].name}" for op, use in held if use.cycles)
        culprit = f"slot {slot.name}{width} is held {total} cycles an iteration: {parts}"
        found.append(Bound("slot", slot.name, -(-total // slot.width), culprit, users))
    return found


def _check_single_op(problem: Problem, slot: int) -> None:
    """An op that overlaps itself needs more units than there are, whatever the II."""
    width = problem.slots[slot].width
    for index, op in enumerate(problem.ops):
        uses = [use for use in op.uses if use.slot == slot and use.cycles]
        peak = max((sum(u.offset <= at.offset < u.offset + u.cycles for u in uses) for at in uses), default=0)
        if peak > width:
            name = problem.slots[slot].name
            reason = f"op {op.name} alone needs {peak} units of slot {name}, which has {width}"
            raise Unschedulable("slot", name, reason, (index,))


def _cycle_bound(problem: Problem, within: Sequence[Arc], kind: Literal["recurrence", "ring"]) -> Bound | None:
    """The smallest II without a positive cycle. Each positive cycle found names a larger II, so few rounds suffice."""
    ii, culprit = 1, None
    while cycle := relax(len(problem.ops), within, ii, [0] * len(problem.ops))[1]:
        latency, distance = sum(arc.latency for arc in cycle), sum(arc.distance for arc in cycle)
        path = " → ".join(problem.ops[arc.src].name for arc in cycle)
        path = f"{path} → {problem.ops[cycle[0].src].name}"
        ops = tuple(arc.src for arc in cycle)
        name = next((arc.why for arc in cycle if arc.why.startswith("ring ")), path) if kind == "ring" else path
        if distance <= 0:
            reason = f"{path} takes {latency} cycles and comes back to the same iteration"
            raise Unschedulable(kind, name, reason, ops)
        ii = -(-latency // distance)
        forced = f" ({name})" if kind == "ring" else ""
        over = "1 iteration" if distance == 1 else f"{distance} iterations"
        culprit = Bound(kind, name, ii, f"{path} takes {latency} cycles over {over}{forced}", ops)
    return culprit


def _pool_bound(problem: Problem, pool: int, floor: int, ceiling: int) -> Bound | None:
    spec = problem.pools[pool]
    inside = [index for index, ring in enumerate(problem.rings) if ring.pool == pool]

    def depths(ii: int) -> list[int]:
        lifetimes = ring_lifetimes(problem, ii)
        return [max(1, -(-lifetimes[ring] // ii)) for ring in inside]

    def needed(ii: int) -> int:
        return spec.reserved + sum(
            depth * problem.rings[ring].bytes for ring, depth in zip(inside, depths(ii), strict=True)
        )

    def words(ii: int) -> str:
        parts = [f"{spec.reserved} reserved"] if spec.reserved else []
        for ring, depth in zip(inside, depths(ii), strict=True):
            parts.append(f"{depth} × {problem.rings[ring].bytes} {problem.rings[ring].name}")
        return f"pool {spec.name} would hold {needed(ii)} of {spec.capacity} at II {ii}: {' + '.join(parts)}"

    ops = tuple(dict.fromkeys(p for ring in inside for p in problem.rings[ring].producers))
    least = spec.reserved + sum(problem.rings[ring].bytes for ring in inside)
    if least > spec.capacity:
        raise Unschedulable("pool", spec.name, words(ceiling), ops)
    if needed(floor) <= spec.capacity:
        return None
    ii = _smallest(lambda ii: needed(ii) <= spec.capacity, floor, ceiling)
    return Bound("pool", spec.name, ii, words(ii - 1), ops)


def _stage_bound(problem: Problem, floor: int, ceiling: int) -> Bound | None:
    limit = problem.max_stages
    if limit is None or not problem.ops:
        return None
    within = arcs(problem)

    def last(ii: int) -> int:
        return max(earliest(problem, ii, within))

    if last(floor) < limit * floor:
        return None
    ii = _smallest(lambda ii: last(ii) < limit * ii, floor, ceiling)
    starts = earliest(problem, ii - 1, within)
    op = starts.index(max(starts))
    culprit = (
        f"op {problem.ops[op].name} issues in cycle {starts[op]} at the earliest, {limit} stages of {ii - 1} end before"
    )
    return Bound("stages", "max_stages", ii, culprit, (op,))


def _smallest(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest II for which a bound is satisfied. Longest paths only shrink as II grows, so *bounds* are monotone
    in II and may be bisected; schedules are not, and the solver never is."""
    assert holds(high), "a serial schedule satisfies every bound"
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
