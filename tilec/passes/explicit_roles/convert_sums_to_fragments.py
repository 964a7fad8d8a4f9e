"""Convert sums that a kernel allocates in tensor memory, without ordering them itself, to fragments.

The other passes know such a sum as a fragment. T.copy copies it to a fragment; if neither has another use, the two are
one. `layout.mechanisms.tensor_memory` puts it back into tensor memory, or refuses it.

    for k in T.Pipelined(…):                              T.clear(C)
        T.gemm(A, B, C_tmem, clear_accum=k == 0)          for k in T.Pipelined(…):
    T.copy(C_tmem, C)                                         T.gemm(A, B, C)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.expr import make_constant
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.ir.types import BOOL
from tilec.ops.copies.copy import Copy
from tilec.ops.fill import Fill
from tilec.ops.products.gemm import Gemm
from tilec.passes.explicit_roles.split_roles import has_explicit_roles
from tilec.passes.layout.fragments.convert_layouts import cover_buffer
from tilec.passes.layout.mechanisms.tensor_memory import find_held_products
from tilec.passes.memory.prefetch_tiles import count_tile_uses
from tilec.support.diagnostics import Label, raise_error


def convert_sums_to_fragments(kernel: tile.Kernel) -> tile.Kernel:
    """Turn sums in tensor memory into fragments cleared before their loops, unless the kernel has explicit roles.

    Errors: `unsupported-operand`, where a sum is cleared otherwise than in the first iteration of its loop."""
    if has_explicit_roles(kernel):
        return kernel
    tiles = dict.fromkeys(op.regions[2].buffer for op in find_held_products(kernel.body))
    if not tiles:
        return kernel
    fragments = {buffer: _find_final_fragment(kernel, buffer) or replace(buffer, scope="fragment") for buffer in tiles}
    buffers = tuple(dict.fromkeys(fragments.get(b, b) for b in kernel.buffers))
    subtiles = tuple(replace(s, buffer=fragments.get(s.buffer, s.buffer)) for s in kernel.subtiles)
    return replace(kernel, body=_rewrite_body(kernel.body, fragments), buffers=buffers, subtiles=subtiles)


def _find_final_fragment(kernel: tile.Kernel, buffer: tile.Buffer) -> tile.Buffer | None:
    """Return the fragment that a finished sum is copied to whole, if both can be one tile; else None."""
    for body in _walk_statement_lists(kernel.body):
        for at, stmt in enumerate(body):
            if not isinstance(stmt, Copy) or stmt.regions[0].buffer != buffer:
                continue
            fragment = stmt.regions[1].buffer
            alike = (fragment.scope, fragment.extents, fragment.dtype) == ("fragment", buffer.extents, buffer.dtype)
            if not alike or not all(r.is_whole for r in stmt.regions):
                return None
            before, after = body[:at], body[at + 1 :]
            is_summed_before = count_tile_uses(before, buffer) + 1 == count_tile_uses(kernel.body, buffer)
            is_used_behind = count_tile_uses(after, fragment) + 1 == count_tile_uses(kernel.body, fragment)
            return fragment if is_summed_before and is_used_behind else None
    return None


def _walk_statement_lists(body: tuple[tile.Stmt, ...]) -> Iterator[tuple[tile.Stmt, ...]]:
    """Yield this list of statements and those nested in it, except the bodies of pipelined loops."""
    yield body
    for stmt in body:
        if not isinstance(stmt, tile.For) or stmt.kind != "pipelined":
            for inner in tile.nested_bodies(stmt):
                yield from _walk_statement_lists(inner)


def _rewrite_body(body: tuple[tile.Stmt, ...], fragments: Mapping[tile.Buffer, tile.Buffer]) -> tuple[tile.Stmt, ...]:
    """Replace sums by their fragments in all statements, and put their clearing before their loops."""

    def rewrite_list(stmts: tuple[tile.Stmt, ...]) -> tuple[tile.Stmt, ...]:
        return map_statements(stmts, rewrite_statement)

    def rewrite_statement(stmt: tile.Stmt) -> tile.Stmt | tuple[tile.Stmt, ...]:
        """Return a statement on fragments, a loop behind its hoisted fills; () for a copy from a sum to the fragment
        it becomes. Errors: those of `_convert_product`."""
        match stmt:
            case Copy(regions=(source, destination)) if fragments.get(source.buffer) == destination.buffer:
                return ()
            case tile.TileOp(regions=regions):
                stmt = stmt.with_regions(tuple(replace(r, buffer=fragments.get(r.buffer, r.buffer)) for r in regions))
                return _convert_product(stmt) if isinstance(stmt, Gemm) and stmt.held is not None else stmt
            case tile.For():
                before, loop = _hoist_clearing(stmt, fragments)
                return *before, map_nested_bodies(loop, rewrite_list)
            case tile.Parallel():
                return stmt
            case _:
                return map_nested_bodies(stmt, rewrite_list)

    return rewrite_list(body)


def _hoist_clearing(loop: tile.For, fragments: Mapping[tile.Buffer, tile.Buffer]) -> tuple[list[tile.Stmt], tile.For]:
    """Return fills of the sums that the loop clears in its first iteration, and the loop without this clearing."""
    fills: list[tile.Stmt] = []
    body = list(loop.body)
    for buffer, fragment in fragments.items():
        at = next((i for i, s in enumerate(body) if buffer in (*find_reads(s), *find_writes(s))), None)
        if at is None:
            continue
        op = body[at]
        if isinstance(op, Gemm) and _is_first_iteration(op.clear_when, loop):
            fills.append(Fill(cover_buffer(fragment, op.span), make_constant(0, fragment.dtype), span=op.span))
            body[at] = replace(op, clear_when=tile.Const(False, BOOL))
    return fills, replace(loop, body=tuple(body))


def _is_first_iteration(when: tile.Expr | None, loop: tile.For) -> bool:
    """Return True if the condition is that the loop's variable equals its start."""
    return isinstance(when, tile.Binary) and when.op == "eq" and {when.a, when.b} == {loop.var, loop.start}


def _convert_product(op: Gemm) -> tile.TileOp:
    """Return the product as one into a fragment, cleared always or never; refuse any other condition for clearing."""
    initialises = op.clear_when
    if not isinstance(initialises, tile.Const):
        raise_error(
            "unsupported-operand",
            "this T.gemm clears C in some iterations of a loop only",
            op.span,
            "that is possible only in the first iteration of its own loop, before any other use of C",
            secondary=(Label(op.regions[2].buffer.span, "C is allocated here"),),
            help="write T.clear(C) before the loop instead",
        )
    return replace(op, clear_when=None, leader=None, clear_accum=bool(initialises.value))
