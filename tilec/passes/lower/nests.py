"""Lower nests: split those with copies of elements in several threads, where one copy would overwrite what others read,
and turn asynchronous ones into cp.async of gathered chunks.

One of these threads stores to memory, each sets its own registers. In a nest that does both, that thread may
store before another has read. Split nests have a barrier between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from tilec.analysis.copy_nests import analyse_gather, choose_thread_copy_width
from tilec.analysis.usage import find_reads
from tilec.ir import tile, warp
from tilec.ir.layout import Fragment, row_major_fragment
from tilec.ir.rewrite import map_expressions, map_nested_bodies, map_statements
from tilec.ir.tile import Parallel
from tilec.ir.types import BOOL, FLOAT32, INT32, UINT32, DType
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.identity import IdentityKey

MakeTile = Callable[[str, DType, Literal["fragment", "shared"]], tile.Buffer]
"""Make a tile with an element for each iteration of the nest; a fragment has the layout of the nest."""


def split_replicated_nest(nest: tile.Parallel, layout: Fragment, make_tile: MakeTile) -> tuple[tile.Parallel, ...]:
    """Return the nest, split where a thread would store what another copy of the element still reads. A name or
    condition that a store of the nest would change is kept in a tile of its own."""
    stores = [s for s in tile.walk_statements(nest.body) if isinstance(s, tile.Store)]
    stored = {s.buffer for s in stores if not s.buffer.in_registers}
    is_mixed = any(s.buffer.in_registers for s in stores) and not stored.isdisjoint(find_reads(nest))
    if not is_mixed or layout.replica_index() is None:
        return (nest,)
    kept = _ValueKeeper(nest, {s.buffer for s in stores}, make_tile).rewrite_body(nest.body, {})
    return tuple(replace(nest, body=_select_stores(kept, set(map(IdentityKey, part)))) for part in _group_stores(kept))


class _ValueKeeper:
    """Replaces names and conditions that read what the nest stores by elements of tiles, set in their place."""

    def __init__(self, nest: tile.Parallel, stored: set[tile.Buffer], make_tile: MakeTile) -> None:
        self.nest, self.stored, self.make_tile = nest, stored, make_tile

    def rewrite_body(self, body: tuple[tile.Stmt, ...], values: dict[tile.Var, tile.Expr]) -> tuple[tile.Stmt, ...]:
        """Return the statements with values that a store may change kept in tiles, and `values` put in for names."""
        values = dict(values)

        def rewrite_statement(stmt: tile.Stmt) -> tile.Stmt | tuple[tile.Stmt, ...]:
            """Return a statement; one that binds or tests a value that a store may change keeps it in a tile."""
            stmt = map_expressions(stmt, lambda expr: tile.substitute_variables(expr, values))
            match stmt:
                case tile.Bind(var=var, value=value) if self.is_changed(value) or var.name.startswith(tile.ONCE_PREFIX):
                    store, values[var] = self.keep_value(var.name, value, stmt)
                    return store
                case tile.Store(previous=tile.Var() as var):  # one thread has it: pass it on through shared memory
                    store, values[var] = self.keep_value(var.name, var, stmt, "shared")
                    return (stmt, store)
                case tile.If(condition=condition) if self.is_changed(condition):
                    store, holds = self.keep_value("holds", condition, stmt)
                    guarded = replace(stmt, condition=holds)
                    return store, map_nested_bodies(guarded, lambda inside: self.rewrite_body(inside, values))
            return map_nested_bodies(stmt, lambda inside: self.rewrite_body(inside, values))

        return map_statements(body, rewrite_statement)

    def is_changed(self, value: tile.Expr) -> bool:
        """Return True if the expression loads a buffer that a store of the nest writes."""
        return any(isinstance(e, tile.Load) and e.buffer in self.stored for e in tile.walk_expr(value))

    def keep_value(
        self, name: str, value: tile.Expr, at: tile.Stmt, scope: Literal["fragment", "shared"] = "fragment"
    ) -> tuple[tile.Store, tile.Expr]:
        """Return a store of the value to a new tile of the nest's shape, and the expression that loads it back."""
        dtype = value.dtype
        wide = _choose_kept_type(dtype)
        kept = self.make_tile(name, wide, scope)
        load: tile.Expr = tile.Load(kept, self.nest.vars)
        if dtype == BOOL:
            value = tile.Select(value, tile.int32_const(1), tile.int32_const(0), INT32)
            load = tile.Binary("ne", load, tile.int32_const(0), BOOL)
        elif wide != dtype:
            value, load = tile.Cast(value, wide), tile.Cast(load, dtype)
        return tile.Store(kept, self.nest.vars, value, at.span), load


