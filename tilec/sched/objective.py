"""The cost of a schedule at its interval: one integer function for each level.

The levels in order, none weighed against another:

1. stages: how many iterations overlap
2. pipe-slot pressure: the longest distance from an op to a dependent op of its iteration
3. ring bytes: memory for versions of buffers
4. pressure in the iteration: the peak of what values hold
5. pressure across iterations: what values hold across the end of an interval
6. bank collisions: pairs of accesses that reach the banks of one memory at once
7. inversions: pairs of ops of one role that issue in another order than they are written
8. start times: each op as early as the ops before it allow
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from tilec.sched.collisions import list_access_pairs, sum_collisions
from tilec.sched.lower_bounds.bounds import compute_bounds
from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule, Status
from tilec.sched.solution import LEVELS, Objective, Solution

# At least the copies of a value that any schedule has in flight.
_MANY_COPIES = 64


def make_schedule(
    problem: Problem, ii: int, start: Sequence[int], status: Status, order: Sequence[int] = ()
) -> Schedule:
    """Return the schedule with these starts, ordered by phase, then as in `order` or by id; rings as deep as needed."""
    place = {op: at for at, op in enumerate(order or range(len(start)))}
    by_phase = sorted(range(len(start)), key=lambda op: (start[op] % ii, place[op]))
    return Schedule(ii, tuple(start), tuple(by_phase), compute_ring_depths(problem, ii, start), status)


def record_given_schedule(problem: Problem, schedule: Schedule) -> Solution:
    """Return a solution for a schedule that was not solved here: with bounds and costs, without attempts."""
    return Solution(schedule, compute_bounds(problem), (), evaluate_levels(problem, schedule))


def evaluate_levels(problem: Problem, schedule: Schedule) -> tuple[Objective, ...]:
    """Return the value of each level of the objective for a schedule, all marked as not proven."""
    ii, start = schedule.ii, schedule.start
    values = (
        max(schedule.stage, default=0) + 1,
        measure_slot_pressure(find_reaching_pairs(problem), start),
        count_ring_bytes(problem, ii, start),
        measure_peak_pressure(problem, ii, start),
        measure_carried_pressure(problem, ii, start),
        sum_collisions(list_access_pairs(problem), ii, start),
        count_inversions(list_same_role_pairs(problem), ii, start),
        sum(start),
    )
    return tuple(Objective(name, value, False) for name, value in zip(LEVELS, values, strict=True))


def find_reaching_pairs(problem: Problem) -> list[tuple[int, int]]:
    """Return the pairs (first op, last op that depends on it in an iteration) whose distance decides the slot pressure.

    No op comes before the first, and none after the last.
    """
    count = len(problem.ops)
    after: list[set[int]] = [set() for _ in range(count)]
    has_before, has_after = [False] * count, [False] * count
    edges = [edge for edge in problem.edges if edge.distance == 0]
    for edge in edges:
        after[edge.src].add(edge.dst)
        if edge.latency >= 0:
            has_before[edge.dst] = has_after[edge.src] = True
    for op in reversed(sort_topologically(problem)):
        after[op].update(*(after[other] for other in sorted(after[op])))
    first = [op for op in range(count) if not has_before[op]]
    return [(op, last) for op in first for last in sorted(after[op]) if not has_after[last]]


def measure_slot_pressure(reach: Sequence[tuple[int, int]], start: Sequence[int]) -> int:
    """Return the largest distance in cycles between the starts of these pairs of ops, at least 0."""
    return max([0, *(start[last] - start[first] for first, last in reach)])


def sort_topologically(problem: Problem) -> list[int]:
    """Return the ops in topological order within an iteration, smallest ready op first; cycles are left out."""
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


def compute_ring_depths(problem: Problem, ii: int, start: Sequence[int]) -> tuple[int, ...]:
    """Return the number of versions that each ring needs for these starts, at least 1."""
    return tuple(
        max(1, -(-(_find_last_end(problem, ring.consumers, start) - min(start[op] for op in ring.producers)) // ii))
        for ring in problem.rings
    )


def count_ring_bytes(problem: Problem, ii: int, start: Sequence[int]) -> int:
    """Return the bytes that all versions of all rings take with these starts at this II."""
    depths = zip(compute_ring_depths(problem, ii, start), problem.rings, strict=True)
    return sum(depth * ring.bytes for depth, ring in depths)


def list_pressure_pools(problem: Problem) -> list[int]:
    """Return the pools that have values and `spare` set: their use counts as pressure."""
    return [pool for pool in sorted({value.pool for value in problem.values}) if problem.pools[pool].spare]


def list_limited_pools(problem: Problem) -> tuple[int, ...]:
    """Return the pools with values that could exceed them, or with a limit on values across intervals."""
    once = {(e.src, e.dst) for e in problem.edges if e.distance == 1 and e.latency >= problem.ops[e.src].latency}
    amounts = [0] * len(problem.pools)
    for value in problem.values:
        # A value that is written again only after its last reader has one copy.
        is_single = all((c, p) in once for c in value.consumers for p in value.producers)
        amounts[value.pool] += value.amount * (1 if is_single else _MANY_COPIES)
    for ring in problem.rings:
        amounts[ring.pool] += ring.bytes * (ring.max_depth or _MANY_COPIES) if amounts[ring.pool] else 0
    return tuple(
        at
        for at, (pool, amount) in enumerate(zip(problem.pools, amounts, strict=True))
        if amount and (pool.carried is not None or amount > pool.capacity - pool.reserved)
    )


def measure_peak_pressure(problem: Problem, ii: int, start: Sequence[int]) -> int:
    """Return the largest peak of what values hold of any pool that counts as pressure."""
    return max((count_held_at_once(problem, ii, start, pool) for pool in list_pressure_pools(problem)), default=0)


def measure_carried_pressure(problem: Problem, ii: int, start: Sequence[int]) -> int:
    """Return the most that values hold, across the end of an interval, of any pool that counts as pressure."""
    return max((count_held_across(problem, ii, start, pool) for pool in list_pressure_pools(problem)), default=0)


def do_values_fit(problem: Problem, ii: int, start: Sequence[int]) -> bool:
    """Return whether live values, with rings, never exceed a pool's capacity, nor its limit across intervals."""
    rings = list(zip(compute_ring_depths(problem, ii, start), problem.rings, strict=True)) if problem.values else []
    for at in list_limited_pools(problem):
        pool = problem.pools[at]
        versions = sum(depth * ring.bytes for depth, ring in rings if ring.pool == at)
        if pool.reserved + versions + count_held_at_once(problem, ii, start, at) > pool.capacity:
            return False
        if pool.carried is not None and count_held_across(problem, ii, start, at) > pool.carried:
            return False
    return True


