"""Tables of addresses, `T.Tensor((n,), T.ptr)`, and the tensors that T.make_tensor makes at their entries.

In the statements each T.make_tensor has a tensor of its own. In the kernel the table's parameter is one tensor, whose
leading dimensions count the entries, and the accesses begin with the entry's indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.analysis.scheduling_hints import rewrite_scheduled_bodies
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate, reading
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.rewrite import map_expressions, map_statements, rewrite_expression
from tilec.ir.types import UINT64
from tilec.ops.language.signature import Call
from tilec.ops.language.values import AddressTable, IndexRange, Member, TableEntry
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span


def is_table_call(call: Call) -> bool:
    """Return whether a tensor type's elements are addresses: its dtype is T.ptr."""
    return call["dtype"].value == Member("T.ptr")


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
