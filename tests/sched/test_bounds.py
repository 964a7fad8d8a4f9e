"""Each bound: its value, and the words for what causes it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loops import gemm, has_schedule, random_problem

from tilec.sched.lower_bounds.bounds import Bound, Unschedulable, compute_bounds
from tilec.sched.lower_bounds.windows import find_refutation
from tilec.sched.problem import Edge, Op, Problem, Role, Slot, Use


def bound_of(problem: Problem, kind: str) -> Bound:
    return [bound for bound in compute_bounds(problem).each if bound.kind == kind][-1]


def test_slot() -> None:
    port, tensor = (bound for bound in compute_bounds(gemm()).each if bound.kind == "slot")
    assert (port.ii, port.ops) == (512, (0, 1))
    assert port.culprit == "slot port is held 512 cycles an iteration: 256 load A + 256 load B"
    assert (tensor.ii, tensor.ops) == (512, (2,))


def test_wide_slot() -> None:
    ops = tuple(Op(f"op{i}", (Use(0, 5),), 1, 5) for i in range(3))
    bound = bound_of(Problem("wide", ops, (), (Slot("unit", 2),)), "slot")
    assert (bound.ii, bound.culprit) == (
        8,
        "slot unit of 2 is held 15 cycles an iteration: 5 op0 + 5 op1 + 5 op2",
    )


def test_recurrence() -> None:
    ops = (Op("a", (), 1, 3), Op("b", (), 1, 4), Op("c", (), 1, 1))
    problem = Problem("cycle", ops, (Edge(0, 1, 3), Edge(1, 0, 4, 2), Edge(1, 2, 4), Edge(2, 1, 1, 2)), ())
    bound = bound_of(problem, "recurrence")
    assert (bound.ii, bound.culprit, bound.ops) == (4, "a → b → a takes 7 cycles over 2 iterations", (0, 1))


def test_ring() -> None:
    bound = bound_of(gemm(2), "ring")
    assert bound.ii == 884
    assert bound.culprit == "load A → gemm → load A takes 1768 cycles over 2 iterations (ring A+B of depth 2)"


def test_pool() -> None:
    bound = bound_of(gemm(capacity=1024 + 3 * 32768), "pool")
    assert bound.ii == 590
    assert bound.culprit == "pool smem would hold 132096 of 99328 at II 589: 1024 reserved + 4 × 32768 A+B"


def test_stages() -> None:
    bound = bound_of(replace(gemm(), max_stages=2), "stages")
    assert bound.ii == 593
    assert bound.culprit == "op gemm cannot issue before cycle 1184, after the end of 2 stages of 592"


def test_windows_name_the_pair() -> None:
    assert (
        find_refutation(gemm(2), 1011)
        == "load A and load B need slot port for 512 cycles together, and the dependences leave a smaller window"
    )
    assert find_refutation(gemm(2), 1012) is None


@pytest.mark.parametrize("seed", range(150, 300))
def test_bounds_and_windows_refute_only_what_has_no_schedule(seed: int) -> None:
    problem = random_problem(seed)
    try:
        mii = compute_bounds(problem).mii
    except Unschedulable:
        mii = 7
    most = 7 if len(problem.ops) < 6 else 6
    for ii in range(1, min(mii, most)):
        assert not has_schedule(problem, ii)
    for ii in range(mii, most):
        if find_refutation(problem, ii) is not None:
            assert not has_schedule(problem, ii)


def test_density_names_what_is_kept_together() -> None:
    """Three ops of one unit between a and b, which come four cycles apart at the least and at the most."""
    slots = (Slot("unit"),)
    ops = (Op("a", (), 1, 1), *(Op(f"m{i}", (Use(0, 2),), 1, 2) for i in range(3)), Op("b", (), 1, 1))
    edges = [Edge(0, i, 0) for i in (1, 2, 3)] + [Edge(i, 4, 2) for i in (1, 2, 3)] + [Edge(4, 0, 8, 2)]
    bound = bound_of(Problem("crowd", ops, tuple(edges), slots), "density")
    assert (bound.ii, bound.ops) == (7, (1, 2, 3))
    assert bound.culprit == (
        "at II 6 the dependences force 6 cycles of slot unit into a window of 4 cycles: 2 m0 + 2 m1 + 2 m2"
    )


def test_density_is_that_of_the_tightest_crowd() -> None:
    """Three ops of each unit between two others: those of the first unit have room from 7 cycles on, others from 8."""
    slots = (Slot("first"), Slot("second"), Slot("third"))
    ops: list[Op] = []
    edges: list[Edge] = []
    for slot, back in enumerate((8, 10, 9)):
        begin, end = 5 * slot, 5 * slot + 4
        uses = (Op(f"m{i}", (Use(slot, 2),), 1, 2) for i in range(begin + 1, end))
        ops += [Op("a", (), 1, 1), *uses, Op("b", (), 1, 1)]
        for i in range(begin + 1, end):
            edges += [Edge(begin, i, 0), Edge(i, end, 2)]
        edges.append(Edge(end, begin, back, 2))
    bound = bound_of(Problem("crowds", tuple(ops), tuple(edges), slots), "density")
    assert (bound.name, bound.ii, bound.ops) == ("second", 8, (6, 7, 8))


def test_roles_share_what_only_they_may_run() -> None:
    ops = tuple(Op(f"op{i}", (), 10, 10, roles=(0, 1)) for i in range(5))
    problem = Problem("roles", ops, (), (Slot("l"), Slot("r")), roles=(Role("left", 0), Role("right", 1)))
    bound = bound_of(problem, "role")
    assert (bound.ii, bound.name) == (25, "one of the roles left, right")
    assert bound_of(replace(problem, tied=((0, 1, 2),)), "role").ii == 30
