"""Finds the best schedule at a fixed interval: level after level of the objective, each with the optima of the levels
before as constraints. `objective` defines the levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd

from tilec.sched import objective
from tilec.sched.budget import Budget
from tilec.sched.collisions import count_certain_collisions, list_access_pairs, sum_collisions
from tilec.sched.lower_bounds import paths
from tilec.sched.lower_bounds.bounds import compute_depth_limits, find_min_lifetimes
from tilec.sched.lower_bounds.orders import (
    Order,
    are_earliest_starts,
    bound_collisions,
    bound_slot_pressure,
    list_orders,
)
from tilec.sched.model.anchor import is_begin_constrained, shift_to_best_begin, shift_to_valid_begin
from tilec.sched.model.model import Answer, Model, Terms
from tilec.sched.problem import Edge, Problem
from tilec.sched.schedule import Schedule
from tilec.sched.solution import LEVELS, Objective

# Deterministic time, of which one unit is one to five seconds here.
EFFORT_PER_LEVEL = 0.1
_EFFORT_PER_LATER_LEVEL = 0.05
"""Those behind the ring bytes, which weigh little in the time of a loop."""
_EFFORT_FOR_STARTS = 0.015
# Beyond this size a schedule is not improved: its pairs of ops alone would be tens of thousands.
_MAX_OPS = 144


def find_smallest_threshold(
    is_feasible: Callable[[int], bool | None], low: int, known: int, within: int = 0
) -> tuple[int, int]:
    """Return (lower bound, smallest feasible known) of a threshold, by doubling steps and then bisection.

    Feasibility is monotone, above `low` and up to `known`. Stops early where `is_feasible` returns None for undecided,
    or `within` so much of the bound.
    """
    step, at = 1, low
    while known - low > within:
        answer = is_feasible(at)
        if answer is None:
            break
        if answer:
            known, step = at, 0
        else:
            low = at + 1
        step *= 2
        at = (low + known) // 2 if step == 0 or at + step >= known else at + step
    return low, known


class LevelSettler:
    """Improves a valid schedule level by level. A level that equals a lower bound is proven without the solver."""

    def __init__(
        self,
        problem: Problem,
        ii: int,
        start: Sequence[int],
        effort: float,
        budget: Budget | None = None,
        open_cycles: int = 0,
    ) -> None:
        """`open_cycles` of the slot pressure need no proof."""
        self.problem, self.ii, self.full_effort, self.budget = problem, ii, effort, budget or Budget()
        self.start = tuple(start)
        self.proofs: list[bool] = []
        self.lifetimes, self.pairs = objective.find_reaching_pairs(problem), objective.list_same_role_pairs(problem)
        self.accesses = list_access_pairs(problem)
        self.settled, self.open_cycles = problem, open_cycles
        self.most_bytes: int | None = None

    @property
    def effort(self) -> float:
        """Return the effort for the next level: half as much behind each that is not proven, since later ones count
        less."""
        return self.full_effort * 0.5 ** self.proofs.count(False)

    def run(self) -> tuple[int, ...]:
        """Settle all levels in order if ops are few and budget is left; return the best schedule's starts."""
        if len(self.problem.ops) > _MAX_OPS or self.budget.seconds_left() <= 0:
            return self.start
        self.adopt_if_better(left_justify(self.problem, self.ii, self.start))
        if self.budget.is_spent:
            return self.start
        # These levels do not depend on where an iteration begins (see `anchor`).
        self.settle_slot_pressure()
        self.settle_ring_bytes()
        if self.is_best_in_all_orders():
            self.proofs += [True] * (len(LEVELS) - 1 - len(self.proofs))  # that of the stages is the caller's
            return self.start
        model = self.model(from_begin=True, at_once=True)
        self.settle_pressure(model, Model.express_peak_pressure, objective.measure_peak_pressure)
        # The others do, so the beginning is a variable too.
        model = self.model(from_begin=True)
        if objective.list_pressure_pools(self.problem):
            known = objective.measure_peak_pressure(self.problem, self.ii, self.start)
            model.settle(model.express_peak_pressure(), known)
        self.settle_pressure(model, Model.express_carried_pressure, objective.measure_carried_pressure)
        self.settle_collisions(model)
        self.settle_order(model)
        self.settle_starts(model)
        return self.start

    def model(self, from_begin: bool = False, pressure: int | None = None, at_once: bool = False) -> Model:
        """Return a model of schedules no worse than the known one on settled levels and in stages.

        `pressure` limits the pipe-slot pressure. `at_once` leaves only schedules that begin with an issue, where that
        is allowed.
        """
        stages = max(self.start, default=0) // self.ii + 1
        problem = self.settled if pressure is None else _limit_slot_pressure(self.settled, self.lifetimes, pressure)
        model = Model(problem, self.ii, stages, budget=self.budget, from_begin=from_begin)
        if from_begin:
            model.require_early_issue(at_once and not is_begin_constrained(self.problem))
        if self.most_bytes is not None:
            model.settle(
                model.express_ring_bytes(self.compute_ring_unit()), self.most_bytes // self.compute_ring_unit()
            )
        return model

    def adopt_if_better(self, start: Sequence[int]) -> None:
        """Replace the known schedule by this one, shifted to its best beginning, if it is better.

        The first level that differs decides.
        """
        start = shift_to_best_begin(self.problem, self.ii, start, self.pairs)
        if self.costs(start) < self.costs(self.start):
            self.start = tuple(start)

    def improve(self, model: Model, expression: Terms, effort: float, by_core: bool = False) -> Answer:
        """Minimise an expression from the known schedule, adopt a better schedule, and return the answer."""
        answer = model.minimise(expression, effort, self.start, by_core)
        if answer.outcome == "found":
            self.adopt_if_better(answer.start)
        return answer

    def costs(self, start: Sequence[int]) -> tuple[object, ...]:
        """Return the values of all levels with these starts, as a tuple by which schedules are compared."""
        levels = objective.evaluate_levels(self.problem, objective.make_schedule(self.problem, self.ii, start, "given"))
        return (*(level.value for level in levels[:-1]), tuple(start))

    def settle_slot_pressure(self) -> None:
        """Minimise and then limit the longest distance from an op to a dependent one; record whether that is proven.

        Both are of one iteration.
        """
        problem, ii = self.problem, self.ii
        constraints = paths.build_arcs(problem, compute_depth_limits(problem, ii))
        distances_from = {
            first: paths.find_distances_from(problem, ii, constraints, first)
            for first in dict.fromkeys(first for first, _ in self.lifetimes)
        }
        low = max([0, *(distances_from[first][last] or 0 for first, last in self.lifetimes)])

        known = objective.measure_slot_pressure(self.lifetimes, self.start)
        low = max(low, bound_slot_pressure(self.list_orders(problem), self.lifetimes)) if low < known else low
        if low >= known:
            self.settled = self.limit_slot_pressure()
            self.proofs.append(True)
            return
        model = self.model(pressure=known)
        furthest = model.within(self.lifetimes)

        def is_feasible(most: int) -> bool | None:
            """Return whether a schedule with this slot pressure exists; adopt it if better; None if undecided."""
            limited = _limit_slot_pressure(problem, self.lifetimes, most)
            if paths.has_positive_cycle(problem, ii, paths.build_arcs(limited, compute_depth_limits(problem, ii))):
                return False
            model.limit(furthest, most)
            answer = model.feasible(EFFORT_PER_LEVEL / 8 * self.effort)
            if answer.outcome == "found":
                self.adopt_if_better(left_justify(problem, ii, shift_to_valid_begin(problem, ii, answer.start)))
            return {"found": True, "refuted": False, "unknown": None}[answer.outcome]

        low, known = find_smallest_threshold(is_feasible, low, known, self.open_cycles)
        is_proven = low >= known
        if known - low > self.open_cycles:
            # Too hard to decide at one threshold; with all of them to choose from something better may turn up.
            model.limit(furthest, known)
            is_proven = self.improve(model, ((furthest, 1),), EFFORT_PER_LEVEL / 2 * self.effort).proven
        self.settled = self.limit_slot_pressure()
        self.proofs.append(is_proven)

    def limit_slot_pressure(self) -> Problem:
        """Return the problem with the slot pressure of the known schedule as a limit."""
        most = objective.measure_slot_pressure(self.lifetimes, self.start)
        return _limit_slot_pressure(self.problem, self.lifetimes, most)

    def list_orders(self, problem: Problem) -> list[Order]:
        """Return the orders of ops in which a schedule of no more stages than the known one may exist; [] if they are
        too many."""
        span = (max(self.start, default=0) // self.ii + 1) * self.ii - 1
        return list_orders(problem, self.ii, span, compute_depth_limits(problem, self.ii))

    def is_best_in_all_orders(self) -> bool:
        """Return whether no order of ops allows a schedule that is better on any level behind the ring bytes.

        False in doubt: where pools' use counts, or ops are inverted, which orders do not bound.
        """
        if objective.list_pressure_pools(self.problem) or objective.count_inversions(self.pairs, self.ii, self.start):
            return False
        orders = self.list_orders(self.settled)
        least = bound_collisions(orders, self.accesses, self.ii)
        return sum_collisions(self.accesses, self.ii, self.start) <= least and are_earliest_starts(orders, self.start)

    def settle_ring_bytes(self) -> None:
        """Minimise and then limit the bytes of all versions of all rings, and record whether that is proven."""
        problem, ii = self.problem, self.ii
        lifetimes = find_min_lifetimes(problem, ii, problem.rings)
        least = sum(max(1, -(-life // ii)) * ring.bytes for life, ring in zip(lifetimes, problem.rings, strict=True))
        is_proven = objective.count_ring_bytes(problem, ii, self.start) <= least
        if not is_proven:
            model = self.model()
            bytes_of = model.express_ring_bytes(self.compute_ring_unit())
            is_proven = self.improve(model, bytes_of, EFFORT_PER_LEVEL * self.effort).proven
        self.most_bytes = objective.count_ring_bytes(problem, ii, self.start)
        self.proofs.append(is_proven)

    def compute_ring_unit(self) -> int:
        """Return the greatest common divisor of all ring sizes in bytes, at least 1."""
        return gcd(*(ring.bytes for ring in self.problem.rings)) or 1

    def settle_pressure(
        self,
        model: Model,
        express: Callable[[Model], Terms],
        measure: Callable[[Problem, int, Sequence[int]], int],
    ) -> None:
        """Minimise how full the values make the pools by one measure, limit it in the model, and record whether it is
        proven least. `express` gives the measure's terms, and `measure` its amount for given starts. Without pools
        whose use counts it is proven."""
        if not objective.list_pressure_pools(self.problem):
            self.proofs.append(True)
            return
        expression = express(model)
        is_proven = self.improve(model, expression, _EFFORT_PER_LATER_LEVEL * self.effort).proven
        model.settle(expression, measure(self.problem, self.ii, self.start))
        self.proofs.append(is_proven)

    def settle_collisions(self, model: Model) -> None:
        """Minimise bank collisions, limit them in the model, and record whether that is proven."""
        certain = count_certain_collisions(self.accesses, self.ii)
        is_proven = sum_collisions(self.accesses, self.ii, self.start) == certain
        expression = model.express_collisions(self.accesses)
        if not is_proven:
            is_proven = self.improve(model, expression, _EFFORT_PER_LATER_LEVEL * self.effort, by_core=True).proven
        model.settle(expression, sum_collisions(self.accesses, self.ii, self.start) - certain)
        self.proofs.append(is_proven)

    def settle_order(self, model: Model) -> None:
        """Minimise inversions, limit them in the model, and record whether that is proven.

        It is tried by cores, which prove soon or never, then by search.
        """
        pairs_of_role = self.pairs
        expression = model.express_inversions(pairs_of_role)
        is_proven = objective.count_inversions(pairs_of_role, self.ii, self.start) == 0
        for by_core, share in ((True, 0.8), (False, 0.3)):
            if is_proven:
                break
            is_proven = self.improve(model, expression, _EFFORT_PER_LATER_LEVEL * share * self.effort, by_core).proven
        model.settle(expression, objective.count_inversions(pairs_of_role, self.ii, self.start))
        self.proofs.append(is_proven)

    def settle_starts(self, model: Model) -> None:
        """Move each op, in order, as early as settled levels and earlier ops allow; record whether that is proven.

        So equally good schedules give one result. Once a proof takes too long, keep the order found and move each op as
        early as it allows.
        """
        effort_left = _EFFORT_FOR_STARTS * self.effort
        constraints, low = paths.build_arcs(self.settled), list(model.low)
        is_proven = True
        for op in range(len(self.start)):
            if self.start[op] > low[op]:
                answer = self.improve(model, model.express_start(op), effort_left)
                effort_left -= answer.effort
                if not answer.proven:
                    self.adopt_if_better(left_justify(self.problem, self.ii, self.start))
                    is_proven = False
                    break
            model.fix(op, self.start[op])
            low[op] = self.start[op]
            low = paths.find_earliest_starts(self.problem, self.ii, constraints, low)
        self.proofs.append(is_proven)

    def objectives(self, schedule: Schedule, is_proven: bool) -> tuple[Objective, ...]:
        """Return each level's value in the schedule, and whether it is proven; `is_proven` is that of the stages."""
        levels = objective.evaluate_levels(self.problem, schedule)
        proofs = [is_proven, *(self.proofs or [False] * (len(levels) - 1))]
        return tuple(Objective(level.name, level.value, proof) for level, proof in zip(levels, proofs, strict=True))


def _limit_slot_pressure(problem: Problem, lifetimes: Sequence[tuple[int, int]], most: int) -> Problem:
    """Return the problem with edges that limit its pipe-slot pressure to `most`, and narrow the ops' windows."""
    return replace(problem, edges=(*problem.edges, *(Edge(last, first, -most) for first, last in lifetimes)))


def left_justify(problem: Problem, ii: int, start: Sequence[int]) -> tuple[int, ...]:
    """Return starts as early as the same stages, orders, ring depths and slot pressure allow, if values then fit.

    Else they are unchanged, and ops on slots of several units are in any case. With these choices fixed only difference
    constraints remain, whose least solution is a longest path.
    """
    constraints = list(paths.build_arcs(problem, objective.compute_ring_depths(problem, ii, start)))
    reaching_pairs = objective.find_reaching_pairs(problem)
    furthest = objective.measure_slot_pressure(reaching_pairs, start)
    constraints += [paths.Arc(last, first, -furthest, 0, "pressure") for first, last in reaching_pairs]
    floor = [at - at % ii for at in start]
    for i, j in objective.list_same_role_pairs(problem):
        first, second = (i, j) if start[i] % ii <= start[j] % ii else (j, i)
        constraints.append(paths.Arc(first, second, floor[second] - floor[first], 0, "order"))
    for slot, spec in enumerate(problem.slots):
        users = problem.list_uses(slot)
        for op, use in users:
            if spec.width > 1:
                # The schedule does not record which unit an op holds, so these ops do not move.
                floor[op] = start[op]
                continue
            for other, later in users:
                if op != other:
                    # Whole intervals from the one use to the other: the first must end before the other begins.
                    wraps = (start[other] + later.offset - start[op] - use.offset) // ii
                    constraints.append(
                        paths.Arc(op, other, use.offset + use.cycles - later.offset + wraps * ii, 0, "slot")
                    )
    earliest_starts = tuple(paths.find_earliest_starts(problem, ii, constraints, floor))
    return earliest_starts if objective.do_values_fit(problem, ii, earliest_starts) else tuple(start)
