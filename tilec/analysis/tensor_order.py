"""Tensors whose accesses must keep their order, because two may reach one element.

TMA writes are asynchronous: a store would have to be waited for in full before another one to the same element. So TMA
is left to tensors of which every element is written by one statement, once.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.affine import affine_form, reads_elements
from tilec.ops.copies.four_rows import Scatter4
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class _LoopIterations:
    """A variable that distinguishes the iterations of a loop: `step` from one to the next, `count` of them (None:
    unknown). A `while` has no such variable."""

    var: str
    step: int = 1
    count: int | None = None


def find_ordered_tensors(kernel: tile.Kernel) -> frozenset[str]:
    """Return the tensors whose accesses must keep their order: written, and touched twice or in the same place
    again. Operations that commute, and scatters among themselves, do not count twice."""
    places: dict[str, int] = {}
    written: set[str] = set()
    scattered: set[str] = set()
    telling = {
        name
        for stmt in tile.walk_statements(kernel.body)
        if isinstance(stmt, tile.For)
        for name in stmt.distinct_by or ()
    }

    def visit_body(
        body: tuple[tile.Stmt, ...], loops: tuple[_LoopIterations, ...], values: dict[tile.Var, tile.Expr]
    ) -> None:
        """Count the touches of each tensor in `places`, one more for a write that a loop may repeat in place. Adds
        to `written` and `scattered`, too."""
        for stmt in body:
            if isinstance(stmt, tile.For | tile.If | tile.While):
                for nested in tile.nested_bodies(stmt):
                    visit_body(nested, (*loops, *_find_iterations(stmt)), dict(values))
                continue
            if isinstance(stmt, tile.Bind):
                if stmt.var.name not in telling and not reads_elements(stmt.value):
                    values[stmt.var] = tile.substitute_variables(stmt.value, values)
                continue
            touched: tuple[tile.Buffer, ...] = (*find_reads(stmt), *find_writes(stmt))
            is_commuting = isinstance(stmt, tile.TileOp) and stmt.commutes
            if is_commuting:  # additions to one place may come in any order
                touched = tuple(dict.fromkeys(touched))
            if isinstance(stmt, Scatter4):  # rows named twice have no order either
                is_commuting = True
                touched = tuple(b for b in touched if b.name not in scattered)
                scattered.update(b.name for b in find_writes(stmt))
            for b in touched:
                places[b.name] = places.get(b.name, 0) + 1
            for b in find_writes(stmt):
                written.add(b.name)
                places[b.name] += (
                    bool(loops) and not is_commuting and not _moves_every_iteration(stmt, b, loops, values)
                )

    visit_body(kernel.body, (), {})
    return frozenset(
        p.name
        for p in (*kernel.params, *kernel.workspaces)
        if isinstance(p, tile.Buffer) and p.name in written and places[p.name] > 1
    )


def _find_iterations(stmt: tile.For | tile.If | tile.While) -> tuple[_LoopIterations, ...]:
    """Return the variables that tell a statement's iterations apart, one for a loop or several; none for an `if`."""
    match stmt:
        case tile.For(distinct_by=tuple(names)):
            return tuple(map(_LoopIterations, names))
        case tile.For(var=var, start=tile.Const(value=start), stop=tile.Const(value=stop), step=step):
            return (_LoopIterations(var.name, step, len(range(int(start), int(stop), step))),)
        case tile.For(var=var, step=step):
            return (_LoopIterations(var.name, step),)
        case tile.While():
            return (_LoopIterations(""),)
        case tile.If():
            return ()


def _moves_every_iteration(
    stmt: tile.Stmt, tensor: tile.Buffer, loops: tuple[_LoopIterations, ...], values: Mapping[tile.Var, tile.Expr]
) -> bool:
    """Return True if the tile operation surely writes another box of the tensor in each iteration; False with
    strides."""
    if not isinstance(stmt, tile.TileOp) or tensor.strides is not None:  # strides may make rows overlap
        return False
    regions = [r for r in stmt.regions if r.buffer == tensor]
    return len(regions) == 1 and {t.var for t in loops} <= _find_distinguished_variables(regions[0], loops, values)


def _find_distinguished_variables(
    region: tile.Region, loops: tuple[_LoopIterations, ...], values: Mapping[tile.Var, tile.Expr]
) -> set[str]:
    """Return the loop variables for which two different values never give overlapping boxes of the tensor.

    Along one dimension the box starts at a sum of multiples of variables. Sorted by step, each must step over the whole
    range of the smaller ones, as the digits of a number do."""
    found: set[str] = set()
    for start, extent in zip(region.start, region.extent, strict=True):
        steps: list[tuple[int, int | None, str]] = []
        is_sum = True
        for atom, coefficient in affine_form(tile.substitute_variables(start, values)).terms:
            inside = {v.name for v in tile.find_variables(atom)}
            moving = [t for t in loops if t.var in inside]
            if isinstance(atom, tile.Var):
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
