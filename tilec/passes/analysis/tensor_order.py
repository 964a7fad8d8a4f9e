"""Which accesses to a tensor must keep their order, because they may meet in one place.

TMA writes when it likes: a store through it would have to be waited for in full before another one to the same place.
So it is left to tensors of which every place is written by one statement, once.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilec.ir.affine import affine
from tilec.ir.tile import (
    Bind,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Region,
    Stmt,
    TileOp,
    Var,
    While,
    bodies,
    substitute,
    walk,
    walk_expr,
)
from tilec.ops.four_rows import Scatter4
from tilec.passes.analysis.usage import reads, writes
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class _Trips:
    """A variable whose values tell the trips of a loop apart: `step` from one to the next, `count` of them (None: any
    number). A `while` has no such variable."""

    var: str
    step: int = 1
    count: int | None = None


def ordered_tensors(kernel: Kernel) -> frozenset[str]:
    """Tensors whose accesses must keep their order: written in one place and touched in another, or again and again in
    what may be the same place."""
    places: dict[str, int] = {}
    written: set[str] = set()
    scattered: set[str] = set()
    telling = {name for stmt in walk(kernel.body) if isinstance(stmt, For) for name in stmt.apart or ()}

    def visit(body: tuple[Stmt, ...], loops: tuple[_Trips, ...], values: dict[Var, Expr]) -> None:
        for stmt in body:
            if isinstance(stmt, For | If | While):
                for nested in bodies(stmt):
                    visit(nested, (*loops, *_told_apart(stmt)), dict(values))
                continue
            if isinstance(stmt, Bind):
                if stmt.var.name not in telling and not any(isinstance(e, Load) for e in walk_expr(stmt.value)):
                    values[stmt.var] = substitute(stmt.value, values)
                continue
            touched: tuple[Buffer, ...] = (*reads(stmt), *writes(stmt))
            is_commuting = isinstance(stmt, TileOp) and stmt.commutes
            if is_commuting:  # additions to one place may come in any order
                touched = tuple(dict.fromkeys(touched))
            if isinstance(stmt, Scatter4):  # of rows named twice it says no more either
                is_commuting = True
                touched = tuple(b for b in touched if b.name not in scattered)
                scattered.update(b.name for b in writes(stmt))
            for b in touched:
                places[b.name] = places.get(b.name, 0) + 1
            for b in writes(stmt):
                written.add(b.name)
                places[b.name] += bool(loops) and not is_commuting and not _moves(stmt, b, loops, values)

    visit(kernel.body, (), {})
    return frozenset(
        p.name
        for p in (*kernel.params, *kernel.workspaces)
        if isinstance(p, Buffer) and p.name in written and places[p.name] > 1
    )


def _told_apart(stmt: For | If | While) -> tuple[_Trips, ...]:
    match stmt:
        case For(apart=tuple(names)):
            return tuple(map(_Trips, names))
        case For(var=var, start=Const(value=start), stop=Const(value=stop), step=step):
            return (_Trips(var.name, step, len(range(int(start), int(stop), step))),)
        case For(var=var, step=step):
            return (_Trips(var.name, step),)
        case While():
            return (_Trips(""),)
        case If():
            return ()


def _moves(stmt: Stmt, tensor: Buffer, loops: tuple[_Trips, ...], values: Mapping[Var, Expr]) -> bool:
    """Whether what the statement writes of the tensor is another place in each trip of these loops."""
    if not isinstance(stmt, TileOp) or tensor.strides is not None:  # strides may make rows overlap
        return False
    regions = [r for r in stmt.regions if r.buffer == tensor]
    return len(regions) == 1 and {t.var for t in loops} <= _distinguished(regions[0], loops, values)


def _distinguished(region: Region, loops: tuple[_Trips, ...], values: Mapping[Var, Expr]) -> set[str]:
    """The variables of which no two values give boxes that overlap, whatever the values of the others.

    Along one dimension the box starts at a sum of multiples of variables. Taken by the length of their steps, each
    must step over all that the shorter ones reach, as the digits of a number do.
    """
    found: set[str] = set()
    for start, extent in zip(region.start, region.extent, strict=True):
        steps: list[tuple[int, int | None, str]] = []
        is_sum = True
        for atom, coefficient in affine(substitute(start, values)).terms:
            inside = {e.name for e in walk_expr(atom) if isinstance(e, Var)}
            moving = [t for t in loops if t.var in inside]
            if isinstance(atom, Var):
                steps += ((abs(coefficient) * t.step, t.count, t.var) for t in moving)
            else:
                is_sum &= not moving
        reach: int | None = extent
        for step, count, _ in sorted(steps, key=lambda item: item[0]):
            is_sum &= reach is not None and step >= reach
            reach = None if reach is None or count is None else reach + step * max(count - 1, 0)
        if is_sum:
            found |= {var for _, _, var in steps}
    return found
