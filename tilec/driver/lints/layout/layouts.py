"""schedule-not-used: a person's schedule for a loop that runs serially.
layout-conversion: a fragment goes through shared memory, since statements need it in different registers.
copy-not-asynchronous: a T.async_copy that no asynchronous mechanism can carry out.
hint-not-used: `coalesced_width=` or T.vectorized asks for adjacent elements per thread, and the layout has none. Where
the layout that a nest must keep spreads them over several threads, memory is accessed element by element.
tensor-memory-exhausted: accumulators need more columns of tensor memory than an SM has.
mma-sync-fallback: a product that tcgen05.mma supports uses mma.sync because of the code around it.
rows-without-tma: a pipelined loop loads without TMA, only since the length of a tensor's rows is known at launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tilec.analysis.ordering import is_asynchronous_copy
from tilec.analysis.rings import find_pipelined_loops, is_load
from tilec.driver.lints.registry import LAYOUT, register_lint, register_warning
from tilec.ir.affine import row_divisor
from tilec.ir.rewrite import rewrite_statements
from tilec.ir.tile import Buffer, For, Kernel, Parallel, Stmt, TileOp, walk_statements
from tilec.ops.copies.copy import Copy
from tilec.ops.lowering import TMA_ALIGNMENT
from tilec.passes.layout.fragments.vector_widths import find_streamed_buffers
from tilec.passes.layout.mechanisms.kernel_form import choose_kernel_form
from tilec.passes.layout.mechanisms.tensor_memory import count_columns, find_crowded_out_sums
from tilec.passes.layout.mechanisms.tensor_products import find_fallback_products
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, Label, make_warning


@register_warning(LAYOUT)
def find_unused_schedules(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning for each loop with stage= or order= in a kernel whose loops run serially."""
    for loop in walk_statements(work.source_kernel.body) if work.assignment.form == "serial" else ():
        if isinstance(loop, For) and loop.stage is not None:
            why = "loops run serially at this optimisation level or with this strategy"
            advice = "compile with -O2 or -O3, and without --pipeline-strategy none"
            yield make_warning(
                "schedule-not-used", "stage= and order= change nothing here", loop.span, why, help=advice
            )


