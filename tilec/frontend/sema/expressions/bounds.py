"""Bounds checks of tile indices, from the values that block indices and loop variables take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.statements.private_fragments import (
    expected_spread,
    may_be_of_another_thread,
    record_private_use,
)
from tilec.ir import tile
from tilec.ir.affine import Affine, affine_form
from tilec.ops.language.values import Access, IndexRange, show_shape
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span

ValueRanges = Mapping[str, tuple[int, int]]
"""The smallest and largest values of variables, by name."""


def check_access(context: Context, access: Access, span: Span, verb: Literal["read", "written"]) -> None:
    """Raise an error for an index outside a tile, an element in tensor memory, or a fragment's outside T.Parallel.
    Indices of tensors, and those under a condition, are not checked. Errors: `fragment-index`, `wrong-scope`,
    `out-of-range`.
    """
    buffer = access.buffer
    # Every thread has a copy of a single element.
    is_copied = buffer.name in context.variable_names or (verb == "read" and buffer.extents == (1,))
    if buffer.scope not in ("global", "tmem") and not context.guards:
        check_element(context, buffer, access.indices, span)
    is_spread = buffer.scope == "fragment" and not context.is_parallel and not is_copied
    record_private_use(context, buffer, verb)
    if is_spread or may_be_of_another_thread(context, buffer, access.indices):
        title = f"an element of {buffer.name} is {verb} outside T.Parallel"
        note = "a fragment is spread over the threads"
        with expected_spread(context, buffer):
            raise_error("fragment-index", title, span, note, help="write `for i in T.Parallel(n):` around it")
    if buffer.scope == "tmem":
        title = f"an element of {buffer.name} is {verb}, which is in tensor memory"
        place = Label(buffer.span, "allocated here")
        raise_error("wrong-scope", title, span, secondary=(place,), help="T.copy it to a fragment first")


def check_loads(context: Context, expr: tile.Expr, span: Span) -> None:
    """Check the scope and bounds of every buffer element that an expression loads, raising an error for a bad one."""
    for part in tile.walk_expr(expr):
        if isinstance(part, tile.Load):
            check_access(context, Access(part.buffer, part.indices), span, "read")


def check_element(
    context: Context, buffer: tile.Buffer, indices: tuple[tile.Expr | IndexRange, ...], span: Span
) -> None:
    """Raise `out-of-range` if an element's index can leave its tile; slices and unknown ranges are not checked."""
    for index, size in zip(indices, buffer.shape, strict=True):
        if not isinstance(index, IndexRange):
            _check_extent(context, buffer, index, 1, size, span, "index")


def check_box(context: Context, region: tile.Region) -> None:
    """Raise `out-of-range` if a box can leave its tile for some values of variables with known ranges."""
    for start, extent, size in zip(region.start, region.extent, region.buffer.shape, strict=True):
        _check_extent(context, region.buffer, start, extent, size, region.span, "box")


def _check_extent(
    context: Context, buffer: tile.Buffer, start: tile.Expr, extent: int, size: int, span: Span, subject: str
) -> None:
    """Raise `out-of-range` if `start` up to `start + extent` can leave 0 to `size`; skip variables without known
    ranges.
    """
    form, ranges = affine_form(start), context.ranges
    if not all(isinstance(atom, tile.Var) and atom.name in ranges for atom, _ in form.terms):
        return
    low, high = _find_extreme(form, ranges, 0), _find_extreme(form, ranges, 1)
    if low >= 0 and high + extent <= size:
        return
    last = high + extent - 1
    reach = f"{low}" if low == last else f"{low} to {last}"
    title = f"the {subject} is out of the bounds of {buffer.name}"
    note = f"reaches {reach} in a dimension of {size}{_describe_extreme(form, ranges, 0 if low < 0 else 1)}"
    place = Label(buffer.span, f"shape {show_shape(buffer.shape)}")
    raise_error("out-of-range", title, span, note, secondary=(place,), help=_suggest_fix(context, buffer, form))


def _suggest_fix(context: Context, buffer: tile.Buffer, form: Affine) -> str | None:
    """Return advice to remove block indices from an index of a tile, or None if it has none."""
    numbers = [var.name for var, _ in context.blocks if any(atom == var for atom, _ in form.terms)]
    if not numbers:
        return None
    return f"each block has its own {buffer.name}, whose indices begin at 0: remove {' and '.join(numbers)}"


def _find_extreme(form: Affine, ranges: ValueRanges, upper: int) -> int:
    """Return the largest (`upper` = 1) or smallest (0) value of an affine form over its variables' ranges."""
    return form.constant + sum(factor * _find_extreme_value(atom, factor, ranges, upper) for atom, factor in form.terms)


def _find_extreme_value(atom: tile.Expr, factor: int, ranges: ValueRanges, upper: int) -> int:
    """Return the end of a variable's range at which `factor * variable` is largest (`upper` = 1) or smallest (0)."""
    assert isinstance(atom, tile.Var)
    return ranges[atom.name][upper if factor > 0 else 1 - upper]


def _describe_extreme(form: Affine, ranges: ValueRanges, upper: int) -> str:
    """Return ", where i = 7 and j = 0": the variable values at which a form is extreme; empty without variables."""
    variables = ((atom, factor) for atom, factor in form.terms if isinstance(atom, tile.Var))
    at = [f"{var.name} = {_find_extreme_value(var, factor, ranges, upper)}" for var, factor in variables]
    return f", where {' and '.join(at)}" if at else ""
