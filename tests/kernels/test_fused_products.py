"""Products and sums in one expression round once, unless `--no-fma` says otherwise: judged by rational numbers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.ir.text import print_kernel
from tilec.rewriting.contract_products import contract_products
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = """
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((512,), "DTYPE"), B: T.Tensor((512,), "DTYPE"), C: T.Tensor((512,), "DTYPE"),
           D: T.Tensor((512,), "DTYPE")):
    with T.Kernel(1, threads=128) as bx:
        for i in T.Parallel(512):
            a = A[i]
            b = B[i]
            c = C[i]
            D[i] = EXPRESSION
"""
Exact = Callable[[Fraction, Fraction, Fraction], Fraction]
EXPRESSIONS: dict[str, Exact] = {
    "a * b + c": lambda a, b, c: a * b + c,
    "c + a * b": lambda a, b, c: a * b + c,
    "a * b - c": lambda a, b, c: a * b - c,
    "c - a * b": lambda a, b, c: c - a * b,
    "-(a * b) + c": lambda a, b, c: c - a * b,
    "-(a * b) - c": lambda a, b, c: -(a * b) - c,
    "c - (-a) * b": lambda a, b, c: c + a * b,
    "a * b + 2.5": lambda a, b, c: a * b + Fraction(5, 2),
    "2.5 - a * 3.0": lambda a, b, c: Fraction(5, 2) - a * 3,
}
DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16}


def made(expression: str, dtype: str, *, fma: bool = True) -> driver.Build:
    text = KERNEL.replace("EXPRESSION", expression).replace("DTYPE", dtype)
    return driver.build_kernel(SourceFile("k.tl", text), CompileOptions(fma=fma), driver.Observer())


def rounded(exact: Fraction, dtype: type) -> float:
    """To nearest, ties to even: of the neighbours of an approximation the one that is nearest."""
    near = dtype(float(exact))
    around = [near, np.nextafter(near, dtype(np.inf)), np.nextafter(near, dtype(-np.inf))]
    return float(min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(f"u{x.itemsize}")) & 1)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_it_rounds_once(expression: str, dtype: str) -> None:
    build = made(expression, dtype)
    arguments = emulate.draw_arguments(build.kernel, build.manifest, 5)
    tensors = arguments.tensors
    # Half of the sums cancel nearly all of the product, so that rounding it would show.
    tensors["C"][::2] = -(tensors["A"] * tensors["B"])[::2]
    expected = arguments.copy()
    emulate.emulate_build(build, arguments)
    emulate.run_reference(build.kernel, expected)
    rows = zip(*(tensors[name].tolist() for name in "ABC"), strict=True)
    exact = [EXPRESSIONS[expression](*map(Fraction, row)) for row in rows]
    judge = np.array([rounded(each, DTYPES[dtype]) for each in exact], DTYPES[dtype])
    np.testing.assert_array_equal(tensors["D"], judge)
    np.testing.assert_array_equal(expected.tensors["D"], judge)


def test_nothing_is_fused_where_nobody_wants_it() -> None:
    build = made("a * b + c", "float32", fma=False)
    assert "fma" not in build.ptx
    arguments = emulate.draw_arguments(build.kernel, build.manifest, 5)
    emulate.emulate_build(build, arguments)
    t = arguments.tensors
    np.testing.assert_array_equal(t["D"], t["A"] * t["B"] + t["C"])


@pytest.mark.parametrize(("dtype", "expression"), [("int32", "a * b + c"), ("float32", "T.ieee_add(a * b, c)")])
def test_what_is_no_sum_of_floats_stays(dtype: str, expression: str) -> None:
    assert "fma" not in made(expression, dtype).ptx


def test_of_two_products_the_one_of_each_element_is_fused() -> None:
    """The other one is the same in a row, and computed once for it."""
    text = """
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64,), "float32"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        for i, j in T.Parallel(64, 64):
            C[i, j] = EXPRESSION
"""
    for expression, expected in (
        ("A[i, j] * 2.0 - B[i] * 3.0", "C[i, j] = fma(A[i, j], 2.0, B[i] * -3.0)"),
        ("B[i] * 3.0 + A[i, j] * 2.0", "C[i, j] = fma(A[i, j], 2.0, B[i] * 3.0)"),
        ("B[i] * 3.0 - A[i, j] * 2.0", "C[i, j] = fma(A[i, j], -2.0, B[i] * 3.0)"),
    ):
        source = SourceFile("k.tl", text.replace("EXPRESSION", expression))
        (kernel,) = driver.load_kernels(source, CompileOptions(fma=False), driver.Observer())
        fused = contract_products(kernel)
        assert expected in print_kernel(fused)
        assert contract_products(fused) is fused
