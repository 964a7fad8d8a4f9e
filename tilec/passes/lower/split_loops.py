"""Split steady states at thresholds: below one a condition on the loop's variable has one value, above it the other, so
that neither piece tests it.

The program has its waits, and every piece has all of them: loads and products continue from one piece to the next as in
one loop, through the same rings and with the same schedule. A piece may have any number of iterations, or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.analysis.thresholds import find_threshold
from tilec.ir import tile, warp
from tilec.ir.affine import Affine, affine_form
from tilec.ir.rewrite import rewrite_statements
from tilec.ir.types import BOOL

MAX_THRESHOLDS = 2
"""A window has two: the end of its first block of keys, and the start of its last one."""


def split_loops(program: warp.Program) -> warp.Program:
    """Split steady loops where a condition on the loop's variable changes, unless the kernel has only one role.

    A single role has no registers to spare for what the assembler keeps from one piece to the next, and kernels that
    just fit spill."""
    if len(program.roles) == 1:
        return program

    def split_steady_state(op: warp.Operation) -> warp.Operation | tuple[warp.Operation, ...]:
        """Return a steady loop split at its thresholds; any other operation as it is."""
        return tuple(_split_loop(op)) if isinstance(op, warp.Loop) and op.part == "steady" else op

    split = (replace(role, body=rewrite_statements(role.body, split_steady_state)) for role in program.roles)
    return replace(program, roles=tuple(split))


def _split_loop(loop: warp.Loop) -> Iterator[warp.Operation]:
    """Yield a loop with a phase for each of the first two thresholds of its branches, after definitions of computed
    ones."""
    moving = frozenset({loop.var, *(op.var for op in warp.walk_operations(loop.body) if isinstance(op, warp.Let))})
    branches = [op for op in loop.body if isinstance(op, warp.Branch) and not op.part]
    found = (each for op in branches for each in _find_thresholds(op.condition, loop.var, moving))
    bounds = [bound for bound in dict.fromkeys(each.b for each in found) if _is_inside_loop(bound, loop)]
    bounds, is_sorted = _sort_bounds(bounds[:MAX_THRESHOLDS])
    pieces = [
        _specialise_body(loop, moving, {**dict.fromkeys(bounds[:n], False), **dict.fromkeys(above, True)})
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


def _sort_bounds(bounds: list[tile.Expr]) -> tuple[list[tile.Expr], bool]:
    """Return thresholds sorted, and True, if they differ by constants; else as they are, and False. Sorted, a value
    below one is below those after it; else iterations are right in any order."""
    forms = [_find_numerator(bound) for bound in bounds]
    if len({(divisor, form.terms) for divisor, form in forms}) > 1:
        return bounds, False
    return [bounds[n] for n in sorted(range(len(bounds)), key=lambda n: forms[n][1].constant)], True


def _find_numerator(bound: tile.Expr) -> tuple[int, Affine]:
    """Return a divisor d and a sum so that the bound equals ⌊sum / d⌋; d is 1 for a bound that is no division."""
    form = affine_form(bound)
    match form.terms:
        case ((tile.Binary(op="floordiv", a=a, b=tile.Const(value=divisor)), 1),):
            inner = affine_form(a)
            return int(divisor), Affine(inner.terms, inner.constant + form.constant * int(divisor))
        case _:
            return 1, form


def _is_inside_loop(bound: tile.Expr, loop: warp.Loop) -> bool:
    """Return True unless the loop certainly has no iterations on one of the two sides of the bound."""
    if not isinstance(bound, tile.Const):
        return True
    below = isinstance(loop.start, tile.Const) and int(bound.value) <= int(loop.start.value)
    above = isinstance(loop.stop, tile.Const) and int(bound.value) >= int(loop.stop.value)
    return not below and not above


def _find_thresholds(condition: tile.Expr, var: tile.Var, moving: frozenset[tile.Var]) -> Iterator[tile.Binary]:
    """Yield the comparisons in a condition that change their value once in the loop, as `var < …` or `var >= …`."""
    match condition:
        case tile.Unary(op="not", a=a):
            yield from _find_thresholds(a, var, moving)
        case tile.Binary(op="and" | "or", a=a, b=b, dtype=dtype) if dtype == BOOL:
            yield from _find_thresholds(a, var, moving)
            yield from _find_thresholds(b, var, moving)
        case tile.Binary():
            if (found := find_threshold(condition, var, moving)) is not None:
                yield found


def _specialise_body(
    loop: warp.Loop, moving: frozenset[tile.Var], below: dict[tile.Expr, bool]
) -> tuple[warp.Operation, ...]:
    """Return the loop's body with branches decided for iterations below these bounds (True) or not below (False)."""

    def evaluate_condition(condition: tile.Expr) -> bool | None:
        """Return the value of a condition for iterations on the known sides of the bounds; None if unknown."""
        match condition:
            case tile.Unary(op="not", a=a):
                value = evaluate_condition(a)
                return None if value is None else not value
            case tile.Binary(op="and" | "or" as op, a=a, b=b, dtype=dtype) if dtype == BOOL:
                either, decisive = (evaluate_condition(a), evaluate_condition(b)), op == "or"
                return decisive if decisive in either else None if None in either else not decisive
            case tile.Binary():
                found = find_threshold(condition, loop.var, moving)
                is_below = None if found is None else below.get(found.b)
                return is_below if is_below is None or (found and found.op == "lt") else not is_below
            case _:
                return None

    made: list[warp.Operation] = []
    for op in loop.body:
        value = evaluate_condition(op.condition) if isinstance(op, warp.Branch) and not op.part else None
        if value is None or not isinstance(op, warp.Branch):
            made.append(op)
        else:
            made += op.then if value else op.orelse
    return tuple(made)
