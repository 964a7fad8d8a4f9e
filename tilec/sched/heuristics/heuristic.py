"""Schedulers that place one op after the other: fast and without a proof, as a first answer and for comparison.

`modulo` is Rau's iterative modulo scheduling (MICRO-27, 1994): ops by height, each in the first free cycle of its
window; if there is none, the ops in the way are evicted. The other four arms never evict. They place ops in the windows
that longest paths leave between the placed ones:

- permute: several orders of the ops, each op as early as it fits
- fuse: ops that fill one ring, or that wait only for each other, are placed together
- retry: by height; an op that finds no place moves to the front and everything starts again
- cost-based: repeatedly the ready op and cycle that is cheapest by the levels of the objective

All raise the interval until one works, and verify the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from tilec.sched import objective
from tilec.sched.budget import Budget
from tilec.sched.collisions import AccessPair, list_access_pairs, sum_collisions
from tilec.sched.heuristics.table import ReservationTable
from tilec.sched.lower_bounds.bounds import compute_bounds, compute_depth_limits, compute_serial_ii, count_lead_cycles
from tilec.sched.lower_bounds.paths import Arc, build_arcs, find_all_distances, has_positive_cycle
from tilec.sched.model.anchor import shift_to_valid_begin
from tilec.sched.model.lags import fold_groups, set_even_lags
from tilec.sched.problem import Problem
from tilec.sched.schedule import Status
from tilec.sched.solution import Attempt, Solution, Trial
from tilec.sched.verify import find_violations

Starts = tuple[int, ...]
Arm = Callable[[Problem, int, Sequence[Arc]], Starts | None]

# Limits on placements, permutations and restarts at one interval.
_PLACEMENTS_PER_OP = 5
_PERMUTATIONS = 6
_RETRIES = 8
# Work for each pair of ops and each dependence.
_WORK_PER_PAIR = 5
# Cycles of an interval that cost one unit of work per op: 400 ops in 200,000 cycles take four seconds to place.
_CYCLES_PER_WORK = 40
# The arms look at every pair of ops: beyond this size only `modulo` is worth its time.
_MAX_OPS = 48
_MAX_STEPS = 32
# Bodies with fewer instructions than this are generated serially: see `is_serial_by_rule`.
_MIN_INSTRUCTIONS = 8


def estimate_placing_work(problem: Problem, ii: int) -> int:
    """Return the estimated work of placing all ops at one interval, by ops, edges and the table's size."""
    count = len(problem.ops)
    return _WORK_PER_PAIR * (count**2 + len(problem.edges)) + count * ii // _CYCLES_PER_WORK


def schedule_by_heuristics(problem: Problem, budget: Budget | None = None, most: int | None = None) -> Solution:
    """Return the best schedule of all arms at the first II that any reaches; serial by rule or if none does.

    Intervals above `most` cycles are not tried. The II is optimal only if it equals the bound. Each try is charged to
    the budget, and none begins once it is spent.
    """
    proven = compute_bounds(problem)
    best = None if is_serial_by_rule(problem) else _search_with_all_arms(problem, proven.mii, budget, most)
    if best is None:
        ii, start, how, why = *schedule_serially(problem, proven.mii), "serial", "one op after the other"
    else:
        ii, start, arm = best
        how, why = "heuristic", f"found by {arm}"
    # `force_serial` forbids the search, so the status must not suggest that a better schedule may exist.
    unproven: Status = "serial" if problem.force_serial else "feasible"
    schedule = objective.make_schedule(problem, ii, start, "optimal" if ii == proven.mii else unproven)
    attempt = Attempt(ii, "found", "serial" if how == "serial" else "heuristic", why)
    return Solution(schedule, proven, (attempt,), objective.evaluate_levels(problem, schedule))


