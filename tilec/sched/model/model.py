"""The CP-SAT model of a problem at one fixed II, with start = II · stage + phase.

Slots are kept free of overlaps in one of two ways. Where dependences keep ops close together, the distance of two ops
that share a slot of one unit, modulo II, lies between the length of the first and II less the length of the second: one
boolean for each possible number of whole turns, and difference constraints. Elsewhere a use is an interval of phases
that may run past the end of the reservation table; a copy shifted by −II stands for the part past the end, and no
intervals may overlap. A ring's depth times II covers its lifetime, and all depths times bytes fit in the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from tilec.sched.budget import Budget
from tilec.sched.collisions import AccessPair
from tilec.sched.cp import Program, SolverOutcome
from tilec.sched.lower_bounds.bounds import compute_depth_limits
from tilec.sched.lower_bounds.paths import build_arcs, find_all_distances, find_earliest_starts, map_group_leaders
from tilec.sched.lower_bounds.windows import find_exclusive_slots, list_separations
from tilec.sched.model.stages import bound_stages
from tilec.sched.objective import list_limited_pools, list_pressure_pools
from tilec.sched.problem import Edge, Problem, Value
from tilec.support.records import dataclass

REGISTER_STEP = 8
"""Registers per thread are allocated in these steps (PTX ISA, setmaxnreg)."""
MAX_REGISTER_STEPS = 31
"""A thread has at most 255 registers, so at most 248 in whole steps."""
_MAX_OPS_FOR_ITERATION_CHOICES = 48
_MAX_WORK_FOR_DISTANCES = 1 << 18
"""Ops times arcs up to which distances are computed: about a second."""
_MAX_ITERATIONS_PER_PAIR = 3
_MAX_EFFORT_WITHOUT_RELAXATION = 0.05
"""Of 62 questions about attention backward, 54 are answered within this effort without the relaxation, 41 with it, in
less time. With ten times the effort some searches without it take minutes, which CP-SAT does not count."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of solving a model. `refuted` proves that no schedule exists. `proven`: no smaller value of the
    objective exists. `effort` is deterministic time, CP-SAT's count of its own work. `role` is the role of each op with
    candidates."""

    outcome: SolverOutcome
    proven: bool
    start: tuple[int, ...]
    effort: float
    role: tuple[int | None, ...] = ()


Terms = tuple[tuple[int, int], ...]
"""(variable, coefficient) pairs, whose products are added up: an objective."""


class Model(Program):
    """One problem at one II, at least as large as the bounds. Constraints are added between solves, as levels are
    settled.

    `stages` limits the stages of the schedule: a tight limit makes the search much faster, but only a model without one
    refutes the II. `without` leaves out families of constraints, named as in `sched.explain`. The budget limits each
    solve.

    Shifted schedules differ only in their stages. So the busiest op is fixed to the first cycle of an interval, and the
    dependences place the others around it: proofs depend on that. The iteration begins at a variable cycle, from which
    stages and answers count; values held across the ends of intervals may require one without an issue (see
    `sched.model.anchor`). `from_begin` instead fixes the beginning to 0, which is better where the order within the
    interval matters.
    """

    def __init__(
        self,
        problem: Problem,
        ii: int,
        stages: int | None = None,
        without: frozenset[str] = frozenset(),
        budget: Budget | None = None,
        from_begin: bool = False,
    ) -> None:
        super().__init__(budget)
        self.problem, self.ii = problem, ii
        unlimited: list[int | None] = [None] * len(problem.rings)
        self._most = unlimited if "rings" in without else compute_depth_limits(problem, ii, without)
        constraints = build_arcs(problem, self._most)
        self.low = find_earliest_starts(problem, ii, constraints)
        is_cheap = len(problem.ops) * len(constraints) <= _MAX_WORK_FOR_DISTANCES
        self._distances = find_all_distances(problem, ii, constraints) if is_cheap else None
        self.stages = bound_stages(problem, ii, self._distances, without)
        self.is_complete = stages is None or stages >= self.stages
        self._span = (self.stages if self.is_complete or stages is None else stages) * ii - 1
        self._leader = map_group_leaders(problem)
        self._phases: dict[tuple[int, int, bool], int] = {}
        self._lives: dict[Value, tuple[int, int]] = {}
        self._takes: dict[tuple[int, int], int] = {}
        self._place(from_begin)
        for group in problem.same_stage:
            self._share_stage(group)
        self._assign_roles()
        for edge in problem.edges:
            self._add_separation(edge.src, edge.dst, edge.latency - ii * edge.distance)
            if edge.hand_over:
                self._add_handover(edge)
        self.lag = self._add_lags()
        separated = self._separate_by_iterations(without)
        for index, slot in enumerate(problem.slots):
            if f"slot {slot.name}" not in without and index not in separated:
                self._reserve(index)
        self.depth: list[int] = []
        if "rings" not in without:
            self._add_rings(without)
        for index in list_limited_pools(problem):
            pool = problem.pools[index]
            if f"values in {pool.name}" not in without:
                self._limit_held(index, pool.capacity - pool.reserved, beside=self._list_ring_terms(index))
                if pool.carried is not None:
                    self._carry(index, pool.carried)
        if any(problem.pools[pool].carried is not None for pool in list_limited_pools(problem)):
            self.require_early_issue()

    # --- solving ---

    def feasible(self, effort: float, hard: bool = False) -> Answer:
        """Look for any schedule of the model within this effort; `hard` presolves first, for hard questions."""
        return self._answer(effort, hard=hard)

    def minimise(self, objective: Terms, effort: float, hint: Sequence[int], by_core: bool = False) -> Answer:
        """Return the answer with the least objective found from `hint`, known starts, and remove the objective.

        `by_core` raises the lower bound from conflicts among the terms: it proves sums of many booleans fast, but finds
        no better schedule on the way.
        """
        self._add_objective(objective)
        begin = 0 if self._busiest_at is None or not hint else self._busiest_at - hint[self._busiest]
        self._proto.solution_hint.vars.extend([*self.start, self._begin])
        self._proto.solution_hint.values.extend([*(begin + start for start in hint), begin])
        answer = self._answer(effort, by_core)
        self._proto.clear_objective()
        self._proto.clear_solution_hint()
        return answer

    def settle(self, objective: Terms, value: int) -> None:
        """Add the constraint that the objective is at most `value`."""
        self._add_linear(objective, None, value)

    def require_early_issue(self, at_once: bool = False) -> None:
        """Add that some op issues in the first interval of an iteration; with `at_once`, in its first cycle."""
        any_first = self._proto.constraints.add().bool_or
        latest = 0 if at_once else self.ii - 1
        for op, low in enumerate(self.low):
            if low <= latest:
                is_first = self._variable(0, 1)
                self._add_linear(self.express_start(op), None, latest, when=(is_first,))
                any_first.literals.append(is_first)

    def fix(self, op: int, start: int) -> None:
        """Add that an op starts exactly `start` cycles after the begin of its iteration."""
        self._add_linear(self.express_start(op), start, start)

    def _answer(self, effort: float, by_core: bool = False, hard: bool = False) -> Answer:
        """Solve the model, and return starts, counted from the begin of the iteration, roles and outcome."""
        # Measured on loops of 3 to 120 ops: the linear relaxation costs more than it saves where little effort is
        # allowed or a schedule is known; with full relaxation and presolve, long refutations are ten times as fast.
        # Reading the objective adds an empty one where there is none, with which CP-SAT searches in another way: 31 ops
        # that fill every cycle are placed within an effort of 0.37 with it, and not within 0.5 without.
        _ = self._proto.objective
        linearization = 2 if hard and effort > _MAX_EFFORT_WITHOUT_RELAXATION else 0
        run = self._run(effort, linearization, by_core=by_core, presolve=hard)
        role = tuple(
            next((r for r in op.roles if self._runs_op(index, r) or run.values[self._takes[index, r]]), None)
            for index, op in enumerate(self.problem.ops if run.values else ())
        )
        start = tuple(run.values[at] - run.values[self._begin] for at in self.start) if run.values else ()
        return Answer(run.outcome, run.is_proven, start, run.effort, role)

    # --- what can be minimised ---

    def within(self, reach: Sequence[tuple[int, int]]) -> int:
        """Add a variable no smaller than the distance between any of these pairs of ops, and return it; `limit` bounds
        it.
        """
        longest = self._variable(0, self._span)
        for first, last in reach:
            self._add_linear(((longest, 1), (self.start[first], 1), (self.start[last], -1)), 0, None)
        return longest

    def limit(self, variable: int, most: int) -> None:
        """Set the upper bound of a variable to `most`, in place of the one before, be it lower or higher."""
        self._proto.variables[variable].domain[1] = most

    def express_ring_bytes(self, unit: int) -> Terms:
        """Return terms for the memory of all rings, in units of `unit` bytes, a divisor of every ring's size."""
        rings = zip(self.depth, self.problem.rings, strict=True)
        return tuple((depth, ring.bytes // unit) for depth, ring in rings)

    def express_peak_pressure(self) -> Terms:
        """Return terms for the peak amount that values hold of any pool that counts, adding its constraints."""
        return self._express_worst(self._limit_held)

    def express_carried_pressure(self) -> Terms:
        """Return terms for the most that values hold of any pool across an interval's end, adding its constraints."""
        return self._express_worst(self._carry)

    def _express_worst(self, limit: Callable[[int, int, int], None]) -> Terms:
        """Return a new variable, as terms, that is at least what values hold of each pool, as `limit` measures it."""
        amounts = sum(value.amount for value in self.problem.values)
        worst = self._variable(0, amounts * self._count_max_copies())
        for pool in list_pressure_pools(self.problem):
            limit(pool, 0, worst)
        return ((worst, 1),)

    def express_handovers(self) -> Terms:
        """Return terms for the number of values that pass from one role to another, adding their constraints."""
        terms: list[tuple[int, int]] = []
        for edge in self.problem.edges:
            src, dst = self.problem.ops[edge.src], self.problem.ops[edge.dst]
            if edge.hand_over and src.roles and dst.roles:
                passes = self._variable(0, 1)
                for role in src.roles:
                    if (literals := self._find_crossing_literals(edge, role)) is not None:
                        self._add_linear(((passes, 1),), 1, None, when=literals)
                terms.append((passes, 1))
        return tuple(terms)

    def express_unevenness(self) -> Terms:
        """Return terms for the sum of the distances between lags and an even division of the interval."""
        terms: list[tuple[int, int]] = []
        for group, lag in enumerate(self.lag, 1):
            even = group * self.ii // (len(self.lag) + 1)
            off = self._variable(0, self.ii)
            self._add_linear(((off, 1), (lag, -1)), -even, None)
            self._add_linear(((off, 1), (lag, 1)), even, None)
            terms.append((off, 1))
        return tuple(terms)

    def lags(self) -> Terms:
        """Return terms for the sum of the groups' lags."""
        return tuple((lag, 1) for lag in self.lag)

    def express_role(self, op: int) -> Terms:
        """Return terms for the index of the op's role among its candidates."""
        return tuple((self._takes[op, r], at) for at, r in enumerate(self.problem.ops[op].roles) if at)

    def express_collisions(self, pairs: Iterable[AccessPair]) -> Terms:
        """Return terms for the collisions of these accesses beyond the certain ones, adding their constraints."""
        terms: dict[tuple[object, ...], tuple[int, int]] = {}
        for pair in pairs:
            colliding = pair.count_colliding_distances(self.ii)
            if not colliding:
                continue
            # The same two ops are as far apart in every group of warps.
            ops = self._map_to_first_group(pair.first, pair.second)
            alike = (*ops, pair.first_cycles, pair.second_cycles, pair.shift)
            if alike not in terms:
                terms[alike] = self._add_collision(pair, colliding), 0
            variable, count = terms[alike]
            terms[alike] = variable, count + 1
        return tuple(terms.values())

    def _add_collision(self, pair: AccessPair, colliding: int) -> int:
        """Add and return a boolean that is true at the `colliding` distances, modulo II, at which accesses overlap."""
        collides = self._variable(0, 1)
        after = pair.first_cycles - pair.shift
        low, high = self._find_distance_range(pair.first, pair.second)
        intervals = self._variable((low - after) // self.ii, max(low - after, high - after) // self.ii)
        distance = ((self.start[pair.second], 1), (self.start[pair.first], -1), (intervals, -self.ii))
        self._add_linear(distance, after, after + self.ii - 1 - colliding, when=(-collides - 1,))
        return collides

    def express_inversions(self, pairs: Iterable[tuple[int, int]]) -> Terms:
        """Return terms for the number of pairs (earlier op, later op) issued the other way round in the interval."""
        terms: list[tuple[int, int]] = []
        for first, second in pairs:
            swapped = self._variable(0, 1)
            before, after = self._add_phase(first, since=True), self._add_phase(second, since=True)
            self._add_linear(((before, 1), (after, -1)), None, 0, when=(-swapped - 1,))
            terms.append((swapped, 1))
        return tuple(terms)

    # --- constraints ---

    def _place(self, from_begin: bool) -> None:
        """Add variables for the iteration's begin and each op's start, in reach of the busiest op or of the begin."""
        busy_cycles = [sum(use.cycles for use in op.uses) for op in self.problem.ops]
        self._busiest = busy_cycles.index(max(busy_cycles)) if busy_cycles else 0
        # A whole number of intervals, with room for an iteration on both sides.
        self._busiest_at = None if from_begin else self._span + 1
        self.start: list[int] = []
        self._begin = self._variable(0, 0) if from_begin else self._variable(1, self._span + 1)
        for op, low in enumerate(self.low):
            at, least, most = 0, low, self._span
            if self._busiest_at is not None:
                at, (least, most) = self._busiest_at, self._find_distance_range(self._busiest, op)
            self.start.append(self._variable(at + least, at + max(least, most)))
            self._add_linear(self.express_start(op), low, max(low, self._span))
            if least > most or low > self._span:
                self._refuse()

    def _find_distance_range(self, op: int, other: int) -> tuple[int, int]:
        """Return the least and largest distance from one op's start to another's, by dependences and the span."""
        if op == other:
            return 0, 0
        if self._distances is None:
            return -self._span, self._span
        ahead, behind = self._distances[op][other], self._distances[other][op]
        least = -self._span if ahead is None else max(-self._span, ahead)
        return least, self._span if behind is None else min(self._span, -behind)

    def express_start(self, op: int) -> Terms:
        """Return terms for an op's start counted from the begin of its iteration."""
        return ((self.start[op], 1), (self._begin, -1))

    def _share_stage(self, group: Sequence[int]) -> None:
        """Add that these ops issue in one stage."""
        stage = self._variable(0, self._span // self.ii)
        for op in group:
            self._add_linear((*self.express_start(op), (stage, -self.ii)), 0, self.ii - 1)

    def _add_lags(self) -> list[int]:
        """Add and return the lag variables of the second and later groups, and tie their ops to the first group's."""
        problem = self.problem
        count = max((len(copies) for copies in problem.copies), default=1)
        low, high = problem.lags or (0,) * count, problem.lags or (self.ii - 1,) * count
        lag = [self._variable(low[group], high[group]) for group in range(1, count)]
        for first, *others in self.problem.copies:
            for lag_of_group, op in zip(lag, others, strict=True):
                self._add_linear(((self.start[op], 1), (self.start[first], -1), (lag_of_group, -1)), 0, 0)
        return lag

    def _separate_by_iterations(self, without: frozenset[str]) -> frozenset[int]:
        """Add by how many whole intervals ops that share a one-unit slot are apart; return the slots this suffices for.

        Returns none if there are too many ops or choices.
        """
        problem, ii = self.problem, self.ii
        if self._distances is None or len(problem.ops) > _MAX_OPS_FOR_ITERATION_CHOICES:
            return frozenset()
        slots = find_exclusive_slots(problem, ii, without)
        choices: list[tuple[int, int, int, int, range]] = []
        for u, v, ahead, behind in list_separations(problem, slots):
            low, high = self._find_distance_range(u, v)
            choices.append((u, v, ahead, behind, range(-(-(low + behind) // ii) - 1, (high - ahead) // ii + 1)))
        if sum(len(wraps) for *_, wraps in choices) > _MAX_ITERATIONS_PER_PAIR * len(choices):
            return frozenset()
        literals_of: dict[tuple[object, ...], list[int]] = {}
        for u, v, ahead, behind, wraps in choices:
            # The same two ops are as many turns apart in every group of warps.
            alike = (*self._map_to_first_group(u, v), ahead, behind, wraps)
            is_known = alike in literals_of
            if not is_known:
                literals_of[alike] = [self._variable(0, 1) for _ in wraps] if len(wraps) > 1 else []
            literals = literals_of[alike]
            if ahead + behind > ii or not wraps:
                self._refuse()
            else:
                separation = ((self.start[v], 1), (self.start[u], -1))
                for at, wrap in enumerate(wraps):
                    self._add_linear(separation, wrap * ii + ahead, (wrap + 1) * ii - behind, literals[at : at + 1])
            if literals and not is_known:
                self._add_exactly_one(literals)
        return slots

    def _map_to_first_group(self, op: int, other: int) -> tuple[int, int]:
        """Return the first group's corresponding ops if both are of one group of warps, else the ops."""
        (first, group), (second, other_group) = (self._leader.get(at, (at, 0)) for at in (op, other))
        return (first, second) if group == other_group else (op, other)

    def _reserve(self, slot: int) -> None:
        """Add that the uses of a slot, and the ops of the role that holds it, never need more than its units."""
        width = self.problem.slots[slot].width
        intervals: list[tuple[int, int, int | None]] = []
        for index, op in enumerate(self.problem.ops):
            for role in op.roles:
                busy, runs = op.issue + op.wait, self._runs_op(index, role)
                if self.problem.roles[role].slot != slot or not busy or runs is False:
                    continue
                taken = None if runs is True else self._takes[index, role]
                if busy <= self.ii:
                    intervals.append((self._add_phase(index, -op.wait), busy, taken))
                else:
                    self._refuse(() if taken is None else (taken,))
            for use in op.uses:
                if use.slot != slot or use.cycles == 0:
                    continue
                # Each full turn of the table holds a unit all the time; the rest is an interval.
                wraps, rest = divmod(use.cycles, self.ii)
                width -= wraps
                if rest:
                    intervals.append((self._add_phase(index, use.offset), rest, None))
        if width < 0 or (width == 0 and intervals):
            self._refuse()
        elif width == 1 and len(intervals) > 1:
            self._add_no_overlap(self._members(intervals))
        elif len(intervals) > width:
            self._add_cumulative(self._members(intervals), width)

    def _members(self, intervals: list[tuple[int, int, int | None]]) -> list[int]:
        """Add each interval twice, as it is and shifted by −II for its part past the table; return their indices."""
        return [
            self._add_interval(phase, size, shift, taken) for phase, size, taken in intervals for shift in (0, -self.ii)
        ]

    def _add_rings(self, without: frozenset[str]) -> None:
        """Add a depth for each ring, which covers its lifetime, and that all rings' versions fit in their pools."""
        longest = self._span + max((op.latency for op in self.problem.ops), default=0)
        enough = max(1, -(-longest // self.ii))
        for ring, most in zip(self.problem.rings, self._most, strict=True):
            depth = self._variable(1, enough if most is None else min(enough, most))
            self.depth.append(depth)
            for producer in ring.producers:
                for consumer in ring.consumers:
                    latency = self.problem.ops[consumer].latency
                    covered = ((depth, self.ii), (self.start[producer], 1), (self.start[consumer], -1))
                    self._add_linear(covered, latency, None)
        for index, pool in enumerate(self.problem.pools):
            if f"pool {pool.name}" in without:
                continue
            if terms := self._list_ring_terms(index):
                self._add_linear(terms, None, pool.capacity - pool.reserved)

    # --- values ---

    def _list_ring_terms(self, pool: int) -> Terms:
        """Return terms for what rings take of a pool; empty if the model has no depths."""
        rings = zip(self.depth, self.problem.rings, strict=False)
        return tuple((depth, ring.bytes) for depth, ring in rings if ring.pool == pool and ring.bytes)

    def _limit_held(
        self, pool: int, most: int, worst: int | None = None, beside: Iterable[tuple[int, int]] = ()
    ) -> None:
        """Add that values hold at most `most` plus the variable `worst` of a pool wherever a value begins.

        `beside` are terms held all the time. A value that lives from b to e has ⌊(t − b) / II⌋ − ⌊(t − e) / II⌋ copies
        at t.
        """
        values = [(value, *self._add_life(value)) for value in self.problem.values if value.pool == pool]
        for op in sorted({op for value, _, _ in values for op in value.producers}):
            at = self.start[op]
            terms = list(beside)
            for value, begin, end in values:
                since = self._add_quotient(((at, 1), (begin, -1)), least=1 - self.ii)
                until = self._add_quotient(((at, 1), (end, -1)), most=0)
                terms += [(since, value.amount), (until, -value.amount)]
            self._add_linear((*terms, *(((worst, -1),) if worst is not None else ())), None, most)

    def _carry(self, pool: int, most: int, worst: int | None = None) -> None:
        """Constrain what values hold of a pool across an interval's end to at most `most` plus the variable `worst`."""
        terms: list[tuple[int, int]] = []
        for value in self.problem.values:
            if value.pool == pool:
                begin, end = self._add_life(value)
                first = self._add_quotient(((begin, 1), (self._begin, -1)), most=0)
                last = self._add_quotient(((end, 1), (self._begin, -1)), least=-self.ii)
                crossings = self._variable(0, self._count_max_copies())
                self._add_linear(((crossings, 1), (last, -1), (first, 1)), 0, None)
                terms.append((crossings, value.amount))
        self._add_linear((*terms, *(((worst, -1),) if worst is not None else ())), None, most)

    def _count_max_copies(self) -> int:
        """Return the most copies of a value that can live at once, from the first op to the last one's end."""
        return (self._span + max((op.latency for op in self.problem.ops), default=0)) // self.ii + 2

    def _add_life(self, value: Value) -> tuple[int, int]:
        """Return variables no later than a value's begin and no earlier than its end, added once per value."""
        if value not in self._lives:
            top = 2 * self._span + 1 + max(op.latency for op in self.problem.ops)
            only = value.producers[0] if len(value.producers) == 1 else None
            begin = self._variable(0, top) if only is None else self.start[only]
            end = self._variable(0, top)
            for op in value.producers if only is None else ():
                self._add_linear(((begin, 1), (self.start[op], -1)), None, 0)
            self._add_linear(((end, 1), (begin, -1)), 0, None)
            for op in value.consumers:
                self._add_linear(((end, 1), (self.start[op], -1)), self.problem.ops[op].latency, None)
            self._lives[value] = begin, end
        return self._lives[value]

    def _add_quotient(self, terms: Terms, least: int | None = None, most: int | None = None) -> int:
        """Return a new variable that, times II, exceeds the sum of the terms by `least` to `most` (None: no limit)."""
        variables = self._proto.variables
        low = sum(c * list(variables[v].domain)[0 if c > 0 else -1] for v, c in terms)
        high = sum(c * list(variables[v].domain)[-1 if c > 0 else 0] for v, c in terms)
        quotient = self._variable(low // self.ii - 1, high // self.ii + 1)
        self._add_linear(((quotient, self.ii), *((v, -c) for v, c in terms)), least, most)
        return quotient

    # --- roles ---

    def _runs_op(self, op: int, role: int) -> bool | None:
        """Return whether a role runs an op: True or False where decided, None where the solver chooses."""
        roles = self.problem.ops[op].roles
        return None if role in roles and len(roles) > 1 else role in roles

    def _assign_roles(self) -> None:
        """Add which role runs each op with several candidates, one role for tied ops, and the limit of registers."""
        problem = self.problem
        for index, op in enumerate(problem.ops):
            if len(op.roles) > 1:
                self._takes |= {(index, role): self._variable(0, 1) for role in op.roles}
                self._add_exactly_one(self._takes[index, r] for r in op.roles)
        for tied in problem.tied:
            for first, second in pairwise(tied):
                for role in range(len(problem.roles)):
                    self._tie_ops(first, second, role)
        if problem.register_file is not None:
            self._share_registers(problem.register_file)

    def _tie_ops(self, first: int, second: int, role: int) -> None:
        """Add that the role runs both ops or neither."""
        terms: list[tuple[int, int]] = []
        separation = 0
        for op, sign in ((first, 1), (second, -1)):
            runs = self._runs_op(op, role)
            if runs is None:
                terms.append((self._takes[op, role], sign))
            else:
                separation -= sign * runs
        self._add_linear(terms, separation, separation)

    def _share_registers(self, register_file: int) -> None:
        """Add that the roles' registers fit in the register file, as if all values of a role lived at once."""
        problem = self.problem
        threads: list[tuple[int, int]] = []
        for index, role in enumerate(problem.roles):
            steps, exists = self._variable(0, MAX_REGISTER_STEPS), self._variable(0, 1)
            terms = [(steps, REGISTER_STEP), (exists, -role.registers)]
            for op in range(len(problem.ops)):
                self._add_implication(op, index, exists)
            for value in problem.values:
                if value.pool == problem.registers:
                    touched = self._variable(0, 1)
                    terms.append((touched, -value.amount))
                    for op in (*value.producers, *value.consumers):
                        self._add_implication(op, index, touched)
            self._add_linear(terms, 0, None)
            threads.append((steps, REGISTER_STEP * 32 * role.warps))
        self._add_linear(threads, None, register_file)

    def _add_implication(self, op: int, role: int, literal: int) -> None:
        """Add that the literal holds if the role runs the op."""
        runs = self._runs_op(op, role)
        if runs is not False:
            self._add_linear(((literal, 1),), 1, None, when=() if runs is True else (self._takes[op, role],))

    def _add_handover(self, edge: Edge) -> None:
        """Add the longer latency of an edge where different roles run its two ops."""
        separation = edge.latency + edge.hand_over - self.ii * edge.distance
        for role in self.problem.ops[edge.src].roles:
            literals = self._find_crossing_literals(edge, role)
            if literals is not None:
                terms = ((self.start[edge.dst], 1), (self.start[edge.src], -1)) if edge.src != edge.dst else ()
                self._add_linear(terms, separation, None, when=literals)

    def _find_crossing_literals(self, edge: Edge, role: int) -> tuple[int, ...] | None:
        """Return literals for this role running the edge's source and another its destination; None if impossible."""
        runs_src, runs_dst = self._runs_op(edge.src, role), self._runs_op(edge.dst, role)
        if runs_src is False or runs_dst is True or not self.problem.ops[edge.dst].roles:
            return None
        takes = (self._takes[edge.src, role],) if runs_src is None else ()
        return takes if runs_dst is False else (*takes, -self._takes[edge.dst, role] - 1)

    def _add_separation(self, first: int, second: int, separation: int) -> None:
        """Add that `second` starts at least `separation` cycles after `first`; nothing if they are the same op."""
        if first == second:
            return
        self._add_linear(((self.start[second], 1), (self.start[first], -1)), separation, None)

    def _add_phase(self, op: int, offset: int = 0, since: bool = False) -> int:
        """Return a variable for (start[op] + offset) mod II, added once; with `since`, from the iteration's begin."""
        offset, since = offset % self.ii, since and self._busiest_at is not None
        if (op, offset, since) not in self._phases:
            stage = self._variable(0, (2 * self._span + 1 + offset) // self.ii)
            phase = self._variable(0, self.ii - 1)
            start = self.express_start(op) if since else ((self.start[op], 1),)
            self._add_linear(((stage, self.ii), (phase, 1), *((v, -c) for v, c in start)), offset, offset)
            self._phases[op, offset, since] = phase
        return self._phases[op, offset, since]
