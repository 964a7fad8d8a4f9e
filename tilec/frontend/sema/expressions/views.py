"""Replaces views by the tensors and tiles that they are views of.

Indices are recomputed, boxes are moved if they stay boxes, and other copies are expanded element by element. A tensor
with an annotated layout is a view of itself with other element offsets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilec.analysis.scheduling_hints import rewrite_scheduled_bodies
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.sema.launch.pointers import refuse_strided
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.affine import add_exprs
from tilec.ir.expr import make_constant
from tilec.ir.rewrite import map_expressions, map_statements, rewrite_expression
from tilec.ir.types import BOOL
from tilec.ops import registry
from tilec.ops.copies.copy import Copy
from tilec.ops.functions.signatures import AT_DATA, DATA, VIEWS
from tilec.ops.language.signature import Argument, Call as Arguments, as_dtype, as_shape, bind_arguments
from tilec.ops.language.values import IndexMap, Method, describe_value, show_shape
from tilec.ops.synchronisation.sync import make_buffer_region
from tilec.passes.layout.shared.placements import build_bounds_condition, remap_indices
from tilec.passes.layout.shared.reshape_views import (
    assemble_view_element,
    build_view_condition,
    extract_part,
    linearise_indices,
    list_source_indices,
    match_dimensions,
    resize_shape,
)
from tilec.rewriting.fold_constants import fold_expr
from tilec.rewriting.make_names_unique import UniqueNames
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span


def bind_view_call(
    path: str, positional: Sequence[Argument], keywords: Mapping[str, Argument], span: Span
) -> Arguments:
    """Bind a call of T.reshape or T.view, or T.Tensor(shape, dtype, tile.data) as one of T.view; refuse it without
    `data`.
    """
    if path in VIEWS:
        return bind_arguments(VIEWS[path].signature, positional, keywords, span)
    call = bind_arguments(AT_DATA[path], positional, keywords, span)
    data = call["data"].value
    if not isinstance(data, Method) or not isinstance(data.owner, tile.Buffer) or data.name != DATA:
        title = f"{path} in a kernel is a view of a tensor or a tile"
        note = f"`data` is {describe_value(data)}" if call.is_given("data") else "`data` is missing"
        way_out = f"write {path}(shape, dtype, tile.data), or T.alloc_shared for a new tile"
        raise_error("wrong-argument", title, call["data"].span, note, help=way_out)
    whole = Argument(data.owner, call["data"].span)
    return bind_arguments(VIEWS["T.view"].signature, [whole, call["shape"], call["dtype"]], {}, span)


def make_view(call: Arguments, names: UniqueNames) -> tuple[tile.Buffer, tile.Buffer]:
    """Check that T.reshape or T.view keeps all elements or bytes; return a new buffer for the view, and its source.
    Errors: a dynamic source, another number of elements or bytes, an impossible dtype.
    """
    source = call["src"].value
    if not isinstance(source, tile.Buffer):
        call.refuse("src", "a whole tensor or tile")
    if source.is_dynamic:
        title = f"{call.name} of a tensor whose shape is known at launch"
        raise_error("dynamic-shape", title, call["src"].span, f"this is {describe_value(source)}")
    refuse_strided(call, source)
    dtype = source.dtype
    if "dtype" in call.arguments and call["dtype"].value is not None:
        dtype = as_dtype(call["dtype"])
    is_resized = dtype.bits != source.dtype.bits
    if dtype != source.dtype and BOOL in (dtype, source.dtype):
        title, place = f"{source.dtype} cannot be viewed as {dtype}", Label(source.span, "from here")
        note, way_out = "bool has no view of another type", "convert it, as by T.copy"
        raise_error("wrong-dtype", title, call["dtype"].span, note, secondary=(place,), help=way_out)
    has_shape = call["shape"].value is not None
    resized_shape = resize_shape(source.shape, source.dtype, dtype)
    shape = as_shape(call["shape"], f"the shape of {call.name}") if has_shape else resized_shape
    total = math.prod(source.shape) * source.dtype.bits // dtype.bits
    if shape is None or math.prod(shape) != total or resize_shape(shape, dtype, source.dtype) is None:
        kept = "all bytes of each row" if is_resized else "all elements"
        note = f"{show_shape(shape or ())} has {math.prod(shape or ())} elements, {source.name} has {total}"
        if is_resized:
            found = f"{source.name} has rows of {source.shape[-1]} elements" if shape is None else show_shape(shape)
            note = f"{found}, which cannot hold {total} {dtype}"
        place = Label(source.span, f"{source.dtype}{show_shape(source.shape)}")
        where = call["shape" if has_shape else "dtype"].span
        raise_error("shape-mismatch", f"{call.name} keeps {kept}", where, note, secondary=(place,))
    return tile.Buffer(names.take(f"{source.name}_view"), shape, dtype, source.scope, call.span), source


def evaluate_view(context: Context, path: str, node: ast.Call) -> tile.Buffer:
    """Evaluate T.reshape, T.view or T.Tensor(shape, dtype, tile.data) to a new buffer, recorded in `context.views`."""
    call = bind_view_call(path, *evaluate.evaluate_arguments(context, node), node.span)
    made, source = make_view(call, context.unique)
    context.views[made.name] = context.views.get(source.name, source)
    return made


def replace_views(
    body: tuple[tile.Stmt, ...], views: Mapping[str, tile.Buffer], tensors: Mapping[str, IndexMap], names: UniqueNames
) -> tuple[tuple[tile.Stmt, ...], tuple[tile.Buffer, ...]]:
    """Rewrite statements so that they use the source buffers instead of views; return them and the extra tiles
    needed.
    """
    rewritten = _ViewRewriter(views, tensors, names)
    return (rewritten.rewrite_body(body) if views or tensors else body), tuple(rewritten.made)


class _ViewRewriter:
    """Rewrites statements without views. `made` are the tiles that they need in addition."""

    def __init__(self, views: Mapping[str, tile.Buffer], tensors: Mapping[str, IndexMap], names: UniqueNames) -> None:
        self.views, self.tensors, self.names = views, tensors, names
        self.made: list[tile.Buffer] = []

    def rewrite_body(self, body: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        """Return statements rewritten to use source buffers instead of views, nested ones too."""
        return map_statements(body, self.rewrite_statement)

    def rewrite_statement(self, stmt: tile.Stmt) -> tuple[tile.Stmt, ...]:
        """Rewrite a statement and those inside it to use source buffers; a store or operation may become several."""
        match stmt:
            case tile.TileOp():
                return self.rewrite_operation(stmt)
            case tile.Store():
                return self.rewrite_store(stmt)
            case _:
                return (rewrite_scheduled_bodies(map_expressions(stmt, self.replace_loads), self.rewrite_statement),)

    def rewrite_store(self, store: tile.Store) -> tuple[tile.Stmt, ...]:
        """Rewrite a store to a view as stores to its source, guarded where the view may be left; refuse partial
        elements. An element wider than those of the source becomes several stores.
        """
        value, buffer = self.replace_loads(store.value), store.buffer
        indices = tuple(self.replace_loads(i) for i in store.indices)
        if buffer.name not in self.views:
            exists = build_bounds_condition(buffer, indices) if buffer.name in self.tensors else None
            moved = replace(store, indices=self.locate_element(buffer, indices), value=value)
            return _guard_stores(exists, (moved,))
        source = self.views[buffer.name]
        if buffer.dtype != source.dtype and (store.atomic is not None or buffer.dtype.bits < source.dtype.bits):
            what, way_out = "an atomic operation on", "use the type of the elements"
            if store.atomic is None:
                what = "an element is set through"
                way_out = f"allocate the tile as {buffer.dtype}, and view it as {source.dtype} where it is read"
            title, view = f"{what} a view of {source.name} as {buffer.dtype}", Label(buffer.span, "the view")
            note = f"{source.name} holds {source.dtype}"
            raise_error("wrong-dtype", title, store.span, note, secondary=(view,), help=way_out)
        made: list[tile.Stmt] = []
        for part, place in enumerate(list_source_indices(buffer, source, indices)):
            there = self.locate_element(source, place)
            made.append(replace(store, buffer=source, indices=there, value=extract_part(value, source.dtype, part)))
        return _guard_stores(self.make_bounds_condition(buffer, source, indices), tuple(made))

    def locate_element(self, buffer: tile.Buffer, indices: tuple[tile.Expr, ...]) -> tuple[tile.Expr, ...]:
        """Return an element's indices as a tensor's annotated layout maps them; unchanged without a layout."""
        given = self.tensors.get(buffer.name)
        return indices if given is None else remap_indices(buffer, given, indices)

    def make_bounds_condition(
        self, seen: tile.Buffer, source: tile.Buffer, indices: tuple[tile.Expr, ...]
    ) -> tile.Expr | None:
        """Return the condition that indices are within a view, or None if no check is needed to stay within it.

        Indices out of bounds would address another element of the source.
        """
        if source.name in self.tensors:
            return build_bounds_condition(seen, indices)
        return build_view_condition(seen, source, indices)

    def replace_loads(self, expr: tile.Expr) -> tile.Expr:
        """Return an expression with every load of a view replaced by loads of its source."""
        return rewrite_expression(expr, self.replace_load)

    def replace_load(self, expr: tile.Expr) -> tile.Expr:
        """Rewrite a load of a view as loads of its source, giving 0 outside the view; return other expressions
        unchanged. Its operands have been rewritten already.
        """
        if not isinstance(expr, tile.Load):
            return expr
        source = self.views.get(expr.buffer.name)
        if source is None and expr.buffer.name not in self.tensors:
            return expr
        source = source or expr.buffer
        places = list_source_indices(expr.buffer, source, expr.indices)
        loads = [tile.Load(source, self.locate_element(source, place)) for place in places]
        value = assemble_view_element(expr.buffer, loads, expr.indices)
        exists = self.make_bounds_condition(expr.buffer, source, expr.indices)
        return value if exists is None else tile.Select(exists, value, make_constant(0, expr.dtype), expr.dtype)

    # ---- operations on tiles -----------------------------------------------------------------------------------------

    def rewrite_operation(self, op: tile.TileOp) -> tuple[tile.Stmt, ...]:
        """Rewrite an operation on views: with its boxes mapped to the source, as a nest over elements, or on copies."""
        op = map_expressions(op, self.replace_loads)
        if any(r.buffer.name in self.tensors for r in op.regions) and op.is_elementwise:
            return self.rewrite_statement(self.expand_elements(op))
        if not any(r.buffer.name in self.views for r in op.regions):
            return (op,)
        if not (op.touches_boxes and op.is_elementwise):
            return self.work_on_copies(op)
        boxes = tuple(box for r in op.regions if (box := self.map_box(r)) is not None)
        if len(boxes) == len(op.regions):
            return (op.with_regions(boxes),)
        return self.rewrite_statement(self.expand_elements(op))

    def work_on_copies(self, op: tile.TileOp) -> tuple[tile.Stmt, ...]:
        """Run an operation on copies of the views, loaded before and stored after it, added to `made`; refuse views of
        tensors.
        """
        effects = registry.get_operation(op.name).effects(op)
        loads: list[tile.Stmt] = []
        stores: list[tile.Stmt] = []
        regions: list[tile.Region] = []
        for region in op.regions:
            seen = region.buffer
            if seen.name not in self.views:
                regions.append(region)
                continue
            if seen.scope == "global":
                title = f"T.{op.name} works on tensors and tiles, not on views of tensors"
                note = f"this is a view of {self.views[seen.name].name}"
                place = Label(seen.span, "the view")
                way_out = "use a tile, and T.copy it to the view"
                raise_error("wrong-scope", title, op.span, note, secondary=(place,), help=way_out)
            buffer = replace(seen, name=self.names.take(f"{seen.name}_copy"), span=op.span)
            self.made.append(buffer)
            whole, of_view = (make_buffer_region(b, op.span) for b in (buffer, seen))
            if region in effects.reads or not region.is_whole:
                loads += self.rewrite_statement(Copy(of_view, whole, span=op.span))
            if region in effects.writes:
                stores += self.rewrite_statement(Copy(whole, of_view, span=op.span))
            regions.append(replace(region, buffer=buffer))
        return *loads, op.with_regions(tuple(regions)), *stores

    def map_box(self, region: tile.Region) -> tile.Region | None:
        """Return the source's box with the same elements in the same order as a view's, or None; other regions as they
        are.
        """
        source = self.views.get(region.buffer.name)
        if source is None:
            return region
        if source.dtype != region.buffer.dtype or source.name in self.tensors:
            return None
        start: list[tile.Expr] = []
        extent: list[int] = []
        for view_dims, source_dims in match_dimensions(region.buffer.shape, source.shape):
            sizes, source_sizes = [region.buffer.shape[d] for d in view_dims], [source.shape[d] for d in source_dims]
            extents = [region.extent[d] for d in view_dims]
            if len(source_dims) == 1:
                starts = [region.start[d] for d in view_dims]
                first = next((k for k, e in enumerate(extents) if e != 1), len(view_dims) - 1)
                inner = zip(starts[first + 1 :], extents[first + 1 :], sizes[first + 1 :], strict=True)
                if any(e != size or at != tile.int32_const(0) for at, e, size in inner):
                    return None
                if first and not _is_within_extent(starts[first], extents[first], sizes[first]):
                    return None
                start.append(fold_expr(linearise_indices(starts, sizes)))
                extent.append(math.prod(extents))
            elif extents == sizes:
                start += [tile.int32_const(0)] * len(source_dims)
                extent += source_sizes
            else:
                return None
        box = tile.Region(source, tuple(start), tuple(extent), region.span)
        return box if box.shape == region.shape else None

    def expand_elements(self, op: tile.TileOp) -> tile.Parallel:
        """Return a T.Parallel nest that does a copy, fill or atomic operation element by element."""
        *sources, destination = op.regions
        shape = destination.shape
        variables = tuple(tile.Var(self.names.take("element")) for _ in shape)

        def index_region(region: tile.Region) -> tuple[tile.Expr, ...]:
            """Return the indices, in a region, of the element at the nest's loop variables."""
            if all(extent == 1 for extent in region.extent):
                return region.start
            walked = iter(variables)
            places = zip(region.start, region.extent, strict=True)
            return tuple(
                fold_expr(add_exprs(next(walked), start)) if extent != 1 else start for start, extent in places
            )

        loads = tuple(tile.Load(source.buffer, index_region(source)) for source in sources)
        return tile.Parallel(variables, shape, (op.element(index_region(destination), loads),), op.span)


def _guard_stores(exists: tile.Expr | None, stores: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
    """Wrap stores in an `if` of the condition that their element exists; return them as they are if it is None."""
    return stores if exists is None else (tile.If(exists, stores, (), stores[0].span),)


def _is_within_extent(start: tile.Expr, extent: int, size: int) -> bool:
    return isinstance(start, tile.Const) and 0 <= start.value <= size - extent
