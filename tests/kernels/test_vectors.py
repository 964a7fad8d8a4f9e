"""Vectors: accesses of so many bits, tensors and tiles of vectors, functions of two floats at once. The PTX that ships,
in the emulator, against numpy and against the reference."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_scalar_names import TARGETS, compiled, run

Array = np.ndarray[Any, np.dtype[Any]]
BFLOAT16 = ml_dtypes.bfloat16


def accesses(text: str, target: str = "sm_90a") -> list[str]:
    """The loads and stores of tensors and shared tiles, as spelled."""
    made = compiled(text, target)
    return re.findall(r"\b(?:ld|st)\.(?:global|shared)[\w.]*", made.ptx)


# ---- accesses of so many bits ----------------------------------------------------------------------------------------

MOVE = """
@T.prim_func
def k(A: T.Tensor((SIZE,), "DTYPE"), B: T.Tensor((SIZE,), "DTYPE"), C: T.Tensor((SIZE,), "DTYPE")):
    with T.Kernel(1, threads=32):
        t = T.get_thread_binding()
        S = T.alloc_shared((SIZE,), "DTYPE")
        value = T.ldgBITS(A[t * EACH])
        T.stgBITS(B[t * EACH : t * EACH + EACH], value)
        LOCAL
"""
SHARED = """T.stsLESS(S[(31 - t) * PART], T.ldgLESS(A[t * PART:t * PART + PART]))
        T.sync_threads()
        for i in T.Parallel(32 * PART):
            C[i] = S[i]
        T.stgLESS(C[t * PART], T.ldsLESS(S[t * PART]))"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "uint64", "float8_e4m3fn"])
