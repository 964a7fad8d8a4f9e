"""The same GEMM, compiled by cuTile and its assembler tileiras for sm_90 without a GPU: `OUT [BN]`."""

import sys

import cuda.tile as ct
from cuda.tile.compilation import ArrayConstraint, CallingConvention, KernelSignature, export_kernel


@ct.kernel
def gemm(A, B, C, BM: ct.Constant[int], BN: ct.Constant[int], BK: ct.Constant[int]):
    i, j = ct.bid(1), ct.bid(0)
    total = ct.full((BM, BN), 0, dtype=ct.float32)
    for k in range(ct.num_tiles(A, axis=1, shape=(BM, BK))):
        a = ct.load(A, index=(i, k), shape=(BM, BK), padding_mode=ct.PaddingMode.ZERO)
        b = ct.load(B, index=(k, j), shape=(BK, BN), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(a, b, total)
    ct.store(C, index=(i, j), tile=ct.astype(total, C.dtype))


def array():
    return ArrayConstraint(
        ct.float16, 2, index_dtype=ct.int32, stride_lower_bound_incl=0, alias_groups=(), may_alias_internally=False,
        stride_constant=(None, 1), stride_divisible_by=(16, 1), shape_divisible_by=(16, 16), base_addr_divisible_by=16,
    )  # fmt: skip


arguments = [array(), array(), array(), 128, int(sys.argv[2]) if len(sys.argv) > 2 else 128, 64]
signature = KernelSignature(arguments, CallingConvention.cutile_python_v1(), symbol="gemm")
export_kernel(gemm, [signature], sys.argv[1], gpu_code="sm_90", output_format="cubin")
