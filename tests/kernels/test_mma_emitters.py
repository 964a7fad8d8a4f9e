"""T.TensorCoreIntrinEmitter: its methods against numpy, and how it is misused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tilec
from tilec.support.diagnostics import CompileError

PRODUCT = """
import tilelang.language as T
from tilelang.cuda.intrinsics import TensorCoreIntrinEmitter, get_swizzle_layout


def product(M, N, K, dtype, accum, turned_a, turned_b, row_warps, col_warps, rows, cols, depth, store):
    e = TensorCoreIntrinEmitter(
        a_dtype=dtype, b_dtype=dtype, accum_dtype=accum, a_transposed=turned_a, b_transposed=turned_b,
        block_row_warps=row_warps, block_col_warps=col_warps, warp_row_tiles=rows, warp_col_tiles=cols, chunk=depth,
    )
    BM, BN = row_warps * rows, col_warps * cols
    x, y = e.micro_size_x, e.micro_size_y

    def swizzle(buffer):
        if buffer.shape[-1] * T.dtype(dtype).bits % 256 != 0:
            return T.Layout(buffer.shape, lambda *indices: indices)
        return T.Layout(buffer.shape, lambda i, j: get_swizzle_layout(i, j, buffer.shape[-1], dtype))

    @T.prim_func
    def main(
        A: T.Tensor((K, M) if turned_a else (M, K), dtype),
        B: T.Tensor((N, K) if turned_b else (K, N), dtype),
        C: T.Tensor((M, N), accum),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=e.threads) as (bx, by):
            A_shared = T.alloc_shared((2, depth, BM) if turned_a else (2, BM, depth), dtype)
            B_shared = T.alloc_shared((BN, depth) if turned_b else (depth, BN), dtype)
            C_shared = T.alloc_shared((BM // x, BN // y, x, y), accum)
            A_local = T.alloc_local((e.warp_rows * e.local_size_a,), dtype)
            B_local = T.alloc_local((e.warp_cols * e.local_size_b), dtype)
            C_local = T.alloc_local((e.warp_rows * e.warp_cols * e.local_size_out), accum)
            T.annotate_layout({B_shared: swizzle(B_shared)})
            T.clear(C_local)
            for ko in T.serial(K // depth):
                if turned_a:
                    T.copy(A[ko * depth, by * BM], A_shared[ko % 2, :, :])
                else:
                    T.copy(A[by * BM, ko * depth], A_shared[ko % 2, :, :])
                if turned_b:
                    T.copy(B[bx * BN, ko * depth], B_shared)
                else:
                    T.copy(B[ko * depth, bx * BN], B_shared)
                for ki in T.serial(depth // e.micro_size_k):
                    e.ldmatrix_a(A_local, A_shared[ko % 2, :, :], ki)
                    e.ldmatrix_b(B_local, B_shared, ki)
                    e.mma(A_local, B_local, C_local)
            if store == "tensor":
                e.stmatrix(C_local, C, by, bx)
            else:
                e.stmatrix(C_local, C_shared)
                for i, j in T.Parallel(BM, BN):
                    C[by * BM + i, bx * BN + j] = C_shared[i // x, j // y, i % x, j % y]

    return main
"""

NAMES = (
    "M", "N", "K", "dtype", "accum", "turned_a", "turned_b", "row_warps", "col_warps", "rows", "cols", "depth", "store",
)  # fmt: skip
CASES: dict[str, tuple[Any, ...]] = {
    "two by two": (64, 128, 64, "float16", "float32", False, True, 2, 2, 32, 32, 32, "tile"),
    "neither along K": (32, 64, 64, "bfloat16", "float32", True, False, 2, 2, 16, 32, 32, "tensor"),
    "integers": (48, 64, 128, "int8", "int32", False, True, 1, 2, 48, 32, 64, "tile"),
    "integers, neither along K": (64, 64, 64, "int8", "int32", True, False, 4, 1, 16, 32, 64, "tensor"),
    "eight columns": (32, 40, 32, "float16", "float16", False, False, 2, 1, 16, 40, 16, "tensor"),
    "a tile beyond the tensor": (40, 72, 32, "float16", "float32", True, True, 1, 2, 32, 24, 32, "tensor"),
    "float64": (16, 16, 16, "float64", "float64", False, True, 1, 2, 16, 8, 8, "tile"),
}


def build(text: str, target: str = "sm_80", **constants: Any) -> tilec.Kernel:
    """Return the kernel of a text, compiled for the emulator of a target."""
    return tilec.compile(text, target=target, device="emulator", **constants)


def _lay_out(matrix: NDArray[np.int64], is_turned: bool, dtype: str) -> NDArray[np.generic]:
    """Return a matrix, or its transpose if turned, as an array of a type; of bfloat16 it has the bits."""
    stored = np.ascontiguousarray(matrix.T if is_turned else matrix)
    return (stored.astype("f4").view("u4") >> 16).astype("u2") if dtype == "bfloat16" else stored.astype(dtype)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("case", CASES)
def test_products(case: str, target: str) -> None:
    """Run PRODUCT's kernel of each case in the emulator and compare its sums with numpy's, exactly."""
    given = dict(zip(NAMES, CASES[case], strict=True))
    kernel = build(PRODUCT, target, **given)
    random = np.random.default_rng(5)
    a = random.integers(-7, 8, (given["M"], given["K"]))
    b = random.integers(-7, 8, (given["K"], given["N"]))
    c = np.full((given["M"], given["N"]), 99, given["accum"])
    kernel(_lay_out(a, given["turned_a"], given["dtype"]), _lay_out(b, given["turned_b"], given["dtype"]), c)
    np.testing.assert_array_equal(c, a @ b)  # exact in all of these types


EARLY_NAMES = [
    ("import tilelang.language as T", "import tvm.tl.language as T"),
    ("from tilelang.cuda.intrinsics import TensorCoreIntrinEmitter, get_swizzle_layout",
     "from bitblas.tl.mma_macro_generator import TensorCoreIntrinEmitter\n"
     "from bitblas.tl.utils import get_swizzle_layout"),
    (", ki)", ", ki, thread_bindings=T.thread_binding(0, e.threads, 'threadIdx.x'))"),
]  # fmt: skip


@pytest.mark.parametrize("depth", [32, 128])  # rows of B of 64 bytes, and of two parts of 128
def test_names_of_the_first_releases(depth: int) -> None:
    """Run PRODUCT's kernel with the module names of tvm.tl and bitblas, and compare its sums with numpy's."""
    text = PRODUCT
    for now, before in EARLY_NAMES:
        assert now in text
        text = text.replace(now, before)
    sizes = (16, 32, depth, "float16", "float32", False, True, 1, 1, 16, 32, depth, "tensor")
    kernel = build(text, **dict(zip(NAMES, sizes, strict=True)))
    random = np.random.default_rng(6)
    a, b = random.integers(-7, 8, (16, depth)), random.integers(-7, 8, (depth, 32))
    c = np.zeros((16, 32), np.float32)
    kernel(_lay_out(a, False, "float16"), _lay_out(b, True, "float16"), c)
    np.testing.assert_array_equal(c, a @ b)


SHORT = """
from tilelang.cuda.intrinsics.macro.mma_macro_generator import TensorCoreIntrinEmitter
import tilelang.language as T

e = TensorCoreIntrinEmitter("float16", "float16", "float32", False, True, 1, 2, 16, 16, 32)

@T.prim_func
def main(A: T.Tensor((16, 32), "float16"), C: T.Tensor((16, 32), "float32")):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        s = T.alloc_shared((16, 32), "float16")
        wide = T.alloc_shared((32, 32), "float16")
        tile = T.alloc_shared((1, 2, 16, 16), "float32")
        a = T.alloc_local((e.local_size_a,), "float16")
        b = T.alloc_local((e.local_size_b,), "float16")
        c = T.alloc_local((e.local_size_out,), "float32")
        f = T.alloc_fragment((16, 32), "float32")
        T.copy(A, s)
        LINE
"""


def find_mistake(line: str, text: str = SHORT) -> tuple[str, str, str | None]:
    """Return the code, title and help of the only error of a kernel in which this line stands for LINE."""
    with pytest.raises(CompileError) as caught:
        build(text.replace("LINE", line.replace("; ", "\n        ")))
    (found,) = caught.value.diagnostics
    return found.code, found.title, found.help


ELEMENTS = "use a tile of T.alloc_fragment and T.gemm, and index its elements in T.Parallel"
MISUSES = [
    ("e.ldmatrix_a(f, s, 0)", "wrong-argument", ".ldmatrix_a: `A_local_buf` must be an array of T.alloc_local", None),
    ("e.ldmatrix_a(a, A, 0)", "wrong-argument",
     ".ldmatrix_a: `A_shared_buf` must be a shared tile, or a part of one, of at least two dimensions", None),
    ("e.ldmatrix_b(b, s, 0)", "shape-mismatch", ".ldmatrix_b: s is smaller than the block's part of B", None),
    ("e.ldmatrix_a(a, tile[0, 0, :, :], 0)", "dtype-mismatch",
     ".ldmatrix_a: tile has another type than the emitter's A", "allocate it as float16"),
    ("e.ldmatrix_a(c, s, 0)", "dtype-mismatch", ".ldmatrix_a: c has another type than the emitter's A",
     "allocate it as float16"),
    ("e.ldmatrix_a(a, s, 2)", "out-of-range", "the box is out of the bounds of s", None),
    ("few = T.alloc_local((4,), 'float32'); e.stmatrix(few, C)", "shape-mismatch",
     ".stmatrix: few does not hold the elements of a thread", "write T.alloc_local((8,), …)"),
    ("e.ldmatrix_a(a, s, 0); e.ldmatrix_b(a, wide, 0)", "shape-mismatch",
     ".ldmatrix_b: a holds [16, 16] of the block's elements elsewhere", "allocate an array for each of them"),
    ("e.stmatrix(c, C, 0)", "missing-argument", ".stmatrix needs both pid_m and pid_n, or none", None),
    ("e.stmatrix(c, tile, 0, 0)", "wrong-rank", ".stmatrix: C_buf must be a matrix", None),
    ("e.stmatrix(c, f)", "wrong-argument", ".stmatrix: `C_buf` must be a shared tile or a tensor", None),
    ("small = T.alloc_shared((1, 1, 16, 16), 'float32'); e.stmatrix(c, small)", "shape-mismatch",
     ".stmatrix: small does not have the shape of the micro tiles", "allocate it as [1, 2, 16, 16]"),
    ("T.clear(c); c[0] = c[0] + 1; e.stmatrix(c, C)", "thread-dependent", "c is used element by element", ELEMENTS),
    ("e.ldmatrix_a(a, s, 0); T.copy(a, A[0, 0:8])", "thread-dependent", "a is used element by element", ELEMENTS),
    ("e.ldmatrix_a(a, s, tx % 2)", "thread-dependent",
     "the indices and arguments of T.copy must be the same for all threads", None),
    ("x = e.mma(a, b, c)", "not-a-value", ".mma() gives no value", "write it as a statement"),
    ("for i in T.Parallel(2):; \u0020e.ldmatrix_a(a, s, i)", "tile-op-in-parallel",
     ".ldmatrix_a works on whole tiles and is not allowed inside T.Parallel", "move it out of the loop"),
    ("e.mma_atom(a, b, c, 0, 0)", "unknown-attribute", "T.TensorCoreIntrinEmitter has no `mma_atom` here",
     "its methods are ldmatrix_a, ldmatrix_b, mma, stmatrix"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "title", "help_text"), MISUSES, ids=[row[0] for row in MISUSES])
def test_misuses(line: str, code: str, title: str | None, help_text: str | None) -> None:
    """Check the code of the error that a line of MISUSES gives, and its title and help where they are stated."""
    found = find_mistake(line)
    assert (found[0], title and found[1], help_text and found[2]) == (code, title, help_text)


def test_threads_must_be_those_of_the_warps() -> None:
    """Check that an emitter of two warps is refused in a kernel of 128 threads."""
    found = find_mistake("e.ldmatrix_a(a, s, 0)", SHORT.replace("threads=64", "threads=128"))
    way_out = "pass threads=64 to T.Kernel, or other numbers of warps to the emitter"
    assert found == ("bad-threads", ".ldmatrix_a is run by 128 threads", way_out)


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        ("warp_row_tiles=24", "`warp_row_tiles` must be a multiple of 16, the rows of one instruction"),
        ("warp_row_tiles=16, warp_col_tiles=12",
         "`warp_col_tiles` must be a multiple of 8, the columns of one instruction"),
        ("'int8', 'int8', 'int32', warp_row_tiles=16",
         "`chunk` must be at least 32, the elements of int8 along K that one instruction takes"),
        ("'int4', warp_row_tiles=16", "`a_dtype` must be a type of at least 8 bits"),
        ("block_row_warps=0", "`block_row_warps` must be a positive integer"),
    ],
)  # fmt: skip
def test_warps_must_have_whole_instructions(arguments: str, title: str) -> None:
    """Check that an emitter whose warps have no whole mma instructions is refused, with this title."""
    text = SHORT.replace('"float16", "float16", "float32", False, True, 1, 2, 16, 16, 32', arguments)
    assert find_mistake("T.clear(f)", text)[:2] == ("wrong-argument", f"T.TensorCoreIntrinEmitter: {title}")


def test_attributes_are_those_of_tilelang() -> None:
    """Compare attributes with TileLang's formulas, worked out by hand: of float16, and of int8 in eight columns."""
    text = """
import tilelang.language as T

e = T.TensorCoreIntrinEmitter(warp_row_tiles=64, warp_col_tiles=48, block_row_warps=1, chunk=32)
n = T.TensorCoreIntrinEmitter("int8", "int8", "int32", warp_row_tiles=32, warp_col_tiles=24, chunk=64)

@T.prim_func
def main(C: T.Tensor((2, 9), "int32")):
    with T.Kernel(1, threads=32):
        for row, e in enumerate([e, n]):
            for i, size in enumerate([
                e.micro_size_x, e.micro_size_y, e.micro_size_k, e.warp_rows, e.warp_cols,
                e.local_size_a, e.local_size_b, e.local_size_out, e.threads,
            ]):
                C[row, i] = size
"""
    c = np.zeros((2, 9), np.int32)
    build(text)(c)
    assert c.tolist() == [[16, 16, 16, 4, 3, 8, 8, 8, 64], [16, 8, 32, 2, 3, 16, 8, 4, 128]]


@pytest.mark.parametrize(
    ("module", "name", "help_text"),
    [
        ("tilelang.cuda.intrinsics.macro.wgmma_macro_generator", "TensorCoreIntrinEmitter", "write T.gemm"),
        ("tilelang.cuda.intrinsics", "TensorCoreIntrinEmitterWithLadderTransform", "write T.gemm"),
        ("tilelang.cuda.intrinsics.macro", "SparseTensorCoreIntrinEmitter", "write T.gemm_sp"),
    ],
)
def test_emitters_of_other_instructions_are_refused(module: str, name: str, help_text: str) -> None:
    """Check that TileLang's emitter of another instruction is refused with help that names T.gemm or T.gemm_sp."""
    text = SHORT.replace(
        "import tilelang.language as T", f"import tilelang.language as T\nfrom {module} import {name} as O"
    )
    assert find_mistake("x = O()", text) == ("foreign-call", f"{module}.{name} cannot be called in a kernel", help_text)


IN_A_MACRO = """
import tilelang.language as T

@T.macro
def multiply(emitter, A_shared, a, b, c):
    for ki in T.serial(2):
        emitter.ldmatrix_a(a, A_shared, ki)
        emitter.ldmatrix_b(b, A_shared, ki)
        emitter.mma(a, b, c)

@T.prim_func
def main(A: T.Tensor((2, 16, 32), "float16"), C: T.Tensor((16, 16), "float32"), D: T.Tensor((16, 16), "float32")):
    with T.Kernel(1, threads=32):
        e = T.TensorCoreIntrinEmitter("float16", "float16", "float32", False, True, 1, 1, 16, 16, 32)
        s = T.alloc_shared((16, 32), "float16")
        a = T.alloc_local((e.local_size_a,), "float16")
        b = T.alloc_local((e.local_size_b,), "float16")
        c = T.alloc_local((e.local_size_out,), "float32")
        d = T.alloc_local((e.local_size_out,), "float32")
        T.fill(c, 3)
        T.clear(d)
        for n in T.serial(2):
            T.copy(A[n, :, :], s)
            multiply(e, s, a, b, c)
            if n == 1:
                multiply(e, s, a, b, d)
        e.stmatrix(c, C)
        e.stmatrix(d, D, 0, 0)
"""


def test_a_macro_takes_the_emitter_and_its_arrays() -> None:
    """Run IN_A_MACRO's kernel, whose macro calls the emitter's methods, and compare both its sums with numpy's."""
    a = np.random.default_rng(7).integers(-7, 8, (2, 16, 32))
    c, d = np.zeros((16, 16), np.float32), np.zeros((16, 16), np.float32)
    build(IN_A_MACRO)(a.astype(np.float16), c, d)
    first, second = (x @ x.T for x in a)
    np.testing.assert_array_equal(c, 3 + first + second)
    np.testing.assert_array_equal(d, second)
