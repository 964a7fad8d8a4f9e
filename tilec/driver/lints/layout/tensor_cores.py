"""tensor-memory-exhausted: accumulators need more columns of tensor memory than an SM has.
mma-sync-fallback: a product that tcgen05.mma supports uses mma.sync because of the code around it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.driver.lints.registry import LAYOUT, register_lint
from tilec.passes.layout.mechanisms.tensor_memory import count_columns, find_crowded_out_sums
from tilec.passes.layout.mechanisms.tensor_products import find_fallback_products
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, Label


@register_lint(LAYOUT, "tensor-memory-exhausted")
def find_exhausted_tensor_memory(work: KernelState) -> Iterator[Diagnostic]:
    """Warn of accumulators that stay in registers because an SM has no columns left for them."""
    assignment, target = work.assignment, work.target
    has_sums_there = target.has("tcgen05") and assignment.form == "warp_specialised"
    left = find_crowded_out_sums(assignment.kernel, target) if has_sums_there else ()
    if not left:
        return
    allocated = [b for b in assignment.kernel.buffers if b.scope == "tmem"]
    total, limit = sum(map(count_columns, (*allocated, *left))), target.limit("tmem_columns")
    yield Diagnostic(
        "tensor-memory-exhausted",
        f"the accumulators need {total} columns of tensor memory, an SM of {target.name} has {limit}",
        Label(left[0].span, f"{left[0].name} needs {count_columns(left[0])} and stays in registers"),
        tuple(Label(b.span, f"{count_columns(b)} are used here") for b in allocated),
        help="use a smaller tile, or split the kernel",
        severity="warning",
    )


@register_lint(LAYOUT, "mma-sync-fallback")
def find_mma_sync_products(work: KernelState) -> Iterator[Diagnostic]:
    """Warn of products that use mma.sync although tcgen05.mma supports them, unless the options ask for that."""
    assignment, target, options = work.assignment, work.target, work.options
    if options.opt_level < 3 or options.pipeline_strategy != "auto" or "unspecialised" in assignment.kernel.asks:
        return
    crowded = {tile.span for tile in find_crowded_out_sums(assignment.kernel, target)}  # these have a warning already
    for left in find_fallback_products(assignment, target):
        if left.is_supported and left.op.regions[2].buffer.span not in crowded:
            yield Diagnostic(
                "mma-sync-fallback",
                "this product uses mma.sync, not tcgen05.mma",
                Label(left.op.span, left.why),
                help=left.help,
                severity="warning",
            )
