"""Statements written anew: what changes, what is kept, and in which order."""

from __future__ import annotations

import dataclasses
import random

import pytest

from tilec.ir import tile, warp
from tilec.ir.rewrite import map_statements, rewrite, with_bodies
from tilec.ir.types import BOOL, INT32

ZERO = tile.integer(0)
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
            return tile.For("serial", tile.Var(name), ZERO, tile.integer(4), 1, drawn(random, depth - 1))
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
    assert rewrite(body, lambda stmt: stmt) is body
    assert rewrite(body, lambda stmt: (stmt,)) is body
    assert map_statements(body, lambda stmt: stmt) is body
    assert all(with_bodies(stmt, lambda inner: inner) is stmt for stmt in body)


@pytest.mark.parametrize("body", BODIES)
def test_every_statement_is_visited_once_and_those_inside_first(body: tuple[tile.Stmt, ...]) -> None:
    seen: list[tile.Stmt] = []

    def visit(stmt: tile.Stmt) -> tile.Stmt:
        inside = [s for stmts in tile.bodies(stmt) for s in tile.walk(stmts)]
        assert not inside or all(any(s is known for known in seen) for s in inside)
        seen.append(stmt)
        return stmt

    rewrite(body, visit)
    assert sorted(map(id, seen)) == sorted(map(id, tile.walk(body)))


@pytest.mark.parametrize("body", BODIES)
def test_statements_are_left_out_wherever_they_stand(body: tuple[tile.Stmt, ...]) -> None:
    left = rewrite(body, lambda stmt: () if isinstance(stmt, tile.Bind) else stmt)
    kinds = [type(s) for s in tile.walk(body)]
    assert [type(s) for s in tile.walk(left)] == [kind for kind in kinds if kind is not tile.Bind]


@pytest.mark.parametrize("body", BODIES)
def test_what_is_put_in_is_not_visited_again(body: tuple[tile.Stmt, ...]) -> None:
    doubled = rewrite(body, lambda stmt: (bind("new"), stmt) if isinstance(stmt, tile.Bind) else stmt)
    binds = sum(isinstance(s, tile.Bind) for s in tile.walk(body))
    assert sum(isinstance(s, tile.Bind) for s in tile.walk(doubled)) == 2 * binds
    assert rewrite(doubled, lambda stmt: () if stmt == bind("new") else stmt) == body


def test_a_list_without_a_change_is_kept_beside_one_with_it() -> None:
    stmt = tile.If(HOLDS, (bind("a"),), (bind("b"),))
    (made,) = rewrite((stmt,), lambda s: bind("c") if s == bind("a") else s)
    assert isinstance(made, tile.If) and made.then == (bind("c"),) and made.orelse is stmt.orelse


def test_the_phases_of_a_loop_are_written_anew_before_its_body() -> None:
    lets = [warp.Let(tile.Var(name, INT32), ZERO) for name in "abc"]
    phase = warp.Phase(HOLDS, (lets[0],))
    loop = warp.Loop(tile.Var("i"), ZERO, ZERO, 1, (lets[1], lets[2]), phases=(phase,))
    order: list[warp.Operation] = []

    def visit(op: warp.Operation) -> warp.Operation | tuple[warp.Operation, ...]:
        order.append(op)
        return () if op is lets[0] or op is lets[2] else op

    (made,) = rewrite((loop,), visit)
    assert isinstance(made, warp.Loop)
    assert order[:3] == lets
    assert made.body == (lets[1],) and made.phases == (dataclasses.replace(phase, body=()),)
