"""Refuse what the target cannot compute: functions of float64, products of parts of tiles, products and copies with
block scales."""

from __future__ import annotations

from typing import NoReturn

from tilec.analysis.usage import list_expressions
from tilec.ir import tile
from tilec.ir.affine import affine_form
from tilec.ir.expr import SMALL_FLOATS
from tilec.ir.ptx_values import build_snippet_kernel
from tilec.ir.types import FLOAT16, FLOAT64
from tilec.ops.products.block_scaled import ROWS, ScaleCopy, ScaledGemm
from tilec.ops.products.gemm import Gemm, get_gemm_shape
from tilec.ptx import snippet
from tilec.ptx.assemble import find_assembler_error
from tilec.support.diagnostics import RAISE_FIRST, ErrorCollector, Label, raise_error
from tilec.support.source import Span
from tilec.target.table import Target

FLOAT64_FUNCTIONS = frozenset({"abs", "sqrt", "floor", "ceil", "trunc", "nearbyint", "reinterpret", "fma"})
"""The functions of float64 that have an instruction."""

ROW_BYTES = 16
"""Contiguous bytes of a row that tensor cores take (PTX ISA, "ldmatrix"; "Matrix descriptor format")."""


def check_arithmetic(body: tuple[tile.Stmt, ...], target: Target, mistakes: ErrorCollector = RAISE_FIRST) -> None:
    """Refuse float64 functions and T.ptx without an instruction on the target, the first in each statement."""
    for stmt in tile.walk_statements(body):
        with mistakes.caught():
            _check_statement(stmt, target)


def _check_statement(stmt: tile.Stmt, target: Target) -> None:
    """Refuse a statement with a float64 function that has no instruction, or with T.ptx that ptxas would refuse."""
    for expr in list_expressions(stmt):
        for e in tile.walk_expr(expr):
            if isinstance(e, tile.Ptx):
                _check_ptx(e, target, stmt.span)
            if isinstance(e, tile.Call) and e.dtype == FLOAT64 and e.fn not in FLOAT64_FUNCTIONS:
                raise_error(
                    "unsupported-type",
                    f"T.{e.fn} of float64 is not supported",
                    stmt.span,
                    "in this statement",
                    help="compute it in float32, as T.cast(x, 'float32')",
                )


def _check_ptx(expr: tile.Ptx, target: Target, span: Span) -> None:
    """Refuse a T.ptx text that the target's assembler would refuse, for the instruction or its registers' types."""
    complaint = snippet.find_instruction_error(
        snippet.parse_snippet(expr.text, len(expr.args)), target.ptx_target, target.ptx_version
    )
    if complaint is None:
        types = tuple(a.dtype for a in expr.args)
        complaint = find_assembler_error(
            build_snippet_kernel(expr.text, types, expr.dtype, target.ptx_target, target.ptx_version), target.ptx_target
        )
    if complaint is not None:
        registers = "a value is in a register of its type: .f32 for float32, .b32 for int32, .pred for bool"
        raise_error("bad-ptx", f"T.ptx: {complaint}", span, "in this statement", help=registers)


def check_product_parts(op: Gemm) -> None:
    """Refuse a product of a part of a tile that is no shared tile, or begins at no multiple of 16 bytes in a row. A
    sparse product, and one of packed integers, may have no parts at all."""
    whole = len(op.regions) > 3 or op.nibbles is not None
    for region in op.regions:
        buffer = region.buffer
        if region.is_whole:
            continue
        row = affine_form(region.start[-1]).divisor * buffer.dtype.bytes
        if buffer.scope == "shared" and not whole and row % ROW_BYTES == 0:
            continue
        what = f"a part of {buffer.name}, which is {' × '.join(map(str, buffer.shape))}"
        if buffer.scope != "shared":
            title, way = "T.gemm needs whole fragments", "copy the part to a fragment of its own first"
        elif whole:
            title, way = f"this product of {buffer.dtype} needs whole tiles", "copy the part to a tile of its own first"
        else:
            title = "T.gemm cannot use a part of a tile that begins here"
            what = f"not known to be a multiple of {ROW_BYTES} bytes along the rows of {buffer.name}"
            way = f"begin at a multiple of {ROW_BYTES // buffer.dtype.bytes} elements, or copy the part to another tile"
        raise_error(
            "unsupported-operand", title, region.span, what, secondary=(Label(buffer.span, "from here"),), help=way
        )


