"""A thin builder for CP-SAT programs: integer variables, linear constraints, intervals, one deterministic run.

The only file that imports ortools, and only when a program is built. It uses ortools' native half, which imports in a
tenth of the time of `cp_model` and without pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, inf
from typing import Any, Literal

from tilec.sched.budget import WORK_PER_EFFORT, Budget
from tilec.support.records import dataclass

SolverOutcome = Literal["found", "refuted", "unknown"]

_WORK_PER_CONSTRAINT = 2
"""Work to build and read a variable or a constraint, which the solver does not count."""
_WORK_PER_PAIR = 1
"""Work that presolve spends on two intervals of one resource, which the solver does not count."""


@dataclass(frozen=True, slots=True)
class SolverRun:
    """The result of one solver run. `values` are those of the variables, empty if none were found. `is_proven`: nothing
    better exists. `bound` is a lower bound of the objective. `effort` is deterministic time, CP-SAT's count of its own
    work."""

    outcome: SolverOutcome
    is_proven: bool
    values: tuple[int, ...]
    bound: int
    effort: float


def load_solver() -> Any:
    """Import and return the native half of CP-SAT. Late, because most commands and every cache hit do without it."""
    from ortools.sat.python import cp_model_helper

    return cp_model_helper


class Program:
    """A CP-SAT program under construction. −v − 1 negates the boolean v. Each run is charged to the budget."""

    def __init__(self, budget: Budget | None = None) -> None:
        self._cp = load_solver()
        self._proto: Any = self._cp.CpModelProto()
        self._budget = budget or Budget()
        self._pairs = 0

    def _variable(self, low: int, high: int) -> int:
        """Add an integer variable from `low` to `high`, and return its index."""
        variables = self._proto.variables
        variables.add().domain.extend([low, high])
        return len(variables) - 1

    def _add_linear(
        self, terms: Iterable[tuple[int, int]], low: int | None, high: int | None, when: Sequence[int] = ()
    ) -> None:
        """Add low ≤ Σ coefficient · variable ≤ high (None: no limit), enforced only if all of `when` are true."""
        constraint = self._proto.constraints.add()
        if when:
            constraint.enforcement_literal.extend(when)
        linear, terms = constraint.linear, tuple(terms)
        linear.vars.extend([variable for variable, _ in terms])
        linear.coeffs.extend([coefficient for _, coefficient in terms])
        infinity = 1 << 62
        linear.domain.extend([-infinity if low is None else low, infinity if high is None else high])

    def _add_interval(self, phase: int, size: int, shift: int, presence: int | None) -> int:
        """Add an interval of `size` that begins `shift` behind variable `phase`, and return its index.

        It exists only if the literal `presence` holds, if given.
        """
        constraints = self._proto.constraints
        constraint = constraints.add()
        if presence is not None:
            constraint.enforcement_literal.append(presence)
        interval = constraint.interval
        interval.size.offset = size
        for end, offset in ((interval.start, shift), (interval.end, shift + size)):
            end.vars.append(phase)
            end.coeffs.append(1)
            end.offset = offset
        return len(constraints) - 1

    def _add_exactly_one(self, literals: Iterable[int]) -> None:
        """Add that exactly one of the literals is true."""
        self._proto.constraints.add().exactly_one.literals.extend(literals)

    def _add_no_overlap(self, intervals: Iterable[int]) -> None:
        """Add that no two of the intervals overlap."""
        constraint = self._proto.constraints.add()
        constraint.no_overlap.intervals.extend(intervals)
        self._pairs += len(constraint.no_overlap.intervals) ** 2

    def _add_cumulative(self, intervals: Sequence[int], width: int) -> None:
        """Add that at most `width` of the intervals overlap at any time."""
        constraint = self._proto.constraints.add()
        constraint.cumulative.capacity.offset = width
        constraint.cumulative.intervals.extend(intervals)
        self._pairs += len(intervals) ** 2
        for _ in intervals:
            constraint.cumulative.demands.add().offset = 1

    def _refuse(self, when: Sequence[int] = ()) -> None:
        """Add that the literals of `when` are not all true; without any, that there is no solution."""
        self._add_linear((), 1, 1, when)

    def _add_objective(self, terms: Iterable[tuple[int, int]]) -> None:
        """Minimise the sum of these terms, each of a variable and its coefficient."""
        for variable, coefficient in terms:
            self._proto.objective.vars.append(variable)
            self._proto.objective.coeffs.append(coefficient)

    def _run(self, effort: float, linearization: int = 0, by_core: bool = False, presolve: bool = False) -> SolverRun:
        """Solve the program within this deterministic time, charge the budget, and return the result; `unknown` if
        spent.
        """
        if self._budget.is_spent or (left := self._budget.seconds_left()) <= 0:
            return SolverRun("unknown", False, (), 0, 0.0)
        parameters = self._cp.SatParameters()
        parameters.num_workers = 1
        parameters.random_seed = 0
        # Otherwise Ctrl-C would only end this run, as one that found nothing, and the caller would go on.
        parameters.catch_sigint_signal = False
        parameters.max_deterministic_time = effort
        if left != inf:
            parameters.max_time_in_seconds = left
        # Measured on loops of 3 to 120 ops: presolve costs more than it saves on models this small; disjunctions that
        # reason about precedences find the tight schedules.
        parameters.cp_model_presolve = presolve
        parameters.linearization_level = linearization
        parameters.use_dynamic_precedence_in_disjunctive = True
        parameters.use_strong_propagation_in_disjunctive = True
        parameters.optimize_with_core = by_core
        solver = self._cp.SolveWrapper()
        solver.set_parameters(parameters)
        response = solver.solve(self._proto)
        statuses, spent = self._cp.CpSolverStatus, float(response.deterministic_time)
        made = len(self._proto.variables) + len(self._proto.constraints)
        self._budget.spend(round(spent * WORK_PER_EFFORT) + made * _WORK_PER_CONSTRAINT)
        self._budget.spend(self._pairs * _WORK_PER_PAIR if presolve else 0)
        if response.status == statuses.INFEASIBLE:
            return SolverRun("refuted", True, (), 0, spent)
        bound = ceil(response.best_objective_bound - 0.001)
        if response.status == statuses.UNKNOWN:
            return SolverRun("unknown", False, (), bound, spent)
        is_proven = response.status == statuses.OPTIMAL
        assert is_proven or response.status == statuses.FEASIBLE, "the model is not well formed"
        return SolverRun("found", is_proven, tuple(response.solution), bound, spent)
