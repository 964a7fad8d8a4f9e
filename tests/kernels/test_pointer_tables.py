"""Tables of addresses: the tensors that T.make_tensor makes at their entries, in the emulator, against numpy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from test_scalar_names import TARGETS, compiled

import tilec
from tilec.driver.emulation import emulate
from tilec.emu import Fault
from tilec.host.header import Style, Variant, build_header
from tilec.ir.elements import decode_values, encode_values
from tilec.ir.manifest import TensorMapParam, from_json, summarise_manifest, to_json
from tilec.ir.read import read_kernel
from tilec.ir.text import print_kernel
from tilec.ir.types import TYPES_BY_NAME

GROUPS = """
n = T.dynamic("n")
M, N, K = 19, 24, 24

@T.prim_func
def k(a: T.Tensor((n,), T.ptr), b: T.Tensor((n,), T.ptr), c: T.Tensor((n,), T.ptr), rows: T.Tensor((n,), "int32")):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), n, threads=32) as (bx, by, g):
        A = T.make_tensor(a[g], (M, K), DTYPE)
        B = T.make_tensor(b[g], (K, N), DTYPE)
        C = T.make_tensor(c[g], (M, N), "float32")
        A_s = T.alloc_shared((16, 16), DTYPE)
        B_s = T.alloc_shared((16, 16), DTYPE)
        C_l = T.alloc_fragment((16, 16), "float32")
        T.clear(C_l)
        for k in T.Pipelined(T.ceildiv(K, 16), num_stages=2):
            T.copy(A[by * 16, k * 16], A_s)
            T.copy(B[k * 16, bx * 16], B_s)
            T.gemm(A_s, B_s, C_l)
        for i, j in T.Parallel(16, 16):
            if by * 16 + i < rows[g]:
                C[by * 16 + i, bx * 16 + j] = C_l[i, j]
"""


def make(text: str, target: str) -> Any:
    return tilec.compile(f"import tilelang.language as T\n{text}", target=target, device="emulator")


def draw(count: int, shape: tuple[int, ...], dtype: str) -> list[Any]:
    generator = np.random.default_rng(1)
    return [
        encode_values(generator.standard_normal(shape).astype(np.float32), TYPES_BY_NAME[dtype]) for _ in range(count)
    ]


def list_addresses(arrays: list[Any]) -> Any:
    return np.array([array.ctypes.data for array in arrays], np.int64)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_groups_of_products(dtype: str, target: str) -> None:
    """Loads of odd sizes in a pipeline, and stores of as many rows as each group has."""
    kernel = make(GROUPS.replace("DTYPE", repr(dtype)), target)
    assert not any(isinstance(p, TensorMapParam) for p in kernel.manifest.params)
    for count in (0, 1, 3):
        a, b = draw(count, (19, 24), dtype), draw(count, (24, 24), dtype)
        c = [np.zeros((19, 24), np.float32) for _ in range(count)]
        rows = np.array([19, 5, 0][:count], np.int32)
        with pytest.warns(UserWarning, match="no block wrote") if count == 3 else pytest.MonkeyPatch.context():
            kernel(a, b, c, rows)
        for one, other, found, used in zip(a, b, c, rows, strict=True):
            left, right = (decode_values(x, TYPES_BY_NAME[dtype]).astype(np.float64) for x in (one, other))
            np.testing.assert_allclose(found[:used], (left @ right)[:used], rtol=1e-2, atol=2e-2)
            assert not found[used:].any()


PICK = """
@T.prim_func
def k(src: T.Tensor((2, 3), T.ptr), dst: T.Tensor((4,), T.ptr), which: T.Tensor((4,), "int32")):
    with T.Kernel(4, threads=64) as bx:
        row = T.alloc_var("int32")
        row = bx // 2
        entry = src[row, which[bx]]
        row = 7  # the entry was chosen before
        A = T.make_tensor(entry, (9, 13), "float16")
        C = T.make_tensor(dst[bx], (9, 13), "float16")
        S = T.alloc_shared((9, 13), "float16")
        T.copy(A, S)
        for i, j in T.Parallel(9, 13):
            S[i, j] = S[i, j] + A[8 - i, j]
        T.copy(S, C)
"""


@pytest.mark.parametrize("target", TARGETS)
def test_entries_are_chosen_by_numbers_of_the_kernel(target: str) -> None:
    """Outside the table reads give 0."""
    a = draw(6, (9, 13), "float16")
    c = [np.zeros((9, 13), np.float16) for _ in range(4)]
    which = np.array([2, 0, 3, -1], np.int32)
    kernel = make(PICK, target)
    kernel([a[:3], a[3:]], list_addresses(c), which)
    for found, one in zip(c, (a[2], a[0], None, None), strict=True):
        np.testing.assert_array_equal(found, 0 if one is None else one + one[::-1])


def test_stores_outside_the_table_are_dropped() -> None:
    text = """
