"""The same GEMM, compiled by TileLang for sm_90a without a GPU."""

import sys
from pathlib import Path

import tilelang
import tilelang.language as T

M = N = K = 1024


@T.prim_func
def gemm(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")):
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=256) as (bx, by):
        A_shared = T.alloc_shared((128, 64), "float16")
        B_shared = T.alloc_shared((64, 128), "float16")
        C_local = T.alloc_fragment((128, 128), "float32")
        T.clear(C_local)
        for ko in T.Pipelined(T.ceildiv(K, 64), num_stages=4):
            T.copy(A[by * 128, ko * 64], A_shared)
            T.copy(B[ko * 64, bx * 128], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[by * 128, bx * 128])


target = tilelang.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
with target:
    artifact = tilelang.lower(gemm, target=target, enable_device_compile=True)
# The cubin, which nvcc made, is in the module; the CUDA source shows that there is a kernel.
Path(sys.argv[1]).write_text(artifact.kernel_source)
