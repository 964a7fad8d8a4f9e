"""Explanations of the decisions about a kernel's warps, for its author."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ir.tile import walk_statements
from tilec.ops.products.gemm import Gemm
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.mechanisms.tensor_products import find_fallback_products
from tilec.passes.loop.pools import count_product_pieces
from tilec.sched.decision import Decision
from tilec.support.options import CompileOptions
from tilec.target.table import Target


def explain_warps(assignment: LayoutAssignment, target: Target, options: CompileOptions) -> Iterator[Decision]:
    """Report as decisions how many warpgroups compute, which threads arrive, and which instructions products use."""
    yield from _explain_consumer_warpgroups(assignment, options)
    yield from _explain_arrivals(assignment, options)
    yield from _explain_products(assignment, target)


def _explain_consumer_warpgroups(assignment: LayoutAssignment, options: CompileOptions) -> Iterator[Decision]:
    """Yield the decision how many warpgroups compute, in a warp-specialised kernel."""
    if assignment.form == "warp_specialised":
        groups = max(assignment.kernel.threads // WARPGROUP_THREADS, 1)
        chosen = f"{groups} warpgroup{'s' if groups > 1 else ''}"
        if options.consumer_warpgroups is None:
            yield Decision("consumer warpgroups", chosen, "the kernel", f"threads={assignment.kernel.threads}")
        else:
            why = f"--consumer-warpgroups {options.consumer_warpgroups}"
            yield Decision("consumer warpgroups", chosen, "the command line", why)


def _explain_arrivals(assignment: LayoutAssignment, options: CompileOptions) -> Iterator[Decision]:
    """Yield the decision that each thread arrives at barriers."""
    if (assignment.has_one_loader or assignment.form == "warp_specialised") and options.arrivals == "thread":
        yield Decision("arrivals", "each thread", "the command line", "--arrivals thread")


def _explain_products(assignment: LayoutAssignment, target: Target) -> Iterator[Decision]:
    """Yield the decisions which products use mma.sync instead of tcgen05, and which wgmma ones are cut into pieces."""
    for left in find_fallback_products(assignment, target):
        why = f"not tcgen05.mma: {left.why}; {left.help}"
        yield Decision(f"product at line {left.op.span.line}", "mma.sync", "the compiler", why)
    threads = assignment.block_threads
    start = target.limit("registers_per_sm") // threads
    pieces_by_columns: dict[int, int] = {}
    for role in assignment.kernels:
        for op in walk_statements(role.kernel.body):
            if isinstance(op, Gemm) and op.via == "wgmma":
                layout = role.fragments[op.c.buffer.name]
                columns, pieces = count_product_pieces(op.c.buffer, layout, threads, target)
                pieces_by_columns[columns] = pieces
    for columns, pieces in pieces_by_columns.items():
        if pieces > 1:
            why = f"{threads} threads start with {start} registers each, and ptxas needs more for m64n{columns}"
            yield Decision("products", f"{columns} columns by {pieces} instructions", "the compiler", why)
