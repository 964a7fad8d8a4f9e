"""Schedulers that place one op after the other: fast, without a proof, to start from and to compare with.

`modulo` is Rau's iterative modulo scheduling (1994): ops by height, each in the first free cycle of its window, and
where there is none the ops in the way are taken out again. The four arms place ops for good, in windows that longest
paths leave between those already placed:

- permute: one order of the ops after another, each op as early as it fits
- fuse: ops that fill one ring, or wait for nothing but one another, are placed as one
- retry: by height; an op that finds no place is put before all others, and everything starts again
- cost-based: of all ready ops and cycles the cheapest by the levels of the objective, again and again

What they have in common: the interval is raised by one until it works, and the result passes the verifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from tilec.sched.anchor import begin
from tilec.sched.bounds import bounds, depth_limits, lead, serial_ii
from tilec.sched.budget import Budget
from tilec.sched.lags import evenly, fold
from tilec.sched.objective import evaluate, given, make, pressure_in, topological
from tilec.sched.paths import Arc, arcs, distances, has_positive_cycle
from tilec.sched.problem import Problem
from tilec.sched.schedule import Status
from tilec.sched.solution import Attempt, Solution, Trial
from tilec.sched.table import Table
from tilec.sched.verify import violations

Starts = tuple[int, ...]
Arm = Callable[[Problem, int, Sequence[Arc]], Starts | None]

# Placements, permutations and restarts before an interval is given up.
_PLACEMENTS_PER_OP = 5
_PERMUTATIONS = 6
_RETRIES = 8
# By pairs of ops and dependences.
_WORK_PER_PAIR = 5
# By cycles of an interval that an op is looked for in: with 400 ops and 200,000 cycles placing takes four seconds.
_CYCLES_PER_WORK = 40
# The arms look at every pair of ops: beyond this size only `modulo` is worth its time.
_MOST_OPS = 48
_MOST_STEPS = 32
# Bodies with fewer instructions than this are generated serially: see `is_serial`.
_FEWEST_INSTRUCTIONS = 8


def work_of_placing(problem: Problem, ii: int) -> int:
    """Of a budget, what it takes to place all ops at one interval: a table of reservations has a bit for each cycle."""
    count = len(problem.ops)
    return _WORK_PER_PAIR * (count**2 + len(problem.edges)) + count * ii // _CYCLES_PER_WORK


def heuristic(problem: Problem, budget: Budget | None = None, most: int | None = None) -> Solution:
    """The best schedule of all arms at the first interval that any of them reaches, or the serial one where `is_serial`
    says so or nothing else works, up to an interval of `most` cycles where a larger one is of no use. Its II is optimal
    only if it equals the bound. The budget pays for each interval that an arm tries, and none is tried once it is
    spent."""
    proven = bounds(problem)
    best = None if is_serial(problem) else _first_of_all(problem, proven.mii, budget, most)
    if best is None:
        ii, start, how, why = *serial(problem, proven.mii), "serial", "one op after the other"
    else:
        ii, start, arm = best
        how, why = "heuristic", f"found by {arm}"
    # Nobody is told that there may be a better one who forbade to look for it.
    unproven: Status = "serial" if problem.force_serial else "feasible"
    schedule = make(problem, ii, start, "optimal" if ii == proven.mii else unproven)
    return Solution(
        schedule,
        proven,
        (Attempt(ii, "found", "serial" if how == "serial" else "heuristic", why),),
        given(problem, schedule).objectives,
    )


def _first_of_all(
    problem: Problem, mii: int, budget: Budget | None, most: int | None
) -> tuple[int, Starts, str] | None:
    """The first II from this one on at which some arm finds a schedule, the best one by the levels of the objective,
    and the arm."""
    last = mii + _MOST_STEPS * max(1, mii // 64)
    for ii in _intervals(mii, last if most is None else min(last, most)):
        found = list(_placed(problem, ii, _paid(ARMS, work_of_placing(problem, ii), budget)))
        if found:
            return ii, *min(found, key=lambda one: (_levels(problem, ii, one[0]), *one))
    return None


def _levels(problem: Problem, ii: int, start: Starts) -> tuple[int, ...]:
    return tuple(level.value for level in evaluate(problem, make(problem, ii, start, "feasible")))


def is_serial(problem: Problem) -> bool:
    """The rule of the generator that these arms are modelled on: a forced body, one of fewer than eight ops, or one in
    which nothing is asynchronous is not worth a search. Its ops are instructions; one of ours is a whole tile and
    stands for as many as the cycles that it issues."""
    if overlaps(problem):
        return False
    instructions = sum(max(1, op.issue) for op in problem.ops)
    has_asynchronous = any(op.latency > max(op.issue, 1) for op in problem.ops)
    return problem.force_serial or instructions < _FEWEST_INSTRUCTIONS or not has_asynchronous


def overlaps(problem: Problem) -> bool:
    """Whether iterations cannot run one after the other: some op comes before what another does in the one before."""
    return any(edge.distance < 0 for edge in problem.edges)


def trials(problem: Problem, ii: int) -> tuple[Trial, ...]:
    """What II each arm reaches, from an II on below which there is none, and no further than an eighth above."""
    names = ARMS if len(problem.ops) <= _MOST_OPS else ("modulo",)
    found = ((arm, sweep(problem, arm, ii, ii + max(4, ii // 16))) for arm in names)
    return tuple(Trial(arm, None if reached is None else reached[0]) for arm, reached in found)


def sweep(problem: Problem, arm: str, low: int, high: int) -> tuple[int, Starts] | None:
    """The first II at which an arm finds a schedule."""
    found = ((ii, start) for ii in _intervals(low, high) if (start := place(problem, ii, arm)) is not None)
    return next(found, None)


def _intervals(low: int, high: int) -> range:
    """In steps of one in sixty-four."""
    return range(low, high + 1, max(1, low // 64))


def _paid(arms: Iterable[str], work: int, budget: Budget | None) -> Iterator[str]:
    """As many of the arms as the budget pays for."""
    for arm in arms:
        if budget is not None:
            if budget.is_spent:
                return
            budget.spend(work)
        yield arm


def place(problem: Problem, ii: int, arm: str = "modulo") -> Starts | None:
    """A schedule at this II, from cycle 0 on, that holds; or None, which proves nothing. Groups of warps share the
    interval evenly, unless they have lags."""
    return next((start for start, _ in _placed(problem, ii, (arm,))), None)


def _placed(problem: Problem, ii: int, arms: Iterable[str]) -> Iterator[tuple[Starts, str]]:
    """What `place` finds, with those of the arms that find something."""
    if problem.copies:
        folded, unfold = fold(evenly(problem, ii))
        found = ((unfold(start), arm) for start, arm in _placed(folded, ii, arms))
    else:
        within = arcs(problem, depth_limits(problem, ii))
        if has_positive_cycle(problem, ii, within):
            return
        fitting = (arm for arm in arms if arm == "modulo" or len(problem.ops) <= _MOST_OPS)
        reached = ((ARMS[arm](problem, ii, within), arm) for arm in fitting)
        found = ((begin(problem, ii, start), arm) for start, arm in reached if start is not None)
    for start, arm in found:
        if not any(violations(problem, make(problem, ii, start, "given"))):
            yield start, arm


def serial(problem: Problem, least: int) -> tuple[int, Starts]:
    """One op after the other, and one group of warps after the other: a schedule that every schedulable problem
    has."""
    if problem.copies:
        count, each = len(problem.copies[0]), serial_ii(problem) // len(problem.copies[0])
        _, unfold = fold(replace(problem, lags=tuple(group * each for group in range(count))))
        folded, _ = fold(replace(problem, lags=(0,) * count))
        return max(least, count * each), unfold(serial(folded, least)[1])
    at, start = 0, [0] * len(problem.ops)
    for op in topological(problem):
        spec = problem.ops[op]
        at += lead(spec)
        start[op] = at
        waits = [edge.latency for edge in problem.edges if edge.src == op]
        at += max([1, spec.latency, *waits, *(use.offset + use.cycles for use in spec.uses)])
    return max(least, serial_ii(problem)), tuple(start)


# --- Rau's iterative modulo scheduling ---


def _modulo(problem: Problem, ii: int, within: Sequence[Arc]) -> Starts | None:
    count = len(problem.ops)
    into: list[list[Arc]] = [[] for _ in range(count)]
    out: list[list[Arc]] = [[] for _ in range(count)]
    for arc in within:
        if arc.src != arc.dst:
            out[arc.src].append(arc)
            into[arc.dst].append(arc)
    height = _heights(count, within, ii)
    table = Table(problem, ii)
    start: list[int | None] = [None] * count
    before = [-1] * count
    waiting = [(-height[op], op) for op in range(count)]
    heapify(waiting)
    for _ in range(_PLACEMENTS_PER_OP * count):
        if not waiting:
            return tuple(at for at in start if at is not None)
        _, op = heappop(waiting)
        ready = [at + arc.latency - ii * arc.distance for arc in into[op] if (at := start[arc.src]) is not None]
        low = max([0, *ready])
        found = table.first_free(op, low, low + ii - 1)
        if found is None:
            # Not where it was before: that is what the ops in the way were put there for.
            found = low if low > before[op] else table.next_end(op, before[op] + 1)
        leaving = set(table.in_the_way(op, found) if not table.is_free(op, found) else ())
        start[op] = before[op] = found
        for arc in out[op]:
            at = start[arc.dst]
            if at is not None and at < found + arc.latency - ii * arc.distance:
                leaving.add(arc.dst)
        for other in sorted(leaving):
            table.remove(other)
            start[other] = None
            heappush(waiting, (-height[other], other))
        table.place(op, found)
    return None if waiting else tuple(at for at in start if at is not None)


def _heights(count: int, within: Sequence[Arc], ii: int) -> list[int]:
    """The longest path from each op to the end of anything."""
    height = [0] * count
    # Most arcs point forward: from the end on one pass is nearly enough.
    behind = [
        (arc.src, arc.dst, arc.latency - ii * arc.distance)
        for arc in sorted(within, key=lambda arc: arc.src, reverse=True)
    ]
    changed = True
    while changed:
        changed = False
        for src, dst, least in behind:
            above = height[dst] + least
            if above > height[src]:
                height[src], changed = above, True
    return height


# --- the arms ---


class _Placing:
    """Ops placed so far, and the windows that they leave to the others."""

    def __init__(self, problem: Problem, ii: int, separation: Sequence[Sequence[int | None]]) -> None:
        self.problem, self.ii, self.separation = problem, ii, separation
        self.table = Table(problem, ii)
        self.start: dict[int, int] = {}

    def window(self, op: int) -> tuple[int, int]:
        low, high = None, None
        for other, at in self.start.items():
            after, before = self.separation[other][op], self.separation[op][other]
            if after is not None:
                low = at + after if low is None else max(low, at + after)
            if before is not None:
                high = at - before if high is None else min(high, at - before)
        if low is None:
            # Nothing is before it: as near as possible to what is after it.
            low = 0 if high is None else high - self.ii + 1
        return low, low + self.ii - 1 if high is None else min(high, low + self.ii - 1)

    def put(self, op: int) -> bool:
        at = self.table.first_free(op, *self.window(op))
        if at is None:
            return False
        self.put_at(op, at)
        return True

    def put_at(self, op: int, at: int) -> None:
        self.table.place(op, at)
        self.start[op] = at

    def result(self) -> Starts:
        lift = -min([0, *self.start.values()])
        lift = -(-lift // self.ii) * self.ii
        return tuple(self.start[op] + lift for op in range(len(self.problem.ops)))


def _in_order(placing: _Placing, order: Sequence[int]) -> int | None:
    """Places ops one by one; returns the first that finds no place."""
    return next((op for op in order if not placing.put(op)), None)


def _permute(problem: Problem, ii: int, within: Sequence[Arc]) -> Starts | None:
    separation = distances(problem, ii, within)
    for order in _orders(problem, within, ii):
        placing = _Placing(problem, ii, separation)
        if _in_order(placing, order) is None:
            return placing.result()
    return None


def _orders(problem: Problem, within: Sequence[Arc], ii: int) -> Iterator[list[int]]:
    """Different topological orders: as written, by height, by demand, and each the other way within what is ready."""
    height = _heights(len(problem.ops), within, ii)
    busy = [sum(use.cycles for use in op.uses) for op in problem.ops]
    yield topological(problem)
    weights: tuple[list[int], ...] = (height, busy)
    for weight in weights[: _PERMUTATIONS // 2]:
        for sign in (-1, 1):
            yield sorted(topological(problem), key=lambda op: (sign * weight[op], op))


def _fuse(problem: Problem, ii: int, within: Sequence[Arc]) -> Starts | None:
    separation = distances(problem, ii, within)
    group = list(range(len(problem.ops)))
    for ring in problem.rings:
        for op in ring.producers:
            group[op] = min(group[op], *ring.producers)
    single = [[e for e in problem.edges if e.distance == 0 and e.src == op] for op in range(len(problem.ops))]
    for op in topological(problem):
        into = [edge for edge in problem.edges if edge.distance == 0 and edge.dst == op]
        if len(into) == 1 and len(single[into[0].src]) == 1:
            group[op] = group[into[0].src]
    members: dict[int, list[int]] = {}
    for op in topological(problem):
        members.setdefault(group[op], []).append(op)
    height = _heights(len(problem.ops), within, ii)
    order = [op for key in sorted(members, key=lambda key: (-height[members[key][0]], key)) for op in members[key]]
    placing = _Placing(problem, ii, separation)
    return placing.result() if _in_order(placing, order) is None else None


def _retry(problem: Problem, ii: int, within: Sequence[Arc]) -> Starts | None:
    separation = distances(problem, ii, within)
    height = _heights(len(problem.ops), within, ii)
    order = sorted(range(len(problem.ops)), key=lambda op: (-height[op], op))
    for _ in range(_RETRIES):
        placing = _Placing(problem, ii, separation)
        dead = _in_order(placing, order)
        if dead is None:
            return placing.result()
        order.remove(dead)
        order.insert(0, dead)
    return None


def _cost_based(problem: Problem, ii: int, within: Sequence[Arc]) -> Starts | None:
    """Candidates are the first free cycles of what is ready. Cheapest is, level by level: who reaches least far back,
    with whom values hold least, who overtakes fewest of those placed; then who is needed most, and is written first."""
    separation = distances(problem, ii, within)
    height = _heights(len(problem.ops), within, ii)
    placing = _Placing(problem, ii, separation)
    before = [{e.src for e in problem.edges if e.distance == 0 and e.dst == op} for op in range(len(problem.ops))]
    left = set(range(len(problem.ops)))
    while left:
        candidates = []
        for op in sorted(left):
            if before[op] & left:
                continue
            at = placing.table.first_free(op, *placing.window(op))
            if at is None:
                return None
            furthest = max((at - placing.start[src] for src in sorted(before[op])), default=0)
            held = _held_with(problem, ii, {**placing.start, op: at})
            overtaken = sum(
                (other < op) != (placed % ii <= at % ii)
                for other, placed in placing.start.items()
                if problem.ops[other].role == problem.ops[op].role and placed % ii != at % ii
            )
            candidates.append((furthest, held, overtaken, -height[op], op, at))
        *_, op, at = min(candidates)
        placing.put_at(op, at)
        left.remove(op)
    return placing.result()


def _held_with(problem: Problem, ii: int, start: Mapping[int, int]) -> int:
    """The most that those values hold at once of any pool whose ops have been placed."""
    settled = tuple(v for v in problem.values if all(op in start for op in (*v.producers, *v.consumers)))
    if not settled:
        return 0
    return pressure_in(replace(problem, values=settled), ii, [start.get(op, 0) for op in range(len(problem.ops))])


ARMS: dict[str, Arm] = {
    "modulo": _modulo,
    "permute": _permute,
    "fuse": _fuse,
    "retry": _retry,
    "cost-based": _cost_based,
}