def check_narrow_sum(op: Gemm) -> None:
    """Refuse a product of 8-bit floats accumulated in float16, which mma.sync does not have."""
    a, _, c, *_ = (r.buffer for r in op.regions)
    if a.dtype in SMALL_FLOATS and c.dtype == FLOAT16:
        raise_error(
            "unsupported-type",
            f"T.gemm of {a.dtype} accumulates in float16 only by wgmma or tcgen05",
            op.span,
            "they need whole warpgroups of 64 rows, and rows of 32 bytes or more",
            help="allocate the accumulator as float32",
        )


def refuse_tensor_fill(op: tile.TileOp) -> NoReturn:
    """Raise the error that T.clear cannot write a tile in tensor memory."""
    raise_error(
        "wrong-scope",
        "T.clear cannot write a tile in tensor memory",
        op.span,
        f"only products write {op.regions[0].buffer.name}",
        secondary=(Label(op.regions[0].buffer.span, "allocated here"),),
        help="pass clear_accum=True to the first product",
    )


def refuse_missing_barrier(op: tile.TileOp) -> NoReturn:
    """Raise the error for a T.gemm into tensor memory without a barrier, in a kernel that orders its threads itself."""
    title = "T.gemm into tensor memory needs `mbar` in a kernel with explicit barriers or roles"
    _refuse_unawaited_product(op, title, help="pass a barrier of T.alloc_barrier as mbar=, and wait for it")


def refuse_tcgen05_gemm(op: tile.TileOp) -> NoReturn:
    """Raise the error for a T.tcgen05_gemm in a kernel without explicit barriers."""
    title = "T.tcgen05_gemm needs a kernel with explicit barriers"
    _refuse_unawaited_product(op, title, help="write T.gemm, also for tensor memory: tilec inserts the wait")


def _refuse_unawaited_product(op: tile.TileOp, title: str, help: str) -> NoReturn:
    """Raise the error `title` for a product whose completion no barrier signals."""
    sum_at = Label(op.regions[2].buffer.span, "C is allocated here")
    raise_error(
        "unsupported-operand", title, op.span, "no barrier signals its completion", secondary=(sum_at,), help=help
    )


def refuse_wgmma_gemm(op: tile.TileOp, target: Target) -> NoReturn:
    """Raise the error for a T.wgmma_gemm that wgmma cannot do, with the reason."""
    why = "it needs whole warpgroups, a multiple of 64 rows, and transposes float16 and bfloat16 only"
    if any(not r.is_whole for r in op.regions):
        why = "parts of tiles begin at multiples of 8 rows and 32 bytes; across K they are whole panels of 128 bytes"
    raise_error(
        "unsupported-operand",
        "wgmma cannot do this T.wgmma_gemm",
        op.span,
        why if target.has("wgmma") else f"{target.name} has no wgmma",
        help="write T.gemm: tilec chooses the instruction",
    )


def why_not_block_scaled(op: ScaledGemm | ScaleCopy, target: Target) -> str | None:
    """Return why tcgen05 cannot run this block-scaled product or copy of scales; None if it can."""
    if not target.has("tcgen05"):
        return f"{target.name} has no tensor memory"
    if part := next((r for r in op.regions if not r.is_whole), None):
        return f"it needs whole tiles, and this is a part of {part.buffer.name}: T.copy it to a tile of its own first"
    if isinstance(op, ScaleCopy):
        return None
    m, n, k = get_gemm_shape(op)
    tiles = [r.buffer for r in op.regions[:2]]
    if m % ROWS:
        return f"C has {m} rows, not a multiple of {ROWS}"
    if n % 16 or (n > 256 and n % 256):
        return f"C has {n} columns, not a multiple of 16 up to 256 or one of 256"
    if k * tiles[0].dtype.bytes % 32:
        return "K must be a multiple of 32 bytes"
    if any(t.shape[-1] * t.dtype.bytes % 32 for t in tiles):
        return "no bank swizzle fits rows that are not a multiple of 32 bytes"
    return None
