"""Puts the tensors and tiles themselves in place of their views: indices computed anew, boxes moved where they stay
boxes, copies of others written out element by element.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

from tilec.diag import Label, fail
from tilec.ir.affine import add, scale
from tilec.ir.expr import cast, constant
from tilec.ir.tile import (
    Attr,
    Binary,
    Bind,
    Break,
    Buffer,
    Call,
    Const,
    Expr,
    For,
    If,
    Load,
    Parallel,
    Print,
    Region,
    Select,
    Stmt,
    Store,
    TileOp,
    Var,
    While,
    children,
    integer,
    with_children,
)
from tilec.ir.types import BOOL, INT32, UINT8, UINT16, UINT32, UINT64, DType
from tilec.ops import registry
from tilec.ops.fill import fill_value
from tilec.ops.signature import Call as Arguments
from tilec.ops.signature import as_dtype, as_shape
from tilec.ops.values import describe, show_shape
from tilec.passes.fold import fold_expr
from tilec.passes.pointers import strided
from tilec.passes.scope import UniqueNames
from tilec.passes.wishes import expanded

Group = tuple[range, range]


def view(call: Arguments, names: UniqueNames) -> tuple[Buffer, Buffer]:
    """What a call of T.reshape or T.view gives: a buffer that stands for another one, and that one."""
    source = call["src"].value
    if not isinstance(source, Buffer):
        call.refuse("src", "a whole tensor or tile")
    assert isinstance(source, Buffer)
    if source.is_dynamic:
        fail(
            "runtime-shape",
            f"{call.name} of a tensor whose shape is known at launch",
            call["src"].span,
            f"this is {describe(source)}",
        )
    strided(call, source)
    dtype = source.dtype
    if "dtype" in call.arguments and call["dtype"].value is not None:
        dtype = as_dtype(call["dtype"])
    resized = dtype.bits != source.dtype.bits
    if dtype != source.dtype and (
        BOOL in (dtype, source.dtype) or (resized and min(dtype.bits, source.dtype.bits) < 8)
    ):
        fail(
            "wrong-dtype",
            f"{source.dtype} cannot be seen as {dtype}",
            call["dtype"].span,
            "elements of less than a byte stay as they are",
            secondary=(Label(source.span, "from here"),),
            help="put elements together with shifts, and take them apart with T.reinterpret",
        )
    has_shape = call["shape"].value is not None
    alike = _resized(source.shape, source.dtype, dtype)
    shape = as_shape(call["shape"], f"the shape of {call.name}") if has_shape else alike
    total = math.prod(source.shape) * source.dtype.bits // dtype.bits
    if shape is None or math.prod(shape) != total or _resized(shape, dtype, source.dtype) is None:
        found = f"{source.name} has rows of {source.shape[-1]} elements" if shape is None else f"{show_shape(shape)}"
        fail(
            "shape-mismatch",
            f"{call.name} keeps all elements" if not resized else f"{call.name} keeps all bytes of each row",
            call["shape" if has_shape else "dtype"].span,
            f"{found}, of which {total} of {dtype} are to be made"
            if resized
            else f"{show_shape(shape or ())} has {math.prod(shape or ())}, {source.name} has {total}",
            secondary=(Label(source.span, f"{source.dtype}{show_shape(source.shape)}"),),
        )
    return Buffer(names.take(f"{source.name}_view"), shape, dtype, source.scope, call.span), source


def _resized(shape: tuple[int, ...], dtype: DType, other: DType) -> tuple[int, ...] | None:
    """The shape whose rows have the same bytes in elements of the other type; None where there is none."""
    row, rest = divmod(shape[-1] * dtype.bits, other.bits)
    return None if rest else (*shape[:-1], row)


def without_views(
    body: tuple[Stmt, ...], views: Mapping[str, Buffer], names: UniqueNames
) -> tuple[tuple[Stmt, ...], tuple[Buffer, ...]]:
    """The statements, on what the views are views of; and the tiles that they need for it."""
    rewritten = _Views(views, names)
    return (rewritten.body(body) if views else body), tuple(rewritten.made)


class _Views:
    def __init__(self, views: Mapping[str, Buffer], names: UniqueNames) -> None:
        self.views, self.names = views, names
        self.made: list[Buffer] = []

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(new for s in body for new in self.stmt(s))

    def stmt(self, stmt: Stmt) -> tuple[Stmt, ...]:
        match stmt:
            case TileOp():
                return self.operation(stmt)
            case Print(values=values):
                return (replace(stmt, values=tuple(map(self.expr, values))),)
            case Store():
                return self.store(stmt)
            case Bind(value=value):
                return (replace(stmt, value=self.expr(value)),)
            case Parallel(body=body):
                return (replace(stmt, body=self.body(body)),)
            case For(start=start, stop=stop, body=body):
                loop = replace(stmt, start=self.expr(start), stop=self.expr(stop))
                return (expanded(loop, [self.stmt(s) for s in body]),)
            case If(condition=condition, then=then, orelse=orelse):
                holds = self.expr(condition)
                return (replace(stmt, condition=holds, then=self.body(then), orelse=self.body(orelse)),)
            case While(condition=condition, body=body):
                return (replace(stmt, condition=self.expr(condition), body=self.body(body)),)
            case Break():
                return (stmt,)

    def store(self, store: Store) -> tuple[Stmt, ...]:
        """To a view of wider elements, all parts of one."""
        value, buffer = self.expr(store.value), store.buffer
        indices = tuple(self.expr(i) for i in store.indices)
        if buffer.name not in self.views:
            return (replace(store, indices=indices, value=value),)
        source = self.views[buffer.name]
        if buffer.dtype != source.dtype and (store.atomic is not None or buffer.dtype.bits < source.dtype.bits):
            what = "an atomic on" if store.atomic is not None else "an element is set through"
            fail(
                "wrong-dtype",
                f"{what} a view of {source.name} as {buffer.dtype}",
                store.span,
                f"{source.name} holds {source.dtype}",
                secondary=(Label(buffer.span, "the view"),),
                help="use the type that the elements have"
                if store.atomic is not None
                else f"allocate the tile as {buffer.dtype}, and see it as {source.dtype} where that is read",
            )
        made: list[Stmt] = []
        for part, place in enumerate(places(buffer, source, indices)):
            made.append(replace(store, buffer=source, indices=place, value=_part(value, source.dtype, part)))
        exists = inside(buffer, source, indices)
        return tuple(made) if exists is None else (If(exists, tuple(made), (), store.span),)

    def expr(self, expr: Expr) -> Expr:
        expr = with_children(expr, tuple(self.expr(c) for c in children(expr)))
        if not isinstance(expr, Load) or expr.buffer.name not in self.views:
            return expr
        source = self.views[expr.buffer.name]
        value = _seen(expr.buffer, source, expr.indices)
        exists = inside(expr.buffer, source, expr.indices)
        return value if exists is None else Select(exists, value, constant(0, expr.dtype), expr.dtype)

    # ---- operations on tiles -----------------------------------------------------------------------------------------

    def operation(self, op: TileOp) -> tuple[Stmt, ...]:
        op = replace(
            op,
            regions=tuple(replace(r, start=tuple(self.expr(s) for s in r.start)) for r in op.regions),
            attrs=tuple((key, self.attr(value)) for key, value in op.attrs),
        )
        if not any(r.buffer.name in self.views for r in op.regions):
            return (op,)
        if op.name not in ("copy", "fill"):
            return self.on_a_copy(op)
        boxes = tuple(box for r in op.regions if (box := self.box(r)) is not None)
        if len(boxes) == len(op.regions):
            return (replace(op, regions=boxes),)
        return self.stmt(self.elements(op))

    def on_a_copy(self, op: TileOp) -> tuple[Stmt, ...]:
        """An operation that knows whole tiles only gets tiles of the views' shapes."""
        effects = registry.get(op.name).effects(op)
        before: list[Stmt] = []
        after: list[Stmt] = []
        regions: list[Region] = []
        for region in op.regions:
            seen = region.buffer
            if seen.name not in self.views:
                regions.append(region)
                continue
            if seen.scope == "global":
                fail(
                    "wrong-scope",
                    f"T.{op.name} works on tensors and tiles, not on views of tensors",
                    op.span,
                    f"{self.views[seen.name].name} is meant in another shape",
                    secondary=(Label(seen.span, "the view"),),
                    help="work on a tile, and T.copy that to the view",
                )
            tile = replace(seen, name=self.names.take(f"{seen.name}_copy"), span=op.span)
            self.made.append(tile)
            whole, of_view = (Region(b, tuple(integer(0) for _ in b.shape), b.shape, op.span) for b in (tile, seen))
            if region in effects.reads or not region.is_whole:
                before += self.stmt(TileOp("copy", (of_view, whole), (), op.span))
            if region in effects.writes:
                after += self.stmt(TileOp("copy", (whole, of_view), (), op.span))
            regions.append(replace(region, buffer=tile))
        return *before, replace(op, regions=tuple(regions)), *after

    def attr(self, value: Attr) -> Attr:
        return value if value is None or isinstance(value, int | float | bool | str) else self.expr(value)

    def box(self, region: Region) -> Region | None:
        """The same elements in the same order as a box of what the view is a view of, if they are one."""
        source = self.views.get(region.buffer.name)
        if source is None:
            return region
        if source.dtype != region.buffer.dtype:
            return None
        start: list[Expr] = []
        extent: list[int] = []
        for mine, its in groups(region.buffer.shape, source.shape):
            sizes, others = [region.buffer.shape[d] for d in mine], [source.shape[d] for d in its]
            extents = [region.extent[d] for d in mine]
            if len(its) == 1:
                starts = [region.start[d] for d in mine]
                first = next((k for k, e in enumerate(extents) if e != 1), len(mine) - 1)
                inner = zip(starts[first + 1 :], extents[first + 1 :], sizes[first + 1 :], strict=True)
                if any(e != size or at != integer(0) for at, e, size in inner):
                    return None
                if first and not _ends_within(starts[first], extents[first], sizes[first]):
                    return None
                start.append(fold_expr(_linear(starts, sizes)))
                extent.append(math.prod(extents))
            elif extents == sizes:
                start += [integer(0)] * len(its)
                extent += others
            else:
                return None
        box = Region(source, tuple(start), tuple(extent), region.span)
        return box if box.shape == region.shape else None

    def elements(self, op: TileOp) -> Parallel:
        """A copy or a fill, element by element."""
        *sources, destination = op.regions
        shape = destination.shape
        variables = tuple(Var(self.names.take("element")) for _ in shape)

        def at(region: Region) -> tuple[Expr, ...]:
            if all(extent == 1 for extent in region.extent):
                return region.start
            walked = iter(variables)
            places = zip(region.start, region.extent, strict=True)
            return tuple(fold_expr(add(next(walked), start)) if extent != 1 else start for start, extent in places)

        value = Load(sources[0].buffer, at(sources[0])) if sources else fill_value(op)
        store = Store(destination.buffer, at(destination), cast(value, destination.buffer.dtype), op.span)
        return Parallel(variables, shape, (store,), op.span)


