"""Carry fragments through shared memory where a statement needs another layout.

A fragment has one layout. Where a statement needs another one (a product partitioned in another way, a sum along the
other dimension, elements of other threads), its operand is copied to a shared tile before it, and its result copied
back behind it. Conversions of one shape and type share a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.rewrite import map_expressions, map_statements, rewrite
from tilec.ops.copy import Copy
from tilec.passes.analysis.copy_nests import covers
from tilec.passes.analysis.scheduling_hints import with_scheduled_bodies
from tilec.passes.analysis.usage import expressions, reads, writes
from tilec.support.diagnostics import InternalError, Label, fail
from tilec.support.records import dataclass
from tilec.support.source import Span

Indices = tuple[tile.Expr, ...]

CONVERSION = "conversion."
"""The first part of the names of conversion tiles; no tile of a kernel has it."""


class Conflict(Exception):
    """A statement needs `buffer` in another layout than the text at `origin` gives it. In a nest, only for its uses
    with these `indices`."""

    def __init__(
        self, stmt: tile.Stmt, buffer: tile.Buffer, origin: Span, indices: frozenset[Indices] = frozenset()
    ) -> None:
        super().__init__(buffer.name)
        self.stmt, self.buffer, self.origin, self.indices = stmt, buffer, origin, indices


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion at the statement at `span`: `buffer` got its layout at `origin`, and passes through the shared tile
    `staging`. `passes` counts the copies to it."""

    buffer: tile.Buffer
    staging: tile.Buffer
    origin: Span
    span: Span
    passes: int

    @property
    def bytes(self) -> int:
        """Return the bytes written to shared memory each time that the statement runs."""
        return self.staging.bytes * self.passes


def resolve(kernel: tile.Kernel, conflict: Conflict) -> tuple[tile.Kernel, Conversion]:
    """Give the conflicting statement its buffer through shared memory."""
    stmt, buffer = conflict.stmt, conflict.buffer
    staging = _staging(kernel, stmt, _carried(stmt, buffer))
    match stmt:
        case tile.Parallel():
            statements = _nest(stmt, conflict, staging)
        case tile.TileOp(is_elementwise=True):
            statements = _move(stmt, buffer, staging)
        case tile.TileOp():
            statements = _operation(stmt, buffer, staging, kernel)
        case _:
            raise InternalError(f"{type(stmt).__name__} has no registers")
    used = dict.fromkeys(b for s in statements for b in (*reads(s), *writes(s)) if b.scope != "global")
    buffers = (*kernel.buffers, *(b for b in used if b not in kernel.buffers))
    passes = sum(staging in writes(s) for s in statements)
    converted = replace(kernel, body=rewritten(kernel.body, stmt, statements), buffers=buffers)
    return converted, Conversion(buffer, staging, conflict.origin, stmt.span, passes)


def _carried(stmt: tile.Stmt, buffer: tile.Buffer) -> tile.Buffer:
    """Return the buffer that passes through shared memory: of a converting copy, the narrower elements."""
    if isinstance(stmt, Copy) and stmt.regions[0].buffer == buffer:
        dtype = stmt.regions[1].buffer.dtype
        return replace(buffer, dtype=dtype) if dtype.bits < buffer.dtype.bits else buffer
    return buffer


def _staging(kernel: tile.Kernel, stmt: tile.Stmt, carried: tile.Buffer) -> tile.Buffer:
    """Return a conversion tile that the statement does not use, existing or new."""
    made = [b for b in kernel.buffers if b.name.startswith(CONVERSION)]
    fitting = (b for b in made if (b.extents, b.dtype) == (carried.extents, carried.dtype))
    used = {*reads(stmt), *writes(stmt)}
    found = next((b for b in fitting if b not in used), None)
    return found or tile.Buffer(f"{CONVERSION}{len(made)}", carried.extents, carried.dtype, "shared", stmt.span)


# ---- the ways through ------------------------------------------------------------------------------------------------


def _move(op: tile.TileOp, buffer: tile.Buffer, staging: tile.Buffer) -> tuple[tile.Stmt, ...]:
    """Convert for a copy or an atomic one, from the fragment or into it."""
    source, destination = op.regions
    if source.buffer == buffer:
        return _copy(buffer, staging, op), op.with_regions((replace(source, buffer=staging), destination))
    through = op.with_regions((source, replace(destination, buffer=staging)))
    kept = () if destination.is_whole else (_copy(buffer, staging, op),)
    return *kept, through, _copy(staging, buffer, op)


