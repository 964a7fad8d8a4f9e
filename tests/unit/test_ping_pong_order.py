"""Turns at the tensor cores, read off a schedule."""

from __future__ import annotations

from tilec.passes.loop.rotate_loop import find_tensor_core_runs
from tilec.sched.problem import Op, Problem
from tilec.sched.schedule import Schedule

# Products p and q of one group, P and Q of the other; the arithmetic x, X is no product.
NAMES = ("p", "q", "x", "P", "Q", "X")
PROBLEM = Problem("two", tuple(Op(name, (), 1, 1) for name in NAMES), (), (), copies=((0, 3), (1, 4), (2, 5)))


def of(order: str) -> tuple[str, ...]:
    """The turns of the first group where the ops issue in this order."""
    ids = tuple(NAMES.index(name) for name in order)
    schedule = Schedule(6, tuple(ids.index(op) for op in range(6)), ids, (), "given")
    return tuple("".join(NAMES[op] for op in run) for run in find_tensor_core_runs(PROBLEM, schedule, (0, 1)))


def test_turns_of_a_schedule() -> None:
    assert of("pqxPQX") == ("pq",)
    assert of("pPqQxX") == ("p", "q")
    assert of("pPQXqx") == ("qp",)  # round the end of the interval
    assert of("pXqPxQ") == ("pq",)


def test_who_is_alone_takes_no_turns() -> None:
    alone = Problem("one", PROBLEM.ops, (), ())
    assert find_tensor_core_runs(alone, Schedule(6, tuple(range(6)), tuple(range(6)), (), "given"), (0, 1)) == ()
