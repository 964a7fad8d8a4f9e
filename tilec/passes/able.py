"""What a target can compute: conversions of small floats, functions of float64."""

from __future__ import annotations

from typing import NoReturn

from tilec.diag import fail
from tilec.ir.expr import SMALL_FLOATS
from tilec.ir.tile import Binary, Call, Cast, Stmt, TileOp, Unary, children, walk, walk_expr
from tilec.ir.types import FLOAT64, DType
from tilec.passes.usage import expressions
from tilec.target import Target

FLOAT64_FUNCTIONS = frozenset(
    {"abs", "sqrt", "floor", "ceil", "trunc", "nearbyint", "reinterpret"}
)  # the others have no instruction


def check_arithmetic(body: tuple[Stmt, ...], target: Target) -> None:
    """Refuse conversions and functions for which the target has no instructions."""
    for stmt in walk(body):
        if isinstance(stmt, TileOp) and stmt.name in ("copy", "atomic", "reduce"):
            _check_conversion({r.buffer.dtype for r in stmt.regions}, stmt, target)
        for expr in expressions(stmt):
            for e in walk_expr(expr):
                if isinstance(e, Cast | Binary | Unary | Call):
                    _check_conversion({e.dtype, *(c.dtype for c in children(e))}, stmt, target)
                if isinstance(e, Call) and e.dtype == FLOAT64 and e.fn not in FLOAT64_FUNCTIONS:
                    fail(
                        "unsupported-type",
                        f"T.{e.fn} of float64 is not supported",
                        stmt.span,
                        "in this statement",
                        help="compute it in float32, as T.cast(x, 'float32')",
                    )


def no_wgmma(op: TileOp, target: Target) -> NoReturn:
    """Refuse a T.wgmma_gemm that is none."""
    why = "wgmma takes whole warpgroups and blocks of 64 rows, and float16 and bfloat16 alone transposed"
    fail(
        "unsupported-operand",
        "this T.wgmma_gemm cannot go by wgmma",
        op.span,
        why if target.has("wgmma") else f"{target.name} has none",
        help="write T.gemm, which takes the instruction that there is",
    )


def _check_conversion(dtypes: set[DType], stmt: Stmt, target: Target) -> None:
    """8-bit floats are computed with as float32; only newer targets convert them."""
    small = [d for d in SMALL_FLOATS if d in dtypes]
    computes = len(dtypes) > 1 or not isinstance(stmt, TileOp) or stmt.name != "copy"
    if small and computes and not target.has("fp8"):
        fail(
            "unsupported-type",
            f"{target.name} cannot convert {small[0]}",
            stmt.span,
            "in this statement",
            help="use float16, or a target that can, as sm_90a",
        )