def count_held_at_once(problem: Problem, ii: int, start: Sequence[int], pool: int) -> int:
    """Return the largest amount of a pool that values hold at any time.

    It occurs at the start of some op, where a value begins.
    """
    lives = list_lifetimes(problem, pool, start)
    held = (sum(amount * ((now - b) // ii - (now - e) // ii) for b, e, amount in lives) for now, _, _ in lives)
    return max(held, default=0)


def count_held_across(problem: Problem, ii: int, start: Sequence[int], pool: int) -> int:
    """Return the amount of a pool that values hold across the end of an interval."""
    return sum_across_ends(list_lifetimes(problem, pool, start), ii)


def list_lifetimes(problem: Problem, pool: int, start: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (begin, end, amount) of each value in a pool, in cycles of its own iteration."""
    found = []
    for value in problem.values:
        if value.pool == pool:
            begin = min(start[op] for op in value.producers)
            found.append((begin, max(begin, _find_last_end(problem, value.consumers, start)), value.amount))
    return found


def sum_across_ends(lives: Sequence[tuple[int, int, int]], ii: int, shift: int = 0) -> int:
    """Return the amount that values (begin, end, amount) hold across an interval's end, if all begin `shift` later."""
    return sum(max(0, (end + shift - 1) // ii - (begin + shift) // ii) * amount for begin, end, amount in lives)


def _find_last_end(problem: Problem, consumers: Sequence[int], start: Sequence[int]) -> int:
    """Return the cycle at which the last of these consumers has finished, 0 if there are none."""
    return max((start[op] + problem.ops[op].latency for op in consumers), default=0)


def list_same_role_pairs(problem: Problem) -> list[tuple[int, int]]:
    """Return all pairs (earlier op, later op) of one role; roles run concurrently, so other orders do not show."""
    roles = [op.role for op in problem.ops]
    return [(i, j) for j in range(len(roles)) for i in range(j) if roles[i] == roles[j]]


def count_inversions(pairs: Sequence[tuple[int, int]], ii: int, start: Sequence[int]) -> int:
    """Return how many pairs issue, within the interval, in the other order than they are written."""
    return sum(start[i] % ii > start[j] % ii for i, j in pairs)