def _operation(
    op: tile.TileOp, buffer: tile.Buffer, staging: tile.Buffer, kernel: tile.Kernel
) -> tuple[tile.Stmt, ...]:
    """Give an operation on registers a fragment of its own, copied in and out."""
    taken = sum(b.name.startswith(f"{buffer.name}.again") for b in kernel.buffers)
    own = replace(buffer, name=f"{buffer.name}.again{taken}", span=op.span)
    regions = tuple(replace(r, buffer=own) if r.buffer == buffer else r for r in op.regions)
    into = (_copy(buffer, staging, op), _copy(staging, own, op)) if buffer in reads(op) else ()
    back = (_copy(own, staging, op), _copy(staging, buffer, op)) if buffer in writes(op) else ()
    return *into, op.with_regions(regions), *back


def _nest(nest: tile.Parallel, conflict: Conflict, staging: tile.Buffer) -> tuple[tile.Stmt, ...]:
    """Let the nest load and store elements of the shared tile instead."""
    buffer, indices = conflict.buffer, conflict.indices
    stores = [s for s in tile.walk(nest.body) if isinstance(s, tile.Store) and s.buffer == buffer]
    loaded = {e.indices for e in _loads(nest) if e.buffer == buffer}
    read, written = loaded & indices, {s.indices for s in stores} & indices
    if stores and len({s.indices for s in stores} | loaded) > 1:
        if len(nest.body) > 1 or nest.body[0] is not stores[0]:
            fail(
                "fragment-index",
                f"{buffer.name} is set in this nest, which also uses elements of it that other threads have",
                stores[0].span,
                "set here",
                secondary=(Label(buffer.span, "a fragment lives in registers"),),
                help="put the results in another fragment, or use a tile made by T.alloc_shared",
            )
        # A single store reads the old elements in shared memory, and sets the new ones in the fragment.
        written = set() if read else written

    def rename(used: tile.Buffer, at: Indices, stored: bool) -> tile.Buffer:
        return staging if used == buffer and at in (written if stored else read) else used

    through = _renamed(nest, rename)
    extents = dict(zip(nest.vars, nest.extents, strict=True))
    sets = (s for s in through.body if isinstance(s, tile.Store) and s.buffer == staging)
    whole = any(covers(staging, s.indices, extents) for s in sets)
    before = () if not read and whole else (_copy(buffer, staging, nest),)
    return *before, through, *((_copy(staging, buffer, nest),) if written else ())


def _copy(source: tile.Buffer, destination: tile.Buffer, at: tile.Stmt) -> tile.TileOp:
    def whole(buffer: tile.Buffer) -> tile.Region:
        return tile.Region(buffer, tuple(tile.integer(0) for _ in buffer.extents), buffer.shape, at.span)

    return Copy(whole(source), whole(destination), via="registers", span=at.span)


# ---- rewriting -------------------------------------------------------------------------------------------------------

Rename = Callable[[tile.Buffer, Indices, bool], tile.Buffer]
"""Choose the buffer to use instead at these indices, in a store (True) or a load."""


def _loads(nest: tile.Parallel) -> Iterator[tile.Load]:
    for stmt in tile.walk(nest.body):
        for expr in expressions(stmt):
            yield from (e for e in tile.walk_expr(expr) if isinstance(e, tile.Load))


def _renamed(nest: tile.Parallel, rename: Rename) -> tile.Parallel:
    def load(part: tile.Expr) -> tile.Expr:
        if not isinstance(part, tile.Load):
            return map_expressions(part, load)
        return map_expressions(replace(part, buffer=rename(part.buffer, part.indices, False)), load)

    def one(stmt: tile.Stmt) -> tile.Stmt:
        if isinstance(stmt, tile.Store):
            stmt = replace(stmt, buffer=rename(stmt.buffer, stmt.indices, True))
        return map_expressions(stmt, load)

    return replace(nest, body=rewrite(nest.body, one))


def rewritten(body: tuple[tile.Stmt, ...], old: tile.Stmt, new: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
    """Replace the statement `old` by `new`, at any depth."""

    def one(stmt: tile.Stmt) -> tuple[tile.Stmt, ...]:
        return new if stmt is old else (with_scheduled_bodies(stmt, one),)

    return map_statements(body, one)
