"""Groups of warps that run the same code: the solver says how far each is behind the first."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from tilec.sched.check import find_problem_faults
from tilec.sched.model.lags import fold_groups
from tilec.sched.problem import Edge, Op, Pool, Problem, Ring, Slot, Use, Value
from tilec.sched.solve import solve_problem
from tilec.sched.verify import find_violations


def two_groups(seed: int) -> Problem:
    """A short chain, once for each of two groups, that share a unit and have an issue slot each."""
    draw = random.Random(seed)
    count = draw.randint(1, 3)
    slots = (Slot("unit"), Slot("first"), Slot("second"))
    one = [
        (draw.randint(0, 2), draw.randint(1, 2), draw.randint(1, 4)) for _ in range(count)
    ]  # (cycles of the unit, of issue, latency)
    ops = tuple(
        Op(f"op{i}", (*((Use(0, unit),) if unit else ()), Use(1 + group, issue)), issue, latency)
        for group in range(2)
        for i, (unit, issue, latency) in enumerate(one)
    )
    inside = [
        Edge(i, j, draw.randint(0, 4), 0 if i < j else 1)
        for i, j in itertools.product(range(count), repeat=2)
        if draw.random() < 0.5
    ]
    edges = tuple(replace(e, src=e.src + g * count, dst=e.dst + g * count) for g in range(2) for e in inside)
    copies = tuple((i, i + count) for i in range(count))
    return Problem(f"groups {seed}", ops, edges, slots, copies=copies)


def exists(problem: Problem, ii: int) -> bool:
    """Whether there is a schedule at this II, by enumeration of the first group's starts and of the lag."""
    count = len(problem.copies)
    for start in itertools.product(range(3 * ii), repeat=count):
        if start[0] >= ii:
            continue
        for lag in range(ii):
            whole = (*start, *(s + lag for s in start))
            held = [
                (use.slot, (at + use.offset + cycle) % ii)
                for op, at in zip(problem.ops, whole, strict=True)
                for use in op.uses
                for cycle in range(use.cycles)
            ]
            apart = all(whole[e.dst] + e.distance * ii >= whole[e.src] + e.latency for e in problem.edges)
            if apart and len({*held}) == len(held):
                return True
    return False


@pytest.mark.parametrize("seed", range(40))
def test_the_interval_against_every_lag(seed: int) -> None:
    problem = two_groups(seed)
    assert not list(find_problem_faults(problem))
    schedule = solve_problem(problem).schedule
    assert not list(find_violations(problem, schedule))
    assert schedule.status == "optimal"
    assert not any(exists(problem, ii) for ii in range(1, min(schedule.ii, 9)))


def ping_pong() -> Problem:
    """A product of 40 cycles, then 40 of arithmetic on its result, before the next product."""
    slots = (Slot("tensor cores"), Slot("first"), Slot("second"))
    ops = tuple(
        op
        for group in range(2)
        for op in (
            Op("product", (Use(0, 40), Use(1 + group, 4)), 4, 40),
            Op("arithmetic", (Use(1 + group, 36),), 36, 40),
        )
    )
    edges = tuple(e for first in (0, 2) for e in (Edge(first, first + 1, 40), Edge(first + 1, first, 40, 1)))
    return Problem("ping-pong", ops, edges, slots, copies=((0, 2), (1, 3)))


def test_one_group_computes_while_the_other_multiplies() -> None:
    schedule = solve_problem(ping_pong()).schedule
    assert (schedule.ii, schedule.status) == (80, "optimal")
    assert schedule.start == (0, 40, 40, 80)


def test_groups_share_the_interval_evenly_if_they_can() -> None:
    """Any lag from 10 to 45 would do."""
    problem = ping_pong()
    ops = tuple(replace(op, uses=(Use(0, 10), *op.uses[1:])) if op.name == "product" else op for op in problem.ops)
    edges = tuple(replace(e, latency=30 if e.distance == 0 else 50) for e in problem.edges)
    start = solve_problem(replace(problem, ops=ops, edges=edges)).schedule.start
    assert start[2] - start[0] == start[3] - start[1] == 40


