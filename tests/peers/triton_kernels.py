"""Our own Triton kernels, compiled ahead of time to PTX. Run by an interpreter that has Triton, which needs no GPU:

    python triton_kernels.py OUT_DIR

writes NAME.ptx and NAME.json (entry, threads, shared memory, scratch) for each kernel.
"""

import json
import pathlib
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit
def softmax(x, out, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, at < n, other=float("-inf"))
    values = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * stride + at, values / tl.sum(values, 0), at < n)


@triton.jit
def gemm(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a_at = a + rows[:, None] * k + inner[None, :]
    b_at = b + inner[:, None] * n + columns[None, :]
    total = tl.zeros((BM, BN), c.dtype.element_ty)
    for step in range(0, k, BK):
        inside = inner < k - step
        a_mask, b_mask = inside[None, :] & (rows[:, None] < m), inside[:, None] & (columns[None, :] < n)
        left, right = tl.load(a_at, a_mask, 0.0), tl.load(b_at, b_mask, 0.0)
        total = tl.dot(left, right, total, out_dtype=c.dtype.element_ty)
        a_at += BK
        b_at += BK * n
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask)


@triton.jit
def gemm_int8(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.int32)
    for step in range(0, k, BK):
        left = tl.load(a + rows[:, None] * k + step + inner[None, :])
        total = tl.dot(left, tl.load(b + columns[None, :] * k + step + inner[:, None]), total, out_dtype=tl.int32)
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def gemm_descriptors(a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(0, k, BK):
        total = tl.dot(a.load([row, step]), b.load([column, step]).T, total)
    c.store([row, column], total.to(c.dtype))


@triton.jit
def gemm_device_descriptors(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a_map = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    b_map = tl.make_tensor_descriptor(b, [n, k], [k, 1], [BN, BK])
    c_map = tl.make_tensor_descriptor(c, [m, n], [n, 1], [BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(0, k, BK):
        total = tl.dot(a_map.load([row, step]), b_map.load([column, step]).T, total)
    c_map.store([row, column], total.to(tl.float16))


@triton.jit
def gemm_specialised(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a_map = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    b_map = tl.make_tensor_descriptor(b, [n, k], [k, 1], [BN, BK])
    c_map = tl.make_tensor_descriptor(c, [m, n], [n, 1], [BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(0, k, BK, warp_specialize=True):
        total = tl.dot(a_map.load([row, step]), b_map.load([column, step]).T, total)
    c_map.store([row, column], total.to(tl.float16))


@triton.jit
def attention(q, k, v, out, length, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    start = tl.program_id(0) * BM
    head = tl.program_id(1) * length * D
    rows = start + tl.arange(0, BM)
    columns = tl.arange(0, D)
    queries = tl.load(q + head + rows[:, None] * D + columns[None, :])
    total = tl.zeros((BM, D), tl.float32)
    largest = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    end = start + BM if CAUSAL else length
    for at in range(0, end, BN):
        keys = at + tl.arange(0, BN)
        k_tile = tl.load(k + head + keys[None, :] * D + columns[:, None])
        scores = tl.dot(queries, k_tile) * (scale * 1.44269504)
        if CAUSAL:
            scores = tl.where(rows[:, None] >= keys[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_largest[:, None])
        rescale = tl.exp2(largest - new_largest)
        weight = weight * rescale + tl.sum(weights, 1)
        total = total * rescale[:, None]
        v_tile = tl.load(v + head + keys[:, None] * D + columns[None, :])
        total = tl.dot(weights.to(tl.float16), v_tile, total)
        largest = new_largest
    tl.store(out + head + rows[:, None] * D + columns[None, :], (total / weight[:, None]).to(tl.float16))


@triton.jit
def histogram(x, counts, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.histogram(tl.load(x + at, at < n, other=0), BINS)
    tl.atomic_add(counts + tl.arange(0, BINS), found)


@triton.jit
def scan_sort(x, sums, ordered, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at)
    tl.store(sums + at, tl.cumsum(values, 0))
    tl.store(ordered + at, tl.sort(values))


@triton.jit
def mathematics(x, y, out, small, large, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, tl.sigmoid(a) + tl.sqrt(tl.abs(b)))
    tl.store(out + BLOCK + at, tl.sin(a) * tl.cos(b))
    tl.store(out + 2 * BLOCK + at, tl.floor(a) + tl.ceil(b))
    tl.store(out + 3 * BLOCK + at, tl.erf(a) + tl.log2(tl.abs(b)))
    tl.store(out + 4 * BLOCK + at, tl.rsqrt(tl.abs(b)) + tl.div_rn(a, b))
    tl.store(small + at, a.to(tl.float8e4nv))
    tl.store(large + at, a.to(tl.float8e5).to(tl.float16).to(tl.float8e5))


KERNELS = [
    # name, function, arguments, constants, architecture, options
    ("vector_add", vector_add, "x:*fp32 y:*fp32 out:*fp32 n:i32", {"BLOCK": 256}, 80, {}),
    ("softmax", softmax, "x:*fp32 out:*fp32 stride:i32 n:i32", {"BLOCK": 512}, 90, {}),
    *(
        (
            f"gemm_{kind}_sm{arch}",
            gemm,
            f"a:*{kind} b:*{kind} c:*fp32 m:i32 n:i32 k:i32",
            {"BM": 64, "BN": 64, "BK": 32},
            arch,
            {},
        )
        for kind in ("fp16", "bf16", "fp32")
        for arch in (80, 90, 100)
    ),
    ("gemm_fp64", gemm, "a:*fp64 b:*fp64 c:*fp64 m:i32 n:i32 k:i32", {"BM": 32, "BN": 32, "BK": 16}, 80, {}),
    *(
        (
            f"gemm_int8_sm{arch}",
            gemm_int8,
            "a:*i8 b:*i8 c:*i32 m:i32 n:i32 k:i32",
            {"BM": 64, "BN": 64, "BK": 64},
            arch,
            {},
        )
        for arch in (80, 90, 100)
    ),
    *(
        (
            f"gemm_descriptors_{stages}_sm{arch}",
            gemm_descriptors,
            "a:tensordesc<fp16[64,64]> b:tensordesc<fp16[64,64]> c:tensordesc<fp16[64,64]> k:i32",
            {"BM": 64, "BN": 64, "BK": 64},
            arch,
            {"num_stages": stages},
        )
        for stages in (2, 3)
        for arch in (90, 100)
    ),
    *(
        (
            f"{name}_sm{arch}",
            function,
            "a:*fp16 b:*fp16 c:*fp16 m:i32 n:i32 k:i32",
            {"BM": tile, "BN": tile, "BK": 64},
            arch,
            {"num_stages": 3},
        )
        for name, function, tile in (
            ("gemm_device_descriptors", gemm_device_descriptors, 64),
            ("gemm_specialised", gemm_specialised, 128),
        )
        for arch in (90, 100)
    ),
    *(
        (
            f"attention_{'causal' if causal else 'full'}_sm{arch}",
            attention,
            "q:*fp16 k:*fp16 v:*fp16 out:*fp16 length:i32 scale:fp32",
            {"D": 64, "BM": 64, "BN": 64, "CAUSAL": causal},
            arch,
            {},
        )
        for arch in (80, 90, 100)
        for causal in (False, True)
    ),
    ("histogram", histogram, "x:*i32 counts:*i32 n:i32", {"BLOCK": 512, "BINS": 64}, 80, {}),
    ("scan_sort", scan_sort, "x:*i32 sums:*i32 ordered:*i32", {"BLOCK": 256}, 90, {}),
    ("mathematics", mathematics, "x:*fp32 y:*fp32 out:*fp32 small:*fp8e4nv large:*fp8e5", {"BLOCK": 256}, 90, {}),
]


def compile_kernel(function, arguments, constants, architecture, options):
    """The compiled kernel. Pointers are 16-byte aligned and sizes multiples of 16, as Triton's launcher finds them."""
    signature = dict(part.split(":", 1) for part in arguments.split())
    names = list(signature)
    sizes = ("m", "n", "k", "length", "stride")
    aligned = [name for name in names if signature[name].startswith("*") or name in sizes]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(function, signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": 4, **options})


def main(folder: pathlib.Path) -> None:
    for name, function, arguments, constants, architecture, options in KERNELS:
        kernel = compile_kernel(function, arguments, constants, architecture, options)
        about = {
            "entry": kernel.metadata.name,
            "threads": kernel.metadata.num_warps * 32,
            "shared": kernel.metadata.shared,
            "scratch": getattr(kernel.metadata, "global_scratch_size", 0),
        }
        (folder / f"{name}.ptx").write_text(kernel.asm["ptx"])
        (folder / f"{name}.json").write_text(json.dumps(about))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
