"""Statements written anew: what changes, what is kept, and in which order."""

from __future__ import annotations

import dataclasses
import random
import re

import pytest

from tilec.ir import parts, tile, warp
from tilec.ir.rewrite import (
    map_declared_variables,
    map_expressions,
    map_nested_bodies,
    map_statements,
    rewrite_expression,
    rewrite_statements,
)
from tilec.ir.types import BOOL, INT32

ZERO = tile.int32_const(0)
HOLDS = tile.Const(True, BOOL)


def bind(name: str) -> tile.Bind:
    return tile.Bind(tile.Var(name), ZERO)


def drawn(random: random.Random, depth: int) -> tuple[tile.Stmt, ...]:
    """A list of statements, nested at most so deep."""
    return tuple(one(random, depth) for _ in range(random.randrange(4)))


def one(random: random.Random, depth: int) -> tile.Stmt:
    name = f"v{random.randrange(1 << 30)}"
    match random.randrange(6) if depth else 0:
        case 1:
            return tile.For("serial", tile.Var(name), ZERO, tile.int32_const(4), 1, drawn(random, depth - 1))
        case 2:
            return tile.If(HOLDS, drawn(random, depth - 1), drawn(random, depth - 1))
        case 3:
            return tile.While(HOLDS, drawn(random, depth - 1))
        case 4:
            return tile.Parallel((tile.Var(name),), (4,), drawn(random, depth - 1))
        case _:
            return bind(name)


BODIES = [drawn(random.Random(seed), 4) for seed in range(60)]


@pytest.mark.parametrize("body", BODIES)
def test_what_nothing_changes_is_the_same_object(body: tuple[tile.Stmt, ...]) -> None:
    assert rewrite_statements(body, lambda stmt: stmt) is body
    assert rewrite_statements(body, lambda stmt: (stmt,)) is body
    assert map_statements(body, lambda stmt: stmt) is body
    assert all(map_nested_bodies(stmt, lambda inner: inner) is stmt for stmt in body)


@pytest.mark.parametrize("body", BODIES)
def test_every_statement_is_visited_once_and_those_inside_first(body: tuple[tile.Stmt, ...]) -> None:
    seen: list[tile.Stmt] = []

    def visit(stmt: tile.Stmt) -> tile.Stmt:
        inside = [s for stmts in tile.nested_bodies(stmt) for s in tile.walk_statements(stmts)]
        assert not inside or all(any(s is known for known in seen) for s in inside)
        seen.append(stmt)
        return stmt

    rewrite_statements(body, visit)
    assert sorted(map(id, seen)) == sorted(map(id, tile.walk_statements(body)))


@pytest.mark.parametrize("body", BODIES)
def test_statements_are_left_out_wherever_they_stand(body: tuple[tile.Stmt, ...]) -> None:
    left = rewrite_statements(body, lambda stmt: () if isinstance(stmt, tile.Bind) else stmt)
    kinds = [type(s) for s in tile.walk_statements(body)]
    assert [type(s) for s in tile.walk_statements(left)] == [kind for kind in kinds if kind is not tile.Bind]


@pytest.mark.parametrize("body", BODIES)
def test_what_is_put_in_is_not_visited_again(body: tuple[tile.Stmt, ...]) -> None:
    doubled = rewrite_statements(body, lambda stmt: (bind("new"), stmt) if isinstance(stmt, tile.Bind) else stmt)
    binds = sum(isinstance(s, tile.Bind) for s in tile.walk_statements(body))
    assert sum(isinstance(s, tile.Bind) for s in tile.walk_statements(doubled)) == 2 * binds
    assert rewrite_statements(doubled, lambda stmt: () if stmt == bind("new") else stmt) == body


def test_a_list_without_a_change_is_kept_beside_one_with_it() -> None:
    stmt = tile.If(HOLDS, (bind("a"),), (bind("b"),))
    (made,) = rewrite_statements((stmt,), lambda s: bind("c") if s == bind("a") else s)
    assert isinstance(made, tile.If) and made.then == (bind("c"),) and made.orelse is stmt.orelse


def test_the_phases_of_a_loop_are_written_anew_before_its_body() -> None:
    lets = [warp.Let(tile.Var(name, INT32), ZERO) for name in "abc"]
    phase = warp.Phase(HOLDS, (lets[0],))
    loop = warp.Loop(tile.Var("i"), ZERO, ZERO, 1, (lets[1], lets[2]), phases=(phase,))
    order: list[warp.Operation] = []

    def visit(op: warp.Operation) -> warp.Operation | tuple[warp.Operation, ...]:
        order.append(op)
        return () if op is lets[0] or op is lets[2] else op

    (made,) = rewrite_statements((loop,), visit)
    assert isinstance(made, warp.Loop)
    assert order[:3] == lets
    assert made.body == (lets[1],) and made.phases == (dataclasses.replace(phase, body=()),)


