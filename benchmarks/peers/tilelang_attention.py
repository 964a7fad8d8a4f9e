"""Attention forward in tiles of 128×128 with head dimension 128, compiled by TileLang for sm_90a without a GPU:
`OUT [causal]`. Two warpgroups that compute, loads in a third."""

import sys
from pathlib import Path

import tilelang
import tilelang.language as T
from tilelang import env
from tilelang.contrib import nvcc

CAUSAL = "causal" in sys.argv[2:]
S, heads, D, BM, BN = 4096, 16, 128, 128, 128
scale = 1.44269504 / D**0.5
shape = (1, S, heads, D)


@T.prim_func
def attention(
    Q: T.Tensor(shape, "float16"),
    K: T.Tensor(shape, "float16"),
    V: T.Tensor(shape, "float16"),
    Out: T.Tensor(shape, "float16"),
):
    with T.Kernel(T.ceildiv(S, BM), heads, 1, threads=256) as (bx, by, bz):
        Q_shared = T.alloc_shared((BM, D), "float16")
        K_shared = T.alloc_shared((BN, D), "float16")
        V_shared = T.alloc_shared((BN, D), "float16")
        O_shared = T.alloc_shared((BM, D), "float16")
        scores = T.alloc_fragment((BM, BN), "float32")
        weights = T.alloc_fragment((BM, BN), "float16")
        output = T.alloc_fragment((BM, D), "float32")
        largest = T.alloc_fragment((BM,), "float32")
        before = T.alloc_fragment((BM,), "float32")
        rescale = T.alloc_fragment((BM,), "float32")
        row = T.alloc_fragment((BM,), "float32")
        total = T.alloc_fragment((BM,), "float32")
        T.copy(Q[bz, bx * BM : (bx + 1) * BM, by, :], Q_shared)
        T.fill(output, 0)
        T.fill(total, 0)
        T.fill(largest, -T.infinity("float32"))
        blocks = T.ceildiv((bx + 1) * BM, BN) if CAUSAL else T.ceildiv(S, BN)
        for k in T.Pipelined(blocks, num_stages=2):
            T.copy(K[bz, k * BN : (k + 1) * BN, by, :], K_shared)
            if CAUSAL:
                for i, j in T.Parallel(BM, BN):
                    scores[i, j] = T.if_then_else(bx * BM + i >= k * BN + j, 0, -T.infinity("float32"))
            else:
                T.clear(scores)
            T.gemm(Q_shared, K_shared, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            T.copy(largest, before)
            T.fill(largest, -T.infinity("float32"))
            T.reduce_max(scores, largest, dim=1, clear=False)
            for i in T.Parallel(BM):
                largest[i] = T.max(largest[i], before[i])
            for i in T.Parallel(BM):
                rescale[i] = T.exp2(before[i] * scale - largest[i] * scale)
            for i, j in T.Parallel(BM, BN):
                scores[i, j] = T.exp2(scores[i, j] * scale - largest[i] * scale)
            T.reduce_sum(scores, row, dim=1)
            for i in T.Parallel(BM):
                total[i] = total[i] * rescale[i] + row[i]
            T.copy(scores, weights)
            for i, j in T.Parallel(BM, D):
                output[i, j] *= rescale[i]
            T.copy(V[bz, k * BN : (k + 1) * BN, by, :], V_shared)
            T.gemm(weights, V_shared, output, policy=T.GemmWarpPolicy.FullRow)
        for i, j in T.Parallel(BM, D):
            output[i, j] /= total[i]
        T.copy(output, O_shared)
        T.copy(O_shared, Out[bz, bx * BM : (bx + 1) * BM, by, :])


target = tilelang.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
with target, tilelang.tvm.transform.PassContext(config={"tl.enable_fast_math": True}):
    source = tilelang.lower(attention, target=target, enable_device_compile=False).kernel_source
# What `lower` compiles is out of reach: the same compiler, called here.
options = [f"-I{env.TILELANG_TEMPLATE_PATH}", f"-I{env.CUTLASS_INCLUDE_DIR}", "-std=c++17", "--use_fast_math"]
Path(sys.argv[1]).write_bytes(nvcc.compile_cuda(source, "cubin", ["-arch=sm_90a"], options=options))
