"""Refutes many intervals with one solver run in which II is a variable.

Two ops that share a slot of one unit are a whole number of turns apart, plus at least the length of the first and minus
at least the length of the second. With a boolean for each number of turns and for each depth of a ring, everything is
linear in the starts and in II. Wider slots, values, roles and stages are left out. They could only make the interval
larger, so a refutation here holds for the full problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

from tilec.sched.budget import Budget
from tilec.sched.cp import Program, SolverRun
from tilec.sched.lower_bounds import paths
from tilec.sched.lower_bounds.bounds import compute_depth_limits
from tilec.sched.lower_bounds.windows import find_exclusive_slots, list_separations
from tilec.sched.problem import Problem
from tilec.support.records import dataclass

# Limits on the size of one program.
_MAX_OPS = 128
_MAX_ITERATIONS_PER_PAIR = 6


# (op, other op, ahead, behind, possible turns): see `list_separations`.
IterationChoice = tuple[int, int, int, int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class RefutedIntervals:
    """Every II from the first one tried to `ii` − 1 is refuted."""

    ii: int
    effort: float


def refute_intervals(
    problem: Problem,
    low: int,
    high: int,
    effort: float,
    without: frozenset[str] = frozenset(),
    budget: Budget | None = None,
) -> RefutedIntervals:
    """Return the effort, and the first II from `low` to `high` + 1 that a solver run with variable II does not refute.

    `without` names families of constraints to leave out, as in the model. Refutes none if the problem is too large or
    the dependences do not connect all ops.
    """
    if len(problem.ops) > _MAX_OPS or low > high:
        return RefutedIntervals(low, 0.0)
    constraints = paths.build_edge_arcs(problem) + paths.build_lag_arcs(problem)
    if "rings" not in without:
        constraints = paths.build_arcs(problem, compute_depth_limits(problem, high, without))
    if paths.has_positive_cycle(problem, high, constraints):
        return RefutedIntervals(low, 0.0)
    # Distances shrink as the interval grows, so those at the largest interval hold at all.
    separation = [[at for at in row if at is not None] for row in paths.find_all_distances(problem, high, constraints)]
    if any(len(row) < len(problem.ops) for row in separation):
        return RefutedIntervals(low, 0.0)
    choices: list[IterationChoice] = []
    for u, v, ahead, behind in list_separations(problem, find_exclusive_slots(problem, low, without)):
        first, last = separation[u][v], -separation[v][u]
        possible = range((first - high) // high - 1, last // low + 2)
        ends = [(min(t * low, t * high) + ahead, max((t + 1) * low, (t + 1) * high) - behind) for t in possible]
        wraps = tuple(t for t, (least, most) in zip(possible, ends, strict=True) if least <= last and most >= first)
        choices.append((u, v, ahead, behind, wraps))
    if sum(len(wraps) for *_, wraps in choices) > _MAX_ITERATIONS_PER_PAIR * len(choices):
        return RefutedIntervals(low, 0.0)
    program = _IntervalProgram(problem, low, high, constraints, separation, choices, budget)
    if "rings" not in without:
        program.share_pools(compute_depth_limits(problem, high, without), without)
    run = program.least(effort)
    ii = {"refuted": high + 1, "found": run.bound, "unknown": max(low, run.bound)}[run.outcome]
    return RefutedIntervals(ii, run.effort)


class _IntervalProgram(Program):
    """The program of `refute_intervals`. Starts count from the busiest op, since shifted schedules are equal. Groups of
    warps that run the same code are represented by the first: only its ops have start variables, and each other group
    has a lag. Constraints between two ops of a group are added once for all groups."""

    def __init__(
        self,
        problem: Problem,
        low: int,
        high: int,
        constraints: Sequence[paths.Arc],
        separation: Sequence[Sequence[int]],
        choices: Sequence[IterationChoice],
        budget: Budget | None,
    ) -> None:
        super().__init__(budget)
        self.ii = self._variable(low, high)
        self.problem = problem
        self._add_starts(separation)
        self._said: set[tuple[object, ...]] = set()
        for arc in constraints:
            if arc.src != arc.dst:
                gap = self._build_gap(arc.src, arc.dst)
                if self._is_new(gap, arc.latency, arc.distance):
                    self._add_linear((*gap, (self.ii, arc.distance)), arc.latency, None)
        for u, v, ahead, behind, wraps in choices:
            gap = self._build_gap(u, v)
            if not self._is_new(gap, ahead, behind, wraps):
                continue
            literals = [self._variable(0, 1) for _ in wraps]
            for wrap, literal in zip(wraps, literals, strict=True):
                self._add_linear((*gap, (self.ii, -wrap)), ahead, None, when=(literal,))
                self._add_linear((*gap, (self.ii, -wrap - 1)), None, -behind, when=(literal,))
            self._add_exactly_one(literals)

    def _add_starts(self, separation: Sequence[Sequence[int]]) -> None:
        """Add a start variable for each op of the first group of warps, and a lag variable for each other group."""
        problem = self.problem
        busy_cycles = [sum(use.cycles for use in op.uses) for op in problem.ops]
        leader = paths.map_group_leaders(problem)
        origin, _ = leader.get(at := busy_cycles.index(max(busy_cycles)), (at, 0))
        first, *others = problem.copies[0] if problem.copies else (0,)
        lags = [self._variable(separation[first][op], -separation[op][first]) for op in others]
        starts = {
            op: self._variable(separation[origin][op], -separation[op][origin])
            for op in range(len(problem.ops))
            if leader.get(op, (op, 0))[0] == op
        }
        position = [leader.get(op, (op, 0)) for op in range(len(problem.ops))]
        self._terms = [(starts[first_op], *lags[:group][-1:]) for first_op, group in position]

    def _build_gap(self, op: int, other: int) -> tuple[tuple[int, int], ...]:
        """Return start[other] − start[op] as terms of start and lag variables."""
        gap = Counter(self._terms[other])
        gap.subtract(self._terms[op])
        return tuple(sorted((variable, count) for variable, count in gap.items() if count))

    def _is_new(self, *constraint: object) -> bool:
        """Record a constraint, and return whether it was not recorded before."""
        before = len(self._said)
        self._said.add(constraint)
        return len(self._said) > before

    def share_pools(self, limits: Sequence[int | None], without: frozenset[str]) -> None:
        """Add the depths of rings, by their lifetimes, and that they fit in their pools unless the limits ensure it."""
        rings = [*zip(self.problem.rings, limits, strict=True)]
        for index, pool in enumerate(self.problem.pools):
            deep = [(ring, limit) for ring, limit in rings if ring.pool == index and ring.bytes and limit is not None]
            room = pool.capacity - pool.reserved
            if f"pool {pool.name}" in without or sum(ring.bytes * limit for ring, limit in deep) <= room:
                continue
            taken: list[tuple[int, int]] = []
            for ring, limit in deep:
                literals = [self._variable(0, 1) for _ in range(limit)]
                self._add_exactly_one(literals)
                for depth, literal in enumerate(literals, 1):
                    taken.append((literal, depth * ring.bytes))
                    for producer, consumer in product(ring.producers, ring.consumers):
                        covered = (*self._build_gap(consumer, producer), (self.ii, depth))
                        self._add_linear(covered, self.problem.ops[consumer].latency, None, when=(literal,))
            self._add_linear(taken, None, room)

    def least(self, effort: float) -> SolverRun:
        """Minimise II by raising its lower bound from conflicts; return the run, whose bound says what is refuted."""
        self._add_objective(((self.ii, 1),))
        return self._run(effort, by_core=True)
