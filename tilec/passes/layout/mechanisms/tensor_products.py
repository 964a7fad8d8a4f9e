"""Products that tcgen05.mma does not do on a machine that has it: the reason, and the remedy.

The threads do them by mma.sync, at a fraction of the speed."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.analysis.copy_nests import find_filled_tiles
from tilec.analysis.rings import find_pipelined_loops, find_sharing_loops, plan_rings
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.layout import tensor_accumulator
from tilec.ops.products.gemm import Gemm
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.mechanisms.kernel_form import NO_ROLE_WARPS
from tilec.passes.layout.mechanisms.tensor_memory import (
    find_crowded_out_sums,
    find_loops_sharing_tiles,
    why_no_tensor_product,
    why_sums_stay,
)
from tilec.support.records import dataclass
from tilec.target.table import Target


@dataclass(frozen=True, slots=True)
class FallbackProduct:
    """A product left to mma.sync. `is_supported`: tcgen05 could do it if the text around it were another."""

    op: Gemm
    why: str
    help: str
    is_supported: bool


def find_fallback_products(assignment: LayoutAssignment, target: Target) -> Iterator[FallbackProduct]:
    """Yield the products left to mma.sync with the reason and a remedy; none if the target has no tcgen05."""
    if not target.has("tcgen05"):
        return
    for role in assignment.kernels:
        for op in tile.walk_statements(role.kernel.body):
            if isinstance(op, Gemm) and op.via == "mma":
                yield _explain_fallback(op, role.kernel, assignment, target)


def _explain_fallback(op: Gemm, kernel: tile.Kernel, assignment: LayoutAssignment, target: Target) -> FallbackProduct:
    """Return the product with the first reason that leaves it to mma.sync (shape, threads, roles, loop), and a
    remedy."""
    rows, width = op.regions[2].buffer.shape
    if reason := why_no_tensor_product(op, target):
        return FallbackProduct(op, reason, _OTHER_TILES_HELP, False)
    if tensor_accumulator((rows, width), kernel.threads) is None:
        why = f"{kernel.threads} threads cannot share {rows} × {width} elements of tensor memory"
        return FallbackProduct(op, why, "use 128 threads, or as many times that as the sum has rows for", False)
    if assignment.roles:
        why = "the kernel assigns the product to threads itself"
        return FallbackProduct(op, why, "use T.tcgen05_gemm into T.alloc_tmem", False)
    if assignment.form != "warp_specialised":
        why, is_in_loop = assignment.why_alike or NO_ROLE_WARPS, bool(_find_enclosing_loop(op, kernel))
        return FallbackProduct(op, why, "load its tiles by TMA in a T.Pipelined loop", is_in_loop)
    why, remedy = _explain_loop(op, kernel, target)
    return FallbackProduct(op, why, remedy, not _is_sum_per_iteration(op, kernel))


def _is_sum_per_iteration(op: Gemm, kernel: tile.Kernel) -> bool:
    """Return True if the product clears its sum, or other statements of its loop read the sum in each iteration."""
    loop, sums = _find_enclosing_loop(op, kernel), op.regions[2].buffer
    used = loop is not None and any(sums in find_reads(s) for s in loop.body if not isinstance(s, Gemm))
    return used or op.clear_accum


_OTHER_TILES_HELP = "use whole shared tiles with 64 rows or a multiple of 128, and types that tcgen05.mma has"


def _find_enclosing_loop(op: Gemm, kernel: tile.Kernel) -> tile.For | None:
    """Return the pipelined loop whose body has the product directly, or None if there is none."""
    return next((loop for loop in find_pipelined_loops(kernel.body) if any(s is op for s in loop.body)), None)


def _explain_loop(op: Gemm, kernel: tile.Kernel, target: Target) -> tuple[str, str]:
    """Return why a product's loop, or its place there, keeps the sum out of tensor memory, and the remedy."""
    sums = op.regions[2].buffer
    loop = _find_enclosing_loop(op, kernel)
    if loop is None:
        is_nested = any(
            op is s for other in find_pipelined_loops(kernel.body) for s in tile.walk_statements(other.body)
        )
        what = "it is under a condition or in an inner loop of one" if is_nested else "it is in none"
        why = f"it must be directly in the body of a T.Pipelined loop, and {what}"
        return why, "move it directly into the body of a T.Pipelined loop"
    if reason := why_sums_stay(loop):
        return reason
    if op.clear_accum or op.wait == "later":
        return "it has clear_accum or an explicit wait", f"write T.clear({sums.name}) before the loop instead"
    fed = {b for ring in plan_rings(kernel, loop) for b in ring.buffers}
    for buffer in dict.fromkeys(r.buffer for r in op.regions[:2] if r.buffer not in fed):
        fills = any(buffer in find_filled_tiles(s) for s in loop.body)
        what = "has a single version, since other statements use it" if fills else "is not filled in its loop"
        return f"{buffer.name} {what}", f"fill {buffer.name} by T.copy in the loop, for the product only"
    users = [s for s in loop.body if sums in find_reads(s) or sums in find_writes(s)]
    for stmt in users:
        other = not (isinstance(stmt, Gemm) and stmt.regions[2].buffer == sums)
        if other or any(sums == r.buffer for r in getattr(stmt, "regions", ())[:2]):
            where = f"line {stmt.span.line} uses {sums.name} in the loop, where only products may use it"
            return where, "use it after the loop"
        if isinstance(stmt, Gemm) and stmt is not op and why_no_tensor_product(stmt, target):
            where = f"the product in line {stmt.span.line} also adds to {sums.name}, by mma.sync"
            return where, "give it an accumulator of its own"
    if sums.name in {t.name for t in find_crowded_out_sums(kernel, target)}:
        columns = f"{target.limit('tmem_columns')} columns of tensor memory"
        return f"the accumulators together take more than {columns}", "use smaller tiles"
    if loop.span in find_loops_sharing_tiles(kernel, target):
        others = {other.span.line for loops in find_sharing_loops(kernel, loop).values() for other in loops}
        where = ", ".join(map(str, sorted(others - {loop.span.line})))
        why = f"the loop in line {where} loads the same tiles, and its products use mma.sync"
        return why, "give each loop shared tiles of its own"
    return f"{sums.name} is not cleared directly before the loop", f"write T.clear({sums.name}) there"
