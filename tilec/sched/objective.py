"""What a schedule costs at its interval: one function a level, of plain integers.

The levels in their order, none weighed against another:

1. stages: how many iterations overlap
2. pipe-slot pressure: how far the dependences of an iteration reach, from an op to what needs its result
3. ring bytes: memory for versions of buffers
4. pressure in the iteration: what values hold at the worst moment
5. pressure across iterations: what values hold while the interval turns over
6. inversions: pairs of ops of one role that issue in the other order than they are written in
7. start times: each op as early as the ops before it allow
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from tilec.sched.bounds import bounds
from tilec.sched.problem import Problem, Value
from tilec.sched.schedule import Schedule, Status
from tilec.sched.solution import LEVELS, Objective, Solution

# More copies of a value than any schedule has in flight.
_MANY_COPIES = 64


def make(problem: Problem, ii: int, start: Sequence[int], status: Status, order: Sequence[int] = ()) -> Schedule:
    """The schedule of these start times: ops in the order of their phases (ties as in `order`, or by op id), and each
    ring as deep as its lifetime needs."""
    place = {op: at for at, op in enumerate(order or range(len(start)))}
    by_phase = sorted(range(len(start)), key=lambda op: (start[op] % ii, place[op]))
    return Schedule(ii, tuple(start), tuple(by_phase), depths(problem, ii, start), status)


def given(problem: Problem, schedule: Schedule) -> Solution:
    """The record of a schedule that was not solved here: what bounds its II, and what it costs."""
    return Solution(schedule, bounds(problem), (), evaluate(problem, schedule))


def evaluate(problem: Problem, schedule: Schedule) -> tuple[Objective, ...]:
    """The value of each level, none of them proven."""
    ii, start = schedule.ii, schedule.start
    values = (
        max(schedule.stage, default=0) + 1,
        slot_pressure(reaching(problem), start),
        ring_bytes(problem, ii, start),
        pressure_in(problem, ii, start),
        pressure_across(problem, ii, start),
        inversions(pairs(problem), ii, start),
        sum(start),
    )
    return tuple(Objective(name, value, False) for name, value in zip(LEVELS, values, strict=True))


# --- pipe-slot pressure ---


def reaching(problem: Problem) -> list[tuple[int, int]]:
    """The pairs (op, later op of the same iteration that waits for it) whose distance decides the pressure: between
    the ops of such a pair there may be others, which are no further apart."""
    count = len(problem.ops)
    after: list[set[int]] = [set() for _ in range(count)]
    has_before, has_after = [False] * count, [False] * count
    edges = [edge for edge in problem.edges if edge.distance == 0]
    for edge in edges:
        after[edge.src].add(edge.dst)
        if edge.latency >= 0:
            has_before[edge.dst] = has_after[edge.src] = True
    for op in reversed(topological(problem)):
        after[op].update(*(after[other] for other in sorted(after[op])))
    first = [op for op in range(count) if not has_before[op]]
    return [(op, last) for op in first for last in sorted(after[op]) if not has_after[last]]


def slot_pressure(reach: Sequence[tuple[int, int]], start: Sequence[int]) -> int:
    """The largest distance from an op to one that waits for it: for so many cycles the slots between them are spoken
    for. `reach` are the pairs that count."""
    return max([0, *(start[last] - start[first] for first, last in reach)])


def topological(problem: Problem) -> list[int]:
    """Op ids such that edges within an iteration point forward; among the free ones the smallest comes first."""
    waiting = [0] * len(problem.ops)
    onward: list[list[int]] = [[] for _ in problem.ops]
    for edge in problem.edges:
        if edge.distance == 0:
            waiting[edge.dst] += 1
            onward[edge.src].append(edge.dst)
    order: list[int] = []
    free = [op for op, count in enumerate(waiting) if count == 0]
    while free:
        op = heappop(free)
        order.append(op)
        for other in onward[op]:
            waiting[other] -= 1
            if waiting[other] == 0:
                heappush(free, other)
    return order


# --- rings and values ---


def depths(problem: Problem, ii: int, start: Sequence[int]) -> tuple[int, ...]:
    """How many versions each ring needs."""
    return tuple(
        max(1, -(-(_done(problem, ring.consumers, start) - min(start[op] for op in ring.producers)) // ii))
        for ring in problem.rings
    )


def ring_bytes(problem: Problem, ii: int, start: Sequence[int]) -> int:
    """Bytes that the versions of all rings take with these starts (cycles) at an interval of `ii` cycles."""
    return sum(depth * ring.bytes for depth, ring in zip(depths(problem, ii, start), problem.rings, strict=True))


def life(problem: Problem, value: Value, start: Sequence[int]) -> tuple[int, int]:
    """When a value is first held and when no longer, in the time of its own iteration."""
    begin = min(start[op] for op in value.producers)
    return begin, max(begin, _done(problem, value.consumers, start))


def spared(problem: Problem) -> list[int]:
    """The pools that values hold something of, where less is better."""
    return [pool for pool in sorted({value.pool for value in problem.values}) if problem.pools[pool].spare]


def limited(problem: Problem) -> tuple[int, ...]:
    """The pools whose values could be too many: not those of a capacity for everything many times over."""
    once = {(e.src, e.dst) for e in problem.edges if e.distance == 1 and e.latency >= problem.ops[e.src].latency}
    amounts = [0] * len(problem.pools)
    for value in problem.values:
        # Written again only once its last reader is done, a value has one copy.
        is_single = all((c, p) in once for c in value.consumers for p in value.producers)
        amounts[value.pool] += value.amount * (1 if is_single else _MANY_COPIES)
    for ring in problem.rings:
        amounts[ring.pool] += ring.bytes * (ring.max_depth or _MANY_COPIES) if amounts[ring.pool] else 0
    return tuple(
        at
        for at, (pool, amount) in enumerate(zip(problem.pools, amounts, strict=True))
        if amount and (pool.carried is not None or amount > pool.capacity - pool.reserved)
    )


def pressure_in(problem: Problem, ii: int, start: Sequence[int]) -> int:
    """The most that values hold of any pool at once."""
    return max((held_at_once(problem, ii, start, pool) for pool in spared(problem)), default=0)


def pressure_across(problem: Problem, ii: int, start: Sequence[int]) -> int:
    """The most that values hold of any pool while one interval ends and the next begins."""
    return max((held_across(problem, ii, start, pool) for pool in spared(problem)), default=0)


def values_fit(problem: Problem, ii: int, start: Sequence[int]) -> bool:
    """Whether the pools have what values hold of them."""
    rings = list(zip(depths(problem, ii, start), problem.rings, strict=True)) if problem.values else []
    for at in limited(problem):
        pool = problem.pools[at]
        versions = sum(depth * ring.bytes for depth, ring in rings if ring.pool == at)
        if pool.reserved + versions + held_at_once(problem, ii, start, at) > pool.capacity:
            return False
        if pool.carried is not None and held_across(problem, ii, start, at) > pool.carried:
            return False
    return True


def held_at_once(problem: Problem, ii: int, start: Sequence[int], pool: int) -> int:
    """The most that values hold of a pool. It is at the start of some op: values only begin to be held at starts."""
    lives = [(life(problem, value, start), value.amount) for value in problem.values if value.pool == pool]
    return max(
        (sum(amount * ((now - b) // ii - (now - e) // ii) for (b, e), amount in lives) for (now, _), _ in lives),
        default=0,
    )


def held_across(problem: Problem, ii: int, start: Sequence[int], pool: int) -> int:
    """What values hold of a pool while one interval ends and the next begins."""
    lives = [(life(problem, value, start), value.amount) for value in problem.values if value.pool == pool]
    return sum(amount * max(0, (end - 1) // ii - begin // ii) for (begin, end), amount in lives)


def _done(problem: Problem, consumers: Sequence[int], start: Sequence[int]) -> int:
    return max((start[op] + problem.ops[op].latency for op in consumers), default=0)


# --- order ---


def pairs(problem: Problem) -> list[tuple[int, int]]:
    """The pairs of ops whose order the code shows: roles run beside each other, so only ops of one role count."""
    roles = [op.role for op in problem.ops]
    return [(i, j) for j in range(len(roles)) for i in range(j) if roles[i] == roles[j]]


def inversions(of: Sequence[tuple[int, int]], ii: int, start: Sequence[int]) -> int:
    """Kendall's tau between the written order and the order of issue within the interval."""
    return sum(start[i] % ii > start[j] % ii for i, j in of)