@register_lint(LAYOUT, "layout-conversion")
def find_conversions(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning for each fragment that goes through shared memory to change its layout."""
    for change in work.assignment.conversions:
        origin = () if change.origin == change.span else (Label(change.origin, "its layout comes from here"),)
        title = f"{change.buffer.name} goes through shared memory, because this statement needs it in another layout"
        label = f"{change.bytes:,} bytes are written and read again each time"
        advice = "use fragments of one layout together, or put values that all threads need in a shared tile"
        yield make_warning("layout-conversion", title, change.span, label, secondary=origin, help=advice)


@register_warning(LAYOUT)
def find_synchronous_copies(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning, with the reason, for each T.async_copy that goes through registers."""
    for stmt in (stmt for assignment in work.assignment.kernels for stmt in walk_statements(assignment.kernel.body)):
        if isinstance(stmt, TileOp) and is_asynchronous_copy(stmt) and stmt.via == "registers":
            source, tile = stmt.regions
            why = "its rows are not aligned to 4 bytes"
            if source.buffer.dtype != tile.buffer.dtype:
                why = f"it converts {source.buffer.dtype} to {tile.buffer.dtype}"
            title = "this T.async_copy is not asynchronous"
            advice = "copy rows of whole words to a shared tile of the tensor's dtype, or write T.copy"
            yield make_warning("copy-not-asynchronous", title, stmt.span, why, help=advice)


@register_warning(LAYOUT)
def find_unkept_widths(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning for each nest whose layout gives threads fewer adjacent elements than its hint asks for."""
    nests = ((nest, part) for part in work.assignment.kernels for nest in walk_statements(part.kernel.body))
    for nest, assignment in nests:
        if not isinstance(nest, Parallel) or nest.width is None or nest.is_per_thread:
            continue
        if not find_streamed_buffers(nest):
            continue
        layout = assignment.nest_layout(nest)
        first = next((axis for axis in layout.registers if axis.size > 1), None)
        run = first.size if first is not None and (first.dim, first.stride) == (len(nest.extents) - 1, 1) else 1
        if run % nest.width:
            title = f"the hint asks for {nest.width} adjacent elements per thread, and the layout does not give them"
            given = "loop_layout" if nest.layout is not None else "a fragment's layout"
            label = f"{given} gives each thread {math.gcd(run, nest.width)} at a time"
            advice = "give each thread adjacent elements in that layout, or remove the hint"
            yield make_warning("hint-not-used", title, nest.span, label, help=advice)


@register_lint(LAYOUT, "tensor-memory-exhausted")
def find_exhausted_tensor_memory(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning if accumulators stay in registers because an SM has no tensor-memory columns left."""
    assignment, target = work.assignment, work.target
    has_sums_there = target.has("tcgen05") and assignment.form == "warp_specialised"
    left = find_crowded_out_sums(assignment.kernel, target) if has_sums_there else ()
    if not left:
        return
    allocated = [b for b in assignment.kernel.buffers if b.scope == "tmem"]
    total, limit = sum(map(count_columns, (*allocated, *left))), target.limit("tmem_columns")
    title = f"the accumulators need {total} columns of tensor memory, an SM of {target.name} has {limit}"
    label = f"{left[0].name} needs {count_columns(left[0])} and stays in registers"
    others = tuple(Label(b.span, f"{count_columns(b)} are used here") for b in allocated)
    advice = "use a smaller tile, or split the kernel"
    yield make_warning("tensor-memory-exhausted", title, left[0].span, label, secondary=others, help=advice)


@register_lint(LAYOUT, "mma-sync-fallback")
def find_mma_sync_products(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning for each product that uses mma.sync although tcgen05.mma supports it.

    There is none if the options ask for that.
    """
    assignment, target, options = work.assignment, work.target, work.options
    if options.opt_level < 3 or options.pipeline_strategy != "auto" or "unspecialised" in assignment.kernel.asks:
        return
    crowded = {tile.span for tile in find_crowded_out_sums(assignment.kernel, target)}  # these have a warning already
    for left in find_fallback_products(assignment, target):
        if left.is_supported and left.op.regions[2].buffer.span not in crowded:
            title = "this product uses mma.sync, not tcgen05.mma"
            yield make_warning("mma-sync-fallback", title, left.op.span, left.why, help=left.help)


_ALIGNED_ROW = 1 << 20
"""An extent that is a multiple of 16 bytes in every type."""


@register_lint(LAYOUT, "rows-without-tma")
def find_rows_without_tma(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning for each tensor whose row length, known at launch only, keeps a pipelined loop from TMA."""
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
        title = f"the pipelined loop loads {tensor.name} without TMA, which is several times slower"
        label = f"whether rows are a multiple of {TMA_ALIGNMENT} bytes is known only at launch"
        others = tuple(Label(span, "this copy could use TMA") for span in by_tensor)
        advice = f'if they always are, declare the last extent as {factor} * T.dynamic("n")'
        yield make_warning("rows-without-tma", title, tensor.span, label, secondary=others, help=advice)


def _row_bytes(tensor: Buffer) -> int:
    """Return the largest number of bytes that surely divides the length of a tensor's row."""
    return tensor.dtype.bytes * row_divisor(tensor)


def _has_unknown_rows(op: TileOp) -> bool:
    """Return whether an operation copies from a tensor whose rows may or may not be aligned for TMA."""
    if not isinstance(op, Copy) or not is_load(op):
        return False
    tensor = op.regions[0].buffer
    is_dynamic = len(tensor.extents) > 1 and not isinstance(tensor.extents[-1], int)
    return is_dynamic and _row_bytes(tensor) % TMA_ALIGNMENT != 0


def _with_aligned_rows(kernel: Kernel) -> Kernel:
    """Return the kernel with the tensors whose rows may be unaligned replaced by some with aligned rows."""

    def align_rows(stmt: Stmt) -> Stmt:
        """Return a copy from rows of unknown alignment with an aligned last extent; other statements unchanged."""
        if not isinstance(stmt, Copy) or not _has_unknown_rows(stmt):
            return stmt
        source, destination = stmt.regions
        tensor = replace(source.buffer, extents=(*source.buffer.extents[:-1], _ALIGNED_ROW))
        return stmt.with_regions((replace(source, buffer=tensor), destination))

    return replace(kernel, body=rewrite_statements(kernel.body, align_rows))
