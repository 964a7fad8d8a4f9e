"""The same GEMM, compiled by TileLang for sm_90a without a GPU: `OUT [BN [cubin]]`."""

import sys
from pathlib import Path

import tilelang
import tilelang.language as T

M = N = K = 1024
BN = int(sys.argv[2]) if len(sys.argv) > 2 else 128


@T.prim_func
def gemm(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, 128), threads=256) as (bx, by):
        A_shared = T.alloc_shared((128, 64), "float16")
        B_shared = T.alloc_shared((64, BN), "float16")
        C_local = T.alloc_fragment((128, BN), "float32")
        T.clear(C_local)
        for ko in T.Pipelined(T.ceildiv(K, 64), num_stages=4):
            T.copy(A[by * 128, ko * 64], A_shared)
            T.copy(B[ko * 64, bx * BN], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[by * 128, bx * BN])


target = tilelang.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
with target:
    artifact = tilelang.lower(gemm, target=target, enable_device_compile=True)
source = artifact.kernel_source
if "cubin" in sys.argv[3:]:  # what `lower` compiled is out of reach: the same compiler once more
    from tilelang import env
    from tilelang.contrib import nvcc

    includes = [f"-I{env.TILELANG_TEMPLATE_PATH}", f"-I{env.CUTLASS_INCLUDE_DIR}", "-std=c++17"]
    Path(sys.argv[1]).write_bytes(nvcc.compile_cuda(source, "cubin", ["-arch=sm_90a"], options=includes))
    (function,) = artifact.device_mod.functions.values()
    Path(f"{sys.argv[1]}.shared").write_text(str(function.attrs["dyn_shared_memory_buf"]))
else:
    Path(sys.argv[1]).write_text(source)
