"""Steady states in pieces: what a condition on the loop's variable comes to is known in all iterations below a
threshold, and known to be the opposite from there on, so that neither piece tests it.

The program is synchronised, and every piece has all the waits of the whole: loads and products go on from one to the
next as if there was one loop, through the same rings and with the same schedule. An iteration more or less in either
piece is no matter, nor is a piece without any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.ir import tile, warp
from tilec.ir.affine import Affine, affine
from tilec.ir.rewrite import rewrite
from tilec.ir.types import BOOL
from tilec.passes.analysis.thresholds import limit

MOST_THRESHOLDS = 2
"""A window has two: where its first block of keys ends, and where its last one begins."""


def split(program: warp.Program) -> warp.Program:
    """Where loads have a role of their own. One that does all has no registers to spare for what the assembler keeps
    from one piece to the next: kernels that just fit spill."""
    if len(program.roles) == 1:
        return program
    return replace(program, roles=tuple(replace(role, body=_body(role.body)) for role in program.roles))


def _body(body: tuple[warp.Operation, ...]) -> tuple[warp.Operation, ...]:
    return rewrite(body, lambda op: tuple(_pieces(op)) if isinstance(op, warp.Loop) and op.part == "steady" else op)


def _pieces(loop: warp.Loop) -> Iterator[warp.Operation]:
    """The loop, and before it the thresholds that are no constants."""
    moving = frozenset({loop.var, *(op.var for op in warp.walk(loop.body) if isinstance(op, warp.Let))})
    branches = [op for op in loop.body if isinstance(op, warp.Branch) and not op.part]
    found = (each for op in branches for each in _limits(op.condition, loop.var, moving))
    bounds = [bound for bound in dict.fromkeys(each.b for each in found) if _is_within(bound, loop)]
    bounds, is_sorted = _ascending(bounds[:MOST_THRESHOLDS])
    pieces = [
        _under(loop, moving, {**dict.fromkeys(bounds[:n], False), **dict.fromkeys(above, True)})
        for n in range(len(bounds) + 1)
        for above in (bounds[n:] if is_sorted else bounds[n : n + 1],)
    ]
    while bounds and pieces[-1] == pieces[-2]:
        bounds.pop()
        pieces.pop()
    phases = []
    for n, bound in enumerate(bounds):
        if not isinstance(bound, tile.Const | tile.Var):
            held = tile.Var(f"{loop.var.name}.until.{n}")
            yield warp.Let(held, bound, moment=loop.moment, span=loop.span)
            bound = held
        phases.append(warp.Phase(bound, pieces[n]))
    yield replace(loop, body=pieces[-1], phases=tuple(phases)) if phases else loop


def _ascending(bounds: list[tile.Expr]) -> tuple[list[tile.Expr], bool]:
    """Thresholds in their order, and whether that is known, as it is where they differ by a constant: then below one is
    below those after it. In any order each iteration does what it should."""
    forms = [_numerator(bound) for bound in bounds]
    if len({(divisor, form.terms) for divisor, form in forms}) > 1:
        return bounds, False
    return [bounds[n] for n in sorted(range(len(bounds)), key=lambda n: forms[n][1].constant)], True


def _numerator(bound: tile.Expr) -> tuple[int, Affine]:
    """d and the sum of which the bound is the d-th part, rounded down."""
    form = affine(bound)
    match form.terms:
        case ((tile.Binary(op="floordiv", a=a, b=tile.Const(value=divisor)), 1),):
            inner = affine(a)
            return int(divisor), Affine(inner.terms, inner.constant + form.constant * int(divisor))
        case _:
            return 1, form


def _is_within(bound: tile.Expr, loop: warp.Loop) -> bool:
    """Whether there may be iterations on both sides of it."""
    below = (
        isinstance(bound, tile.Const)
        and isinstance(loop.start, tile.Const)
        and int(bound.value) <= int(loop.start.value)
    )
    above = (
        isinstance(bound, tile.Const) and isinstance(loop.stop, tile.Const) and int(bound.value) >= int(loop.stop.value)
    )
    return not below and not above


def _limits(condition: tile.Expr, var: tile.Var, moving: frozenset[tile.Var]) -> Iterator[tile.Binary]:
    """The comparisons in a condition that change their value once as the loop goes on, as `var < …` or `var >= …`."""
    match condition:
        case tile.Unary(op="not", a=a):
            yield from _limits(a, var, moving)
        case tile.Binary(op="and" | "or", a=a, b=b, dtype=dtype) if dtype == BOOL:
            yield from _limits(a, var, moving)
            yield from _limits(b, var, moving)
        case tile.Binary():
            if (found := limit(condition, var, moving)) is not None:
                yield found


def _under(loop: warp.Loop, moving: frozenset[tile.Var], below: dict[tile.Expr, bool]) -> tuple[warp.Operation, ...]:
    """The body, in iterations whose variable is below these bounds, or is not."""

    def known(condition: tile.Expr) -> bool | None:
        match condition:
            case tile.Unary(op="not", a=a):
                value = known(a)
                return None if value is None else not value
            case tile.Binary(op="and" | "or" as op, a=a, b=b, dtype=dtype) if dtype == BOOL:
                either, decisive = (known(a), known(b)), op == "or"
                return decisive if decisive in either else None if None in either else not decisive
            case tile.Binary():
                found = limit(condition, loop.var, moving)
                is_below = None if found is None else below.get(found.b)
                return is_below if is_below is None or (found and found.op == "lt") else not is_below
            case _:
                return None

    made: list[warp.Operation] = []
    for op in loop.body:
        value = known(op.condition) if isinstance(op, warp.Branch) and not op.part else None
        if value is None or not isinstance(op, warp.Branch):
            made.append(op)
        else:
            made += op.then if value else op.orelse
    return tuple(made)
