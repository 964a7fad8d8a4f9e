"""Tensors with strides (T.StridedTensor), and tensors at the address in a parameter or a table (T.make_tensor).

In the statements each T.make_tensor at an entry of a table, `T.Tensor((n,), T.ptr)`, has a tensor of its own. In the
kernel the table's parameter is one tensor, whose leading dimensions count the entries, and the accesses begin with the
entry's indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.analysis.scheduling_hints import rewrite_scheduled_bodies
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate, reading
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.expr import cast_expr
from tilec.ir.rewrite import map_expressions, map_statements, rewrite_expression
from tilec.ir.types import INT64, UINT64, DType
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_element_type, as_extents
from tilec.ops.language.values import (
    Access,
    AddressTable,
    IndexRange,
    Member,
    TableEntry,
    Value,
    describe_value,
    show_shape,
)
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
    if call["dtype"].value == Member(POINTER_SIGNATURE.name):
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


# ---- tables of addresses ---------------------------------------------------------------------------------------------


def build_table(call: Call, name: str, shape: tuple[tile.Extent, ...], span: Span) -> tile.Buffer:
    """Build the parameter of a table of addresses, of which all dimensions count entries; refuse strides."""
    if "strides" in call.arguments:
        way_out = "write T.Tensor(shape, T.ptr)"
        raise_error("wrong-argument", "a table of addresses has no strides", call["strides"].span, help=way_out)
    return tile.Buffer(name, shape, UINT64, "global", span, table_rank=len(shape))


def bind_table(context: Context, table: tile.Buffer) -> AddressTable:
    """Record a table's parameter, without a tensor yet, and return the value of its name."""
    context.tables[table.name] = None
    return AddressTable(table)


def evaluate_entry(context: Context, table: AddressTable, node: ast.Subscript) -> TableEntry:
    """Evaluate `table[…]` to an entry whose indices have the values of this moment; refuse slices."""
    access = evaluate.evaluate_access(context, table.buffer, node)
    indices: list[tile.Expr] = []
    for index in access.indices:
        if isinstance(index, IndexRange):
            way_out = "index one entry, and make a tensor of each in a loop"
            raise_error("wrong-argument", "an entry of a table is one address", node.span, "a slice", help=way_out)
        indices.append(reading.freeze_expression(context, index, node.span))
    return TableEntry(table, tuple(indices))


def make_entry_tensor(context: Context, entry: TableEntry, tensor: tile.Buffer) -> tile.Buffer:
    """Return the tensor at an entry under a name of its own; refuse one unlike the table's others, and strides."""
    table = entry.table.buffer.name
    before = context.tables[table]
    if tensor.strides is not None:
        way_out = "make the tensor as wide as its rows are apart"
        raise_error("wrong-argument", f"the tensors of {table} have strides", tensor.span, "not dense", help=way_out)
    if before is not None and (before.extents, before.dtype, before.lanes) != (
        tensor.extents, tensor.dtype, tensor.lanes,
    ):  # fmt: skip
        title = f"the entries of {table} are made into different tensors"
        place = Label(before.span, "unlike this one")
        way_out = "pass one table for each shape and dtype"
        raise_error("duplicate-definition", title, tensor.span, secondary=(place,), help=way_out)
    context.tables[table] = before or tensor
    made = replace(tensor, name=context.unique.take(f"{table}_entry"))
    context.entries[made.name] = entry
    return made


def join_table(table: tile.Buffer, tensor: tile.Buffer | None) -> tile.Buffer:
    """Return the kernel's parameter for a table: its entries' tensors as one; plain numbers if it makes no tensor."""
    if tensor is None:
        return replace(table, table_rank=0)
    extents = (*table.extents, *tensor.extents)
    return replace(tensor, name=table.name, extents=extents, span=table.span, table_rank=len(table.extents))


def replace_entry_tensors(kernel: tile.Kernel, entries: Mapping[str, TableEntry]) -> tile.Kernel:
    """Return the kernel with the accesses to entries' tensors replaced by accesses to their table."""
    if not entries:
        return kernel
    tables = {p.name: p for p in kernel.params if isinstance(p, tile.Buffer)}
    rewriter = _EntryRewriter({name: (tables[e.table.buffer.name], e.indices) for name, e in entries.items()})
    return replace(kernel, body=map_statements(kernel.body, rewriter.rewrite_statement))


class _EntryRewriter:
    """Rewrites statements so that they access tables; `entries` gives each entry's table and its indices there."""

    def __init__(self, entries: Mapping[str, tuple[tile.Buffer, tuple[tile.Expr, ...]]]) -> None:
        self.entries = entries

    def rewrite_statement(self, stmt: tile.Stmt) -> tuple[tile.Stmt, ...]:
        """Return a statement, and those inside it, with the accesses to entries replaced."""
        stmt = map_expressions(stmt, self.replace_loads)
        match stmt:
            case tile.TileOp():
                return (self.rewrite_operation(stmt),)
            case tile.Store(buffer=buffer, indices=indices) if buffer.name in self.entries:
                table, first = self.entries[buffer.name]
                return (replace(stmt, buffer=table, indices=(*first, *indices)),)
            case _:
                return (rewrite_scheduled_bodies(stmt, self.rewrite_statement),)

    def rewrite_operation(self, op: tile.TileOp) -> tile.TileOp:
        """Return an operation with its regions of entries replaced by regions of tables; refuse one that is not
        elementwise."""
        found = next((r for r in op.regions if r.buffer.name in self.entries), None)
        if found is None:
            return op
        if not op.is_elementwise:
            title = f"T.{op.name} does not work on a tensor at an address in a table"
            place = Label(found.buffer.span, "the tensor")
            raise_error("wrong-scope", title, op.span, secondary=(place,), help="T.copy it to a tile first")
        return op.with_regions(tuple(map(self.move_region, op.regions)))

    def move_region(self, region: tile.Region) -> tile.Region:
        """Return the region of the table that holds an entry's region; other regions as they are."""
        if region.buffer.name not in self.entries:
            return region
        table, first = self.entries[region.buffer.name]
        return tile.Region(table, (*first, *region.start), (*(1 for _ in first), *region.extent), region.span)

    def replace_loads(self, expr: tile.Expr) -> tile.Expr:
        """Return an expression with every load of an entry's tensor replaced by one of its table."""
        return rewrite_expression(expr, self.replace_load)

    def replace_load(self, expr: tile.Expr) -> tile.Expr:
        """Return a load of an entry's tensor as one of its table; other expressions unchanged."""
        if not isinstance(expr, tile.Load) or expr.buffer.name not in self.entries:
            return expr
        table, first = self.entries[expr.buffer.name]
        return tile.Load(table, (*first, *expr.indices))
