"""Attention forward in tiles of 128×128 with head dimension 128, compiled by cuTile and its assembler tileiras for
sm_90 without a GPU: `OUT [causal]`."""

import sys

import cuda.tile as ct
from cuda.tile.compilation import ArrayConstraint, CallingConvention, KernelSignature, export_kernel

SCALE = 1.44269504 / 128**0.5


@ct.kernel
def attention(Q, K, V, Out, D: ct.Constant[int], BM: ct.Constant[int], BN: ct.Constant[int], CAUSAL: ct.Constant[bool]):
    i, head = ct.bid(0), ct.bid(1)
    queries = ct.reshape(ct.load(Q, index=(head, i, 0), shape=(1, BM, D)), (BM, D))
    largest = ct.full((BM, 1), float("-inf"), dtype=ct.float32)
    weight = ct.full((BM, 1), 0.0, dtype=ct.float32)
    total = ct.full((BM, D), 0.0, dtype=ct.float32)
    rows = ct.reshape(i * BM + ct.arange(BM, dtype=ct.int32), (BM, 1))
    columns = ct.reshape(ct.arange(BN, dtype=ct.int32), (1, BN))
    blocks = ct.num_tiles(K, axis=1, shape=(1, BN, D))
    if CAUSAL:
        blocks = ct.cdiv((i + 1) * BM, BN)
    for j in range(blocks):
        keys = ct.load(K, index=(head, 0, j), shape=(1, D, BN), order=(0, 2, 1), latency=2)
        scores = ct.mma(queries, ct.reshape(keys, (D, BN)), ct.full((BM, BN), 0.0, dtype=ct.float32))
        if CAUSAL:  # known when compiling
            reaches = (j + 1) * BN > i * BM
            if reaches:
                scores = ct.where(rows >= j * BN + columns, scores, float("-inf"))
        now = ct.maximum(largest, ct.max(scores, axis=-1, keepdims=True) * SCALE)
        weights = ct.exp2(scores * SCALE - now, flush_to_zero=True)
        rescale = ct.exp2(largest - now, flush_to_zero=True)
        weight = weight * rescale + ct.sum(weights, axis=-1, keepdims=True)
        values = ct.reshape(ct.load(V, index=(head, j, 0), shape=(1, BN, D), latency=4), (BN, D))
        total = ct.mma(ct.astype(weights, Q.dtype), values, total * rescale)
        largest = now
    ct.store(Out, index=(head, i, 0), tile=ct.reshape(ct.astype(total / weight, Out.dtype), (1, BM, D)))


def array():
    return ArrayConstraint(
        ct.float16, 3, index_dtype=ct.int32, stride_lower_bound_incl=0, alias_groups=(), may_alias_internally=False,
        stride_constant=(None, None, 1), stride_divisible_by=(16, 16, 1), shape_divisible_by=(1, 16, 16),
        base_addr_divisible_by=16,
    )  # fmt: skip


arguments = [array(), array(), array(), array(), 128, 128, 128, "causal" in sys.argv[2:]]
signature = KernelSignature(arguments, CallingConvention.cutile_python_v1(), symbol="attention")
export_kernel(attention, [signature], sys.argv[1], gpu_code="sm_90", output_format="cubin")