def _search_with_all_arms(
    problem: Problem, mii: int, budget: Budget | None, most: int | None
) -> tuple[int, Starts, str] | None:
    """Return (II, starts, arm) of the best schedule at the first II, up to a limit, that some arm reaches; or None."""
    last = mii + _MAX_STEPS * max(1, mii // 64)
    for ii in _list_intervals(mii, last if most is None else min(last, most)):
        affordable = _yield_affordable_arms(ARMS, estimate_placing_work(problem, ii), budget)
        found = list(_place_with_arms(problem, ii, affordable))
        if found:
            return ii, *min(found, key=lambda one: (_evaluate_starts(problem, ii, one[0]), *one))
    return None


def _evaluate_starts(problem: Problem, ii: int, start: Starts) -> tuple[int, ...]:
    """Return the values of the objective's levels for a schedule with these starts."""
    schedule = objective.make_schedule(problem, ii, start, "feasible")
    return tuple(level.value for level in objective.evaluate_levels(problem, schedule))


def is_serial_by_rule(problem: Problem) -> bool:
    """Return whether serial is forced, or instructions are few or none asynchronous; False if iterations must overlap.

    The rule is that of the code generator that these arms are modelled on. Its ops are instructions; an op here is a
    whole tile and counts as many instructions as it has issue cycles.
    """
    if needs_overlap(problem):
        return False
    instructions = sum(max(1, op.issue) for op in problem.ops)
    has_asynchronous = any(op.latency > max(op.issue, 1) for op in problem.ops)
    return problem.force_serial or instructions < _MIN_INSTRUCTIONS or not has_asynchronous


def needs_overlap(problem: Problem) -> bool:
    """Return whether some op precedes an op of the previous iteration, so that iterations must overlap."""
    return any(edge.distance < 0 for edge in problem.edges)


def try_all_arms(problem: Problem, ii: int) -> tuple[Trial, ...]:
    """Return for each arm the II that it reaches, tried from `ii` to a sixteenth above; None if it reaches none.

    In large problems only `modulo` is tried.
    """
    names = ARMS if len(problem.ops) <= _MAX_OPS else ("modulo",)
    found = ((arm, sweep_with_arm(problem, arm, ii, ii + max(4, ii // 16))) for arm in names)
    return tuple(Trial(arm, None if reached is None else reached[0]) for arm, reached in found)


def sweep_with_arm(problem: Problem, arm: str, low: int, high: int) -> tuple[int, Starts] | None:
    """Return the first II at which an arm finds a schedule, and its starts; None without.

    IIs from `low` to `high` are tried in steps of a 64th of `low`.
    """
    found = ((ii, start) for ii in _list_intervals(low, high) if (start := place_ops(problem, ii, arm)) is not None)
    return next(found, None)


def _list_intervals(low: int, high: int) -> range:
    """Return the intervals from `low` to `high` in steps of a 64th of `low`."""
    return range(low, high + 1, max(1, low // 64))


def _yield_affordable_arms(arms: Iterable[str], work: int, budget: Budget | None) -> Iterator[str]:
    """Yield the arms one by one, charging `work` for each to the budget, until that is spent; all without a budget."""
    for arm in arms:
        if budget is not None:
            if budget.is_spent:
                return
            budget.spend(work)
        yield arm


def place_ops(problem: Problem, ii: int, arm: str = "modulo") -> Starts | None:
    """Return starts at this II that verify, counted from cycle 0; None if the arm finds none, which proves nothing.

    Groups of warps share the interval evenly, unless the problem fixes their lags.
    """
    return next((start for start, _ in _place_with_arms(problem, ii, (arm,))), None)


def _place_with_arms(problem: Problem, ii: int, arms: Iterable[str]) -> Iterator[tuple[Starts, str]]:
    """Yield the starts that arms find at this II and that verify, with the arm's name; over 48 ops by `modulo` only."""
    if problem.copies:
        folded, unfold = fold_groups(set_even_lags(problem, ii))
        found = ((unfold(start), arm) for start, arm in _place_with_arms(folded, ii, arms))
    else:
        constraints = build_arcs(problem, compute_depth_limits(problem, ii))
        if has_positive_cycle(problem, ii, constraints):
            return
        fitting = (arm for arm in arms if arm == "modulo" or len(problem.ops) <= _MAX_OPS)
        reached = ((ARMS[arm](problem, ii, constraints), arm) for arm in fitting)
        found = ((shift_to_valid_begin(problem, ii, start), arm) for start, arm in reached if start is not None)
    for start, arm in found:
        if not any(find_violations(problem, objective.make_schedule(problem, ii, start, "given"))):
            yield start, arm


def schedule_serially(problem: Problem, least: int) -> tuple[int, Starts]:
    """Return the II, `least` or more, and starts of a schedule with ops one by one, and groups of warps one by one."""
    if problem.copies:
        count, serial_length = len(problem.copies[0]), compute_serial_ii(problem) // len(problem.copies[0])
        _, unfold = fold_groups(replace(problem, lags=tuple(group * serial_length for group in range(count))))
        folded, _ = fold_groups(replace(problem, lags=(0,) * count))
        return max(least, count * serial_length), unfold(schedule_serially(folded, least)[1])
    at, start = 0, [0] * len(problem.ops)
    for op in objective.sort_topologically(problem):
        spec = problem.ops[op]
        at += count_lead_cycles(spec)
        start[op] = at
        waits = [edge.latency for edge in problem.edges if edge.src == op]
        at += max([1, spec.latency, *waits, *(use.offset + use.cycles for use in spec.uses)])
    return max(least, compute_serial_ii(problem)), tuple(start)


def _place_modulo(problem: Problem, ii: int, constraints: Sequence[Arc]) -> Starts | None:
    """Return starts at this II by Rau's iterative modulo scheduling, which evicts ops in the way; None if it fails."""
    count = len(problem.ops)
    into: list[list[Arc]] = [[] for _ in range(count)]
    out: list[list[Arc]] = [[] for _ in range(count)]
    for arc in constraints:
        if arc.src != arc.dst:
            out[arc.src].append(arc)
            into[arc.dst].append(arc)
    height = _compute_heights(count, constraints, ii)
    table = ReservationTable(problem, ii)
    start: list[int | None] = [None] * count
    previous = [-1] * count
    waiting = [(-height[op], op) for op in range(count)]
    heapify(waiting)
    for _ in range(_PLACEMENTS_PER_OP * count):
        if not waiting:
            return tuple(at for at in start if at is not None)
        _, op = heappop(waiting)
        ready = [at + arc.latency - ii * arc.distance for arc in into[op] if (at := start[arc.src]) is not None]
        low = max([0, *ready])
        found = table.find_first_free(op, low, low + ii - 1)
        if found is None:
            # Not at its previous start, or the two ops would evict each other forever.
            found = low if low > previous[op] else table.find_next_end(op, previous[op] + 1)
        evicted = set(table.find_blocking_ops(op, found) if not table.is_free(op, found) else ())
        start[op] = previous[op] = found
        for arc in out[op]:
            at = start[arc.dst]
            if at is not None and at < found + arc.latency - ii * arc.distance:
                evicted.add(arc.dst)
        for other in sorted(evicted):
            table.remove(other)
            start[other] = None
            heappush(waiting, (-height[other], other))
        table.place(op, found)
    return None if waiting else tuple(at for at in start if at is not None)


def _compute_heights(count: int, constraints: Sequence[Arc], ii: int) -> list[int]:
    """Return the length of the longest path from each op at this II, at least 0; cycles must not be positive."""
    height = [0] * count
    # Most arcs point forward, so that one pass from the end is nearly sufficient.
    backward = [
        (arc.src, arc.dst, arc.latency - ii * arc.distance)
        for arc in sorted(constraints, key=lambda arc: arc.src, reverse=True)
    ]
    changed = True
    while changed:
        changed = False
        for src, dst, least in backward:
            height_by_arc = height[dst] + least
            if height_by_arc > height[src]:
                height[src], changed = height_by_arc, True
    return height


class _PartialSchedule:
    """The ops placed so far, and the windows that they leave to the others."""

    def __init__(self, problem: Problem, ii: int, constraints: Sequence[Arc]) -> None:
        self.problem, self.ii, self.separation = problem, ii, find_all_distances(problem, ii, constraints)
        self.table = ReservationTable(problem, ii)
        self.start: dict[int, int] = {}

    def window(self, op: int) -> tuple[int, int]:
        """Return the first and last start of an op, less than an interval apart, by its distances to placed ops.

        The last one is before the first if there is no room.
        """
        low, high = None, None
        for other, at in self.start.items():
            after, before = self.separation[other][op], self.separation[op][other]
            if after is not None:
                low = at + after if low is None else max(low, at + after)
            if before is not None:
                high = at - before if high is None else min(high, at - before)
        if low is None:
            # No placed op precedes it: as close as possible to its successors.
            low = 0 if high is None else high - self.ii + 1
        return low, low + self.ii - 1 if high is None else min(high, low + self.ii - 1)

    def put(self, op: int) -> bool:
        """Place an op as early as it fits in its window; return False if it does not fit."""
        at = self.table.find_first_free(op, *self.window(op))
        if at is None:
            return False
        self.place_at(op, at)
        return True

    def place_at(self, op: int, at: int) -> None:
        """Place an op at this start, without a check."""
        self.table.place(op, at)
        self.start[op] = at

    def result(self) -> Starts:
        """Return the starts, moved by whole intervals so that none is negative."""
        lift = -min([0, *self.start.values()])
        lift = -(-lift // self.ii) * self.ii
        return tuple(self.start[op] + lift for op in range(len(self.problem.ops)))


def _place_in_order(placing: _PartialSchedule, order: Sequence[int]) -> int | None:
    """Place ops one by one; return the first that finds no place, or None if all are placed."""
    return next((op for op in order if not placing.put(op)), None)


def _place_permuted(problem: Problem, ii: int, constraints: Sequence[Arc]) -> Starts | None:
    """Return starts at this II by the first of several orders of the ops that fits; None if none fits."""
    for order in _list_orders(problem, constraints, ii):
        placing = _PartialSchedule(problem, ii, constraints)
        if _place_in_order(placing, order) is None:
            return placing.result()
    return None


def _list_orders(problem: Problem, constraints: Sequence[Arc], ii: int) -> Iterator[list[int]]:
    """Yield orders of the ops: as written, then by height and by demand, each descending and ascending."""
    height = _compute_heights(len(problem.ops), constraints, ii)
    busy = [sum(use.cycles for use in op.uses) for op in problem.ops]
    yield objective.sort_topologically(problem)
    weights: tuple[list[int], ...] = (height, busy)
    for weight in weights[: _PERMUTATIONS // 2]:
        for sign in (-1, 1):
            yield sorted(objective.sort_topologically(problem), key=lambda op: (sign * weight[op], op))


def _place_fused(problem: Problem, ii: int, constraints: Sequence[Arc]) -> Starts | None:
    """Return starts at this II, ops that fill one ring or wait only for each other placed together; or None."""
    group = list(range(len(problem.ops)))
    for ring in problem.rings:
        for op in ring.producers:
            group[op] = min(group[op], *ring.producers)
    single = [[e for e in problem.edges if e.distance == 0 and e.src == op] for op in range(len(problem.ops))]
    for op in objective.sort_topologically(problem):
        into = [edge for edge in problem.edges if edge.distance == 0 and edge.dst == op]
        if len(into) == 1 and len(single[into[0].src]) == 1:
            group[op] = group[into[0].src]
    members: dict[int, list[int]] = {}
    for op in objective.sort_topologically(problem):
        members.setdefault(group[op], []).append(op)
    height = _compute_heights(len(problem.ops), constraints, ii)
    order = [op for key in sorted(members, key=lambda key: (-height[members[key][0]], key)) for op in members[key]]
    placing = _PartialSchedule(problem, ii, constraints)
    return placing.result() if _place_in_order(placing, order) is None else None


def _place_with_retries(problem: Problem, ii: int, constraints: Sequence[Arc]) -> Starts | None:
    """Return starts at this II by placing ops by height, again with the op first that found no place; or None."""
    height = _compute_heights(len(problem.ops), constraints, ii)
    order = sorted(range(len(problem.ops)), key=lambda op: (-height[op], op))
    for _ in range(_RETRIES):
        placing = _PartialSchedule(problem, ii, constraints)
        unplaced = _place_in_order(placing, order)
        if unplaced is None:
            return placing.result()
        order.remove(unplaced)
        order.insert(0, unplaced)
    return None


def _place_by_cost(problem: Problem, ii: int, constraints: Sequence[Arc]) -> Starts | None:
    """Return starts at this II by placing, each time, the ready op that is cheapest in its first free cycle; or None.

    Cost, level by level: distance to the producers, pressure of the values, bank collisions and inversions with placed
    ops; then greater height and the written order.
    """
    height = _compute_heights(len(problem.ops), constraints, ii)
    placing = _PartialSchedule(problem, ii, constraints)
    accesses = list_access_pairs(problem)
    before = [{e.src for e in problem.edges if e.distance == 0 and e.dst == op} for op in range(len(problem.ops))]
    left = set(range(len(problem.ops)))
    while left:
        candidates = []
        for op in sorted(left):
            if before[op] & left:
                continue
            at = placing.table.find_first_free(op, *placing.window(op))
            if at is None:
                return None
            furthest = max((at - placing.start[src] for src in sorted(before[op])), default=0)
            placed_with_op = {**placing.start, op: at}
            held = _measure_placed_pressure(problem, ii, placed_with_op)
            collisions = _count_placed_collisions(accesses, ii, placed_with_op)
            overtaken = sum(
                (other < op) != (placed % ii <= at % ii)
                for other, placed in placing.start.items()
                if problem.ops[other].role == problem.ops[op].role and placed % ii != at % ii
            )
            candidates.append((furthest, held, collisions, overtaken, -height[op], op, at))
        *_, op, at = min(candidates)
        placing.place_at(op, at)
        left.remove(op)
    return placing.result()


def _measure_placed_pressure(problem: Problem, ii: int, start: Mapping[int, int]) -> int:
    """Return the peak pressure, at this II, of the values whose producers and consumers are all placed."""
    settled = tuple(v for v in problem.values if all(op in start for op in (*v.producers, *v.consumers)))
    if not settled:
        return 0
    starts = [start.get(op, 0) for op in range(len(problem.ops))]
    return objective.measure_peak_pressure(replace(problem, values=settled), ii, starts)


def _count_placed_collisions(accesses: Sequence[AccessPair], ii: int, start: Mapping[int, int]) -> int:
    """Return the bank collisions, at this II, of the accesses whose ops are both placed."""
    return sum_collisions([pair for pair in accesses if pair.first in start and pair.second in start], ii, start)


ARMS: dict[str, Arm] = {
    "modulo": _place_modulo,
    "permute": _place_permuted,
    "fuse": _place_fused,
    "retry": _place_with_retries,
    "cost-based": _place_by_cost,
}