def groups(mine: tuple[int, ...], its: tuple[int, ...]) -> Iterator[Group]:
    """Dimensions of two shapes of as many elements that correspond: as few at a time as have as many elements."""
    ends = [list(accumulate(shape, operator.mul)) for shape in (mine, its)]
    first = (0, 0)
    for count in sorted(set(ends[0]) & set(ends[1])):
        i, j = (len(end) - end[::-1].index(count) for end in ends)
        yield range(first[0], i), range(first[1], j)
        first = (i, j)


def moved(seen: Buffer, source: Buffer, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The indices of the same element in what is seen in another shape."""
    found: list[Expr] = []
    for mine, its in groups(seen.shape, source.shape):
        whole = fold_expr(_linear([indices[d] for d in mine], [seen.shape[d] for d in mine]))
        below = math.prod(source.shape[d] for d in its)
        for place, d in enumerate(its):
            below //= source.shape[d]
            digit = whole if below == 1 else Binary("floordiv", whole, integer(below), INT32)
            if place:  # of the first there may be too many: then the element lies outside, as it did
                digit = Binary("floormod", digit, integer(source.shape[d]), INT32)
            found.append(fold_expr(digit))
    return tuple(found)


def inside(seen: Buffer, source: Buffer, indices: tuple[Expr, ...]) -> Expr | None:
    """The condition without which an index leaves a tensor's view and would meet another element; None: never."""
    if source.scope != "global":
        return None
    total: Expr | None = None
    for mine, its in groups(seen.shape, source.shape):
        for d in mine[1:] if len(its) == 1 else mine if len(mine) > 1 else ():
            index, extent = indices[d], integer(seen.shape[d])
            if isinstance(index, Const) and 0 <= index.value < seen.shape[d]:
                continue
            above = Binary("ge", cast(index, INT32), integer(0), BOOL)
            below = Binary("lt", cast(index, INT32), extent, BOOL)
            both = Binary("and", above, below, BOOL)
            total = both if total is None else Binary("and", total, both, BOOL)
    return total


def _ends_within(start: Expr, extent: int, size: int) -> bool:
    return isinstance(start, Const) and 0 <= start.value <= size - extent


def _linear(indices: list[Expr], shape: list[int]) -> Expr:
    total: Expr = integer(0)
    for index, extent in zip(indices, shape, strict=True):
        total = add(scale(total, extent), cast(index, INT32))
    return total


# ---- elements of another size ----------------------------------------------------------------------------------------


def places(seen: Buffer, source: Buffer, indices: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], ...]:
    """The indices of the elements that an element of the view is made of; of a narrower one, of that it is part of."""
    ratio = max(seen.dtype.bits // source.dtype.bits, 1)
    shape = _resized(seen.shape, seen.dtype, source.dtype)
    assert shape is not None, "a view has whole elements in each row"
    alike = replace(seen, extents=shape, dtype=source.dtype)
    *others, last = indices
    if seen.dtype.bits < source.dtype.bits:
        parts = integer(source.dtype.bits // seen.dtype.bits)
        return (moved(alike, source, (*others, fold_expr(Binary("floordiv", last, parts, INT32)))),)
    return tuple(moved(alike, source, (*others, add(scale(last, ratio), integer(part)))) for part in range(ratio))


def _seen(seen: Buffer, source: Buffer, indices: tuple[Expr, ...]) -> Expr:
    """An element of the view."""
    loads = [Load(source, place) for place in places(seen, source, indices)]
    wide, narrow = seen.dtype.bits, source.dtype.bits
    if wide == narrow:
        return _as(loads[0], seen.dtype)
    if wide < narrow:
        word = _UNSIGNED[narrow]
        part: Expr = Binary("floormod", cast(indices[-1], INT32), integer(narrow // wide), INT32)
        by = cast(fold_expr(scale(part, wide)), word)
        return _as(cast(Binary("shr", _as(loads[0], word), by, word), _UNSIGNED[wide]), seen.dtype)
    word = _UNSIGNED[wide]
    total: Expr | None = None
    for number, load in enumerate(loads):
        part = cast(_as(load, _UNSIGNED[narrow]), word)
        placed = Binary("shl", part, constant(number * narrow, word), word) if number else part
        total = placed if total is None else Binary("bitor", total, placed, word)
    assert total is not None
    return _as(total, seen.dtype)


def _part(value: Expr, dtype: DType, number: int) -> Expr:
    """The bits of a value from `number` elements of this type on."""
    if value.dtype.bits == dtype.bits:
        return _as(value, dtype)
    word = _UNSIGNED[value.dtype.bits]
    shifted = Binary("shr", _as(value, word), constant(number * dtype.bits, word), word)
    return _as(cast(shifted, _UNSIGNED[dtype.bits]), dtype)


def _as(value: Expr, dtype: DType) -> Expr:
    """The same bits."""
    return value if value.dtype == dtype else Call("reinterpret", (value,), dtype)


_UNSIGNED = {8: UINT8, 16: UINT16, 32: UINT32, 64: UINT64}
