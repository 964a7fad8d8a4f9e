"""Triton's attention forward for the comparison on a GPU: tensor descriptors, tuned over a few tiles."""

import math

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# Queries, keys, warps, stages.
TILES = [(128, 128, 8, 2), (128, 64, 8, 3), (128, 128, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3)]


def _box(arguments):
    arguments["q"].block_shape = arguments["o"].block_shape = [1, arguments["BM"], 1, arguments["D"]]
    arguments["k"].block_shape = arguments["v"].block_shape = [1, arguments["BN"], 1, arguments["D"]]


@triton.autotune(
    [
        triton.Config({"BM": m, "BN": n}, num_warps=warps, num_stages=stages, pre_hook=_box)
        for m, n, warps, stages in TILES
    ],
    key=["S", "D", "CAUSAL"],
)
@triton.jit
def _attention(
    q, k, v, o, S, heads, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
    TYPE: tl.constexpr,
):  # fmt: skip
    first, head, batch = tl.program_id(0) * BM, tl.program_id(1) % heads, tl.program_id(1) // heads
    query = q.load([batch, first, head, 0]).reshape([BM, D])
    largest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    out = tl.zeros((BM, D), tl.float32)
    rows = first + tl.arange(0, BM)
    # Where nothing is hidden, and then, if something is, the diagonal.
    whole = first // BN * BN if CAUSAL else S
    for at in range(0, whole, BN):
        out, total, largest = _step(query, k, v, out, total, largest, rows, at, batch, head, scale, BN, D, False, TYPE)
    if CAUSAL:
        for at in range(whole, min(first + BM, S), BN):
            out, total, largest = _step(
                query, k, v, out, total, largest, rows, at, batch, head, scale, BN, D, True, TYPE
            )
    o.store([batch, first, head, 0], (out / total[:, None]).to(TYPE).reshape([1, BM, 1, D]))


@triton.jit
def _step(
    query, k, v, out, total, largest, rows, at, batch, head, scale, BN: tl.constexpr, D: tl.constexpr,
    MASKS: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    keys = k.load([batch, at, head, 0]).reshape([BN, D])
    scores = tl.dot(query, keys.T) * scale
    if MASKS:
        scores = tl.where(rows[:, None] >= at + tl.arange(0, BN)[None, :], scores, float("-inf"))
    now = tl.maximum(largest, tl.max(scores, 1))
    weights = tl.math.exp2(scores - now[:, None])
    shrink = tl.math.exp2(largest - now)
    values = v.load([batch, at, head, 0]).reshape([BN, D])
    out = tl.dot(weights.to(TYPE), values, out * shrink[:, None])
    return out, total * shrink + tl.sum(weights, 1), now


def attention(q, k, v, o, causal):
    """o = softmax(q kᵀ / √D) v, each of (batch, S, heads, D) in 16-bit floats."""
    batch, S, heads, D = q.shape
    described = [TensorDescriptor.from_tensor(tensor, [1, 64, 1, D]) for tensor in (q, k, v, o)]
    kind = {"torch.float16": tl.float16, "torch.bfloat16": tl.bfloat16}[str(q.dtype)]

    def grid(meta):
        return (triton.cdiv(S, meta["BM"]), batch * heads)

    _attention[grid](*described, S, heads, math.log2(math.e) / math.sqrt(D), D=D, CAUSAL=causal, TYPE=kind)
