"""Tensors with strides (T.StridedTensor), and tensors at the address in a parameter or a table (T.make_tensor)."""

from __future__ import annotations

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.launch.pointer_tables import build_table, is_table_call, join_table, make_entry_tensor
from tilec.ir import tile
from tilec.ir.expr import cast_expr
from tilec.ir.types import INT64, UINT64, DType
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_element_type, as_extents
from tilec.ops.language.values import Access, TableEntry, Value, describe_value, show_shape
from tilec.rewriting.fold_constants import fold_expr
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span

STRIDED_TENSOR_SIGNATURE = Signature(
    "T.StridedTensor", (Parameter("shape"), Parameter("strides"), Parameter("dtype", "float32"))
)
_SCOPE = Parameter("storage_scope", "global", supported=False)
_IS_SIZE = Parameter("is_size_var", False, supported=False, keyword_only=True)
POINTER_SIGNATURE = Signature("T.ptr", (Parameter("dtype", None), _SCOPE, _IS_SIZE))
_TENSOR_PARAMETERS = (Parameter("shape"), Parameter("dtype", "float32"), Parameter("strides", None))
MAKE_TENSOR_SIGNATURES = {
    s.name: s
    for s in (
        Signature("T.make_tensor", (Parameter("ptr"), *_TENSOR_PARAMETERS)),
        Signature("T.make_tensor_from_addr", (Parameter("addr"), *_TENSOR_PARAMETERS, _SCOPE)),
    )
}


def read_extents(argument: Argument, what: str) -> tuple[tile.Extent, ...]:
    """Return an argument's extents, each a number or an expression of kernel parameters with its constants folded."""
    found = as_extents(argument, what)
    return tuple(e if isinstance(e, int) else fold_expr(cast_expr(e, e.dtype)) for e in found)


def build_tensor(call: Call, name: str, span: Span) -> tile.Buffer:
    """Build a global tensor or a table from a call's `shape`, `dtype` and `strides`; drop dense strides, refuse bad
    ones.
    """
    shape = read_extents(call["shape"], "the shape of a tensor")
    if is_table_call(call):
        return build_table(call, name, shape, span)
    dtype, lanes = as_element_type(call["dtype"])
    given = call["strides"] if "strides" in call.arguments else None
    steps = None if given is None or given.value is None else read_extents(given, "the strides of a tensor")
    if steps is not None:
        _check_strides(call, shape, steps, dtype, lanes)
        steps = None if steps == compute_dense_strides(shape) else steps
    return tile.Buffer(name, (*shape, lanes) if lanes > 1 else shape, dtype, "global", span, lanes, steps)


def compute_dense_strides(shape: tuple[tile.Extent, ...]) -> tuple[tile.Extent, ...] | None:
    """Return the strides of a dense row-major tensor in elements, or None if an extent but the first is dynamic."""
    steps: list[int] = [1]
    for extent in reversed(shape[1:]):
        if not isinstance(extent, int):
            return None
        steps.append(steps[-1] * extent)
    return tuple(reversed(steps))


def _check_strides(
    call: Call, shape: tuple[tile.Extent, ...], steps: tuple[tile.Extent, ...], dtype: DType, lanes: int
) -> None:
    """Refuse strides of the wrong number, a last stride other than 1, vectors as elements, and rows of four-bit
    elements that begin within a byte.
    """
    if len(steps) != len(shape):
        title = f"{len(steps)} strides for {len(shape)} dimensions"
        place = Label(call["shape"].span, f"shape {show_shape(shape)}")
        raise_error("wrong-rank", title, call["strides"].span, secondary=(place,))
    if steps[-1] != 1:
        title = f"{call.name}: the last stride must be 1"
        way_out = "make the dimension with stride 1 the last one"
        raise_error("wrong-argument", title, call["strides"].span, "elements of a row are contiguous", help=way_out)
    if lanes > 1:
        title = f"{call.name} of {call['dtype'].value}"
        way_out = "make the vector's elements the last dimension"
        raise_error("wrong-dtype", title, call["dtype"].span, "strides count whole elements", help=way_out)
    # A stride that is known at launch is that of the array's bytes times the elements of a byte.
    if any(isinstance(step, int) and step % dtype.per_byte for step in steps[:-1]):
        title = f"{call.name}: rows of {dtype} begin within a byte"
        way_out = "make the strides even"
        raise_error("packed-row", title, call["strides"].span, f"two {dtype} share a byte", help=way_out)


# ---- pointers --------------------------------------------------------------------------------------------------------


def make_pointer(context: Context, name: str) -> tile.Var:
    """Make the 64-bit variable of a pointer parameter and record it in `context.pointers` without a tensor yet."""
    made = tile.Var(context.unique.take(name), UINT64)
    context.pointers[made] = None
    return made


def make_tensor(context: Context, call: Call) -> Value:
    """Return the tensor of T.make_tensor and record that its pointer parameter, or its table, becomes it; refuse a
    second, other tensor. Errors: an address that is neither a parameter nor in a table.
    """
    name = "ptr" if call.name == "T.make_tensor" else "addr"
    where, value = call[name], call[name].value
    if isinstance(value, TableEntry):
        return make_entry_tensor(context, value, build_tensor(call, value.table.buffer.name, call.span))
    if isinstance(value, tile.Load | Access):
        title = f"{call.name} of an address read from a tensor of numbers"
        way_out = "declare that parameter as a table of addresses: T.Tensor((n,), T.ptr)"
        raise_error("foreign-address", title, where.span, help=way_out)
    if isinstance(value, tile.Var) and value in context.scalars and value.dtype in (INT64, UINT64):
        context.pointers.setdefault(value, None)
    if not isinstance(value, tile.Var) or value not in context.pointers:
        call.refuse(name, "a parameter of type T.ptr, or an entry of a table of them")
    tensor, before = build_tensor(call, value.name, call.span), context.pointers[value]
    if before is not None and before != tensor:
        title = f"two tensors at {value.name}"
        note = f"this one has shape {show_shape(tensor.extents)} of {tensor.dtype}"
        place = Label(before.span, f"the first has shape {show_shape(before.extents)} of {before.dtype}")
        way_out = "make one tensor, and use T.reshape or T.view on it"
        raise_error("duplicate-definition", title, call.span, note, secondary=(place,), help=way_out)
    context.pointers[value] = before or tensor
    return before or tensor


def resolve_pointers(
    context: Context, params: tuple[tile.Buffer | tile.Var, ...]
) -> tuple[tile.Buffer | tile.Var, ...]:
    """Return the parameters with each pointer or table replaced by the tensor that T.make_tensor made at it, if any."""

    def resolve_parameter(param: tile.Buffer | tile.Var) -> tile.Buffer | tile.Var:
        """Return what one parameter becomes."""
        if isinstance(param, tile.Var):
            return context.pointers.get(param) or param
        return join_table(param, context.tables[param.name]) if param.table_rank else param

    return tuple(map(resolve_parameter, params))


def refuse_strided(call: Call, source: tile.Buffer) -> None:
    """Raise `wrong-scope` if the tensor to view has strides."""
    if source.strides is not None:
        title = f"{call.name} of a tensor with strides"
        note = f"this is {describe_value(source)}"
        place = Label(source.span, f"strides {show_shape(source.strides)}")
        way_out = "T.copy the part to a shared tile, and reshape the tile"
        raise_error("wrong-scope", title, call["src"].span, note, secondary=(place,), help=way_out)
