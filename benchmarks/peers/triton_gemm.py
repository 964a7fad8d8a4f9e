"""A 128×BN×64 fp16 GEMM with TMA descriptors, compiled by Triton for sm_90a without a GPU: `OUT [BN]`."""

import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def gemm(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(1) * BM, tl.program_id(0) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a.load([row, k]), b.load([k, column]), total)
    c.store([row, column], total.to(tl.float16))


BN = int(sys.argv[2]) if len(sys.argv) > 2 else 128
signature = {
    "a": "tensordesc<fp16[128, 64]>", "b": f"tensordesc<fp16[64, {BN}]>", "c": f"tensordesc<fp16[128, {BN}]>",
    "K": "i32", "BM": "constexpr", "BN": "constexpr", "BK": "constexpr",
}  # fmt: skip
source = ASTSource(gemm, signature, {"BM": 128, "BN": BN, "BK": 64})
kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "num_stages": 4})
Path(sys.argv[1]).write_bytes(kernel.asm["cubin"])
Path(f"{sys.argv[1]}.shared").write_text(str(kernel.metadata.shared))
