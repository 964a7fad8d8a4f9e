"""T.gemm by wgmma (one asynchronous group), by tcgen05.mma, or by ldmatrix and mma.sync."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.groups import TENSOR_LANES
from tilec.ir.warp import Mma, Operation, TensorMma, Wgmma
from tilec.ops.lowering import Demand, LoweringContext, make_demand
from tilec.ops.products.gemm import Gemm, get_gemm_shape
from tilec.ops.products.tcgen05 import build_tensor_arrive
from tilec.ops.registry import attach_facet
from tilec.target.names import InstructionKind

MAX_COLUMNS = 256  # of one tcgen05.mma (PTX ISA, tcgen05 "Matrix shape")


@attach_facet(Gemm, "lower")
def lower_gemm(op: Gemm, context: LoweringContext) -> tuple[Operation, ...]:
    """Lower a product to wgmma, tcgen05.mma with its barrier's arrival, or mma.sync, as its `via` says."""
    left, right, *_ = op.regions
    a, b, c, *more = (r.buffer for r in op.regions)
    metadata = more[0] if more else None
    transposed = op.transpose_A, op.transpose_B
    clear = op.clear_accum
    if op.via == "wgmma":
        later = op.wait is not None
        return (Wgmma(left, right, c, *transposed, clear, metadata, later, cursors=context.cursors, span=op.span),)
    if op.via == "tcgen05":
        assert op.clear_when is not None
        product = TensorMma(a, b, c, *transposed, op.clear_when, op.leader, cursors=context.cursors, span=op.span)
        product = replace(product, paired=op.is_paired)
        return (product, build_tensor_arrive(op)) if op.commits else (product,)
    return (Mma(left, right, c, *transposed, clear, metadata, op.nibbles or "", cursors=context.cursors, span=op.span),)


@attach_facet(Gemm, "demand")
def list_gemm_demands(op: Gemm, context: LoweringContext) -> tuple[Demand, ...]:
    """List the demands of a product by the instruction in its `via`: the products, for mma.sync also the ldmatrix
    loads."""
    a, b, c, *metadata = (r.buffer for r in op.regions)
    m, n, k = get_gemm_shape(op)
    if op.via == "wgmma":
        layout = context.fragments[c.name]
        columns = 8 * next(x.size for x in layout.registers[2:] if x.dim == 1)
        count = (m // 64) * (n // columns) * (k * a.dtype.bytes // 32)
        if a.scope == "fragment":
            return (make_demand("wgmma.rs", n=columns, count=count),)
        return (make_demand("wgmma.ss", n=columns, count=count, k_bytes=32),)
    if op.via == "tcgen05":
        rows, columns = min(m, TENSOR_LANES), min(n, MAX_COLUMNS)
        count = (m // rows) * (n // columns) * (k * a.dtype.bytes // 32)
        kind: InstructionKind = "tcgen05.mma.ss" if a.scope == "shared" else "tcgen05.mma.ts"
        if op.is_paired:
            kind, rows = "tcgen05.mma.ss.pair" if a.scope == "shared" else "tcgen05.mma.ts.pair", 2 * rows
        return (make_demand(kind, m=rows, n=columns, count=count),)
    warps = context.threads // 32
    # Every warp loads its rows of A and columns of B once per k, except operands in registers.
    layout = context.fragments[c.name]
    rows = 16 * layout.registers[3].size
    columns = 8 * layout.registers[2].size
    columns *= 2 if metadata else 1  # B is dense, of A half is stored
    lines = (rows if a.scope == "shared" else 0) + (columns if b.scope == "shared" else 0)
    product = make_demand("mma.sync", count=(m // 16) * (n // 8) * (k * a.dtype.bytes // 32), warps=warps)
    return (make_demand("ldmatrix", bytes=warps * lines * k * a.dtype.bytes), product) if lines else (product,)
