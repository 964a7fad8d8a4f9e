"""Convert sums that a kernel allocates in tensor memory, without ordering them itself, to fragments.

The other passes know such a sum as a fragment. T.copy copies it to a fragment; if neither has another use, the two are
one. `layout.tensor_memory` puts it back into tensor memory, or refuses it.

    for k in T.Pipelined(…):                              T.clear(C)
        T.gemm(A, B, C_tmem, clear_accum=k == 0)          for k in T.Pipelined(…):
    T.copy(C_tmem, C)                                         T.gemm(A, B, C)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.expr import constant
from tilec.ir.rewrite import map_statements, with_bodies
from tilec.ir.types import BOOL
from tilec.ops.copy import Copy
from tilec.ops.fill import Fill
from tilec.ops.gemm import Gemm
from tilec.passes.analysis.usage import expressions, reads, writes
from tilec.passes.explicit_roles.split_roles import has_explicit_roles
from tilec.passes.layout.tensor_memory import products_held
from tilec.support.diagnostics import Label, fail
from tilec.support.source import Span


def with_sums_as_fragments(kernel: tile.Kernel) -> tile.Kernel:
    """Return the kernel with these sums as fragments. Errors: `unsupported-operand`, where a sum is cleared otherwise
    than in the first iteration of its loop."""
    if has_explicit_roles(kernel):
        return kernel
    tiles = dict.fromkeys(op.regions[2].buffer for op in products_held(kernel.body))
    if not tiles:
        return kernel
    fragments = {buffer: _copied_to(kernel, buffer) or replace(buffer, scope="fragment") for buffer in tiles}
    buffers = tuple(b for b in dict.fromkeys(fragments.get(b, b) for b in kernel.buffers))
    subtiles = tuple(replace(s, buffer=fragments.get(s.buffer, s.buffer)) for s in kernel.subtiles)
    return replace(kernel, body=_on_fragments(kernel.body, fragments), buffers=buffers, subtiles=subtiles)


def _touches(stmt: tile.Stmt, buffer: tile.Buffer) -> bool:
    return buffer in reads(stmt) or buffer in writes(stmt)


def _copied_to(kernel: tile.Kernel, buffer: tile.Buffer) -> tile.Buffer | None:
    """Return the fragment to which a complete sum is copied, if nothing uses the fragment before: it can be the sum
    itself."""
    for body in _lists(kernel.body):
        for at, stmt in enumerate(body):
            if not isinstance(stmt, Copy) or stmt.regions[0].buffer != buffer:
                continue
            fragment = stmt.regions[1].buffer
            alike = (fragment.scope, fragment.extents, fragment.dtype) == ("fragment", buffer.extents, buffer.dtype)
            if not alike or not all(r.is_whole for r in stmt.regions):
                return None
            before, after = body[:at], body[at + 1 :]
            is_summed_before = _uses(buffer, before) + 1 == _uses(buffer, kernel.body)
            is_used_behind = _uses(fragment, after) + 1 == _uses(fragment, kernel.body)
            return fragment if is_summed_before and is_used_behind else None
    return None


def _lists(body: tuple[tile.Stmt, ...]) -> Iterator[tuple[tile.Stmt, ...]]:
    """Yield the statement list and the nested ones, except those of pipelined loops."""
    yield body
    for stmt in body:
        if not isinstance(stmt, tile.For) or stmt.kind != "pipelined":
            for inner in tile.bodies(stmt):
                yield from _lists(inner)


def _uses(buffer: tile.Buffer, body: tuple[tile.Stmt, ...]) -> int:
    """Count the statements without nested ones, and the conditions, that use the buffer."""
    return sum(_touches(s, buffer) for s in tile.walk(body) if not tile.bodies(s)) + sum(
        buffer in {e.buffer for x in expressions(s) for e in tile.walk_expr(x) if isinstance(e, tile.Load)}
        for s in tile.walk(body)
        if tile.bodies(s)
    )


# ---- rewriting -------------------------------------------------------------------------------------------------------


def _on_fragments(body: tuple[tile.Stmt, ...], fragments: Mapping[tile.Buffer, tile.Buffer]) -> tuple[tile.Stmt, ...]:
    def inside(stmts: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        return map_statements(stmts, one)

    def one(stmt: tile.Stmt) -> tile.Stmt | tuple[tile.Stmt, ...]:
        match stmt:
            case Copy(regions=(source, destination)) if fragments.get(source.buffer) == destination.buffer:
                return ()
            case tile.TileOp(regions=regions):
                stmt = stmt.with_regions(tuple(replace(r, buffer=fragments.get(r.buffer, r.buffer)) for r in regions))
                return _product(stmt) if isinstance(stmt, Gemm) and stmt.held is not None else stmt
            case tile.For():
                before, loop = _begun(stmt, fragments)
                return *before, with_bodies(loop, inside)
            case tile.Parallel():
                return stmt
            case _:
                return with_bodies(stmt, inside)

    return inside(body)


def _begun(loop: tile.For, fragments: Mapping[tile.Buffer, tile.Buffer]) -> tuple[list[tile.Stmt], tile.For]:
    """Hoist the clearing of sums in a loop's first iteration: return the fills before the loop, and the loop."""
    fills: list[tile.Stmt] = []
    body = list(loop.body)
    for buffer, fragment in fragments.items():
        at = next((i for i, s in enumerate(body) if _touches(s, buffer)), None)
        if at is None:
            continue
        op = body[at]
        if isinstance(op, Gemm) and _is_first_iteration(op.clear_when, loop):
            fills.append(_cleared(fragment, op.span))
            body[at] = replace(op, clear_when=tile.Const(False, BOOL))
    return fills, replace(loop, body=tuple(body))


def _is_first_iteration(initialises: object, loop: tile.For) -> bool:
    match initialises:
        case tile.Binary(op="eq", a=a, b=b):
            return (a, b) in ((loop.var, loop.start), (loop.start, loop.var))
        case _:
            return False


def _cleared(fragment: tile.Buffer, span: Span) -> tile.TileOp:
    whole = tile.Region(fragment, tuple(tile.integer(0) for _ in fragment.shape), fragment.shape, span)
    return Fill(whole, constant(0, fragment.dtype), span=span)


def _product(op: Gemm) -> tile.TileOp:
    """Return the product into a fragment, which clears its sum always or never."""
    initialises = op.clear_when
    if not isinstance(initialises, tile.Const):
        fail(
            "unsupported-operand",
            "this T.gemm clears its sum in some iterations of a loop",
            op.span,
            "only the first iteration of the loop that it stands in can do that, before anything else touches C",
            secondary=(Label(op.regions[2].buffer.span, "C is allocated here"),),
            help="T.clear C before the loop",
        )
    return replace(op, clear_when=None, leader=None, clear_accum=bool(initialises.value))
