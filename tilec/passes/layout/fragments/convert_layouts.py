"""Carry fragments through shared memory where a statement needs another layout.

A fragment has one layout. Where a statement needs another one (a product partitioned in another way, a sum along the
other dimension, elements of other threads), its operand is copied to a shared tile before it, and its result copied
back behind it. Conversions of one shape and type share a tile."""

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.copy_nests import covers_tile
from tilec.analysis.scheduling_hints import rewrite_scheduled_bodies
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.affine import add_exprs
from tilec.ir.rewrite import map_expressions, map_statements, rewrite_statements
from tilec.ops.copies.copy import Copy
from tilec.passes.layout.element_accesses import find_loads
from tilec.support.diagnostics import InternalError, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

Indices = tuple[tile.Expr, ...]

CONVERSION_PREFIX = "conversion."
"""The first part of the names of conversion tiles; no tile of a kernel has it."""


class LayoutConflict(Exception):
    """A statement needs `buffer` in another layout than `origin` gives it; in a nest, its uses with these `indices`."""

    def __init__(
        self, stmt: tile.Stmt, buffer: tile.Buffer, origin: Span, indices: frozenset[Indices] = frozenset()
    ) -> None:
        super().__init__(buffer.name)
        self.stmt, self.buffer, self.origin, self.indices = stmt, buffer, origin, indices


@dataclass(frozen=True, slots=True)
class LayoutConversion:
    """A conversion at the statement at `span`: `buffer` got its layout at `origin`, and passes through the shared tile
    `staging`. `passes` counts the copies to it."""

    buffer: tile.Buffer
    staging: tile.Buffer
    origin: Span
    span: Span
    passes: int

    @property
    def bytes(self) -> int:
        """Return the bytes that all its copies write to shared memory each time that the statement runs."""
        return self.staging.bytes * self.passes


def insert_conversion(kernel: tile.Kernel, conflict: LayoutConflict) -> tuple[tile.Kernel, LayoutConversion]:
    """Return the kernel in which the conflicting statement's buffer passes through a shared tile, and the
    conversion."""
    stmt, buffer = conflict.stmt, conflict.buffer
    staging = _choose_staging_tile(kernel, stmt, _choose_carried_buffer(stmt, buffer))
    match stmt:
        case tile.Parallel():
            statements = _convert_nest(stmt, conflict, staging)
        case tile.TileOp(is_elementwise=True):
            statements = _convert_copy(stmt, buffer, staging)
        case tile.TileOp():
            statements = _convert_operation(stmt, buffer, staging, kernel)
        case _:
            raise InternalError(f"{type(stmt).__name__} has no registers")
    used = dict.fromkeys(b for s in statements for b in (*find_reads(s), *find_writes(s)) if b.scope != "global")
    buffers = (*kernel.buffers, *(b for b in used if b not in kernel.buffers))
    passes = sum(staging in find_writes(s) for s in statements)
    converted = replace(kernel, body=replace_statement(kernel.body, stmt, statements), buffers=buffers)
    return converted, LayoutConversion(buffer, staging, conflict.origin, stmt.span, passes)


def _choose_carried_buffer(stmt: tile.Stmt, buffer: tile.Buffer) -> tile.Buffer:
    """Return the buffer that passes through shared memory, with the narrower element type of a converting copy."""
    if isinstance(stmt, Copy) and stmt.regions[0].buffer == buffer:
        dtype = stmt.regions[1].buffer.dtype
        return replace(buffer, dtype=dtype) if dtype.bits < buffer.dtype.bits else buffer
    return buffer


def _choose_staging_tile(kernel: tile.Kernel, stmt: tile.Stmt, carried: tile.Buffer) -> tile.Buffer:
    """Return a conversion tile of this shape and type that the statement does not use: an existing one, or new."""
    made = [b for b in kernel.buffers if b.name.startswith(CONVERSION_PREFIX)]
    fitting = (b for b in made if (b.extents, b.dtype) == (carried.extents, carried.dtype))
    used = {*find_reads(stmt), *find_writes(stmt)}
    found = next((b for b in fitting if b not in used), None)
    return found or tile.Buffer(f"{CONVERSION_PREFIX}{len(made)}", carried.extents, carried.dtype, "shared", stmt.span)


def _convert_copy(op: tile.TileOp, buffer: tile.Buffer, staging: tile.Buffer) -> tuple[tile.Stmt, ...]:
    """Return an elementwise operation on the staging tile instead of `buffer`, with the copies before and behind it."""
    source, destination = op.regions
    if source.buffer == buffer:
        return _build_copy(buffer, staging, op), op.with_regions((replace(source, buffer=staging), destination))
    through = op.with_regions((source, replace(destination, buffer=staging)))
    kept = () if destination.is_whole else (_build_copy(buffer, staging, op),)
    return *kept, through, _build_copy(staging, buffer, op)


