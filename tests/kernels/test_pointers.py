"""Tensors whose rows lie apart, and tensors at addresses: the PTX that ships, in the emulator, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_scalar_names import TARGETS, compiled

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.ir.elements import copy_with_strides
from tilec.ir.manifest import TensorMapParam, from_json, summarise_manifest, to_json
from tilec.support.diagnostics import CompileError

Arrays = dict[str, Any]


def run(made: Build, sizes: dict[str, int] | None = None) -> tuple[Arrays, Arrays]:
    """The tensors before and afterwards; the reference must have the same ones."""
    given = emulate.draw_arguments(made.kernel, made.manifest, 1, sizes)
    before, through_tiles = given.copy(), given.copy()
    emulate.emulate_build(made, given)
    emulate.run_reference(made.kernel, through_tiles)
    for name, found in given.tensors.items():
        np.testing.assert_allclose(found, through_tiles.tensors[name], rtol=1e-3, atol=1e-2, err_msg=name)
    return before.tensors, given.tensors


def maps(made: Build) -> list[str]:
    """The tensors that go by TMA."""
    return sorted({p.tensor for p in made.manifest.params if isinstance(p, TensorMapParam)})


COPY = """
@T.prim_func
def k(A: T.StridedTensor((100, 48), (STEP, 1), "float16"), B: T.StridedTensor((100, 48), (96, 1), "float16")):
    with T.Kernel(4, threads=64) as bx:
        S = T.alloc_shared((32, 48), "float16")
        T.copy(A[bx * 32, 0], S)
        for i, j in T.Parallel(32, 48):
            S[i, j] = S[i, j] + T.float16(1)
        T.copy(S, B[bx * 32, 0])
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("step", [48, 49, 52, 56, 64, 4096])
def test_rows_apart(step: int, target: str) -> None:
    """By TMA, in vectors or element by element, as far as the rows are aligned."""
    made = compiled(COPY.replace("STEP", str(step)), target)
    before, after = run(made)
    np.testing.assert_array_equal(after["B"], before["A"] + np.float16(1))
    assert maps(made) == (["B"] if target == "sm_90a" else [])
    strides = None if step == 48 else (step, 1)
    assert made.manifest.tensor("A").strides == strides and made.manifest.tensor("B").strides == (96, 1)
    assert from_json(to_json(made.manifest)) == made.manifest
    assert "with strides 96, 1" in summarise_manifest(made.manifest)


@pytest.mark.parametrize("target", TARGETS)
def test_strides_known_at_launch(target: str) -> None:
    text = """
m, s = T.dynamic("m"), T.dynamic("s")

@T.prim_func
def k(A: T.StridedTensor((m, 3, 40), (s, 64, 1), "float32"), B: T.Tensor((m, 3, 40), "float32")):
    with T.Kernel(m, threads=64) as bx:
        for i, j in T.Parallel(3, 40):
            B[bx, i, j] = 2 * A[bx, i, j]
"""
    made = compiled(text, target)
    assert made.manifest.size_scalars() == ("m", "s")
    for step in (200, 256, 193):
        before, after = run(made, {"m": 5, "s": step})
        np.testing.assert_array_equal(after["B"], 2 * before["A"])
    with pytest.raises(CompileError, match="overlap"):
        run(made, {"m": 5, "s": 100})
    with pytest.raises(CompileError, match="no argument determines the size s"):
        run(made, {"m": 5})


GEMM = """
@T.prim_func
def k(A: T.StridedTensor((128, 64), (80, 1), "float16"), B: T.Tensor((64, 128), "float16"),
      C: T.StridedTensor((128, 128), (160, 1), "float32")):
    with T.Kernel(2, threads=128) as bx:
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((32, 128), "float16")
        C_l = T.alloc_fragment((64, 128), "float32")
        T.clear(C_l)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[bx * 64, k * 32], A_s)
            T.copy(B[k * 32, 0], B_s)
            T.gemm(A_s, B_s, C_l)
        T.copy(C_l, C[bx * 64, 0])
"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_gemm_of_tensors_with_strides(target: str) -> None:
    made = compiled(GEMM, target)
    assert maps(made) == (["A", "B", "C"] if target == "sm_90a" else [])
    assert maps(compiled(GEMM.replace("(80, 1)", "(84, 1)"), target)) == (["C"] if target == "sm_90a" else [])
    before, after = run(made)
    np.testing.assert_allclose(after["C"], before["A"].astype(np.float32) @ before["B"], rtol=1e-3, atol=1e-2)


POINTERS = """
@T.prim_func
def k(a: T.ptr, b: T.ptr("float32"), where: T.int64, n: T.int32):
    A = T.make_tensor(a, (n, 32), "float32", (40, 1))
    with T.Kernel(n, threads=32) as bx:
        B = T.make_tensor(b, (n, 32), dtype=T.float32)
        C = T.make_tensor_from_addr(where, (n,), "int32")
        t = T.get_thread_binding()
        B[bx, t] = A[bx, t] + 1
        if t == 0:
            C[bx] = bx
