"""Turns of warpgroups, read off a schedule; and at which unit they take them."""

from __future__ import annotations

from dataclasses import replace

from tilec.passes.loop.ping_pong import find_contending_ops, find_ping_pong_runs
from tilec.sched.problem import Op, Problem, Slot, Use
from tilec.sched.schedule import Schedule

# Products p and q of one group, P and Q of the other; the arithmetic x, X is no product.
NAMES = ("p", "q", "x", "P", "Q", "X")
PROBLEM = Problem("two", tuple(Op(name, (), 1, 1) for name in NAMES), (), (), copies=((0, 3), (1, 4), (2, 5)))


def of(order: str, problem: Problem = PROBLEM) -> tuple[str, ...]:
    """The turns of the first group where the ops issue in this order."""
    ids = tuple(NAMES.index(name) for name in order)
    schedule = Schedule(6, tuple(ids.index(op) for op in range(6)), ids, (), "given")
    return tuple("".join(NAMES[op] for op in run) for run in find_ping_pong_runs(problem, schedule, (0, 1)))


def test_turns_of_a_schedule() -> None:
    assert of("pqxPQX") == ("pq",)
    assert of("pPqQxX") == ("p", "q")
    assert of("pPQXqx") == ("qp",)  # round the end of the interval
    assert of("pXqPxQ") == ("pq",)


def test_no_turns_are_taken_where_every_iteration_would_cut_one() -> None:
    """Check that turns give way to a scalar, the op x, whose users lie on both sides of each turn's end."""
    sharing = replace(PROBLEM, same_stage=((2, 0), (5, 3)))
    assert of("pqxPQX", sharing) == ("pq",)
    assert of("xpPqQX", sharing) == ("p", "q")
    assert of("pPQXqx", PROBLEM) == ("qp",)
    assert of("pPQXqx", sharing) == ()


def test_who_is_alone_takes_no_turns() -> None:
    alone = Problem("one", PROBLEM.ops, (), ())
    assert find_ping_pong_runs(alone, Schedule(6, tuple(range(6)), tuple(range(6)), (), "given"), (0, 1)) == ()


def test_turns_are_taken_at_the_tensor_cores() -> None:
    """Also where another unit is fuller; a short use of them is no part of the turn."""
    uses = {"p": Use(0, 256), "q": Use(0, 64), "r": Use(0, 8), "x": Use(1, 544)}
    ops = tuple(Op(name, (use,), 1, 1) for name, use in (*uses.items(), *uses.items()))
    slots = (Slot("tc_and_mma", 1), Slot("xu", 1))
    copies = tuple((first, first + len(uses)) for first in range(len(uses)))
    assert find_contending_ops(Problem("two", ops, (), slots, copies=copies)) == (0, 1)
