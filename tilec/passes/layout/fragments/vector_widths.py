"""Choose how many neighbours along the last dimension a thread holds, so that its memory accesses are wide.

A thread that holds 16 bytes of the narrowest tensor reaches all of them with accesses of 16 bytes: wider elements with
several. In shared memory, runs of wider elements would share banks with those of other threads: there the widest
element decides. Where a nest reaches elements of shared memory one by one, those of neighbouring threads should be in
neighbouring banks: then a thread holds no more than a bank's word."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tilec.ir import tile
from tilec.ir.affine import affine_form
from tilec.ir.types import BOOL
from tilec.ops.lowering import VECTOR_BYTES

BANK_BYTES = 4
"""Width of a bank of shared memory (CUDA programming guide, shared memory)."""


def choose_nest_width(nest: tile.Parallel, threads: int) -> int:
    """Return how many neighbours along its last dimension each thread takes of a nest that no fragment decides."""
    least = VECTOR_BYTES // max(_list_element_bytes(nest), default=1)
    run = _choose_run(find_streamed_buffers(nest), least, nest.extents, threads)
    unaligned_sizes = [
        buffer.dtype.bytes for buffer, index in _find_shared_rows(nest) if _is_unaligned(index, nest.vars[-1], run)
    ]
    return min(run, max(1, BANK_BYTES // max(unaligned_sizes))) if unaligned_sizes else run


def choose_fragment_width(fragment: tile.Buffer, stmts: Iterable[tile.Stmt], threads: int) -> int:
    """Return how many neighbours in a row each thread holds of a fragment, by the buffers copied or used with it."""

    def has_same_shape(buffer: tile.Buffer) -> bool:
        """Return True if the buffer is a fragment of the same shape."""
        return buffer.scope == "fragment" and buffer.shape == fragment.shape

    buffers: list[tile.Buffer] = []
    for stmt in stmts:
        match stmt:
            case tile.TileOp(fragments_lie="alike", regions=regions) if any(has_same_shape(r.buffer) for r in regions):
                buffers += [r.buffer for r in regions if not r.buffer.in_registers]
            case tile.Parallel(extents=fragment.shape) if any(has_same_shape(b) for b, _ in _find_accesses(stmt)):
                buffers += find_streamed_buffers(stmt)
    least = VECTOR_BYTES // max((b.dtype.bytes for b in buffers), default=fragment.dtype.bytes)
    return _choose_run(buffers, least, fragment.shape, threads)


def find_streamed_buffers(nest: tile.Parallel) -> list[tile.Buffer]:
    """Return, once per access, tensors and shared tiles (not bool) that iterations of a nest access neighbour by
    neighbour."""
    last = nest.vars[-1]

    def is_contiguous(indices: tuple[tile.Expr, ...]) -> bool:
        return (last, 1) in affine_form(indices[-1]).terms and not any(last in tile.walk_expr(i) for i in indices[:-1])

    return [
        b for b, indices in _find_accesses(nest) if not b.in_registers and b.dtype != BOOL and is_contiguous(indices)
    ]


def _find_shared_rows(nest: tile.Parallel) -> Iterator[tuple[tile.Buffer, tile.Expr]]:
    """Yield each shared tile access whose last nest variable moves along rows only, with its column index."""
    last = nest.vars[-1]
    for buffer, (*rows, index) in _find_accesses(nest):
        if buffer.scope == "shared" and not any(last in tile.walk_expr(i) for i in rows):
            yield buffer, index


def _is_unaligned(index: tile.Expr, last: tile.Var, run: int) -> bool:
    """Return True if the index moves by one with the last variable, but aligned runs of `run` do not stay
    contiguous."""
    form = affine_form(index)
    is_whole = form.constant % run == 0 and all(
        atom == last or (by % run == 0 and last not in tile.walk_expr(atom)) for atom, by in form.terms
    )
    return not is_whole and abs(_find_stride(index, last)) == 1


def _find_stride(index: tile.Expr, last: tile.Var) -> int:
    """Return by how much the index grows when `last` grows by 1, ignoring wrap-around by modulo or exclusive or."""
    stride = 0
    for atom, by in affine_form(index).terms:
        match atom:
            case tile.Binary(op="floormod" | "xor", a=inner):
                stride += by * _find_stride(inner, last)
            case _:
                stride += by if atom == last else 0
    return stride


def _choose_run(buffers: list[tile.Buffer], least: int, shape: tuple[int, ...], threads: int) -> int:
    """Return `least` elements per thread, or more if that widens tensor accesses and leaves no thread without work."""
    sizes = [b.dtype.bytes for b in buffers if b.scope == "global"]
    if not sizes:
        return least
    widest = max((b.dtype.bytes for b in buffers if b.scope == "shared"), default=1)
    width = VECTOR_BYTES // max(min(sizes), widest)
    while width > least and width * threads > math.prod(shape):
        width //= 2
    return max(width, least)


def _find_accesses(nest: tile.Parallel) -> Iterator[tuple[tile.Buffer, tuple[tile.Expr, ...]]]:
    """Yield each buffer that the nest stores or loads, with its indices, in which binds are replaced by their
    values."""
    values: dict[tile.Var, tile.Expr] = {}
    for stmt in tile.walk_statements(nest.body):
        if isinstance(stmt, tile.Bind):
            values[stmt.var] = tile.substitute_variables(stmt.value, values)
        if isinstance(stmt, tile.Store):
            yield stmt.buffer, tuple(tile.substitute_variables(i, values) for i in stmt.indices)
        for load in tile.walk_loads(stmt):
            yield load.buffer, tuple(tile.substitute_variables(i, values) for i in load.indices)


def _list_element_bytes(nest: tile.Parallel) -> Iterator[int]:
    """Yield the element sizes of the buffers that the nest stores to, and of those that the stored values load."""
    for stmt in tile.walk_statements(nest.body):
        if isinstance(stmt, tile.Store):
            yield stmt.buffer.dtype.bytes
            yield from (e.buffer.dtype.bytes for e in tile.walk_expr(stmt.value) if isinstance(e, tile.Load))
