"""Lower bounds on the initiation interval, each with the ops that cause it.

Every bound here is a proof that needs no solver: no schedule with a smaller II exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf
from typing import Literal

from tilec.sched.lower_bounds import paths
from tilec.sched.lower_bounds.implied import drop_implied_edges
from tilec.sched.problem import Op, Problem, Ring, Use, Value
from tilec.support.records import dataclass

BoundKind = Literal["slot", "role", "recurrence", "ring", "density", "pool", "stages"]


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound: no II below `ii` because of `name`. `culprit` is the reason in words, `ops` the ops involved."""

    kind: BoundKind
    name: str
    ii: int
    culprit: str
    ops: tuple[int, ...]

    @property
    def family(self) -> str:
        """Return the name of the bound's constraint family, such as `slot tma`."""
        return self.name if self.name.startswith(f"{self.kind} ") else f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """All lower bounds of a problem. `mii`, the largest, is where the search for a schedule begins."""

    mii: int
    each: tuple[Bound, ...]

    @property
    def binding(self) -> tuple[Bound, ...]:
        """Return the bounds that are equal to the largest one, `mii`."""
        return tuple(bound for bound in self.each if bound.ii == self.mii)


# Windows are found for every pair of ops: beyond this size the solver is as fast.
_MAX_OPS_FOR_DENSITY = 48
_MAX_LISTED_TERMS = 24


class Unschedulable(Exception):
    """No II admits a schedule. `kind` and `name` identify the constraint that forbids it, `ops` the ops involved."""

    def __init__(self, kind: BoundKind, name: str, reason: str, ops: tuple[int, ...]) -> None:
        super().__init__(reason)
        self.kind, self.name, self.reason, self.ops = kind, name, reason, ops


# The solver, the heuristics, role assignment and the cache all ask for the bounds of the same problem.
@lru_cache(maxsize=32)
def compute_bounds(problem: Problem) -> Bounds:
    """Return lower bounds on the II: by slots, roles and recurrence, and by rings, density, pools, stages where larger.

    Raises `Unschedulable` if no II admits a schedule.
    """
    problem = drop_implied_edges(problem)
    found = [*_find_slot_bounds(problem), *_find_role_bounds(problem)]

    def keep_bounds(*bounds: Bound | None) -> int:
        """Append these bounds, without None, and return the largest of all so far."""
        found.extend(bound for bound in bounds if bound is not None)
        return max((bound.ii for bound in found), default=1)

    edges, with_ring_arcs = paths.build_edge_arcs(problem), paths.build_arcs(problem)
    recurrence = _find_cycle_bound(problem, edges, "recurrence")
    floor = keep_bounds(recurrence)
    if len(with_ring_arcs) > len(edges):
        ring = _find_cycle_bound(problem, with_ring_arcs, "ring")
        if ring is not None and (recurrence is None or ring.ii > recurrence.ii):
            floor = keep_bounds(ring)
    ceiling = max(floor, compute_serial_ii(problem))
    floor = keep_bounds(_find_density_bound(problem, floor, ceiling))
    for pool in range(len(problem.pools)):
        of_rings = _find_ring_pool_bound(problem, pool, floor, ceiling)
        floor = keep_bounds(of_rings, _find_value_pool_bound(problem, pool, floor, ceiling))
    return Bounds(keep_bounds(_find_stage_bound(problem, floor, ceiling)), tuple(found))


def compute_serial_ii(problem: Problem) -> int:
    """Return an II at which all ops, and all groups of warps, run one after the other, with nothing left in flight."""
    spans = [
        max([op.latency, 1, op.issue * bool(op.roles), *(use.offset + use.cycles for use in op.uses)])
        for op in problem.ops
    ]
    for edge in problem.edges:
        spans[edge.src] = max(spans[edge.src], edge.latency + edge.hand_over)
    copies = {op for group in problem.copies for op in group[1:]}
    groups = len(problem.copies[0]) if problem.copies else 1
    spans_once = (
        span + count_lead_cycles(spec)
        for op, (span, spec) in enumerate(zip(spans, problem.ops, strict=True))
        if op not in copies
    )
    return groups * max(1, sum(spans_once))


