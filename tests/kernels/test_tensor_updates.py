"""Fills of tensors in global memory, and atomic updates by numbers, by parts of tensors and by each thread: numpy."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import kernel

import tilec
from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import KernelArguments
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile


def build(text: str) -> Build:
    return build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"), Observer())


def run(text: str) -> tuple[KernelArguments, KernelArguments]:
    """Return the arguments before and after a launch. The reference of the tile level must agree."""
    made = build(text)
    given = emulate.draw_arguments(made.kernel, made.manifest, 3)
    found, expected = given.copy(), given.copy()
    emulate.emulate_build(made, found)
    emulate.run_reference(made.kernel, expected)
    assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))
    return given, found


def test_tensors_and_boxes_of_them_are_filled() -> None:
    _, found = run(
        kernel(
            'A: T.Tensor((6, 40), "float32"), B: T.Tensor((100,), "int64")',
            """
T.fill(A, 7)
T.clear(A[2:4, 8:24])
T.fill(B[64:128], 3)
T.clear(B[0:64], annotations={"k": 1})
""",
        )
    )
    expected = np.full((6, 40), 7, np.float32)
    expected[2:4, 8:24] = 0
    np.testing.assert_array_equal(found.tensors["A"], expected)
    np.testing.assert_array_equal(found.tensors["B"], np.repeat([0, 3], [64, 36]))


def test_boxes_are_updated_by_numbers_and_by_parts_of_tensors() -> None:
    given, found = run(
        kernel(
            'A: T.Tensor((64,), "float32"), C: T.Tensor((4, 64), "float32"), D: T.Tensor((64,), "int32")',
            """
s = T.alloc_shared((64,), "int32")
T.fill(s, 2)
T.atomic_add(C[0:2, :], 1.5)
T.atomic_add(C[2, 0:64], A[0:64])
T.atomic_max(C[3, 32:64], A[5])
T.atomic_add(s, 3)
T.copy(s, D)
""",
        )
    )
    a, c = given.tensors["A"], given.tensors["C"].copy()
    c[0:2] += np.float32(1.5)
    c[2] += a
    c[3, 32:] = np.maximum(c[3, 32:], a[5])
    np.testing.assert_allclose(found.tensors["C"], c, rtol=1e-6)
    np.testing.assert_array_equal(found.tensors["D"], np.full(64, 5))


def test_each_thread_updates_an_element_outside_of_nests() -> None:
    text = kernel(
        'A: T.Tensor((8,), "float32"), C: T.Tensor((8,), "int32"), D: T.Tensor((8,), "float32")',
        """
tx = T.get_thread_binding()
T.atomic_add(C[1], 2)
T.atomic_max(C[2], 1000)
T.atomic_addx4(D[tx % 2 * 4], A[0:4])
""",
        threads=64,
    )
    given, found = run(text)
    c = given.tensors["C"].copy()
    c[1] += 128
    c[2] = 1000
    np.testing.assert_array_equal(found.tensors["C"], c)
    added = given.tensors["D"] + 32 * np.tile(given.tensors["A"][:4], 2)
    np.testing.assert_allclose(found.tensors["D"], added, rtol=1e-4, atol=1e-4)
    assert [(w.code, w.primary.span.line) for w in build(text).warnings] == [("repeated-atomic", 8)]


def test_vectors_of_old_values() -> None:
    given, found = run(
        kernel(
            'A: T.Tensor((4,), "float32"), C: T.Tensor((4,), "float32"), D: T.Tensor((4,), "float32"), '
            'E: T.Tensor((8, 2), "float32"), F: T.Tensor((8, 2), "float32")',
            """
D[0:4] = T.atomic_addx4(C[0:4], A, return_prev=True)
""",
            threads=1,
        )
        + """        for i in T.Parallel(8):
            F[i, 0:2] = T.atomic_addx2(E[i, 0], A[2:4], return_prev=True)
"""
    )
    before, after = given.tensors, found.tensors
    np.testing.assert_array_equal(after["D"], before["C"])
    np.testing.assert_allclose(after["C"], before["C"] + before["A"], rtol=1e-6)
    np.testing.assert_array_equal(after["F"], before["E"])
    np.testing.assert_allclose(after["E"], before["E"] + before["A"][2:4], rtol=1e-6)


def test_parts_have_names() -> None:
    """A name of a part keeps the place that the indices said when it was bound."""
    given, found = run(
        kernel(
            'A: T.Tensor((4, 64), "float32"), C: T.Tensor((4, 64), "float32")',
            """
x = T.alloc_shared((2, 64), "float32")
k = T.alloc_var("int32", init=1)
source = A[k : k + 2, :]
k = 0
upper, result = x[0:1, 0:64], C[2:4, :]
T.copy(source, x)
T.clear(upper)
T.copy(x, result)
""",
        )
    )
    expected = given.tensors["C"].copy()
    expected[2], expected[3] = 0, given.tensors["A"][2]
    np.testing.assert_array_equal(found.tensors["C"], expected)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("T.atomic_addx4(C[0:3], A[0:4])", "wrong-argument"),
        ("T.atomic_addx2(C[0], x)", "wrong-argument"),
        ("T.atomic_add(C, A[0:4])", "shape-mismatch"),
        ("T.atomic_add(C[0:4], T.get_thread_binding())", "thread-dependent"),
    ],
)
def test_misuse(statement: str, code: str) -> None:
    text = kernel('A: T.Tensor((8,), "float32"), C: T.Tensor((8,), "float32")', f"x = 1.0\n{statement}")
    with pytest.raises(CompileError) as error:
        build(text)
    assert error.value.diagnostics[0].code == code


def test_a_box_that_covers_a_tensor_of_unknown_length_is_cleared() -> None:
    """A fill that starts at the first element was taken for that of a whole fragment."""
    text = """
n = T.dynamic("n")

@T.prim_func
def k(x: T.Tensor((n,), "int64")):
    with T.Kernel(1, threads=64):
        T.fill(x[0:64], 0)
"""
    x = np.ones(70, np.int64)
    tilec.compile(f"import tilelang.language as T\n{text}", target="sm_80", device="emulator")(x)
    assert x.tolist() == [0] * 64 + [1] * 6
