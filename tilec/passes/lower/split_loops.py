"""Split steady states at thresholds: below one a condition on the loop's variable has one value, above it the other, so
that neither piece tests it.

The program has its waits, and every piece has all of them: loads and products continue from one piece to the next as in
one loop, through the same rings and with the same schedule. A piece may have any number of iterations, or none.
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
"""A window has two: the end of its first block of keys, and the start of its last one."""


def split(program: warp.Program) -> warp.Program:
    """Split loops where loads have a role of their own. A single role has no registers to spare for what the assembler
    keeps from one piece to the next: kernels that just fit spill."""
    if len(program.roles) == 1:
        return program
    return replace(program, roles=tuple(replace(role, body=_body(role.body)) for role in program.roles))


def _body(body: tuple[warp.Operation, ...]) -> tuple[warp.Operation, ...]:
    return rewrite(body, lambda op: tuple(_pieces(op)) if isinstance(op, warp.Loop) and op.part == "steady" else op)


def _pieces(loop: warp.Loop) -> Iterator[warp.Operation]:
    """Yield the split loop, and before it definitions of the thresholds that are no constants."""
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
            bound_var = tile.Var(f"{loop.var.name}.until.{n}")
            yield warp.Let(bound_var, bound, moment=loop.moment, span=loop.span)
            bound = bound_var
        phases.append(warp.Phase(bound, pieces[n]))
    yield replace(loop, body=pieces[-1], phases=tuple(phases)) if phases else loop


def _ascending(bounds: list[tile.Expr]) -> tuple[list[tile.Expr], bool]:
    """Return the thresholds sorted, and True, if they differ by constants: then a value below one is below those after
    it. Else return them as they are, and False: iterations are right in any order."""
    forms = [_numerator(bound) for bound in bounds]
    if len({(divisor, form.terms) for divisor, form in forms}) > 1:
        return bounds, False
    return [bounds[n] for n in sorted(range(len(bounds)), key=lambda n: forms[n][1].constant)], True


def _numerator(bound: tile.Expr) -> tuple[int, Affine]:
    """Return d and a sum so that the bound is ⌊sum / d⌋."""
    form = affine(bound)
    match form.terms:
        case ((tile.Binary(op="floordiv", a=a, b=tile.Const(value=divisor)), 1),):
            inner = affine(a)
            return int(divisor), Affine(inner.terms, inner.constant + form.constant * int(divisor))
        case _:
            return 1, form


def _is_within(bound: tile.Expr, loop: warp.Loop) -> bool:
    """Return True if there may be iterations on both sides of the bound."""
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
    """Yield the comparisons in a condition that change their value once in the loop, as `var < …` or `var >= …`."""
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
    """Return the body for iterations whose variable is below these bounds (True), or is not (False)."""

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
