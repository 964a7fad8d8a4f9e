"""Elements of shared tiles and tensors that a statement certainly accesses, as boxes, for known values of its
variables.

Accesses under a condition, or that no box describes, are left out: every error found with these boxes is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.passes.explicit_roles.known_values import Values
from tilec.passes.layout.shared.named_versions import get_named_versions
from tilec.rewriting.fold_constants import compute_expr
from tilec.support.records import dataclass

_COMMON_SCOPES = ("shared", "global")
Box = tuple[tuple[int, int], ...]
"""The first index and the one past the last, along each dimension."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """A box of a tile, by the tile's name and, if it has versions, the number of this one."""

    tile: str
    version: int | None
    box: Box
    is_write: bool


def find_footprints(stmt: tile.Stmt, values: Values) -> Iterator[Footprint]:
    """Yield the boxes of shared tiles and tensors that a statement certainly reads or writes, for known variables."""
    versions = get_named_versions(stmt)
    numbers = {name: compute_expr(index, values) for name, index in versions.items()}
    found = _find_operation_boxes(stmt, values) if isinstance(stmt, tile.TileOp) else _find_nest_boxes(stmt, values)
    for name, box, is_write in found:
        number = numbers.get(name)
        if number is not None or name not in versions:
            yield Footprint(name, None if number is None else int(number), box, is_write)


TouchedBoxes = Iterator[tuple[str, Box, bool]]


def _find_operation_boxes(op: tile.TileOp, values: Values) -> TouchedBoxes:
    """Yield (buffer name, box, is write) for each region that an operation reads or writes; none if unknown."""
    if not op.reaches_regions:
        return
    read, written = find_reads(op), find_writes(op)
    for region in op.regions:
        box = _clip_box(region.buffer, _evaluate_box(region, values), values)
        if box is not None:
            for is_write, touched in ((False, read), (True, written)):
                if region.buffer in touched:
                    yield region.buffer.name, box, is_write


def _evaluate_box(region: tile.Region, values: Values) -> Box | None:
    """Return the first and past-the-last index of a region in each dimension; None where a start is unknown."""
    starts = [compute_expr(start, values) for start in region.start]
    box = tuple((int(s), int(s) + e) for s, e in zip(starts, region.extent, strict=True) if s is not None)
    return None if None in starts else box


def _clip_box(buffer: tile.Buffer, box: Box | None, values: Values) -> Box | None:
    """Clip a box to a shared tile's or tensor's extents; None for other buffers, unknown extents, or if nothing is
    left."""
    if box is None or buffer.scope not in _COMMON_SCOPES:
        return None
    extents = [e if isinstance(e, int) else compute_expr(e, values) for e in buffer.extents]
    if len(extents) != len(box) or any(e is None for e in extents):
        return None
    clipped = tuple((max(a, 0), min(b, int(e))) for (a, b), e in zip(box, extents, strict=True) if e is not None)
    return clipped if all(a < b for a, b in clipped) else None


def _find_nest_boxes(nest: tile.Stmt, values: Values) -> TouchedBoxes:
    """Yield (buffer name, box, is write) for the stores and loads that an elementwise nest certainly does."""
    if not isinstance(nest, tile.Parallel) or nest.is_per_thread:
        return
    outer_values = {var: value for var, value in values.items() if var != tile.THREAD and var not in nest.vars}
    extents = dict(zip(nest.vars, nest.extents, strict=True))
    for stmt in nest.body:
        if isinstance(stmt, tile.Store):
            for expr in (*stmt.indices, stmt.value):
                yield from _find_load_boxes(expr, extents, outer_values)
            yield from _find_element_box(stmt.buffer, stmt.indices, True, extents, outer_values)
        elif isinstance(stmt, tile.Bind):
            yield from _find_load_boxes(stmt.value, extents, outer_values)


def _find_load_boxes(expr: tile.Expr, extents: Mapping[tile.Var, int], outer_values: Values) -> TouchedBoxes:
    """Yield (buffer name, box, False) for the loads of an expression, except those under a select."""
    if isinstance(expr, tile.Select):  # only one branch is loaded: it may be a bounds check
        return
    if isinstance(expr, tile.Load):
        yield from _find_element_box(expr.buffer, expr.indices, False, extents, outer_values)
    for part in tile.direct_operands(expr):
        yield from _find_load_boxes(part, extents, outer_values)


def _find_element_box(
    buffer: tile.Buffer,
    indices: Sequence[tile.Expr],
    is_write: bool,
    extents: Mapping[tile.Var, int],
    outer_values: Values,
) -> TouchedBoxes:
    """Yield the box that a nest reaches by these indices; nothing if a bound is unknown or elements between are
    skipped."""
    if buffer.scope not in _COMMON_SCOPES:
        return
    box, used = [], set[tile.Var]()
    for index in indices:
        own = {e for e in tile.walk_expr(index) if isinstance(e, tile.Var) and e in extents}
        span = _evaluate_index_range(index, own, extents, outer_values) if len(own) < 2 and not own & used else None
        if span is None:
            return
        used |= own
        box.append(span)
    reached = _clip_box(buffer, tuple(box), outer_values)
    if reached is not None:
        yield buffer.name, reached, is_write


def _evaluate_index_range(
    index: tile.Expr, own: set[tile.Var], extents: Mapping[tile.Var, int], outer_values: Values
) -> tuple[int, int] | None:
    """Return the first and past-the-last value of an index over its nest variable, if any; None if unknown or with
    gaps."""
    if not own:
        only = compute_expr(index, outer_values)
        return None if only is None else (int(only), int(only) + 1)
    (var,) = own
    taken = {compute_expr(index, {**outer_values, var: value}) for value in range(extents[var])}
    found = sorted(int(value) for value in taken if value is not None)
    is_whole = None not in taken and bool(found) and found[-1] - found[0] == len(found) - 1
    return (found[0], found[-1] + 1) if is_whole else None