def count_lead_cycles(op: Op) -> int:
    """Return for how many cycles before its issue an op holds a slot or its role."""
    return max([op.wait, *(-use.offset for use in op.uses if use.cycles)])


def find_min_lifetimes(problem: Problem, ii: int, buffers: Sequence[Ring] | Sequence[Value]) -> list[int]:
    """Return for each of these rings or values the shortest lifetime, in cycles, that dependences allow at this II."""
    constraints = paths.build_arcs(problem)
    producers = sorted({producer for buffer in buffers for producer in buffer.producers})
    distances_from = {producer: paths.find_distances_from(problem, ii, constraints, producer) for producer in producers}
    lifetimes = []
    for buffer in buffers:
        pairs = [(distances_from[p][c], problem.ops[c].latency) for p in buffer.producers for c in buffer.consumers]
        lifetimes.append(max([0, *(separation + latency for separation, latency in pairs if separation is not None)]))
    return lifetimes


def compute_depth_limits(problem: Problem, ii: int, without: frozenset[str] = frozenset()) -> list[int | None]:
    """Return the largest depth of each ring at this II, by its own limit and its pool's room; None if unlimited.

    All other rings count with their least depth. `without` names pools to ignore, as "pool NAME".
    """
    lifetimes = find_min_lifetimes(problem, ii, problem.rings)
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