@pytest.mark.parametrize("bits", [32, 64, 128, 256])
def test_bits_move(bits: int, dtype: str, target: str) -> None:
    size = {"float64": 64, "uint64": 64, "float16": 16, "bfloat16": 16, "float32": 32}.get(dtype, 8)
    if size > bits:
        return
    each, less = bits // size, min(bits, 128)
    local = SHARED.replace("LESS", str(less)).replace("PART", str(less // size))
    text = MOVE.replace("LOCAL", local)
    for name, value in (("SIZE", 32 * each), ("DTYPE", dtype), ("BITS", bits), ("EACH", each)):
        text = text.replace(name, str(value))
    found = run(text, target)
    np.testing.assert_array_equal(found["B"], found["A"])
    part = 32 * less // size
    np.testing.assert_array_equal(found["C"][:part].reshape(32, -1), found["A"][:part].reshape(32, -1)[::-1])
    words = less // 32
    wide = f".v{words // 2 if size == 64 else words}" if words > (2 if size == 64 else 1) else ""
    spelled = accesses(text, target)
    assert any(s.startswith(f"ld.global.nc{wide}.") for s in spelled), spelled
    assert any(s.startswith(f"st.global{wide}.") for s in spelled), spelled
    assert any(s.startswith(f"st.shared{wide}.") for s in spelled), spelled


@pytest.mark.parametrize("target", TARGETS)
def test_an_address_that_is_not_aligned_is_read_in_parts(target: str) -> None:
    text = """
@T.prim_func
def k(A: T.Tensor((256,), "float16"), B: T.Tensor((256,), "float16"), n: T.int32):
    with T.Kernel(1, threads=32):
        t = T.get_thread_binding()
        T.stg128(B[t * 8], T.ldg128(A[t * 8 + 2]))
"""
    found = run(text, target)
    np.testing.assert_array_equal(found["B"], np.append(found["A"][2:], [0, 0]))
    assert "st.global.v4.b32" in accesses(text) and "ld.global.nc.b32" in accesses(text)


@pytest.mark.parametrize("target", TARGETS)
def test_words_under_a_condition(target: str) -> None:
    text = """
@T.prim_func
def k(A: T.Tensor((128,), "float32"), B: T.Tensor((128,), "float32"), C: T.Tensor((128,), "float32")):
    with T.Kernel(1, threads=32):
        t = T.get_thread_binding()
        few = t < 16
        for j in T.vectorized(4):
            B[t * 4 + j] = -1.0
            C[t * 4 + j] = -1.0
        T.stg128(B[t * 4 : t * 4 + 4], T.ldg128(A[t * 4 : t * 4 + 4], pred=few))
        T.stg128(C[t * 4 : t * 4 + 4], T.ldg128(A[t * 4 : t * 4 + 4]), pred=few)
        T.sync_threads()
        if t == 20:
            T.stg64(C[100], T.ldg64(A[100]))
"""
    found = run(text, target)
    half = np.arange(128) < 64
    np.testing.assert_array_equal(found["B"], np.where(half, found["A"], 0))
    there = half | np.isin(np.arange(128), (100, 101))
    np.testing.assert_array_equal(found["C"], np.where(there, found["A"], -1))


@pytest.mark.parametrize("target", TARGETS)
def test_the_first_vector_of_a_box(target: str) -> None:
    """An index without extent takes the shape of the other side, of vectors as of numbers; with none it is one."""
    text = """
@T.prim_func
def k(A: T.Tensor((128, 16), "float16x2"), B: T.Tensor((128, 16), "float16x2"), C: T.Tensor((128,), "float16x2"),
      D: T.Tensor((128, 16), "float16x2")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((32, 16), "float16x2")
        f = T.alloc_fragment((32, 16), "float16x2")
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[k * 32, 0], s)
            T.copy(s, f)
            T.copy(f, B[k * 32, 0])
        T.copy(s[1, 0:8], C[100])
        T.copy(A[5, 6], C[3])
        T.atomic_add(D[64, 0], f)
"""
    zeros = np.zeros((128, 16, 2), np.float16)
    found = run(text, target, C=zeros[:, 0].copy(), D=zeros.copy())
    np.testing.assert_array_equal(found["B"], found["A"])
    np.testing.assert_array_equal(found["C"][100:108], found["A"][97, :8])
    np.testing.assert_array_equal(found["C"][3], found["A"][5, 6])
    np.testing.assert_array_equal(found["D"][64:96], found["A"][96:])
    assert np.count_nonzero(found["C"]) == 18 and not found["D"][:64].any() and not found["D"][96:].any()


@pytest.mark.parametrize("target", TARGETS)
def test_words_are_numbers(target: str) -> None:
    """One slice set to a vector, as TileLang's own tests have it; words that are computed with; T.__ldg."""
    text = """
@T.prim_func
def k(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32"), H: T.Tensor((32,), "uint16"),
      W: T.Tensor((16,), "uint32"), G: T.Tensor((16,), "uint32"), K: T.Tensor((16,), "uint32"),
      I: T.Tensor((16,), "int32"), Z: T.Tensor((16,), "float32")):
    with T.Kernel(16, threads=32) as pid:
        Y[pid * 4 : pid * 4 + 4] = T.reinterpret(T.float32x4, T.ldg128(X[pid * 4 : pid * 4 + 4]))
        W[pid] = T.ldg32(H[pid * 2]) + 1
        G[pid] = T.__ldg(K, T.__ldg(I[pid]))
        Z[pid] = T.reinterpret("float32", T.ldg32(X[pid]))
"""
    found = run(text, target, I=np.arange(16, dtype=np.int32)[::-1].copy())
    np.testing.assert_array_equal(found["Y"], found["X"])
    np.testing.assert_array_equal(found["W"], found["H"].view(np.uint32) + 1)
    np.testing.assert_array_equal(found["G"], found["K"][::-1])
    np.testing.assert_array_equal(found["Z"], found["X"][:16])


# ---- tensors and tiles of vectors ------------------------------------------------------------------------------------

TILES = """
@T.prim_func
def k(A: T.Tensor((64, 6), "VECTOR"), B: T.Tensor((64, 6), T.VECTOR), C: T.Tensor((64, 6), T.VECTOR)):
    with T.Kernel(2, threads=64) as bx:
        t = T.get_thread_binding()
        assert A.shape[1] == 6 and A.dtype == T.VECTOR
        S = T.alloc_shared((32, 6), T.VECTOR)
        F = T.alloc_fragment((32, 6), "VECTOR")
        L = T.alloc_local((6,), "VECTOR")
        T.copy(A[bx * 32 : bx * 32 + 32, :], S)
        T.copy(S, F)
        T.copy(F, B[bx * 32 : bx * 32 + 32, :])
        for j in T.serial(6):
            L[j] = A[bx * 32 + t // 2, j]
        if t % 2 == 0:
            for j in T.serial(6):
                held = L[5 - j]
                L[5 - j] = A[0, 0]
                C[bx * 32 + t // 2, j] = held
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "vector", ["float16x2", "bfloat16x2", "float32x2", "float32x4", "float32x8", "float8_e4m3fnx8", "int16x4"]
)
def test_tiles_of_vectors(vector: str, target: str) -> None:
    found = run(TILES.replace("VECTOR", vector), target)
    assert found["A"].shape == (64, 6, int(vector.rpartition("x")[2]))
    np.testing.assert_array_equal(found["B"], found["A"])
    np.testing.assert_array_equal(found["C"], found["A"][:, ::-1])


@pytest.mark.parametrize("target", TARGETS)
def test_pairs_of_four_bits(target: str) -> None:
    """An element of float4_e2m1fnx2 is a byte."""
    text = """
@T.prim_func
def k(A: T.Tensor((64, 8), "float4_e2m1fnx2"), B: T.Tensor((64, 8), "float4_e2m1fnx2")):
    with T.Kernel(1, threads=64):
        S = T.alloc_shared((64, 8), "float4_e2m1fnx2")
        T.copy(A, S)
        T.copy(S, B)
"""
    found = run(text, target)
    assert found["A"].shape == (64, 8, 1)
    np.testing.assert_array_equal(found["B"], found["A"])


# ---- computing with vectors ------------------------------------------------------------------------------------------

PAIRS = """
@T.prim_func
def k(A: T.Tensor((128,), "VECTOR"), B: T.Tensor((128,), "VECTOR"), C: T.Tensor((128,), "VECTOR"),
      R: T.Tensor((10, 128), "VECTOR"), N: T.Tensor((128,), "float32x2")):
    with T.Kernel(1, threads=THREADS):
        for i in T.Parallel(128):
            x = A[i]
            y = B[i]
            R[0, i] = T.add2(x, y)
            R[1, i] = T.sub2(x, y)
            R[2, i] = T.mul2(x, y)
            R[3, i] = T.fma2(x, y, C[i])
            R[4, i] = T.max2(x, y)
            R[5, i] = T.min2(x, y)
            R[6, i] = T.abs2(x)
            R[7, i] = x * 2 - y
            R[8, i] = 0.5
            R[9, i] = T.VECTOR(3)
            N[i] = T.cast(x, "float32x2") + T.float32x2(y)
"""
TYPES = {"float16x2": np.float16, "bfloat16x2": BFLOAT16, "float32x2": np.float32}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("vector", TYPES)
def test_functions_of_pairs(vector: str, target: str) -> None:
    dtype = TYPES[vector]
    found = run(PAIRS.replace("VECTOR", vector).replace("THREADS", "64"), target)
    a, b, c, r = (found[name].view(dtype) for name in "ABCR")
    wide = a.astype(np.float64), b.astype(np.float64), c.astype(np.float64)
    single = np.float32
    for row, exact in (
        (0, wide[0] + wide[1]), (1, wide[0] - wide[1]), (2, wide[0] * wide[1]), (4, np.maximum(wide[0], wide[1])),
        (5, np.minimum(wide[0], wide[1])), (6, np.abs(wide[0])), (7, (wide[0] * 2).astype(dtype) - wide[1]),
        (8, np.full(a.shape, 0.5)), (9, np.full(a.shape, 3.0)),
    ):  # fmt: skip
        narrow = exact if dtype is np.float16 else exact.astype(single)
        np.testing.assert_array_equal(r[row], narrow.astype(dtype), err_msg=str(row))
    fused = wide[0] * wide[1] + wide[2]  # exact but for what a float64 drops, far below a rounding of these
    tolerance = {np.float16: 2.0**-11, BFLOAT16: 2.0**-8, single: 2.0**-24}[dtype]
    np.testing.assert_allclose(r[3].astype(np.float64), fused, rtol=tolerance * (1 + 1e-6), atol=2.0**-24)
    np.testing.assert_array_equal(found["N"], a.astype(single) + b.astype(single))


@pytest.mark.parametrize("target", TARGETS)
def test_a_fused_sum_is_rounded_once(target: str) -> None:
    """Where a product's own rounding would show: (1 + e)² - (1 + 2e) is e², which two roundings lose."""
    text = """
@T.prim_func
def k(A: T.Tensor((64,), "VECTOR"), B: T.Tensor((64,), "VECTOR"), C: T.Tensor((64,), "VECTOR")):
    with T.Kernel(1, threads=64):
        t = T.get_thread_binding()
        C[t] = T.fma2(A[t], A[t], B[t])
"""
    for vector, dtype in TYPES.items():
        e = float(ml_dtypes.finfo(dtype).eps)
        a, b = np.full((64, 2), 1 + e).astype(dtype), np.full((64, 2), -1 - 2 * e).astype(dtype)
        bits = {"A": a, "B": b} if dtype is not BFLOAT16 else {"A": a.view(np.uint16), "B": b.view(np.uint16)}
        found = run(text.replace("VECTOR", vector), target, **bits)
        np.testing.assert_array_equal(found["C"].view(dtype).astype(np.float64), np.full((64, 2), e * e))


# ---- neighbours that a person writes out -----------------------------------------------------------------------------

BY_HAND = """
@T.prim_func
def k(A: T.Tensor((64, SIZE), "float16"), B: T.Tensor((64, SIZE), "float16"), n: T.int32):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            B[i, FIRST] = A[i, FIRST + 1]
            B[i, FIRST + 1] = A[i, FIRST]
            B[i, FIRST + 2] = A[i, FIRST + 3]
            B[i, FIRST + 3] = A[i, FIRST + 2]
            if n > 3:
                B[i, FIRST + 4] = A[i, 0]
                B[i, FIRST + 5] = A[i, 0]
            else:
                B[i, FIRST + 5] = A[i, 1]
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("size", "first", "stores"), [(16, 4, ["v2.b32", "b32"]), (16, 5, ["b32"]), (15, 4, ["b16"])])
def test_neighbours_move_together(size: int, first: int, stores: list[str], target: str) -> None:
    """As far as they are aligned, stand next to one another, and are stored under one condition."""
    text = BY_HAND.replace("SIZE", str(size)).replace("FIRST", str(first))
    found = run(text, target, B=np.zeros((64, size), np.float16))
    wanted = np.zeros((64, size), np.float16)
    wanted[:, first : first + 4] = found["A"][:, [first + 1, first, first + 3, first + 2]]
    written = found["B"][:, first + 4 : first + 6]
    either = np.stack([found["A"][:, 0]] * 2, 1), np.stack([np.zeros(64), found["A"][:, 1]], 1)
    assert any(np.array_equal(written, e) for e in either)
    np.testing.assert_array_equal(found["B"][:, : first + 4], wanted[:, : first + 4])
    spelled = {s.removeprefix("st.global.") for s in accesses(text, target) if s.startswith("st.")}
    assert set(stores) <= spelled and not any(s.startswith("v") and s not in stores for s in spelled)


def test_a_row_and_some_of_its_columns() -> None:
    text = """
@T.prim_func
def k(A: T.Tensor((32, 8), "float32"), B: T.Tensor((32, 8), "float32")):
    with T.Kernel(1, threads=32):
        t = T.get_thread_binding()
        T.stg128(B[t, 4:8], T.ldg128(A[t, 0:4]))
"""
    found = run(text, "sm_90a")
    np.testing.assert_array_equal(found["B"][:, 4:], found["A"][:, :4])