def _choose_kept_type(dtype: DType) -> DType:
    """Return the type in which a value is kept in a tile: itself, or for narrow types one of 32 bits with all
    values."""
    if dtype.bits >= 32:
        return dtype
    return FLOAT32 if dtype.is_float else UINT32 if dtype.kind == "uint" else INT32


def _group_stores(body: tuple[tile.Stmt, ...]) -> list[list[tile.Store | tile.Print]]:
    """Group a nest's stores and prints, in program order, into runs that all set registers or all set memory."""
    parts: list[list[tile.Store | tile.Print]] = []
    is_of_registers: bool | None = None
    for stmt in tile.walk_statements(body):
        if isinstance(stmt, tile.Store | tile.Print):
            own = stmt.buffer.in_registers if isinstance(stmt, tile.Store) else is_of_registers
            if not parts or (is_of_registers is not None and own != is_of_registers):
                parts.append([])
            parts[-1].append(stmt)
            is_of_registers = own
    return parts


def _select_stores(body: tuple[tile.Stmt, ...], chosen: set[IdentityKey[tile.Stmt]]) -> tuple[tile.Stmt, ...]:
    """Return the statements with only the chosen stores and prints, and without `if`s that become empty."""

    def select_statement(stmt: tile.Stmt) -> tile.Stmt | tuple[tile.Stmt, ...]:
        """Return a statement with only the chosen stores and prints in it; () for another one, or an empty `if`."""
        if isinstance(stmt, tile.Store | tile.Print):
            return stmt if IdentityKey(stmt) in chosen else ()
        left = map_nested_bodies(stmt, lambda inside: _select_stores(inside, chosen))
        is_used = any(isinstance(s, tile.Store | tile.Print) for s in tile.walk_statements((left,)))
        return left if is_used or not isinstance(left, tile.If) else ()

    return map_statements(body, select_statement)


def build_gathered_copy(
    nest: Parallel, assignment: LayoutAssignment, cursors: tuple[warp.Cursor, ...]
) -> warp.CpAsync | None:
    """Return a gathering nest as a cp.async, or None where it is no gather or the layout leaves no chunks of 4
    bytes."""
    found = analyse_gather(nest)
    if isinstance(found, str):
        return None
    layout = assignment.shared[found.destination.buffer.name]
    width = found.choose_width(min(layout.run, layout.shape[-1]))
    if width is None:
        return None
    spread = row_major_fragment(found.extents, assignment.kernel.threads, width // found.load.buffer.dtype.bytes)
    source = warp.Gather(found.load.buffer, found.vars, found.load.indices, found.condition)
    return warp.CpAsync(source, found.destination, spread, width, cursors=cursors, span=nest.span)


def build_thread_copy(
    nest: Parallel, assignment: LayoutAssignment, cursors: tuple[warp.Cursor, ...]
) -> warp.Elementwise | None:
    """Return a T.ptx_cp_async nest as copies by cp.async, or None where its elements pass through registers."""
    store = next(s for s in tile.walk_statements(nest.body) if isinstance(s, tile.Store))
    layout = assignment.shared[store.buffer.name]
    width = choose_thread_copy_width(nest, min(layout.run, layout.shape[-1]))
    if width is None:
        return None
    spread = assignment.nest_layout(nest)
    return warp.Elementwise(nest, spread, copy_bytes=width, cursors=cursors, span=nest.span)
