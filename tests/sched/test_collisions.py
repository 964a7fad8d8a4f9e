"""Bank collisions against a count of cycles, and the level that they are against an enumeration of schedules."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress

import pytest
from loops import banked_problem, best, collisions

from tilec.sched.collisions import count_certain_collisions, count_collisions, list_access_pairs, sum_collisions
from tilec.sched.heuristics.heuristic import place_ops
from tilec.sched.lower_bounds.bounds import Unschedulable
from tilec.sched.model.model import Model
from tilec.sched.problem import Edge, Op, Problem, Slot, Use
from tilec.sched.solve import solve_problem
from tilec.sched.text import problem_from_json, problem_to_json
from tilec.sched.trace import build_trace
from tilec.sched.verify import find_violations
from tilec.target.table import load_target

PORTS = (Slot("read", banks="shared memory"), Slot("write", banks="shared memory"), Slot("unit"))


@pytest.mark.parametrize("seed", range(200))
def test_collisions_against_a_count_of_cycles(seed: int) -> None:
    """Also of starts that are no schedule, in intervals shorter than an access."""
    problem = banked_problem(seed)
    draw = random.Random(seed)
    ii = draw.randint(1, 9)
    start = tuple(draw.randint(0, 3 * ii) for _ in problem.ops)
    # Two uses of a slot of one unit overlap in no schedule, and are not counted.
    wide = Problem(problem.name, problem.ops, (), tuple(Slot(slot.name, 2, slot.banks) for slot in problem.slots))
    found = count_collisions(list_access_pairs(wide), ii, start)
    for one in found:
        assert (one.in_iteration, one.across_iterations) == collisions(wide, ii, start, one.banks)
    unnamed = {"shared memory", "tensor memory"} - {one.banks for one in found}
    assert all(collisions(wide, ii, start, banks) == (0, 0) for banks in unnamed)


@pytest.mark.parametrize("seed", range(80))
def test_the_certain_collisions_are_the_least_of_all_distances(seed: int) -> None:
    pairs = list_access_pairs(banked_problem(seed))
    for pair, ii in itertools.product(pairs, range(1, 9)):
        counts = {sum_collisions((pair,), ii, {pair.first: 0, pair.second: at}) for at in range(ii)}
        assert min(counts) >= count_certain_collisions((pair,), ii) >= max(counts) - 1
        assert (len(counts) == 1) == (pair.count_colliding_distances(ii) == 0)


@pytest.mark.parametrize("seed", range(150))
def test_the_level_against_enumeration(seed: int) -> None:
    """All levels, that of the collisions between those of values and the inversions, and the starts."""
    problem = banked_problem(seed)
    with suppress(Unschedulable):
        solution = solve_problem(problem)
        ii, stages = solution.schedule.ii, solution.objectives[0].value
        assert not list(find_violations(problem, solution.schedule))
        if (stages * ii) ** len(problem.ops) <= 30_000:
            levels, start = best(problem, ii, stages) or ((), ())
            assert tuple(level.value for level in solution.objectives[:-1]) == levels
            assert solution.schedule.start == start and all(level.proven for level in solution.objectives)


def relay(*slots: Slot) -> Problem:
    """A load of the next tile and a product of this one, which share no dependence, and ten cycles of something else.

    As early as it can be, the load writes while the product reads."""
    ops = (
        Op("load", (Use(1, 3),), 1, 3, "producer"),
        Op("product", (Use(0, 4),), 1, 4),
        Op("other", (Use(2, 10),), 1, 10),
    )
    return Problem("relay", ops, (Edge(1, 2, 4),), slots)


def test_accesses_move_apart_where_nothing_else_is_lost() -> None:
    solution = solve_problem(relay(*PORTS))
    assert {level.name: level.value for level in solution.objectives}["bank collisions"] == 0
    assert solution.schedule.start == (0, 3, 7)
    apart = solve_problem(relay(Slot("read"), Slot("write"), Slot("unit")))
    assert apart.schedule.start == (0, 0, 4)
    assert apart.objectives[:5] == solution.objectives[:5]


def test_reads_of_tensor_memory_do_not_meet_writes_of_shared_memory() -> None:
    ports = (Slot("read", banks="tensor memory"), *PORTS[1:])
    assert list_access_pairs(relay(*ports)) == ()
    assert solve_problem(relay(*ports)).schedule.start == (0, 0, 4)


def test_levels_before_the_collisions_decide_first() -> None:
    """The load in the middle of a chain that must not get longer reaches the banks when the product does."""
    ops = (Op("load", (Use(1, 4),), 1, 4), Op("product", (Use(0, 4),), 1, 4))
    problem = Problem("chain", ops, (Edge(0, 1, 2), Edge(1, 0, 0, 1)), PORTS)
    solution = solve_problem(problem)
    assert (solution.schedule.ii, solution.schedule.start) == (4, (0, 2))
    assert [(level.name, level.value) for level in solution.objectives[1:2]] == [("pipe-slot pressure", 2)]
    assert {level.name: level.value for level in solution.objectives}["bank collisions"] == 2
    (loop,) = build_trace([(problem, solution)])["tilec"]["loops"]
    assert loop["collisions"] == [{"banks": "shared memory", "in_iteration": 1, "across_iterations": 1}]
    assert problem_from_json(problem_to_json(problem)) == problem


def test_a_solver_that_ignores_collisions_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: enumeration finds a schedule with fewer collisions than the one that is said to be the best."""
    monkeypatch.setattr(Model, "express_collisions", lambda self, pairs: ())
    problem = relay(*PORTS)
    found = solve_problem(problem)
    assert found.schedule.start == (0, 0, 4) and all(level.proven for level in found.objectives)
    levels, _ = best(problem, found.schedule.ii, 1) or ((), ())
    assert levels < tuple(level.value for level in found.objectives)


def test_the_cost_based_heuristic_prefers_an_op_without_collisions() -> None:
    """Of two ops on one unit the load, which is written first, would write while the product reads."""
    load, other = Op("load", (Use(1, 3), Use(2, 3)), 1, 3), Op("other", (Use(2, 3),), 1, 3)
    problem = Problem("unit", (Op("product", (Use(0, 4),), 1, 4), load, other), (), PORTS)
    assert place_ops(problem, 10, "cost-based") == (0, 3, 0)


@pytest.mark.parametrize("name", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_targets_name_the_banks_of_their_transports(name: str) -> None:
    banks = {slot.name: slot.banks for slot in load_target(name).slots if slot.banks}
    shared = {"tp_smem_rd": "shared memory", "tp_smem_wr": "shared memory"}
    tensor = {"tp_tmem_rd": "tensor memory", "tp_tmem_wr": "tensor memory"}
    assert banks == shared | (tensor if name == "sm_100a" else {})