def test_lags_as_even_as_a_shallow_ring_lets_them_be() -> None:
    """A tile with one version, read by both groups: it is free for the next load once the second group is done."""
    problem = ping_pong()
    ops = (*problem.ops, Op("load", (), 1, 5))
    ops = tuple(replace(op, uses=(Use(0, 10), *op.uses[1:])) if op.name == "product" else op for op in ops)
    edges = (*problem.edges, Edge(4, 0, 5), Edge(4, 2, 5))
    ring = Ring("tile", (4,), (0, 2), 10, 0, max_depth=1)
    shallow = replace(problem, ops=ops, edges=edges, pools=(Pool("smem", 100),), rings=(ring,))
    schedule = solve_problem(shallow).schedule
    assert not list(find_violations(shallow, schedule))
    # Of the 80 cycles the load takes 5 and the product is done after 40: 35 are left for the lag, not 40. With 34 the
    # second group's arithmetic, 40 later still, begins in the same interval: fewer stages come first.
    assert (schedule.ii, schedule.status, schedule.start[2] - schedule.start[0]) == (80, "optimal", 34)


def test_what_the_verifier_says_of_lags() -> None:
    problem = ping_pong()
    schedule = solve_problem(problem).schedule
    moved = replace(schedule, ii=100, start=(0, 40, 40, 81))
    said = "op arithmetic of group 2 issues 41 cycles after the first group's, op product 40: they run the same code"
    assert said in list(find_violations(problem, moved))
    ahead = replace(schedule, start=(40, 80, 0, 40), order=(2, 1, 0, 3))
    assert any(
        "issues -40 cycles after the first group's, II is 80" in text for text in find_violations(problem, ahead)
    )
    fixed = list(find_violations(replace(problem, lags=(0, 30)), schedule))
    assert fixed == [f"op {name} of group 2 issues 40 cycles after the first group's, not 30"
                     for name in ("product", "arithmetic")]  # fmt: skip


def test_faulty_copies() -> None:
    problem = ping_pong()
    assert list(find_problem_faults(replace(problem, copies=((0, 2), (1,)))))
    assert list(find_problem_faults(replace(problem, copies=((0, 2), (1, 2)))))
    assert list(find_problem_faults(replace(problem, lags=(0,))))


def test_folded_groups_move_together() -> None:
    folded, unfold = fold_groups(replace(ping_pong(), lags=(0, 30)))
    assert [op.name for op in folded.ops] == ["product", "arithmetic"]
    assert folded.ops[0].uses == (Use(0, 40), Use(1, 4), Use(0, 40, 30), Use(2, 4, 30))
    assert unfold((0, 40)) == (0, 40, 30, 70)


def test_what_passes_between_groups_is_ready_by_so_much_sooner_as_the_reader_is_behind() -> None:
    problem = replace(ping_pong(), lags=(0, 30))
    (first, behind), *_ = problem.copies
    for src, dst, latency in ((first, behind, 20), (behind, first, 80)):
        folded, _ = fold_groups(replace(problem, edges=(Edge(src, dst, 50, 1),)))
        assert [edge.latency for edge in folded.edges] == [latency]


def test_what_a_group_holds_is_its_own_and_what_all_read_is_held_for_the_last() -> None:
    """The registers of the first group are free once it is done; a ring is, once the second group is."""
    problem = ping_pong()
    whole = replace(
        problem,
        pools=(Pool("smem", 100), Pool("registers", 10)),
        rings=(Ring("tile", (0,), (0, 2), 10, 0),),
        values=(Value("result", (0,), (1,), 10, 1),),
        lags=(0, 30),
    )
    folded, unfold = fold_groups(whole)
    assert [op.latency for op in folded.ops] == [40, 40, 70] and folded.ops[2].uses == ()
    assert (folded.rings[0].consumers, folded.values[0].consumers) == ((2,), (1,))
    assert Edge(0, 2, 0, 0, "lag") in folded.edges
    assert unfold((0, 40, 0)) == (0, 40, 30, 70)


def test_heuristics_keep_step() -> None:
    solution = solve_problem(ping_pong(), scheduler="heuristic")
    assert not list(find_violations(ping_pong(), solution.schedule))
    assert solution.schedule.ii == 80
