"""Verify operations that passes have rewritten: attributes fit their fields, and without what passes set (`BY_PASSES`)
each operation is still one that a kernel may contain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from tilec.ir import tile
from tilec.ir.operations import operations
from tilec.ir.operations.fields import BY_PASSES
from tilec.ir.rewrite import rewrite_statements
from tilec.ir.types import FLOAT4_E2M1, UINT8
from tilec.ops.form import show_violations
from tilec.ops.products.gemm import Gemm
from tilec.ops.synchronisation.sync import WaitCopies
from tilec.support import schema


def find_operation_violations(kernel: tile.Kernel) -> Iterator[str]:
    """Yield what is wrong with a rewritten kernel's operations: bad attributes, or a form that no kernel could have."""
    for stmt in tile.walk_statements(kernel.body):
        if isinstance(stmt, tile.TileOp) and stmt.in_text:
            try:
                operations.check_attributes(replace(stmt, **_find_written_attributes(stmt)))
            except schema.SchemaError as error:
                yield f"line {stmt.span.line}: {error}"
    yield from show_violations(replace(kernel, body=rewrite_statements(kernel.body, _restore_written_form)))


_ELEMENT_TYPE_OPERANDS = {"a_type": 0, "b_type": 1}
"""Attributes that give the element type of a region, and the region's index."""


def _find_written_attributes(op: tile.TileOp) -> dict[str, Any]:
    """Return the attribute values that a kernel would have written in place of decided ones."""
    written: dict[str, Any] = {}
    if op.announces is False:
        written["announces"] = True  # a pass sets False where the kernel itself announces the bytes
    if isinstance(op, Gemm) and op.via == "tcgen05" and op.clear_when is not None and op.leader is None:
        written["leader"] = 0  # passes that move a sum to tensor memory use the producer's only thread
    if isinstance(op, Gemm) and op.held is not None and not op.is_in_tensor_memory:
        written["held"] = None  # the pass that moves its sum to tensor memory has checked it
    if isinstance(op, WaitCopies) and op.pending is None:
        written["pending"] = 0  # as a `sync` list means it
    return written


def _restore_written_form(stmt: tile.Stmt) -> tile.Stmt:
    """Return the operation with the defaults for what passes decided, as a kernel would have written it.

    Other statements are unchanged.
    """
    if not isinstance(stmt, tile.TileOp):
        return stmt
    decided = {f.name: f.default for f in fields(stmt) if f.metadata == BY_PASSES}
    plain = replace(stmt, **{**decided, "versions": (), **_find_written_attributes(stmt)})
    regions = list(plain.regions)
    for name, operand in _ELEMENT_TYPE_OPERANDS.items():
        if getattr(plain, name, None) == "e2m1":
            regions[operand] = _view_as_e2m1(regions[operand])
    return plain.with_regions(tuple(regions))


def _view_as_e2m1(region: tile.Region) -> tile.Region:
    """Return a region of bytes as one of twice as many e2m1 elements; other regions unchanged."""
    buffer = region.buffer
    if buffer.dtype != UINT8 or not isinstance(last := buffer.extents[-1], int):
        return region
    whole = replace(buffer, dtype=FLOAT4_E2M1, extents=(*buffer.extents[:-1], 2 * last))
    return replace(region, buffer=whole, extent=(*region.extent[:-1], 2 * region.extent[-1]))
