"""Attention forward in tiles of 128×128 with head dimension 128, compiled by Triton for sm_90a without a GPU:
`OUT [causal]`. Tensor descriptors, and the masked blocks in a loop of their own."""

import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def step(queries, k, v, total, largest, weight, at, first, scale, BN: tl.constexpr, MASKED: tl.constexpr):
    scores = tl.dot(queries, k.load([at, 0]).T)
    if MASKED:
        rows = first + tl.arange(0, queries.shape[0])
        scores = tl.where(rows[:, None] >= at + tl.arange(0, BN)[None, :], scores, float("-inf"))
    now = tl.maximum(largest, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - now[:, None])
    rescale = tl.exp2(largest - now)
    total = total * rescale[:, None]
    total = tl.dot(weights.to(tl.float16), v.load([at, 0]), total)
    return total, now, weight * rescale + tl.sum(weights, 1)


@triton.jit
def attention(q, k, v, o, keys, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    first = tl.program_id(0) * BM
    queries = q.load([first, 0])
    total = tl.zeros((BM, D), tl.float32)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    whole = first if CAUSAL else keys
    for at in range(0, whole, BN):
        total, largest, weight = step(queries, k, v, total, largest, weight, at, first, scale, BN, False)
    if CAUSAL:
        for at in range(whole, first + BM, BN):
            total, largest, weight = step(queries, k, v, total, largest, weight, at, first, scale, BN, True)
    o.store([first, 0], (total / weight[:, None]).to(tl.float16))


tile = "tensordesc<fp16[128, 128]>"
signature = {"q": tile, "k": tile, "v": tile, "o": tile, "keys": "i32", "scale": "fp32"}
constants = {"D": 128, "BM": 128, "BN": 128, "CAUSAL": "causal" in sys.argv[2:]}
source = ASTSource(attention, signature | dict.fromkeys(constants, "constexpr"), constants)
kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "num_stages": 2})
Path(sys.argv[1]).write_bytes(kernel.asm["cubin"])
