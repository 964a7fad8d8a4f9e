"""Steady states in pieces: which conditions they leave out, and that the verifier runs all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tilec.ir import warp
from tilec.ir.tile import Binary, Buffer, Expr, Load, Unary, Var, int32_const
from tilec.ir.types import BOOL, INT32
from tilec.passes.lower.split_loops import split_loops
from tilec.rewriting.fold_constants import compute_expr

K, N, M = Var("k"), Var("n"), Var("m")
LOCAL = Buffer("x", (1,), INT32, "local")


def less(a: Expr, b: Expr) -> Binary:
    return Binary("lt", a, b, BOOL)


def times(var: Var, factor: int, more: int) -> Expr:
    return Binary("add", Binary("mul", var, int32_const(factor), INT32), int32_const(more), INT32)


def steady(*conditions: Expr, start: int = 0, stop: Expr | None = None) -> warp.Loop:
    """Under each condition a barrier of its own, and another one where it does not hold."""
    branches = (
        warp.Branch(condition, (warp.BarSync(2 * n, 128),), (warp.BarSync(2 * n + 1, 128),))
        for n, condition in enumerate(conditions)
    )
    return warp.Loop(K, int32_const(start), int32_const(9) if stop is None else stop, 1, tuple(branches), "steady")


def pieces(loop: warp.Loop) -> tuple[warp.Operation, ...]:
    role = warp.Role("all", 0, 4, (loop,))
    other = warp.Role("producer", 4, 4, ())
    program = warp.Program("p", (N, M), (), (1, 1, 1), (), (role, other), (), (), ())
    assert split_loops(replace(program, roles=(role,))) == replace(program, roles=(role,))
    return split_loops(program).roles[0].body


def run(body: tuple[warp.Operation, ...], values: dict[Var, int]) -> list[tuple[int, int]]:
    """The barriers of each iteration."""
    met: list[tuple[int, int]] = []

    def value(expr: Expr) -> int:
        found = compute_expr(expr, values)
        assert found is not None
        return int(found)

    def iteration(k: int, operations: tuple[warp.Operation, ...]) -> None:
        for op in operations:
            match op:
                case warp.Branch(condition=condition, then=then, orelse=orelse):
                    iteration(k, then if value(condition) else orelse)
                case warp.BarSync(id=number):
                    met.append((k, number))

    for op in body:
        match op:
            case warp.Let(var=var, value=bound):
                values[var] = value(bound)
            case warp.Loop(phases=phases, body=rest):
                k, stop = value(op.start), value(op.stop)
                for until, inner in (*((value(phase.until), phase.body) for phase in phases), (stop, rest)):
                    while k < min(until, stop):
                        values[K] = k
                        iteration(k, inner)
                        k += 1
    return met


def branches(body: tuple[warp.Operation, ...]) -> int:
    return sum(isinstance(op, warp.Branch) for op in warp.walk_operations(body))


def test_each_iteration_does_what_it_did() -> None:
    """Whatever the order of the thresholds, and wherever they are beside the ends of the loop."""
    below, above = less(times(K, 3, 1), N), less(M, times(K, 2, -1))
    both, either = Binary("and", below, above, BOOL), Binary("or", below, Unary("not", above, BOOL), BOOL)
    for conditions in ((below,), (above,), (both,), (either,), (below, both), (both, either)):
        loop = steady(*conditions, stop=Var("stop"))
        made = pieces(loop)
        assert branches(made) < branches((loop,)) * 3
        for n, m, stop in product(range(-4, 16, 3), range(-4, 12, 3), (0, 1, 2, 5)):
            given = {N: n, M: m, Var("stop"): stop}
            assert run(made, dict(given)) == run((loop,), dict(given))


def test_thresholds_that_are_numbers() -> None:
    *lets, made = pieces(steady(less(times(K, 1, 0), int32_const(5))))
    assert isinstance(made, warp.Loop) and not lets
    assert [(phase.until, phase.body) for phase in made.phases] == [(int32_const(5), (warp.BarSync(0, 128),))]
    assert made.body == (warp.BarSync(1, 128),)


@pytest.mark.parametrize("factor", [1, 64])
def test_thresholds_in_their_order(factor: int) -> None:
    """A window: nothing is left to be tested in any of the pieces, whichever side is asked for first."""
    at = times(K, factor, 0)
    behind = less(at, Binary("sub", N, int32_const(200), INT32))
    before = less(Binary("add", N, int32_const(30), INT32), at)
    for condition in (Binary("or", behind, before, BOOL), Binary("or", before, behind, BOOL)):
        *_, made = pieces(steady(condition))
        assert isinstance(made, warp.Loop) and branches((made,)) == 0
        assert [body[0].id for body in made.bodies] == [0, 1, 0]


def test_what_stays_whole() -> None:
    moving = less(K, Load(LOCAL, (int32_const(0),)))
    squared = less(Binary("mul", K, K, INT32), N)
    outside = less(K, int32_const(20))  # the loop ends before
    for condition in (moving, squared, less(N, M), outside, Binary("eq", K, N, BOOL)):
        loop = steady(condition)
        assert pieces(loop) == (loop,)


def test_no_more_than_two_thresholds() -> None:
    three = [less(K, Binary("add", N, int32_const(n), INT32)) for n in (1, 2, 3)]
    *_, made = pieces(steady(*three))
    assert isinstance(made, warp.Loop) and len(made.phases) == 2
    assert branches((made,)) == 3  # of the last condition, in each piece


def test_other_loops_stay_whole() -> None:
    loop = warp.Loop(K, int32_const(0), int32_const(9), 1, steady(less(K, N)).body)
    assert pieces(loop) == (loop,)
