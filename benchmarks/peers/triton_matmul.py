"""Triton's matrix product for the comparison on a GPU: tensor descriptors, grouped blocks, tuned over a few tiles."""

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

TILES = [(128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4), (64, 64, 128, 4, 4)]


def _box(arguments):
    rows, columns, depth = (arguments[name] for name in ("BM", "BN", "BK"))
    arguments["a"].block_shape = [rows, depth]
    arguments["b"].block_shape = [depth, columns]
    arguments["c"].block_shape = [rows, columns]


@triton.autotune(
    [
        triton.Config({"BM": m, "BN": n, "BK": k, "GROUP": 8}, num_warps=warps, num_stages=stages, pre_hook=_box)
        for m, n, k, warps, stages in TILES
    ],
    key=["M", "N", "K"],
)
@triton.jit
def _matmul(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, TYPE: tl.constexpr
):
    block = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = block // (GROUP * columns)
    height = min(rows - group * GROUP, GROUP)
    row = (group * GROUP + block % (GROUP * columns) % height) * BM
    column = block % (GROUP * columns) // height * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a.load([row, k]), b.load([k, column]), total)
    c.store([row, column], total.to(TYPE))


def matmul(a, b, c):
    """c = a @ b, for 16-bit floats."""
    (rows, depth), columns = a.shape, b.shape[1]
    described = [TensorDescriptor.from_tensor(tensor, [1, 64]) for tensor in (a, b, c)]
    kind = {"torch.float16": tl.float16, "torch.bfloat16": tl.bfloat16}[str(c.dtype)]
    grid = lambda meta: (triton.cdiv(rows, meta["BM"]) * triton.cdiv(columns, meta["BN"]),)  # noqa: E731
    _matmul[grid](*described, rows, columns, depth, TYPE=kind)