@T.prim_func
def k(dst: T.Tensor((2,), T.ptr), count: T.Tensor((2,), T.ptr)):
    with T.Kernel(4, threads=32) as bx:
        C = T.make_tensor(dst[bx - 1], (8,), "int32")
        N = T.make_tensor(count[bx // 2], (1,), "int32")
        for i in T.Parallel(8):
            C[i] = bx
        if T.get_thread_binding() == 0:
            T.atomic_add(N[0], bx + 1)
"""
    c, counts = ([np.zeros(size, np.int32) for _ in range(2)] for size in (8, 1))
    make(text, "sm_80")(c, counts)
    assert [array.tolist() for array in c] == [[1] * 8, [2] * 8]
    assert [int(array[0]) for array in counts] == [3, 7]


@pytest.mark.parametrize("target", TARGETS)
def test_addresses_are_loaded_before_a_loop(target: str) -> None:
    ptx = compiled(GROUPS.replace("DTYPE", "'float16'"), target).ptx
    before, _, loop = ptx.partition("_loop:\n")
    loop, _, _ = loop.partition("_loop;\n")
    assert "ld.global.nc.b64" in before and "cp.async" in loop and "ld.global.nc.b64" not in loop


def test_arrays_that_do_not_fit_are_refused() -> None:
    text = """
n = T.dynamic("n")

@T.prim_func
def k(a: T.Tensor((n,), T.ptr), c: T.Tensor((n,), T.ptr)):
    with T.Kernel(n, threads=32) as bx:
        A = T.make_tensor(a[bx], (32,), "float16")
        C = T.make_tensor(c[bx], (32,), "float32")
        for i in T.Parallel(32):
            C[i] = A[i]
"""
    kernel = make(text, "sm_80")
    a, c = draw(2, (32,), "float16"), [np.zeros(32, np.float32) for _ in range(2)]
    for given, message in (
        ((a, c[:1]), r"n is 2 by a.shape\[0\] = 2, but 1 by c.shape\[0\] = 1"),
        ((a, [c[0], c[0]]), "two arrays of c, which are written, are the same memory"),
        (([a[0], a[1][:5]], c), r"a has the shape \[5\], the kernel takes \[32\]"),
        ((a, np.zeros(2, np.int64)), "address 0 of c is 0"),
        ((a, np.zeros((2, 1), np.int64)), "c takes a dense array of addresses with 1 dimensions"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel(*given)
    with pytest.raises(
        TypeError, match="c takes a list of arrays, or their addresses as int64, not an array of float32"
    ):
        kernel(a, c[0])
    table = make(PICK, "sm_80")
    with pytest.raises(ValueError, match="the lists of src differ in length"):
        table([a, a[:1]], a, a[0])
    with pytest.raises(TypeError, match="src takes a list of arrays, 2 lists deep"):
        table(a, a, a[0])


def test_the_manifest_and_the_header_describe_a_table() -> None:
    made = compiled(PICK, "sm_90a")
    manifest = made.manifest
    assert [(t.name, t.shape, t.role, t.table) for t in manifest.tensors] == [
        ("src", (2, 3, 9, 13), "in", 2), ("dst", (4, 9, 13), "out", 1), ("which", (4,), "in", 0)
    ]  # fmt: skip
    assert from_json(to_json(manifest)) == manifest and json.loads(to_json(manifest))["schema"] == 4
    assert "pointer to src: table of 2 x 3 addresses, each of 9 x 13 float16, in" in summarise_manifest(manifest)
    for wrong in ('"table":4', '"table":1,"strides":[9,1,1]'):
        with pytest.raises(tilec.CompileError, match="dst is no table of dense tensors"):
            from_json(to_json(manifest).replace('"table":1', wrong))
    header = build_header("k", [Variant("sm_90a", made.cubin, b"", (manifest,))], Style())
    assert "const tilec_float16 *const *src" in header and "tilec_float16 *const *dst" in header
    assert "dst is not aligned to 8 bytes" in header


def test_tile_ir_with_a_table_is_read_back() -> None:
    kernel = compiled(PICK, "sm_80").kernel
    text = print_kernel(kernel)
    assert "global src: float16[2, 3, 9, 13], table 2" in text
    assert read_kernel(text) == kernel


def test_a_fault_names_the_element_of_an_entry() -> None:
    """What another block reads at the same time is a race, of an entry's element."""
    made = compiled(
        """
@T.prim_func
def k(dst: T.Tensor((2,), T.ptr)):
    with T.Kernel(2, threads=32) as bx:
        C = T.make_tensor(dst[1], (8,), "int32")
        for i in T.Parallel(8):
            C[i] = bx
""",
        "sm_80",
    )
    with pytest.raises(Fault) as caught:
        emulate.emulate_build(made, emulate.draw_arguments(made.kernel, made.manifest, 1))
    assert {place.element for place in caught.value.places.values()} == {(1, 0)}