def _find_slot_bounds(problem: Problem) -> list[Bound]:
    """Return a bound for each used slot: the cycles of its uses in an iteration, divided by its width.

    Raises `Unschedulable` if one op alone overloads it.
    """
    found = []
    for index, slot in enumerate(problem.slots):
        held = problem.list_uses(index)
        if not held:
            continue
        total = sum(use.cycles for _, use in held)
        _check_self_overlap(problem, index)
        users = tuple(dict.fromkeys(op for op, _ in held))
        width = f" of {slot.width}" if slot.width > 1 else ""
        parts = _join_terms(f"{use.cycles} {problem.ops[op].name}" for op, use in held)
        culprit = f"slot {slot.name}{width} is held {total} cycles an iteration: {parts}"
        found.append(Bound("slot", slot.name, -(-total // slot.width), culprit, users))
    return found


def _find_role_bounds(problem: Problem) -> list[Bound]:
    """Return bounds by the issue and wait cycles of ops that certain roles must run, and of tied ops, run by one."""
    found = []

    def add_bound(name: str, ops: list[int], roles: int) -> None:
        """Append the bound of ops that `roles` roles run, by their issue and wait cycles, unless these are 0."""
        total = sum(problem.ops[op].issue + problem.ops[op].wait for op in ops)
        if total:
            parts = _join_terms(f"{problem.ops[op].issue + problem.ops[op].wait} {problem.ops[op].name}" for op in ops)
            culprit = f"{name} issues for {total} cycles an iteration: {parts}"
            found.append(Bound("role", name, -(-total // roles), culprit, tuple(ops)))

    candidates = list(dict.fromkeys(op.roles for op in problem.ops if op.roles))
    sets = list(dict.fromkeys(tuple(sorted({*one, *other})) for one in candidates for other in candidates))
    for roles in sets:
        name = "one of the roles " if len(roles) > 1 else "role "
        name += ", ".join(problem.roles[role].name for role in roles)
        add_bound(name, [at for at, op in enumerate(problem.ops) if op.roles and {*op.roles} <= {*roles}], len(roles))
    for tied in problem.tied:
        add_bound("the one role of tied ops", [op for op in tied if problem.ops[op].roles], 1)
    return found


def _check_self_overlap(problem: Problem, slot: int) -> None:
    """Raise `Unschedulable` if one op alone holds more units of the slot than there are."""
    width = problem.slots[slot].width
    for index, op in enumerate(problem.ops):
        uses = [use for use in op.uses if use.slot == slot and use.cycles]
        peak = max((sum(u.offset <= at.offset < u.offset + u.cycles for u in uses) for at in uses), default=0)
        if peak > width:
            name = problem.slots[slot].name
            reason = f"op {op.name} alone needs {peak} units of slot {name}, which has {width}"
            raise Unschedulable("slot", name, reason, (index,))


def _find_cycle_bound(
    problem: Problem, constraints: Sequence[paths.Arc], kind: Literal["recurrence", "ring"]
) -> Bound | None:
    """Return the bound by cycles of dependences, None if it is 1; raise `Unschedulable` for one within an iteration.

    It is the smallest II without a positive cycle, found in few rounds: each cycle gives a larger II.
    """
    ii, culprit = 1, None
    while cycle := paths.relax_arcs(len(problem.ops), constraints, ii, [0] * len(problem.ops))[1]:
        latency, distance = sum(arc.latency for arc in cycle), sum(arc.distance for arc in cycle)
        path = " → ".join(problem.ops[arc.src].name for arc in cycle)
        path = f"{path} → {problem.ops[cycle[0].src].name}"
        ops = tuple(arc.src for arc in cycle)
        name = next((arc.why for arc in cycle if arc.why.startswith("ring ")), path) if kind == "ring" else path
        if distance <= 0:
            reason = f"{path} is a cycle of dependences within one iteration, of {latency} cycles"
            raise Unschedulable(kind, name, reason, ops)
        ii = -(-latency // distance)
        by_ring = f" ({name})" if kind == "ring" else ""
        over = "1 iteration" if distance == 1 else f"{distance} iterations"
        culprit = Bound(kind, name, ii, f"{path} takes {latency} cycles over {over}{by_ring}", ops)
    return culprit


def _find_density_bound(problem: Problem, floor: int, ceiling: int) -> Bound | None:
    """Return the bound by uses of a slot forced into too short a window; None if there is none or over 48 ops.

    Windows widen as II grows: a window around an op that is not crowded at the floor never is, and one that is gives a
    larger II for the others.
    """
    if len(problem.ops) > _MAX_OPS_FOR_DENSITY:
        return None
    constraints = paths.build_arcs(problem)
    backward = [arc._replace(src=arc.dst, dst=arc.src) for arc in constraints]

    def find_ii_with_room(slot: int, anchor: int, least: int) -> int:
        """Return the smallest II, not below `least`, at which no window around this op is too short for the slot."""
        users, width = problem.list_uses(slot), problem.slots[slot].width

        def has_room(ii: int) -> bool:
            """Return whether no window around the op is too short at this II."""
            after = paths.find_distances_from(problem, ii, constraints, anchor)
            before = paths.find_distances_from(problem, ii, backward, anchor)
            return _find_crowded_window(users, width, after, before) is None

        return least if has_room(least) else _bisect_smallest_ii(has_room, least, ceiling)

    ii = floor
    for slot, anchor, *_ in _find_crowded_windows(problem, floor, constraints):
        ii = find_ii_with_room(slot, anchor, ii)
    if ii == floor:
        return None
    slot, _, window, uses = next(_find_crowded_windows(problem, ii - 1, constraints))
    spec = problem.slots[slot]
    parts = _join_terms(f"{use.cycles} {problem.ops[op].name}" for op, use in uses)
    width = f" of {spec.width}" if spec.width > 1 else ""
    culprit = (
        f"at II {ii - 1} the dependences force {sum(use.cycles for _, use in uses)} cycles of slot {spec.name}{width} "
        f"into a window of {window} cycles: {parts}"
    )
    return Bound("density", spec.name, ii, culprit, tuple(dict.fromkeys(op for op, _ in uses)))


def _find_crowded_windows(
    problem: Problem, ii: int, constraints: Sequence[paths.Arc]
) -> Iterator[tuple[int, int, int, list[tuple[int, Use]]]]:
    """Yield (slot, op, cycles, uses) for each slot, and each op around which a window is too short for its uses."""
    after = paths.find_all_distances(problem, ii, constraints)
    before = tuple(zip(*after, strict=True))
    for slot, spec in enumerate(problem.slots):
        users = problem.list_uses(slot)
        for anchor in range(len(problem.ops)) if len(users) > spec.width else ():
            if crowd := _find_crowded_window(users, spec.width, after[anchor], before[anchor]):
                yield slot, anchor, *crowd


def _find_crowded_window(
    users: Sequence[tuple[int, Use]], width: int, after: Sequence[int | None], before: Sequence[int | None]
) -> tuple[int, list[tuple[int, Use]]] | None:
    """Return (cycles, uses) of a window that is too short for its uses of a slot of this width, or None.

    `after` and `before` are the distances from and to the op around which windows lie.
    """
    windows: list[tuple[int, int, int, Use]] = []
    for op, use in users:
        low, high = after[op], before[op]
        if low is not None and high is not None:
            windows.append((low + use.offset, use.offset + use.cycles - high, op, use))
    if len(windows) <= width:
        return None
    crowded = _prefilter_begins([(first, last, use.cycles) for first, last, _, use in windows], width)
    if not crowded:
        return None
    windows.sort(key=lambda window: (window[1], window[2], window[3].offset))
    for first in crowded:
        later_windows = [window for window in windows if window[0] >= first]
        held = 0
        for count, (_, last, _, use) in enumerate(later_windows):
            held += use.cycles
            if held > width * (last - first):
                return last - first, [(op, use) for _, _, op, use in later_windows[: count + 1]]
    return None


def _prefilter_begins(windows: Sequence[tuple[int, int, int]], width: int) -> list[int]:
    """Return the begins of windows (first, last, cycles) that may hold more cycles than `width` units have.

    The uses that begin there or later hold more cycles than `width` units have until the earliest of their ends.
    """
    found, held, end = [], 0, inf
    for index, (first, last, cycles) in enumerate(by_begin := sorted(windows, reverse=True)):
        held, end = held + cycles, min(end, last)
        is_whole = index + 1 == len(by_begin) or by_begin[index + 1][0] < first
        if is_whole and held > width * (end - first):
            found.append(first)
    return found[::-1]


def _find_ring_pool_bound(problem: Problem, pool: int, floor: int, ceiling: int) -> Bound | None:
    """Return the bound by a pool's room for its rings; None if they fit; raise `Unschedulable` if they never do.

    One version of each must fit.
    """
    spec = problem.pools[pool]
    rings = [index for index, ring in enumerate(problem.rings) if ring.pool == pool]

    def find_min_depths(ii: int) -> list[int]:
        """Return the least depth of each of the pool's rings at this II, by its shortest lifetime."""
        lifetimes = find_min_lifetimes(problem, ii, problem.rings)
        return [max(1, -(-lifetimes[ring] // ii)) for ring in rings]

    def count_needed(ii: int) -> int:
        """Return the pool's reserved amount and its rings' bytes at their least depths at this II."""
        depths = zip(rings, find_min_depths(ii), strict=True)
        return spec.reserved + sum(depth * problem.rings[ring].bytes for ring, depth in depths)

    def describe_need(ii: int) -> str:
        """Return as text how much of the pool would be held at this II, term by term."""
        parts = [f"{spec.reserved} reserved"] if spec.reserved else []
        for ring, depth in zip(rings, find_min_depths(ii), strict=True):
            parts.append(f"{depth} × {problem.rings[ring].bytes} {problem.rings[ring].name}")
        return f"pool {spec.name} would hold {count_needed(ii)} of {spec.capacity} at II {ii}: {' + '.join(parts)}"

    ops = tuple(dict.fromkeys(p for ring in rings for p in problem.rings[ring].producers))
    least = spec.reserved + sum(problem.rings[ring].bytes for ring in rings)
    if least > spec.capacity:
        raise Unschedulable("pool", spec.name, describe_need(ceiling), ops)
    if count_needed(floor) <= spec.capacity:
        return None
    ii = _bisect_smallest_ii(lambda ii: count_needed(ii) <= spec.capacity, floor, ceiling)
    return Bound("pool", spec.name, ii, describe_need(ii - 1), ops)


def _find_value_pool_bound(problem: Problem, pool: int, floor: int, ceiling: int) -> Bound | None:
    """Return the bound by a pool's room for its values, or None; raise `Unschedulable` if they never fit.

    A value that lives L cycles has L / II copies.
    """
    spec = problem.pools[pool]
    values = [value for value in problem.values if value.pool == pool and value.amount]
    if not values:
        return None
    rings = [ring for ring in problem.rings if ring.pool == pool]
    room = spec.capacity - spec.reserved - sum(ring.bytes for ring in rings)

    def describe_pool(why: str) -> str:
        """Return the pool's contents as text, term by term, with `why` they are a problem."""
        parts = [f"{spec.reserved} reserved"] if spec.reserved else []
        parts += [f"{ring.bytes} {ring.name}" for ring in rings]
        parts += [f"{value.amount} {value.name}" for value in values]
        return f"pool {spec.name} of {spec.capacity} {why}: {' + '.join(parts)}"

    ops = tuple(dict.fromkeys(op for value in values for op in (*value.producers, *value.consumers)))
    # At the start of its only producer a value is held, with all others that begin there.
    lifetimes = find_min_lifetimes(problem, ceiling, values)
    living = [value for value, life in zip(values, lifetimes, strict=True) if life > 0]
    starts = {op for value in living for op in value.producers if len(value.producers) == 1}
    if any(sum(value.amount for value in living if value.producers == (op,)) > room for op in sorted(starts)):
        reason = describe_pool("is too small for the values that live at the same time")
        raise Unschedulable("pool", spec.name, reason, ops)

    def count_held(ii: int) -> int:
        """Return the values' amounts times their shortest lifetimes at this II."""
        lifetimes = find_min_lifetimes(problem, ii, values)
        return sum(value.amount * life for value, life in zip(values, lifetimes, strict=True))

    if count_held(floor) <= room * floor or count_held(ceiling) > room * ceiling:
        return None
    ii = _bisect_smallest_ii(lambda ii: count_held(ii) <= room * ii, floor, ceiling)
    average = -(-count_held(ii - 1) // (ii - 1))
    return Bound("pool", spec.name, ii, describe_pool(f"would hold {average} on average at II {ii - 1}"), ops)


def _find_stage_bound(problem: Problem, floor: int, ceiling: int) -> Bound | None:
    """Return the bound by the last op's earliest start, which must lie within the allowed stages; None if it does."""
    limit = problem.max_stages
    if limit is None or not problem.ops:
        return None
    constraints = paths.build_arcs(problem)

    def find_last_start(ii: int) -> int:
        """Return the latest of the ops' earliest starts at this II."""
        return max(paths.find_earliest_starts(problem, ii, constraints))

    if find_last_start(floor) < limit * floor:
        return None
    ii = _bisect_smallest_ii(lambda ii: find_last_start(ii) < limit * ii, floor, ceiling)
    starts = paths.find_earliest_starts(problem, ii - 1, constraints)
    op = starts.index(max(starts))
    culprit = (
        f"op {problem.ops[op].name} cannot issue before cycle {starts[op]}, after the end of {limit} stages of {ii - 1}"
    )
    return Bound("stages", "max_stages", ii, culprit, (op,))


def _join_terms(parts: Iterable[str]) -> str:
    """Return the terms joined by plus signs; beyond 24 of them, the first and a count."""
    listed = list(parts)
    if len(listed) > _MAX_LISTED_TERMS:
        listed = [*listed[:_MAX_LISTED_TERMS], f"{len(listed) - _MAX_LISTED_TERMS} more"]
    return " + ".join(listed)


def _bisect_smallest_ii(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest II from `low` to `high` at which `holds` is true, by bisection.

    Longest paths only shrink as II grows, so bounds are monotone in II. Schedules are not, and the search for one is
    never bisected.
    """
    assert holds(high), "a serial schedule satisfies every bound"
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
