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
from tilec.ir.types import BOOL, INT32
from tilec.ops.fill import fill_value
from tilec.ops.signature import Call as Arguments
from tilec.ops.signature import as_dtype, as_shape
from tilec.ops.values import describe, show_shape
from tilec.passes.fold import fold_expr
from tilec.passes.pointers import strided
from tilec.passes.scope import UniqueNames

Group = tuple[range, range]


def view(call: Arguments, names: UniqueNames) -> tuple[Buffer, Buffer]:
    """What a call of T.reshape or T.view gives: a buffer that stands for another one, and that one."""
    source = call["src"].value
    if not isinstance(source, Buffer):
        call.refuse("src", "a whole tensor or tile")
    assert isinstance(source, Buffer)
    if source.scope == "fragment":
        fail(
            "wrong-scope",
            f"{call.name} of a fragment",
            call["src"].span,
            "its elements lie in the registers of many threads",
            secondary=(Label(source.span, "from here"),),
            help="copy it to a tile made by T.alloc_shared, and give that another shape",
        )
    if source.is_dynamic:
        fail(
            "runtime-shape",
            f"{call.name} of a tensor whose shape is known at launch",
            call["src"].span,
            f"this is {describe(source)}",
        )
    strided(call, source)
    has_shape = call["shape"].value is not None
    shape = as_shape(call["shape"], f"the shape of {call.name}") if has_shape else source.shape
    dtype = source.dtype
    if "dtype" in call.arguments and call["dtype"].value is not None:
        dtype = as_dtype(call["dtype"])
    if dtype.bits != source.dtype.bits or (dtype != source.dtype and BOOL in (dtype, source.dtype)):
        fail(
            "wrong-dtype",
            "T.view keeps the size of an element",
            call["dtype"].span,
            f"{source.dtype} has {source.dtype.bits} bits, {dtype} has {dtype.bits}",
            secondary=(Label(source.span, "from here"),),
            help="put elements together with shifts, and take them apart with T.reinterpret",
        )
    if math.prod(shape) != math.prod(source.shape):
        fail(
            "shape-mismatch",
            f"{call.name} keeps all elements",
            call["shape"].span,
            f"{show_shape(shape)} has {math.prod(shape)}, {source.name} has {math.prod(source.shape)}",
            secondary=(Label(source.span, f"shape {show_shape(source.shape)}"),),
        )
    return Buffer(names.take(f"{source.name}_view"), shape, dtype, source.scope, call.span), source


def without_views(body: tuple[Stmt, ...], views: Mapping[str, Buffer], names: UniqueNames) -> tuple[Stmt, ...]:
    """The statements, on what the views are views of."""
    return _Views(views, names).body(body) if views else body


class _Views:
    def __init__(self, views: Mapping[str, Buffer], names: UniqueNames) -> None:
        self.views, self.names = views, names

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(self.stmt(s) for s in body)

    def stmt(self, stmt: Stmt) -> Stmt:
        match stmt:
            case TileOp():
                return self.operation(stmt)
            case Store(buffer=buffer, value=value):
                value = self.expr(value)
                indices = tuple(self.expr(i) for i in stmt.indices)
                if buffer.name not in self.views:
                    return replace(stmt, indices=indices, value=value)
                source = self.views[buffer.name]
                if stmt.atomic is not None and buffer.dtype != source.dtype:
                    fail(
                        "wrong-dtype",
                        f"an atomic on a view of {source.name} as {buffer.dtype}",
                        stmt.span,
                        f"{source.name} holds {source.dtype}",
                        help="use the type that the elements have",
                    )
                made = replace(stmt, buffer=source, indices=moved(buffer, source, indices), value=_bits(value, source))
                exists = inside(buffer, source, indices)
                return made if exists is None else If(exists, (made,), (), stmt.span)
            case Print(values=values):
                return replace(stmt, values=tuple(map(self.expr, values)))
            case Bind(value=value):
                return replace(stmt, value=self.expr(value))
            case Parallel(body=body):
                return replace(stmt, body=self.body(body))
            case For(start=start, stop=stop, body=body):
                return replace(stmt, start=self.expr(start), stop=self.expr(stop), body=self.body(body))
            case If(condition=condition, then=then, orelse=orelse):
                return replace(stmt, condition=self.expr(condition), then=self.body(then), orelse=self.body(orelse))
            case While(condition=condition, body=body):
                return replace(stmt, condition=self.expr(condition), body=self.body(body))
            case Break():
                return stmt

    def expr(self, expr: Expr) -> Expr:
        expr = with_children(expr, tuple(self.expr(c) for c in children(expr)))
        if not isinstance(expr, Load) or expr.buffer.name not in self.views:
            return expr
        source = self.views[expr.buffer.name]
        value = _bits(Load(source, moved(expr.buffer, source, expr.indices)), expr.buffer)
        exists = inside(expr.buffer, source, expr.indices)
        return value if exists is None else Select(exists, value, constant(0, expr.dtype), expr.dtype)

    # ---- operations on tiles -----------------------------------------------------------------------------------------

    def operation(self, op: TileOp) -> Stmt:
        op = replace(
            op,
            regions=tuple(replace(r, start=tuple(self.expr(s) for s in r.start)) for r in op.regions),
            attrs=tuple((key, self.attr(value)) for key, value in op.attrs),
        )
        if not any(r.buffer.name in self.views for r in op.regions):
            return op
        if op.name not in ("copy", "fill"):
            seen = next(r for r in op.regions if r.buffer.name in self.views)
            fail(
                "wrong-scope",
                f"T.{op.name} works on tiles, not on views of them",
                op.span,
                f"{self.views[seen.buffer.name].name} is meant in another shape",
                secondary=(Label(seen.buffer.span, "the view"),),
                help="T.copy the view to a tile of its shape, and work on that",
            )
        boxes = tuple(box for r in op.regions if (box := self.box(r)) is not None)
        return replace(op, regions=boxes) if len(boxes) == len(op.regions) else self.stmt(self.elements(op))

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


def _bits(value: Expr, like: Buffer) -> Expr:
    return value if value.dtype == like.dtype else Call("reinterpret", (value,), like.dtype)
