"""T.gemm: C += op(A) · op(B) on tiles. Which tensor-core instruction does it is the target's business."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilec.diag import Label, fail
from tilec.ir.tile import Region, TileOp
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, UINT8, DType
from tilec.ops.registry import Effects, Environment, Operation, Spelling, register, tile_op
from tilec.ops.signature import Call, Parameter, Signature
from tilec.ops.values import WarpPolicy, show_shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ACCUMULATORS: dict[DType, tuple[DType, ...]] = {
    FLOAT16: (FLOAT32, FLOAT16),
    BFLOAT16: (FLOAT32,),
    INT8: (INT32,),
    UINT8: (INT32,),
}
"""What C may be, for each element type of A and B."""

_SCOPES = {"A": ("shared", "fragment"), "B": ("shared",), "C": ("fragment",)}


def matrix_shape(region: Region) -> tuple[int, int]:
    """Rows and columns: the last two dimensions."""
    rows, columns = region.extent[-2:]
    return rows, columns


def gemm_shape(op: TileOp) -> tuple[int, int, int]:
    """M, N and K."""
    a, _, c = op.regions
    m, n = matrix_shape(c)
    return m, n, matrix_shape(a)[0 if op.attr("transpose_A") else 1]


def _check(call: Call) -> TileOp:
    a, b, c = (_matrix(call, name) for name in "ABC")
    transpose_a, transpose_b = call.boolean("transpose_A"), call.boolean("transpose_B")
    _check_dtypes(call, a.buffer.dtype, b.buffer.dtype, c.buffer.dtype)
    a_m, a_k = matrix_shape(a)[:: -1 if transpose_a else 1]
    b_k, b_n = matrix_shape(b)[:: -1 if transpose_b else 1]
    c_m, c_n = matrix_shape(c)
    if a_k != b_k:
        help_text = None
        if not call.is_given("transpose_B") and matrix_shape(b) == (c_n, a_k):
            help_text = f"pass transpose_B=True: {b.buffer.name} is stored as (N, K)"
        elif not call.is_given("transpose_A") and matrix_shape(a) == (b_k, c_m):
            help_text = f"pass transpose_A=True: {a.buffer.name} is stored as (K, M)"
        _disagree(call, "K", ("A", a, a_k), ("B", b, b_k), help_text)
    if a_m != c_m:
        _disagree(call, "M", ("A", a, a_m), ("C", c, c_m), None)
    if b_n != c_n:
        _disagree(call, "N", ("B", b, b_n), ("C", c, c_n), None)
    return tile_op(
        "gemm",
        (a, b, c),
        call.span,
        clear_accum=call.boolean("clear_accum"),
        policy=call.policy("policy"),
        transpose_A=transpose_a,
        transpose_B=transpose_b,
    )


def _matrix(call: Call, name: str) -> Region:
    region = call.region(name)
    buffer = region.buffer
    if buffer.scope not in _SCOPES[name]:
        wanted = " or ".join(f"a {'shared tile' if s == 'shared' else s}" for s in _SCOPES[name])
        where = {"global": "lies in global memory", "shared": "is a shared tile", "fragment": "is a fragment"}
        fail(
            "wrong-scope",
            f"T.gemm: {name} must be {wanted}",
            call[name].span,
            f"{buffer.name} {where[buffer.scope]}",
            secondary=(Label(buffer.span, "from here"),),
            help=f"T.copy it to {wanted} first" if name != "C" else "accumulate in a fragment, then T.copy it out",
        )
    if len(region.extent) < 2 or any(e != 1 for e in region.extent[:-2]):
        fail(
            "shape-mismatch",
            f"T.gemm: {name} must be a matrix",
            call[name].span,
            f"this has shape {show_shape(region.extent)}",
        )
    return region


def _check_dtypes(call: Call, a: DType, b: DType, c: DType) -> None:
    if a != b:
        fail("dtype-mismatch", "T.gemm: A and B have different dtypes", call.span, f"A is {a}, B is {b}")
    if a not in _ACCUMULATORS:
        known = ", ".join(d.name for d in _ACCUMULATORS)
        fail("wrong-dtype", f"T.gemm cannot multiply {a}", call["A"].span, f"this is {a}", help=f"supported: {known}")
    if c not in _ACCUMULATORS[a]:
        wanted = " or ".join(d.name for d in _ACCUMULATORS[a])
        fail(
            "wrong-dtype",
            f"T.gemm of {a} cannot accumulate in {c}",
            call["C"].span,
            f"this is {c}",
            help=f"allocate it as {wanted}",
        )


def _disagree(
    call: Call, dimension: str, one: tuple[str, Region, int], other: tuple[str, Region, int], help_text: str | None
) -> None:
    text = ", ".join(
        f"{name} is {show_shape(region.extent)} so {dimension} = {size}" for name, region, size in (one, other)
    )
    fail(
        "shape-mismatch",
        f"operands of T.gemm disagree on {dimension}",
        call.span,
        text,
        secondary=tuple(Label(r.buffer.span, f"{dimension} = {size} from here") for _, r, size in (one, other)),
        help=help_text,
    )


def _effects(op: TileOp) -> Effects:
    a, b, c = op.regions
    return Effects((a, b) if op.attr("clear_accum") else (a, b, c), (c,))


def _reference(op: TileOp, env: Environment) -> None:
    import numpy as np

    a, b, c = op.regions
    # Products of 8-bit integers are exact in float64, which has a fast matrix product.
    wide = np.dtype(np.float32 if a.buffer.dtype.is_float else np.float64)
    left: NDArray[np.floating] = env.read(a).reshape(matrix_shape(a)).astype(wide)
    right: NDArray[np.floating] = env.read(b).reshape(matrix_shape(b)).astype(wide)
    product = (left.T if op.attr("transpose_A") else left) @ (right.T if op.attr("transpose_B") else right)
    if not op.attr("clear_accum"):
        product = product + env.read(c).reshape(matrix_shape(c)).astype(wide)
    env.write(c, product.reshape(c.extent))


GEMM = register(
    Operation(
        "gemm",
        (
            Spelling(
                Signature(
                    "T.gemm",
                    (
                        Parameter("A"),
                        Parameter("B"),
                        Parameter("C"),
                        Parameter("transpose_A", False),
                        Parameter("transpose_B", False),
                        Parameter("policy", WarpPolicy("square")),
                        Parameter("clear_accum", False),
                        Parameter("k_pack", 1, supported=False),
                        Parameter("mbar", None, supported=False),
                        Parameter("annotations", None, supported=False),
                    ),
                ),
                """C += op(A) · op(B), or C = op(A) · op(B) with clear_accum.

                A is (M, K), a shared tile or a fragment; B is (K, N), a shared tile; C is (M, N), a fragment. With
                transpose_A, A is (K, M); with transpose_B, B is (N, K). A and B are float16 (C float32 or float16),
                bfloat16 (C float32) or 8-bit integers (C int32). `policy` says how warps share C.
                """,
                _check,
            ),
        ),
        _effects,
        _reference,
    )
)