"""


@pytest.mark.parametrize("target", TARGETS)
def test_pointers_are_made_into_tensors(target: str) -> None:
    made = compiled(POINTERS, target)
    assert [(t.name, t.role, t.strides) for t in made.manifest.tensors] == [
        ("a", "in", (40, 1)), ("b", "out", None), ("where", "out", None)
    ]  # fmt: skip
    before, after = run(made, {"n": 3})
    np.testing.assert_array_equal(after["b"], before["a"] + 1)
    assert after["where"].tolist() == [0, 1, 2]


def test_elements_apart() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    made = copy_with_strides(array, (5, 1))
    np.testing.assert_array_equal(made, array)
    assert made.strides == (10, 2) and isinstance(made.base, np.ndarray) and made.base.nbytes == 16
    with pytest.raises(ValueError, match="negative strides are not supported"):
        copy_with_strides(array, (-5, 1))
    with pytest.raises(ValueError, match="overlap"):
        copy_with_strides(array, (2, 1))
    assert copy_with_strides(array[:0], (5, 1)).shape == (0, 3)


FOUR_BITS = """
s = T.dynamic("s")

@T.prim_func
def k(A: T.StridedTensor((5, 64), (STEP, 1), "DTYPE"), B: T.Tensor((5, 64), "float16"),
      C: T.StridedTensor((5, 64), (88, 1), "DTYPE")):
    with T.Kernel(5, threads=64) as bx:
        S = T.alloc_shared((1, 64), "DTYPE")
        T.copy(A[bx, 0], S)
        T.copy(S, C[bx, 0])
        for i in T.Parallel(64):
            B[bx, i] = A[bx, i]
"""
FLOATS = np.concatenate([(x := np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])), -x])
NUMBERS = {"float4_e2m1fn": FLOATS, "uint4": np.arange(16), "int4": np.r_[0:8, -8:0]}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("step", ["80", "2 * s", "s"])
def test_rows_of_four_bit_elements_apart(step: str, dtype: str, target: str) -> None:
    """The strides of the manifest are those of its bytes."""
    made = compiled(FOUR_BITS.replace("STEP", step).replace("DTYPE", dtype), target)
    before, after = run(made, {"80": None, "2 * s": {"s": 40}, "s": {"s": 80}}[step])
    found = np.stack([before["A"] & 15, before["A"] >> 4], axis=-1).reshape(5, 64)
    np.testing.assert_array_equal(after["B"], NUMBERS[dtype][found])
    np.testing.assert_array_equal(after["C"], before["A"])
    tensor = made.manifest.tensor("C")
    assert (tensor.dtype, tensor.shape, tensor.strides) == ("uint8", (5, 32), (44, 1))


LONG_ROWS = """
h = T.dynamic("h")

@T.prim_func
def k(A: T.Tensor((3, 2 * h), "float4_e2m1fn"), B: T.Tensor((3, 2 * h), "float16"),
      C: T.Tensor((3, 2 * h), "float4_e2m1fn")):
    with T.Kernel(T.ceildiv(h, 32), 3, threads=64) as (bx, by):
        S = T.alloc_shared((1, 64), "float4_e2m1fn")
        T.copy(A[by, bx * 64], S)
        T.copy(S, C[by, bx * 64])
        for i in T.Parallel(64):
            B[by, bx * 64 + i] = A[by, bx * 64 + i]
"""


@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_four_bit_floats_known_at_launch(target: str) -> None:
    made = compiled(LONG_ROWS, target)
    assert made.manifest.tensor("A").shape == (3, "h")  # in bytes
    before, after = run(made, {"h": 45})
    found = np.stack([before["A"] & 15, before["A"] >> 4], axis=-1).reshape(3, 90)
    np.testing.assert_array_equal(after["B"], FLOATS[found])
    np.testing.assert_array_equal(after["C"], before["A"])


VIEWS = """
@T.prim_func
def k(A: T.Tensor((4, 64), "float4_e2m1fn"), B: T.Tensor((4, 32), "uint8"), C: T.Tensor((4, 64), "float16"),
      D: T.Tensor((4, 16), "uint16"), E: T.Tensor((4, 64), "float4_e2m1fn")):
    with T.Kernel(4, threads=64) as bx:
        S = T.alloc_shared((1, 64), "float4_e2m1fn")
        R = T.alloc_shared((1, 32), "uint8")
        T.copy(A[bx, 0], S)
        T.copy(B[bx, 0], R)
        numbers = T.view(R, (1, 64), "float4_e2m1fn")
        words = T.view(S, (1, 16), "uint16")
        written = T.view(E, (4, 32), "uint8")
        for i in T.Parallel(64):
            C[bx, i] = numbers[0, i]
        for i in T.Parallel(16):
            D[bx, i] = words[0, i]
        for i in T.Parallel(32):
            written[bx, i] = R[0, 31 - i]
"""


@pytest.mark.parametrize("target", TARGETS)
def test_views_of_four_bit_floats(target: str) -> None:
    """Two neighbours are a byte, the first one its lower half."""
    before, after = run(compiled(VIEWS, target))
    found = np.stack([before["B"] & 15, before["B"] >> 4], axis=-1).reshape(4, 64)
    np.testing.assert_array_equal(after["C"], FLOATS[found])
    np.testing.assert_array_equal(after["D"], before["A"].view(np.uint16))
    np.testing.assert_array_equal(after["E"], before["B"][:, ::-1])


def test_half_a_byte_beside_a_whole_one_is_refused() -> None:
    text = """
@T.prim_func
def k(E: T.Tensor((4, 64), "float4_e2m1fn"), F: T.Tensor((4, 64), "float4_e2m1fn")):
    with T.Kernel(4, threads=64) as bx:
        written = T.view(E, (4, 32), "uint8")
        for i in T.Parallel(32):
            written[bx, i] = T.uint8(17)
            F[bx, 2 * i] = 1.0
"""
    with pytest.raises(CompileError, match="E must be stored in pairs of elements that share a byte"):
        compiled(text, "sm_80")
