"""Vectors: elements of vector tensors, and wide accesses (T.ldg128 and others).

A vector that is read becomes a local array of the thread, filled by one statement, so that one access can read it.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions.bounds import check_access
from tilec.frontend.sema.statements import per_thread
from tilec.frontend.sema.statements.stores import emit_element_statements
from tilec.ir import tile
from tilec.ir.affine import add_exprs, reads_elements
from tilec.ir.expr import cast_expr, make_constant
from tilec.ir.types import BOOL, UINT32
from tilec.ops.language import arithmetic
from tilec.ops.language.signature import Argument, Call, as_expr
from tilec.ops.language.values import Access, IndexRange, Lanes, Value, describe_value
from tilec.ops.language.vectors import WIDE_ACCESSES, WideAccess, reinterpret_lanes
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span

# ---- loads -----------------------------------------------------------------------------------------------------------


def load_vector(context: Context, access: Access, span: Span) -> Lanes:
    """Check an access to a vector element or slice, and return one load for each lane."""
    places = _list_element_indices(context, access, span, "read")
    return Lanes(tuple(tile.Load(access.buffer, place) for place in places))


def evaluate_wide_load(context: Context, call: Call) -> Value:
    """Evaluate T.ldg128 or another wide load to the 32-bit words it reads, a single one to a number; 0 if `pred` is
    false.
    """
    wide = WIDE_ACCESSES[call.name]
    access = _extend_access(_read_access(call, "src", wide), call, "src", wide)
    lanes = load_vector(context, access, call["src"].span)
    if "pred" in call.arguments and call["pred"].value is not None:
        condition = _read_predicate(call)
        lanes = Lanes(tuple(tile.Select(condition, p, make_constant(0, p.dtype), p.dtype) for p in lanes.parts))
    words = reinterpret_lanes(snapshot_vector(context, "words", lanes, call.span), UINT32)
    return words if len(words.parts) > 1 else words.parts[0]


def evaluate_ldg(context: Context, call: Call) -> Value:
    """Evaluate T.__ldg to a plain load of a tensor's element; refuse tiles and whole slices."""
    value, index = call["load_or_buf"].value, call["index"]
    if isinstance(value, tile.Buffer) and index.value is not None:
        items = index.value if isinstance(index.value, tuple) else (index.value,)
        value = Access(value, tuple(as_expr(Argument(i, index.span)) for i in items))
    if not isinstance(value, Access) or value.has_extent or len(value.indices) != len(value.buffer.extents):
        call.refuse("load_or_buf", "an element of a tensor, or a tensor with its index")
    if value.buffer.scope != "global":
        _refuse_scope(call, "load_or_buf", value.buffer, "tensors")
    check_access(context, value, call.span, "read")
    return as_expr(Argument(value, call.span))


# ---- stores ----------------------------------------------------------------------------------------------------------


def elaborate_wide_store(context: Context, call: Call) -> None:
    """Emit the stores of T.stg128 or another wide store, under its `pred`; refuse a value of another width."""
    wide = WIDE_ACCESSES[call.name]
    access = _extend_access(_read_access(call, "dst", wide), call, "dst", wide)
    condition = _read_predicate(call) if "pred" in call.arguments and call["pred"].value is not None else None
    value = call["value"].value
    source = value if isinstance(value, Lanes) else Lanes((as_expr(call["value"]),))
    if source.dtype.bits * len(source.parts) != wide.bits:
        call.refuse("value", f"of {wide.bits} bits")
    lanes = Argument(reinterpret_lanes(source, access.buffer.dtype), call["value"].span)
    store_vector(context, access, lanes, call.span, condition)


def store_vector(
    context: Context, access: Access, argument: Argument, span: Span, holds: tile.Expr | None = None
) -> None:
    """Emit stores of a vector, or one number, to a vector element or slice, where `holds`; refuse another number of
    lanes. Without `holds` they are unconditional.
    """
    places, value, dtype = _list_element_indices(context, access, span, "written"), argument.value, access.buffer.dtype
    if not isinstance(value, Lanes):
        value = Lanes((as_expr(argument, dtype),) * len(places))
    if len(value.parts) != len(places):
        labels = Label(argument.span, describe_value(value)), Label(access.buffer.span, "from here")
        title = f"{len(value.parts)} lanes for {len(places)} elements"
        raise_error("shape-mismatch", title, span, secondary=labels)
    elements = zip(places, value.parts, strict=True)
    stores = tuple(tile.Store(access.buffer, place, cast_expr(part, dtype), span) for place, part in elements)
    statements: tuple[tile.Stmt, ...] = stores if holds is None else (tile.If(holds, stores, (), span),)
    is_own = any(per_thread.is_per_thread_store(context, store) for store in stores)
    is_own |= holds is not None and per_thread.is_varying(context, holds)
    emit_element_statements(context, statements, is_own, span)


