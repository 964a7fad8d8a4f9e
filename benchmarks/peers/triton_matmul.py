"""Triton's matrix product for the comparison on a GPU: tensor descriptors, grouped blocks, tuned over a few tiles."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# Rows, columns, bytes of depth, warps, stages.
TILES = [
    (128, 256, 128, 8, 3),
    (128, 256, 128, 8, 4),
    (128, 128, 128, 8, 4),
    (128, 128, 128, 4, 4),
    (64, 64, 256, 4, 4),
]


def _box(arguments):
    rows, columns, depth = (arguments[name] for name in ("BM", "BN", "BK"))
    depth //= arguments["BYTES"]
    arguments["a"].block_shape = [rows, depth]
    arguments["b"].block_shape = [columns, depth] if arguments["TRANSPOSED"] else [depth, columns]
    arguments["c"].block_shape = [rows, columns]


@triton.autotune(
    [
        triton.Config({"BM": m, "BN": n, "BK": k, "GROUP": 8}, num_warps=warps, num_stages=stages, pre_hook=_box)
        for m, n, k, warps, stages in TILES
    ],
    key=["M", "N", "K", "BYTES", "TRANSPOSED"],
)
@triton.jit
def _matmul(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    BYTES: tl.constexpr, TRANSPOSED: tl.constexpr, SUM: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = block // (GROUP * columns)
    height = min(rows - group * GROUP, GROUP)
    row = (group * GROUP + block % (GROUP * columns) % height) * BM
    column = block % (GROUP * columns) // height * BN
    total = tl.zeros((BM, BN), dtype=SUM)
    for k in range(0, K, BK // BYTES):
        if TRANSPOSED:
            total = tl.dot(a.load([row, k]), b.load([column, k]).T, total, out_dtype=SUM)
        else:
            total = tl.dot(a.load([row, k]), b.load([k, column]), total, out_dtype=SUM)
    c.store([row, column], total.to(TYPE))


def matmul(a, b, c, transposed=False):
    """c = a @ b, or a @ b.t(). Types of 8 bits must come transposed, as the tensor cores want them."""
    (rows, depth), columns = a.shape, c.shape[1]
    # The boxes follow with the tile; a descriptor wants one from the start.
    described = [TensorDescriptor.from_tensor(tensor, [1, 64]) for tensor in (a, b, c)]
    kind = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.int32: tl.int32}[c.dtype]
    total = tl.int32 if kind == tl.int32 else tl.float32

    def grid(meta):
        return (triton.cdiv(rows, meta["BM"]) * triton.cdiv(columns, meta["BN"]),)

    _matmul[grid](*described, rows, columns, depth, BYTES=a.element_size(), TRANSPOSED=transposed, SUM=total, TYPE=kind)
