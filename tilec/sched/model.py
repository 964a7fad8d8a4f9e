"""The CP-SAT model of a problem at one fixed II. The only file that imports ortools, and only when a model is built.

start = II · stage + phase. A use of a slot is an interval of phases that may run past the end of the table; the part
that runs past it is the same interval shifted by −II, and the two together must not overlap with others. A ring's depth
times II covers its lifetime, and depths times bytes fit in the pool.

Only the native half of ortools is used: it imports in a tenth of the time of `cp_model`, and without pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from tilec.records import dataclass
from tilec.sched.bounds import arcs, depth_limits, earliest
from tilec.sched.problem import Problem

Outcome = Literal["found", "refuted", "unknown"]


def families(problem: Problem) -> tuple[str, ...]:
    """The constraints besides the dependences, as groups that can be left out of a model one by one."""
    names = ["stages"] if problem.max_stages is not None else []
    names += ["rings"] if problem.rings else []
    names += [f"pool {pool.name}" for pool in problem.pools]
    used = {use.slot for op in problem.ops for use in op.uses if use.cycles}
    return tuple(names + [f"slot {slot.name}" for index, slot in enumerate(problem.slots) if index in used])


@dataclass(frozen=True, slots=True)
class Answer:
    """`refuted` is a proof that there is no schedule. `proven`: nothing smaller than the objective's value exists.
    `effort` is deterministic time, CP-SAT's count of its own work."""

    outcome: Outcome
    proven: bool
    start: tuple[int, ...]
    effort: float


@dataclass(frozen=True, slots=True)
class Sum:
    """What is minimised: Σ coefficient · variable."""

    terms: tuple[tuple[int, int], ...]


