"""Forms of TileLang that become several operations, or other ones: against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from harness import HERE

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import KernelArguments
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = HERE / "tilelang_forms.tl"


def run(entry: str, **defines: int | float | str) -> tuple[KernelArguments, KernelArguments]:
    """The arguments before and behind a launch."""
    source = SourceFile(KERNEL.name, KERNEL.read_text(encoding="utf-8"))
    made = build_kernel(source, CompileOptions(target="sm_80", entry=entry, defines=tuple(defines.items())), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    found = given.copy()
    emulate.emulate_build(made, found)
    return given, found


def test_reductions_convert() -> None:
    given, found = run("reductions")
    a = (given.tensors["A"].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    b = given.tensors["B"]
    np.testing.assert_array_equal(found.tensors["M"], np.abs(a).max(axis=1))
    np.testing.assert_allclose(found.tensors["S"], (1 + b.sum(axis=1)).astype(np.float16), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(found.tensors["C"], 2 + a.sum(axis=1), rtol=1e-5, atol=1e-5)


def test_loops_in_nests_run_for_each_element() -> None:
    given, found = run("loops")
    a = given.tensors["A"]
    total = 1 + sum(a[j] * np.float32(j + 1) for j in range(4))
    for j in (3, 1):
        total = total * 2 + j
    np.testing.assert_allclose(found.tensors["B"], total + a[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.tensors["C"], (a * a[0]).T, rtol=1e-6)


def test_elements_are_filled_and_slices_have_named_bounds() -> None:
    given, found = run("elements")
    np.testing.assert_array_equal(found.tensors["B"], given.tensors["A"])
    np.testing.assert_array_equal(found.tensors["C"], [5, 5, 9, 0])


def test_elements_of_fragments_are_set_and_read_by_all() -> None:
    given, found = run("registers")
    a, mask = given.tensors["A"], given.tensors["M"].copy()
    one = a[0, 0] + np.float32(2)
    mask[3] = 1
    mask[4] += 2
    tile = np.zeros((4, 64), np.float32)
    for k in range(8):
        tile[k % 4, k + 8] -= a[k, 2]
    expected = np.zeros((8, 64), np.float32)
    for k in range(8):
        row = a[k].copy()
        row[5 * k] = one
        tile[3, 40] = 1
        if mask[k] % 2:
            expected[k] = row + tile[k % 4] + row[63 - k]
    assert np.any(expected != 0) and np.any(np.all(expected == 0, axis=1))
    np.testing.assert_allclose(found.tensors["B"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("extra", "added"), [("(5, 6)", 5), ("[7]", 7)])
def test_lists_and_names_are_defined_as_python_has_them(extra: str, added: int) -> None:
    given, found = run("defined", sizes="[64, 64, 64]", policy="T.GemmWarpPolicy.FullRow", scale="None", extra=extra)
    a = given.tensors["A"].astype(np.float32).reshape(3, 64, 64)
    np.testing.assert_allclose(found.tensors["B"].reshape(3, 64, 64), a @ a + 4 + added, rtol=1e-3, atol=1e-3)


def test_sums_begin_anew_in_an_iteration() -> None:
    given, found = run("anew")
    a, b = (given.tensors[name].astype(np.float32) for name in "AB")
    np.testing.assert_allclose(found.tensors["C"], a[:, 128:] @ b[128:], rtol=1e-3, atol=1e-2)


def test_threads_past_the_last_have_no_part() -> None:
    given, found = run("parts_of_warps")
    a = given.tensors["A"]
    expected = 3 * a
    expected[:, 32:] += 2 * a[:, 32:].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.tensors["B"], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.tensors["C"], a.sum(axis=1), rtol=1e-5, atol=1e-5)
    assert found.tensors["N"][0] == given.tensors["N"][0] + 4 * 16


def test_one_thread_does_what_each_would() -> None:
    given, found = run("alone")
    before, behind = given.tensors["N"], found.tensors["N"]
    np.testing.assert_array_equal(np.sort(found.tensors["A"]), before[1] + np.arange(8))
    assert tuple(behind) == (before[0] + 16, before[1] + 8, max(before[2], 6))


PARTS = """import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((64, 32), "float32"), B: T.Tensor((32, 32), "float32")):
    with T.Kernel(1, threads=64):
        s = T.alloc_shared((64, 64), "float32")
        first = T.alloc_var("int32", 16)
        rows = A[first : first + 32, :32]
        left, right = s[:32, :32], s[:32, 32:]
        first = 0
        T.copy(rows, left)
        T.fill(right, 2)
        for i, j in T.Parallel(32, 32):
            B[i, j] = s[i, j] * s[i, j + 32]
"""


def test_names_stand_for_slices() -> None:
    made = build_kernel(SourceFile("kernel.tl", PARTS), CompileOptions(target="sm_80"), Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    emulate.emulate_build(made, found)
    np.testing.assert_array_equal(found.tensors["B"], found.tensors["A"][16:48] * np.float32(2))
