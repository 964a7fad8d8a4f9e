"""rows-without-tma: a pipelined loop loads without TMA, only since the length of a tensor's rows is known at launch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tilec.analysis.rings import find_pipelined_loops, is_load
from tilec.driver.lints.registry import LAYOUT, register_lint
from tilec.ir.affine import row_divisor
from tilec.ir.rewrite import rewrite_statements
from tilec.ir.tile import Buffer, Kernel, Region, Stmt, TileOp, walk_statements
from tilec.ops.copies.copy import Copy
from tilec.ops.lowering import TMA_ALIGNMENT
from tilec.passes.layout.mechanisms.kernel_form import choose_kernel_form
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, Label

_ALIGNED_ROW = 1 << 20
"""An extent that is a multiple of 16 bytes in every type."""


@register_lint(LAYOUT, "rows-without-tma")
def rows(work: KernelState) -> Iterator[Diagnostic]:
    """Warn of each tensor whose rows keep the loads of a pipelined loop from TMA, where aligned rows would not."""
    kernel, target, strategy = work.source_kernel, work.target, work.options.pipeline_strategy
    if not target.has("tma") or work.assignment.roles or work.assignment.form == "warp_specialised":
        return
    copies = [
        stmt
        for loop in find_pipelined_loops(kernel.body)
        for stmt in walk_statements(loop.body)
        if isinstance(stmt, TileOp) and _has_unknown_rows(stmt)
    ]
    if not copies or choose_kernel_form(_with_aligned_rows(kernel), target, strategy).form != "warp_specialised":
        return
    for tensor in dict.fromkeys(copy.regions[0].buffer for copy in copies):
        by_tensor = dict.fromkeys(copy.span for copy in copies if copy.regions[0].buffer == tensor)
        factor = TMA_ALIGNMENT // math.gcd(_row_bytes(tensor), TMA_ALIGNMENT)
        yield Diagnostic(
            "rows-without-tma",
            f"the pipelined loop loads {tensor.name} without TMA, which is several times slower",
            Label(tensor.span, f"whether rows are a multiple of {TMA_ALIGNMENT} bytes is known only at launch"),
            tuple(Label(span, "this copy could use TMA") for span in by_tensor),
            help=f'if they always are, declare the last extent as {factor} * T.dynamic("n")',
            severity="warning",
        )


def _row_bytes(tensor: Buffer) -> int:
    """Return the largest number of bytes that is known to divide the length of a row."""
    return tensor.dtype.bytes * row_divisor(tensor)


def _has_unknown_rows(op: TileOp) -> bool:
    """Return whether a copy loads rows of which it is unknown whether TMA can load them."""
    if not isinstance(op, Copy) or not is_load(op):
        return False
    tensor = op.regions[0].buffer
    is_dynamic = len(tensor.extents) > 1 and not isinstance(tensor.extents[-1], int)
    return is_dynamic and _row_bytes(tensor) % TMA_ALIGNMENT != 0


def _with_aligned_rows(kernel: Kernel) -> Kernel:
    """Return the kernel as if the rows that its copies load were a multiple of 16 bytes."""

    def aligned(region: Region) -> Region:
        tensor = region.buffer
        return replace(region, buffer=replace(tensor, extents=(*tensor.extents[:-1], _ALIGNED_ROW)))

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Copy) and _has_unknown_rows(stmt):
            source, destination = stmt.regions
            return stmt.with_regions((aligned(source), destination))
        return stmt

    return replace(kernel, body=rewrite_statements(kernel.body, visit))