def _convert_operation(
    op: tile.TileOp, buffer: tile.Buffer, staging: tile.Buffer, kernel: tile.Kernel
) -> tuple[tile.Stmt, ...]:
    """Return the operation on a new fragment, with copies through the staging tile before and behind it."""
    taken = sum(b.name.startswith(f"{buffer.name}.again") for b in kernel.buffers)
    own = replace(buffer, name=f"{buffer.name}.again{taken}", span=op.span)
    regions = tuple(replace(r, buffer=own) if r.buffer == buffer else r for r in op.regions)
    into = (_build_copy(buffer, staging, op), _build_copy(staging, own, op)) if buffer in find_reads(op) else ()
    back = (_build_copy(own, staging, op), _build_copy(staging, buffer, op)) if buffer in find_writes(op) else ()
    return *into, op.with_regions(regions), *back


def _convert_nest(nest: tile.Parallel, conflict: LayoutConflict, staging: tile.Buffer) -> tuple[tile.Stmt, ...]:
    """Return the nest with conflicting accesses on the staging tile, and copies; refuse stores beside other reads."""
    buffer, indices = conflict.buffer, conflict.indices
    stores = [s for s in tile.walk_statements(nest.body) if isinstance(s, tile.Store) and s.buffer == buffer]
    loaded = {e.indices for e in find_loads(nest.body) if e.buffer == buffer}
    read, written = loaded & indices, {s.indices for s in stores} & indices
    if stores and len({s.indices for s in stores} | loaded) > 1:
        if len(nest.body) > 1 or nest.body[0] is not stores[0]:
            raise_error(
                "fragment-index",
                f"this loop stores to {buffer.name} and also reads elements of {buffer.name} that other threads hold",
                stores[0].span,
                "stored here",
                secondary=(Label(buffer.span, "a fragment is in the registers of the threads"),),
                help="put the results in another fragment, or use a tile made by T.alloc_shared",
            )
        # A single store reads the old elements in shared memory, and sets the new ones in the fragment.
        written = set() if read else written

    def replace_loads(part: tile.Expr) -> tile.Expr:
        """Return the expression with loads by conflicting indices, also inside indices, from the staging tile."""
        if isinstance(part, tile.Load) and part.buffer == buffer and part.indices in read:
            part = replace(part, buffer=staging)
        return map_expressions(part, replace_loads)

    def replace_accesses(stmt: tile.Stmt) -> tile.Stmt:
        """Return the statement with conflicting stores and loads on the staging tile."""
        if isinstance(stmt, tile.Store) and stmt.buffer == buffer and stmt.indices in written:
            stmt = replace(stmt, buffer=staging)
        return map_expressions(stmt, replace_loads)

    through = replace(nest, body=rewrite_statements(nest.body, replace_accesses))
    extents = dict(zip(nest.vars, nest.extents, strict=True))
    sets = (s for s in through.body if isinstance(s, tile.Store) and s.buffer == staging)
    whole = any(covers_tile(staging, s.indices, extents) for s in sets)
    before = () if not read and whole else (_build_copy(buffer, staging, nest),)
    return *before, through, *((_build_copy(staging, buffer, nest),) if written else ())


def _build_copy(source: tile.Buffer, destination: tile.Buffer, at: tile.Stmt) -> tile.TileOp:
    """Return a copy by registers of all of `source` to `destination`."""
    return Copy(cover_buffer(source, at.span), cover_buffer(destination, at.span), via="registers", span=at.span)


def slice_region(region: tile.Region, dimension: int, first: tile.Expr, size: int) -> tile.Region:
    """Return the part of a region with this size along a dimension, beginning `first` behind the region's start."""
    start, extent = list(region.start), list(region.extent)
    start[dimension], extent[dimension] = add_exprs(start[dimension], first), size
    return replace(region, start=tuple(start), extent=tuple(extent))


def cover_buffer(buffer: tile.Buffer, span: Span) -> tile.Region:
    """Return the region that covers the whole buffer."""
    return tile.Region(buffer, tuple(tile.int32_const(0) for _ in buffer.extents), buffer.shape, span)


def replace_statement(body: tuple[tile.Stmt, ...], old: tile.Stmt, new: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
    """Return the body with the statement `old`, found by identity at any depth, replaced by the statements `new`."""

    def replace_if_old(stmt: tile.Stmt) -> tuple[tile.Stmt, ...]:
        """Return `new` for the old statement, and any other one with its nested statements rewritten."""
        return new if stmt is old else (rewrite_scheduled_bodies(stmt, replace_if_old),)

    return map_statements(body, replace_if_old)
