"""Finds the schedule with the smallest initiation interval, and among those the best one.

The II is swept upward and never bisected, because a schedule may exist at one II and not at the next larger; the first
II with a schedule is therefore optimal once every smaller one is refuted. With the II fixed, the objectives are settled
one after the other, each with the earlier optima as constraints.

The search is limited by CP-SAT's deterministic time only, never by the clock, so that a result does not depend on load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from tilec.records import dataclass
from tilec.sched.bounds import Arc, Bounds, arcs, bounds, depth_limits, earliest, ring_lifetimes, serial_ii
from tilec.sched.model import Answer, Model, Sum, families
from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule, Status
from tilec.sched.solution import Attempt, Objective, Solution
from tilec.sched.verify import violations
from tilec.sched.windows import refutation

__all__ = ["Solution", "evaluate", "given", "justify", "make", "solve"]

# Deterministic time, of which one unit is one to five seconds here.
_EFFORT_AT_ONCE = 0.002
_EFFORT_PER_II = 0.5
_EFFORT_IN_HURRY = 0.05
_EFFORT_PER_SWEEP = 10.0
_EFFORT_PER_LEVEL = 0.1
_EFFORT_FOR_STARTS = 0.03
_EFFORT_PER_REASON = 0.02


def solve(problem: Problem, effort: float = 1.0) -> Solution:
    """The best schedule, with its proof. `effort` scales how long to search before a proof is given up. Raises
    `Unschedulable` if no II admits a schedule."""
    proven = bounds(problem)
    sweep = _Sweep(problem, proven, effort)
    found = sweep.run()
    status: Status = "feasible" if any(attempt.outcome == "unknown" for attempt in sweep.attempts) else "optimal"
    if found.is_serial:
        schedule = make(problem, found.ii, found.start, status)
        objectives = evaluate(problem, schedule)
    else:
        levels = _Levels(problem, found, effort)
        schedule = make(problem, found.ii, levels.run(), status)
        objectives = levels.objectives(schedule, sweep.stages_proven)
    broken = list(violations(problem, schedule))
    assert not broken, f"the solver's schedule does not hold: {broken[0]}"
    return Solution(schedule, proven, tuple(sweep.attempts), objectives)


def given(problem: Problem, schedule: Schedule) -> Solution:
    """The record of a schedule that was not solved here: what bounds its II, and what it costs."""
    return Solution(schedule, bounds(problem), (), evaluate(problem, schedule))


def make(problem: Problem, ii: int, start: Sequence[int], status: Status, order: Sequence[int] = ()) -> Schedule:
    """The schedule of these start times: ops in the order of their phases (ties as in `order`, or by op id), and each
    ring as deep as its lifetime needs."""
    place = {op: at for at, op in enumerate(order or range(len(start)))}
    by_phase = sorted(range(len(start)), key=lambda op: (start[op] % ii, place[op]))
    depth = tuple(max(1, -(-_lifetime(problem, ring, start) // ii)) for ring in range(len(problem.rings)))
    return Schedule(ii, tuple(start), tuple(by_phase), depth, status)


def evaluate(problem: Problem, schedule: Schedule) -> tuple[Objective, ...]:
    """The value of each objective, none of them proven."""
    return (
        Objective("stages", max(schedule.stage, default=0) + 1, False),
        Objective("length", _length(problem, schedule.start), False),
        Objective("ring bytes", _ring_bytes(problem, schedule.ii, schedule.start), False),
        Objective("inversions", _inversions(_pairs(problem), schedule.ii, schedule.start), False),
        Objective("start times", sum(schedule.start), False),
    )


def _lifetime(problem: Problem, ring: int, start: Sequence[int]) -> int:
    spec = problem.rings[ring]
    done = max((start[op] + problem.ops[op].latency for op in spec.consumers), default=0)
    return done - min((start[op] for op in spec.producers), default=done)


def _length(problem: Problem, start: Sequence[int]) -> int:
    return max((at + op.latency for at, op in zip(start, problem.ops, strict=True)), default=0)


def _ring_bytes(problem: Problem, ii: int, start: Sequence[int]) -> int:
    depths = (max(1, -(-_lifetime(problem, ring, start) // ii)) for ring in range(len(problem.rings)))
    return sum(depth * ring.bytes for depth, ring in zip(depths, problem.rings, strict=True))


def _pairs(problem: Problem) -> list[tuple[int, int]]:
    """The pairs of ops whose order the code shows: roles run beside each other, so only ops of one role count."""
    roles = [op.role for op in problem.ops]
    return [(i, j) for j in range(len(roles)) for i in range(j) if roles[i] == roles[j]]


def _inversions(pairs: Sequence[tuple[int, int]], ii: int, start: Sequence[int]) -> int:
    return sum(start[i] % ii > start[j] % ii for i, j in pairs)


def justify(problem: Problem, ii: int, start: Sequence[int]) -> tuple[int, ...]:
    """The schedule moved as early as it goes with every op in its stage, ops of a role and of a slot in the order they
    have, and rings no deeper: those choices leave only differences, whose least solution is a longest path."""
    depth = make(problem, ii, start, "given").depth
    within = list(arcs(problem, depth))
    floor = [at - at % ii for at in start]
    for i, j in _pairs(problem):
        first, second = (i, j) if start[i] % ii <= start[j] % ii else (j, i)
        within.append(Arc(first, second, floor[second] - floor[first], 0, "order"))
    for slot, spec in enumerate(problem.slots):
        users = [(op, use) for op, of in enumerate(problem.ops) for use in of.uses if use.slot == slot and use.cycles]
        for op, use in users:
            if spec.width > 1:
                # Who takes which unit is not recorded, so these ops keep their place.
                floor[op] = start[op]
                continue
            for other, later in users:
                if op != other:
                    # How many intervals the later use is behind; between the two there is room for the first.
                    turns = (start[other] + later.offset - start[op] - use.offset) // ii
                    within.append(Arc(op, other, use.offset + use.cycles - later.offset + turns * ii, 0, "slot"))
    return tuple(earliest(problem, ii, within, floor))


@dataclass(frozen=True, slots=True)
class Found:
    """Some schedule at the smallest II that could be found."""

    ii: int
    start: tuple[int, ...]
    is_serial: bool


def _from_zero(start: Sequence[int]) -> tuple[int, ...]:
    first = min(start, default=0)
    return tuple(at - first for at in start)


class _Sweep:
    """Looks for the smallest II that has a schedule, with as few stages as possible."""

    def __init__(self, problem: Problem, proven: Bounds, effort: float) -> None:
        self.problem, self.proven, self.effort = problem, proven, effort
        self.attempts: list[Attempt] = []
        self.stages_proven = True
        self.spent = 0.0

    def run(self) -> Found:
        ii = self.proven.mii
        if ii > 1:
            reasons = "; ".join(bound.culprit for bound in self.proven.binding)
            self.attempts.append(Attempt(ii - 1, "refuted", "bound", reasons))
        serial = max(ii, serial_ii(self.problem))
        is_hurried = False
        while ii <= serial:
            reason = refutation(self.problem, ii)
            if reason is not None:
                self.attempts.append(Attempt(ii, "refuted", "bound", reason))
                ii += 1
                continue
            answer = self.attempt(ii, _EFFORT_IN_HURRY if is_hurried else _EFFORT_PER_II)
            if answer.outcome == "found":
                self.explain_last()
                self.attempts.append(Attempt(ii, "found", "solver", "a schedule exists"))
                return Found(ii, _from_zero(answer.start), is_serial=False)
            why = "no schedule exists" if answer.outcome == "refuted" else "neither found nor refuted with this effort"
            self.attempts.append(Attempt(ii, answer.outcome, "solver", why))
            # Once a proof is lost, so is the reason to look hard at every single II.
            is_hurried |= answer.outcome == "unknown" or self.spent >= _EFFORT_PER_SWEEP * self.effort
            step = max(1, ii // 32) if is_hurried else 1
            ii += step
            if step > 1:
                why = "skipped: the effort for proofs is spent, only some intervals are tried from here on"
                self.attempts.append(Attempt(ii - 1, "unknown", "solver", why))
        return self.serial(serial)

    def attempt(self, ii: int, effort: float) -> Answer:
        """Few stages first: those models are small, and the first that has a schedule has the fewest stages. Only the
        model of all stages refutes the II."""
        budget = effort * self.effort
        least = max(earliest(self.problem, ii, arcs(self.problem, depth_limits(self.problem, ii))), default=0) // ii + 1
        self.stages_proven = True
        for stages in range(least, least + 2):
            answer, is_complete = self.ask(ii, stages, budget)
            if answer.outcome == "found" or (answer.outcome == "refuted" and is_complete):
                return answer
            self.stages_proven &= answer.outcome == "refuted"
        known, _ = self.ask(ii, None, budget)
        if known.outcome != "found":
            return known
        for stages in range(least + 2, max(_from_zero(known.start)) // ii + 1):
            answer, _ = self.ask(ii, stages, _EFFORT_PER_LEVEL * self.effort)
            if answer.outcome == "found":
                return answer
            self.stages_proven &= answer.outcome == "refuted"
        return known

    def ask(self, ii: int, stages: int | None, budget: float) -> tuple[Answer, bool]:
        # Where there is room a plain model finds it at once; where there is none, only an anchored one soon knows.
        model = Model(self.problem, ii, stages)
        answer = model.feasible(_EFFORT_AT_ONCE * self.effort)
        if answer.outcome == "unknown":
            self.spent += answer.effort
            model = Model(self.problem, ii, stages, anchored=True)
            answer = model.feasible(budget)
        self.spent += answer.effort
        return answer, model.is_complete

    def explain_last(self) -> None:
        """Names what refuted the largest II below the answer: an irreducible set of constraint families that, with
        the dependences, leaves no room."""
        last = self.attempts[-1] if self.attempts else None
        if last is None or last.how != "solver" or last.outcome != "refuted":
            return
        dropped: frozenset[str] = frozenset()
        for family in families(self.problem):
            model = Model(self.problem, last.ii, None, dropped | {family}, anchored=True)
            answer = model.feasible(_EFFORT_PER_REASON * self.effort)
            if answer.outcome == "refuted":
                dropped |= {family}
        needed = [family for family in families(self.problem) if family not in dropped]
        why = f"the dependences and {' and '.join(needed)} leave no room" if needed else "the dependences leave no room"
        self.attempts[-1] = Attempt(last.ii, "refuted", "solver", why)

    def serial(self, serial: int) -> Found:
        """One op after the other: a schedule that every schedulable problem has, so that running out of effort is
        never a failure."""
        self.attempts.append(Attempt(serial, "found", "serial", "one op after the other"))
        at, start = 0, [0] * len(self.problem.ops)
        for op in _topological(self.problem):
            start[op] = at
            spec = self.problem.ops[op]
            waits = [edge.latency for edge in self.problem.edges if edge.src == op]
            at += max([1, spec.latency, *waits, *(use.offset + use.cycles for use in spec.uses)])
        return Found(serial, tuple(start), is_serial=True)


def _topological(problem: Problem) -> list[int]:
    """Op ids such that edges within an iteration point forward; among the free ones the smallest comes first."""
    waiting = [0] * len(problem.ops)
    for edge in problem.edges:
        waiting[edge.dst] += edge.distance == 0
    order: list[int] = []
    free = [op for op, count in enumerate(waiting) if count == 0]
    while free:
        op = min(free)
        free.remove(op)
        order.append(op)
        for edge in problem.edges:
            if edge.src == op and edge.distance == 0:
                waiting[edge.dst] -= 1
                if waiting[edge.dst] == 0:
                    free.append(edge.dst)
    return order


class _Levels:
    """Settles the objectives at a fixed II and number of stages, starting from a schedule that is known to hold.

    A level whose value already equals a lower bound is proven without the solver.
    """

    def __init__(self, problem: Problem, found: Found, effort: float) -> None:
        self.problem, self.ii, self.effort = problem, found.ii, effort
        self.start = justify(problem, found.ii, found.start)
        stages = max(self.start, default=0) // self.ii + 1
        self.model = Model(problem, self.ii, stages)
        self.anchored = Model(problem, self.ii, stages, anchored=True)
        self.proofs: list[bool] = []

    def run(self) -> tuple[int, ...]:
        problem, ii, model = self.problem, self.ii, self.model
        ends = (low + op.latency for low, op in zip(model.low, problem.ops, strict=True))
        self.settle(Model.length, lambda start: _length(problem, start), max(ends, default=0))
        if self.proofs[0]:
            model.begin_at_once()
        unit = gcd(*(ring.bytes for ring in problem.rings)) or 1
        lives = ring_lifetimes(problem, ii)
        least = sum(max(1, -(-life // ii)) * ring.bytes for life, ring in zip(lives, problem.rings, strict=True))
        self.settle(
            lambda model: model.ring_bytes(unit), lambda start: _ring_bytes(problem, ii, start) // unit, least // unit
        )
        self.settle_order()
        self.settle_starts()
        return self.start

    def settle(self, objective: Callable[[Model], Sum], value: Callable[[Sequence[int]], int], least: int) -> None:
        """An objective that stays the same when a schedule is turned: if a plain model does not prove it at once, an
        anchored one may."""
        expression, turned = objective(self.model), objective(self.anchored)
        is_proven = value(self.start) <= least
        for model, minimised, effort in (
            (self.model, expression, _EFFORT_AT_ONCE),
            (self.anchored, turned, _EFFORT_PER_LEVEL),
        ):
            if is_proven:
                break
            answer = model.minimise(minimised, effort * self.effort, self.start)
            if answer.outcome == "found":
                self.improve(_from_zero(answer.start), value)
            is_proven = answer.proven
        for model, minimised in ((self.model, expression), (self.anchored, turned)):
            model.settle(minimised, value(self.start))
        self.proofs.append(is_proven)

    def improve(self, start: tuple[int, ...], value: Callable[[Sequence[int]], int]) -> None:
        if value(start) < value(self.start):
            self.start = start

    def settle_order(self) -> None:
        """By cores first, which prove soon or not at all; else the ordinary way, which finds something on the way."""
        pairs = _pairs(self.problem)
        expression = self.model.inversions(pairs)
        is_proven = _inversions(pairs, self.ii, self.start) == 0
        for by_core in (True, False):
            if is_proven:
                break
            answer = self.model.minimise(expression, _EFFORT_PER_LEVEL * self.effort, self.start, by_core)
            if answer.outcome == "found":
                self.improve(answer.start, lambda start: _inversions(pairs, self.ii, start))
            is_proven = answer.proven
        self.model.settle(expression, _inversions(pairs, self.ii, self.start))
        self.proofs.append(is_proven)

    def settle_starts(self) -> None:
        """Each op as early as the levels and the ops before it allow, so that equally good schedules never trade
        places. Once that is too hard to prove: each op as early as the order found allows."""
        left = _EFFORT_FOR_STARTS * self.effort
        within, low = arcs(self.problem), list(self.model.low)
        is_proven = True
        for op in range(len(self.start)):
            if self.start[op] > low[op]:
                answer = self.model.minimise(self.model.start_of(op), left, self.start)
                left -= answer.effort
                if not answer.proven:
                    self.start = justify(self.problem, self.ii, answer.start or self.start)
                    is_proven = False
                    break
                self.start = answer.start
            self.model.fix(op, self.start[op])
            low[op] = self.start[op]
            low = earliest(self.problem, self.ii, within, low)
        self.proofs.append(is_proven)

    def objectives(self, schedule: Schedule, stages_proven: bool) -> tuple[Objective, ...]:
        proofs = [stages_proven, *self.proofs]
        return tuple(
            Objective(level.name, level.value, proof)
            for level, proof in zip(evaluate(self.problem, schedule), proofs, strict=True)
        )