def snapshot_vector(context: Context, name: str, value: Lanes, span: Span) -> Lanes:
    """Return a vector unaffected by later stores: if its lanes read elements, copied to variables or a new local array.
    Inside T.Parallel these are variables.
    """
    held = value.origin or value
    if not any(map(reads_elements, held.parts)):
        return value
    if context.is_parallel:
        variables = tuple(per_thread.emit_bind(context, name, part, span) for part in held.parts)
        return reinterpret_lanes(Lanes(variables), value.dtype)
    loaded = [p.buffer for p in held.parts if isinstance(p, tile.Load)]
    if len(loaded) == len(held.parts) and all(b.scope == "local" and b.name in context.vectors for b in loaded):
        return value  # kept already
    array = per_thread.allocate_local_array(context, name, (len(held.parts),), held.dtype, span)
    context.vectors.add(array.name)
    stores = (tile.Store(array, (tile.int32_const(i),), part, span) for i, part in enumerate(held.parts))
    per_thread.emit_for_each_thread(context, tuple(stores), span)
    loads = tuple(tile.Load(array, (tile.int32_const(i),)) for i in range(len(held.parts)))
    return reinterpret_lanes(Lanes(loads), value.dtype)


# ---- arguments -------------------------------------------------------------------------------------------------------


def _list_element_indices(
    context: Context, access: Access, span: Span, what: Literal["read", "written"]
) -> tuple[tuple[tile.Expr, ...], ...]:
    """Check an access, and return the indices of each of its elements in row-major order."""
    check_access(context, access, span, what)
    ranges = [
        tuple(add_exprs(i.start, tile.int32_const(k)) for k in range(i.extent)) if isinstance(i, IndexRange) else (i,)
        for i in access.indices
    ]
    return tuple(itertools.product(*ranges))


def _read_access(call: Call, name: str, wide: WideAccess) -> Access:
    """Return the element or slice given to a wide access, for a buffer its first element; refuse a wrong scope or
    dtype.
    """
    value = call[name].value
    if isinstance(value, tile.Buffer):
        value = Access(value, tuple(tile.int32_const(0) for _ in value.extents))
    if not isinstance(value, Access):
        call.refuse(name, "an element of a tensor or tile, or a slice")
    if value.buffer.scope != wide.scope:
        _refuse_scope(call, name, value.buffer, "tensors" if wide.scope == "global" else "shared tiles")
    if value.buffer.dtype == BOOL or value.buffer.dtype.bits < 8:
        title = f"{call.name} of {value.buffer.dtype}"
        raise_error("wrong-dtype", title, call[name].span, "is not a whole number of bytes")
    return value


def _extend_access(access: Access, call: Call, name: str, wide: WideAccess) -> Access:
    """Return a slice of the wide access's bits as it is, an element extended to them along the last dimension; refuse
    others.
    """
    bits = access.buffer.dtype.bits
    count = math.prod(index.extent for index in access.indices if isinstance(index, IndexRange))
    if access.has_extent:
        if count * bits != wide.bits:
            title = f"{call.name} of {count * bits} bits"
            raise_error("shape-mismatch", title, call[name].span, f"{count} {access.buffer.dtype}")
        return access
    if wide.bits % bits:
        title = f"{call.name} of one {access.buffer.dtype}"
        raise_error("shape-mismatch", title, call[name].span, f"which has {bits} bits")
    last = access.indices[-1]
    assert not isinstance(last, IndexRange)
    return Access(access.buffer, (*access.indices[:-1], IndexRange(last, wide.bits // bits)))


def _read_predicate(call: Call) -> tile.Expr:
    """Return the condition that a call's argument `pred` stands for."""
    return as_expr(Argument(arithmetic.as_condition(call["pred"]), call["pred"].span))


def _refuse_scope(call: Call, name: str, buffer: tile.Buffer, wanted: str) -> None:
    """Raise `wrong-scope`: the call is for `wanted` buffers, and its argument is a part of another kind."""
    title = f"{call.name} is for {wanted}"
    note = f"this is a part of {describe_value(buffer)}"
    raise_error("wrong-scope", title, call[name].span, note, secondary=(Label(buffer.span, "from here"),))