class Model:
    """One II of one problem, at least as large as the bounds. Constraints are added between solves, as the levels of
    the objective are settled.

    `stages` asks for a schedule of at most so many stages; a tight limit makes the search much faster, but only a
    model without one refutes the II. `without` leaves out families of constraints, named as in `families`: what
    still has no schedule without a family was not refuted by it. `anchored` is for asking whether there is a schedule
    at all: its starts count from wherever the busiest op puts the interval, see `_anchor`.
    """

    def __init__(
        self,
        problem: Problem,
        ii: int,
        stages: int | None = None,
        without: frozenset[str] = frozenset(),
        anchored: bool = False,
    ) -> None:
        # Late, because most commands and every cache hit do without.
        from ortools.sat.python import cp_model_helper

        self._cp: Any = cp_model_helper
        self._proto: Any = cp_model_helper.CpModelProto()
        self.problem, self.ii, self._is_anchored = problem, ii, anchored
        unlimited: list[int | None] = [None] * len(problem.rings)
        self._most = unlimited if "rings" in without else depth_limits(problem, ii, without)
        self.low = earliest(problem, ii, arcs(problem, self._most))
        self.stages = self._enough_stages(without)
        self.is_complete = stages is None or stages >= self.stages
        span = (self.stages if self.is_complete or stages is None else stages) * ii - 1
        self.high = span + ii if anchored else span
        self.start = [self._variable(low, max(low, self.high)) for low in self.low]
        self._phases: dict[tuple[int, int], int] = {}
        self._first: int | None = None
        if max(self.low, default=0) > span:
            self._refuse()
        if anchored:
            self._anchor(span)
        for edge in problem.edges:
            self._at_least(edge.src, edge.dst, edge.latency - ii * edge.distance)
        for index, slot in enumerate(problem.slots):
            if f"slot {slot.name}" not in without:
                self._reserve(index)
        self.depth: list[int] = []
        if "rings" not in without:
            self._add_rings(without)

    # --- solving ---

    def feasible(self, effort: float) -> Answer:
        return self._solve(effort)

    def minimise(self, objective: Sum, effort: float, hint: Sequence[int], by_core: bool = False) -> Answer:
        """`hint` are starts known to satisfy the model. `by_core` raises the lower bound from conflicts among the
        terms: fast to prove sums of many booleans, but it finds nothing better on the way."""
        for variable, coefficient in objective.terms:
            self._proto.objective.vars.append(variable)
            self._proto.objective.coeffs.append(coefficient)
        self._proto.solution_hint.vars.extend(self.start)
        self._proto.solution_hint.values.extend(list(hint))
        answer = self._solve(effort, by_core)
        self._proto.clear_objective()
        self._proto.clear_solution_hint()
        return answer

    def settle(self, objective: Sum, value: int) -> None:
        """From now on the objective is at most `value`."""
        self._linear(objective.terms, None, value)

    def begin_at_once(self) -> None:
        """Some op issues in cycle 0. True of every schedule of the smallest length, or it could be moved to be shorter;
        saying so spares the solver all the others."""
        here = self._proto.constraints.add().bool_or
        for low, start in zip(self.low, self.start, strict=True):
            if low == 0:
                is_first = self._variable(0, 1)
                self._linear(((start, 1),), None, 0, unless=-is_first - 1)
                here.literals.append(is_first)

    def fix(self, op: int, start: int) -> None:
        domain = self._proto.variables[self.start[op]].domain
        domain[0] = domain[1] = start

    def _solve(self, effort: float, by_core: bool = False) -> Answer:
        parameters = self._cp.SatParameters()
        parameters.num_workers = 1
        parameters.random_seed = 0
        parameters.max_deterministic_time = effort
        # Measured on loops of 3 to 120 ops: presolve costs more than it saves on models this small, as does the linear
        # relaxation once a schedule is known; disjunctions that reason about precedences find the tight schedules.
        parameters.cp_model_presolve = False
        parameters.linearization_level = 1 if self._is_anchored else 0
        parameters.use_dynamic_precedence_in_disjunctive = True
        parameters.use_strong_propagation_in_disjunctive = True
        parameters.optimize_with_core = by_core
        solver = self._cp.SolveWrapper()
        solver.set_parameters(parameters)
        response = solver.solve(self._proto)
        status, spent = response.status, float(response.deterministic_time)
        if status == self._cp.CpSolverStatus.INFEASIBLE:
            return Answer("refuted", True, (), spent)
        if status not in (self._cp.CpSolverStatus.OPTIMAL, self._cp.CpSolverStatus.FEASIBLE):
            assert status == self._cp.CpSolverStatus.UNKNOWN, "the model is not well formed"
            return Answer("unknown", False, (), spent)
        values = list(response.solution)
        proven = status == self._cp.CpSolverStatus.OPTIMAL
        return Answer("found", proven, tuple(values[variable] for variable in self.start), spent)

    # --- what can be minimised ---

    def length(self) -> Sum:
        """From cycle 0, or from the first issue where that is not cycle 0, to the last result."""
        longest = max((op.latency for op in self.problem.ops), default=0)
        end = self._variable(0, self.high + longest)
        for start, op in zip(self.start, self.problem.ops, strict=True):
            self._linear(((end, 1), (start, -1)), op.latency, None)
        return Sum(((end, 1),) if self._first is None else ((end, 1), (self._first, -1)))

    def ring_bytes(self, unit: int) -> Sum:
        """In units of `unit` bytes, a divisor of every ring's."""
        rings = zip(self.depth, self.problem.rings, strict=True)
        return Sum(tuple((depth, ring.bytes // unit) for depth, ring in rings))

    def inversions(self, pairs: Iterable[tuple[int, int]]) -> Sum:
        """How many of the pairs (earlier op, later op) issue in the other order within the interval."""
        terms: list[tuple[int, int]] = []
        for first, second in pairs:
            swapped = self._variable(0, 1)
            before, after = self._phase(first), self._phase(second)
            self._linear(((before, 1), (after, -1)), None, 0, unless=swapped)
            terms.append((swapped, 1))
        return Sum(tuple(terms))

    def start_of(self, op: int) -> Sum:
        return Sum(((self.start[op], 1),))

    # --- constraints ---

    def _enough_stages(self, without: frozenset[str]) -> int:
        """A number of stages that no schedule needs to exceed.

        With the phases and depths of any schedule kept, the stages only have to satisfy difference constraints, and
        the least stages that do are longest paths: at most one step per op, each no longer than its longest wait.
        """
        ii = self.ii
        waits = [0] * len(self.problem.ops)
        for edge in self.problem.edges:
            wait = -(-(edge.latency - ii * edge.distance + ii - 1) // ii)
            waits[edge.src] = max(waits[edge.src], wait)
        if "rings" not in without:
            for ring in self.problem.rings:
                for consumer in ring.consumers:
                    wait = -(-(self.problem.ops[consumer].latency - 1) // ii)
                    waits[consumer] = max(waits[consumer], wait)
        stages = sum(waits) + 1
        if self.problem.max_stages is not None and "stages" not in without:
            return min(stages, self.problem.max_stages)
        return stages

    def _anchor(self, span: int) -> None:
        """Turns every schedule so that its busiest op issues in the first cycle of the interval. Nothing but stages
        tells a schedule from the same one turned, and those are counted from its first issue."""
        first = self._first = self._variable(0, self.ii - 1)
        for start in self.start:
            self._linear(((start, 1), (first, -1)), 0, span)
        busy = [sum(use.cycles for use in op.uses) for op in self.problem.ops]
        if busy:
            self._proto.variables[self._phase(busy.index(max(busy)))].domain[1] = 0

    def _reserve(self, slot: int) -> None:
        width = self.problem.slots[slot].width
        intervals: list[tuple[int, int]] = []
        for index, op in enumerate(self.problem.ops):
            for use in op.uses:
                if use.slot != slot or use.cycles == 0:
                    continue
                # Each full turn of the table holds a unit for good; the rest is an interval.
                turns, rest = divmod(use.cycles, self.ii)
                width -= turns
                if rest:
                    intervals.append((self._phase(index, use.offset), rest))
        if width < 0 or (width == 0 and intervals):
            self._refuse()
            return
        if width == 1 and len(intervals) > 1:
            self._proto.constraints.add().no_overlap.intervals.extend(self._members(intervals))
        elif len(intervals) > width:
            self._cumulative(intervals, width)

    def _members(self, intervals: list[tuple[int, int]]) -> list[int]:
        """Each interval twice: as it is, and moved by −II for the part that runs past the end of the table."""
        return [self._interval(phase, size, shift) for phase, size in intervals for shift in (0, -self.ii)]

    def _cumulative(self, intervals: list[tuple[int, int]], width: int) -> None:
        members = self._members(intervals)
        cumulative = self._proto.constraints.add().cumulative
        cumulative.capacity.offset = width
        cumulative.intervals.extend(members)
        for _ in members:
            cumulative.demands.add().offset = 1

    def _add_rings(self, without: frozenset[str]) -> None:
        longest = self.high + max((op.latency for op in self.problem.ops), default=0)
        enough = max(1, -(-longest // self.ii))
        for ring, most in zip(self.problem.rings, self._most, strict=True):
            depth = self._variable(1, enough if most is None else min(enough, most))
            self.depth.append(depth)
            for producer in ring.producers:
                for consumer in ring.consumers:
                    latency = self.problem.ops[consumer].latency
                    covered = ((depth, self.ii), (self.start[producer], 1), (self.start[consumer], -1))
                    self._linear(covered, latency, None)
        for index, pool in enumerate(self.problem.pools):
            if f"pool {pool.name}" in without:
                continue
            terms = [
                (depth, ring.bytes)
                for depth, ring in zip(self.depth, self.problem.rings, strict=True)
                if ring.pool == index and ring.bytes
            ]
            if terms:
                self._linear(tuple(terms), None, pool.capacity - pool.reserved)

    def _at_least(self, first: int, second: int, apart: int) -> None:
        if first == second:
            return
        self._linear(((self.start[second], 1), (self.start[first], -1)), apart, None)

    def _refuse(self) -> None:
        self._linear((), 1, 1)

    # --- protocol buffers ---

    def _phase(self, op: int, offset: int = 0) -> int:
        """The variable (start[op] + offset) mod II."""
        offset %= self.ii
        if (op, offset) not in self._phases:
            stage = self._variable(0, (max(self.low[op], self.high) + offset) // self.ii)
            phase = self._variable(0, self.ii - 1)
            self._linear(((stage, self.ii), (phase, 1), (self.start[op], -1)), offset, offset)
            self._phases[op, offset] = phase
        return self._phases[op, offset]

    def _variable(self, low: int, high: int) -> int:
        variables = self._proto.variables
        variables.add().domain.extend([low, high])
        return len(variables) - 1

    def _linear(
        self, terms: Iterable[tuple[int, int]], low: int | None, high: int | None, unless: int | None = None
    ) -> None:
        constraint = self._proto.constraints.add()
        if unless is not None:
            constraint.enforcement_literal.append(-unless - 1)
        linear = constraint.linear
        for variable, coefficient in terms:
            linear.vars.append(variable)
            linear.coeffs.append(coefficient)
        infinity = 1 << 62
        linear.domain.extend([-infinity if low is None else low, infinity if high is None else high])

    def _interval(self, phase: int, size: int, shift: int) -> int:
        constraints = self._proto.constraints
        interval = constraints.add().interval
        interval.start.vars.append(phase)
        interval.start.coeffs.append(1)
        interval.start.offset = shift
        interval.size.offset = size
        interval.end.vars.append(phase)
        interval.end.coeffs.append(1)
        interval.end.offset = shift + size
        return len(constraints) - 1