X, Y = tile.Var("x"), tile.Var("y")
TILE = tile.Buffer("t", (4, 4), INT32, "shared")


def plus(a: tile.Expr, b: tile.Expr) -> tile.Expr:
    return tile.Binary("add", a, b, INT32)


EXPRESSIONS: tuple[tile.Expr, ...] = (
    ZERO,
    X,
    tile.Unary("neg", X, INT32),
    plus(X, Y),
    tile.Call("fns", (X, Y, ZERO), INT32),
    tile.Cast(X, BOOL),
    tile.Select(HOLDS, X, Y, INT32),
    tile.Ptx("add.s32 {0}, {1}, {2};", (X, Y), INT32),
    tile.Load(TILE, (X, Y)),
)
OPERANDS: tuple[tuple[tile.Expr, ...], ...] = (
    (),
    (),
    (X,),
    (X, Y),
    (X, Y, ZERO),
    (X,),
    (HOLDS, X, Y),
    (X, Y),
    (X, Y),
)


@pytest.mark.parametrize(("expr", "operands"), list(zip(EXPRESSIONS, OPERANDS, strict=True)))
def test_operands_are_all_that_is_in_an_expression_and_in_order(
    expr: tile.Expr, operands: tuple[tile.Expr, ...]
) -> None:
    seen: list[tile.Expr] = []
    assert map_expressions(expr, lambda part: (seen.append(part), part)[1]) is expr
    assert tuple(seen) == tile.direct_operands(expr) == operands


STATEMENTS: tuple[tuple[tile.Stmt, tuple[tile.Expr, ...], tuple[tile.Var, ...]], ...] = (
    (tile.Bind(X, plus(Y, ZERO)), (plus(Y, ZERO),), (X,)),
    (tile.Store(TILE, (X, ZERO), Y, previous=tile.Var("p")), (X, ZERO, Y), (tile.Var("p"),)),
    (tile.Store(TILE, (X, ZERO), Y), (X, ZERO, Y), ()),
    (tile.Print("%d", (X, Y)), (X, Y), ()),
    (tile.For("serial", X, ZERO, Y, 1, (bind("b"),)), (ZERO, Y), (X,)),
    (tile.Parallel((X, Y), (2, 2), (bind("b"),)), (), (X, Y)),
    (tile.If(HOLDS, (bind("b"),)), (HOLDS,), ()),
    (tile.While(HOLDS, (bind("b"),)), (HOLDS,), ()),
    (tile.Break(), (), ()),
)


@pytest.mark.parametrize(("stmt", "expressions", "declared"), STATEMENTS)
def test_a_statement_has_these_expressions_and_declares_these_variables(
    stmt: tile.Stmt, expressions: tuple[tile.Expr, ...], declared: tuple[tile.Var, ...]
) -> None:
    seen: list[tile.Expr] = []
    assert map_expressions(stmt, lambda part: (seen.append(part), part)[1]) is stmt
    assert tuple(seen) == expressions
    assert tile.declared_variables(stmt) == declared
    renamed = map_declared_variables(stmt, lambda var: tile.Var(f"{var.name}2"))
    assert tile.declared_variables(renamed) == tuple(tile.Var(f"{var.name}2") for var in declared)
    assert (renamed is stmt) == (not declared)


def test_every_kind_of_statement_and_expression_is_shown_here() -> None:
    assert {type(stmt) for stmt, _, _ in STATEMENTS} | {tile.TileOp} == set(tile.Stmt.__args__)
    assert {type(expr) for expr in EXPRESSIONS} == set(tile.Expr.__args__)


NO_PARTS = {(tile.Parallel, "layout")}
"""Fields of nodes that are about variables of their own."""


@pytest.mark.parametrize("kind", [*tile.Stmt.__args__, *tile.Expr.__args__, tile.Region])
def test_no_field_hides_expressions_or_statements(kind: type) -> None:
    """A field of a new type is read, or said here to be about something else."""
    if kind is tile.TileOp:
        return  # says itself what it holds
    known = {*parts.LISTS, *parts.EXPRESSIONS, *parts.VARIABLES}
    names = ("Expr", "Stmt", "Var", "Load", "LoopLayout", "Region")
    hiding = {
        (kind, f.name)
        for f in dataclasses.fields(kind)
        if any(name in re.findall(r"\w+", str(f.type)) for name in names) and f.type not in known
    }
    assert hiding <= NO_PARTS


def test_an_expression_is_rewritten_from_the_inside() -> None:
    whole = plus(tile.Load(TILE, (plus(X, Y), ZERO)), X)
    seen: list[tile.Expr] = []

    def visit(part: tile.Expr) -> tile.Expr:
        seen.append(part)
        return Y if part == X else part

    assert rewrite_expression(whole, visit) == plus(tile.Load(TILE, (plus(Y, Y), ZERO)), Y)
    assert seen[:3] == [X, Y, plus(Y, Y)]
    assert rewrite_expression(whole, lambda part: part) is whole
