"""Quotients by a divisor that many elements share: one reciprocal and products, unless `--no-shared-reciprocals`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import SAMPLES, built
from sass import disassembled

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.ir.text import print_kernel
from tilec.ir.tile import Kernel
from tilec.rewriting.share_reciprocals import share_reciprocals
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

QUOTIENTS = """
import tilelang.language as T
@T.prim_func
def quotients(X: T.Tensor((16, 256), "float32"), D: T.Tensor((16,), "float32"), Y: T.Tensor((16, 256), "float32")):
    with T.Kernel(1, threads=128) as bx:
        x = T.alloc_fragment((16, 256), "float32")
        d = T.alloc_fragment((16,), "float32")
        T.copy(X, x)
        T.copy(D, d)
        for i, j in T.Parallel(16, 256):
            x[i, j] = x[i, j] / d[i]
        T.copy(x, Y)
"""


def compute_quotients(x: np.ndarray, d: np.ndarray, shared: bool) -> np.ndarray:
    options = CompileOptions(shared_reciprocals=shared)
    made = driver.build_kernel(SourceFile("k.tl", QUOTIENTS), options, driver.Observer())
    assert ("div.rn.f32" in made.ptx) != shared
    arguments = emulate.KernelArguments({"X": x, "D": d, "Y": np.zeros_like(x)}, {})
    emulate.emulate_build(made, arguments)
    return arguments.tensors["Y"]


def test_quotients_are_near() -> None:
    random = np.random.default_rng(3)
    x = (np.exp2(random.uniform(-40, 40, (16, 256))) * random.choice((-1, 1), (16, 256))).astype(np.float32)
    d = np.exp2(random.uniform(-40, 40, 16)).astype(np.float32)
    exact = x.astype(np.float64) / d.astype(np.float64)[:, None]
    errors = {
        shared: np.abs(compute_quotients(x, d, shared) - exact) / np.spacing(np.abs(exact).astype(np.float32))
        for shared in (False, True)
    }
    assert errors[False].max() <= 0.5
    assert 0.5 < errors[True].max() <= 1.5


def test_quotients_of_special_numbers() -> None:
    """Infinity and zero, as dividend and as divisor, give what IEEE 754 says."""
    x = np.tile(np.float32([1, -1, 0, -0.0, np.inf, -np.inf, np.nan, 3e38]), (16, 32))
    d = np.float32([1, -2, 0, -0.0, np.inf, -np.inf, np.nan, 0.5] * 2)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(compute_quotients(x, d, shared=True), x / d[:, None])


BODY = """
x = T.alloc_fragment((4, 64), "float32")
s = T.alloc_fragment((4,), "float32")
"""
CASES = {
    "a row's divisor": ("for i, j in T.Parallel(4, 64):\n    x[i, j] = x[i, j] / s[i]", 1),
    "a column's divisor": ("for i, j in T.Parallel(4, 64):\n    x[i, j] = x[i, j] / x[0, j]", 0),  # four share it
    "through variables": (
        "for i, j in T.Parallel(4, 64):\n    a = x[i, j]\n    b = s[i] + 1.0\n    x[i, j] = a / b",
        1,
    ),
    "one for all": ("for i in T.Parallel(64):\n    x[0, i] = x[0, i] / s[0]", 1),
    "each its own": ("for i in T.Parallel(4):\n    s[i] = s[i] / s[3 - i]", 0),
    "a row's quotient": ("for i, j in T.Parallel(4, 64):\n    x[i, j] = x[i, j] * (s[i] / 3.0 / s[i])", 0),
    "a constant": ("for i, j in T.Parallel(4, 64):\n    x[i, j] = x[i, j] / 3.0", 0),
    "under a condition": ("for i, j in T.Parallel(4, 64):\n    if j > 3:\n        x[i, j] = x[i, j] / s[i]", 1),
}


@pytest.mark.parametrize("case", CASES)
def test_divisors_that_elements_share(body: Callable[..., Kernel], case: str) -> None:
    text, count = CASES[case]
    kernel = body(BODY + text + "\n")
    shared = share_reciprocals(kernel)
    assert print_kernel(shared).count("reciprocal(") == count
    assert (shared is kernel) == (count == 0)


WHOLE = """
import tilelang.language as T
@T.prim_func
def whole(A: T.Tensor((64, 128), "int32"), B: T.Tensor((64, 128), "float32"), C: T.Tensor((64, 128), "int32")):
    with T.Kernel(1, threads=128) as bx:
        for i, j in T.Parallel(64, 128):
            d = T.cast(i + 1, "float32")
            quotient = T.cast(j * (i + 1), "float32") / d
            A[i, j] = T.cast(quotient, "int32")
            B[i, j] = T.floor(T.cast(j * (i + 1), "float32") / d) + T.nearbyint(T.cast(j * (i + 1), "float32") / d)
            if T.cast(j * (i + 1), "float32") / d >= T.cast(j, "float32"):
                C[i, j] = j
"""


def test_quotients_whose_last_bit_decides_are_divided() -> None:
    """41 times 1 / 41 is less than 1, and so would be cut off to 0."""
    made = driver.build_kernel(SourceFile("k.tl", WHOLE), CompileOptions(), driver.Observer())
    assert "rcp" not in made.ptx
    arrays = {name: np.full((64, 128), -1, np.float32 if name == "B" else np.int32) for name in "ABC"}
    emulate.emulate_build(made, emulate.KernelArguments(arrays, {}))
    j = np.broadcast_to(np.arange(128), (64, 128))
    np.testing.assert_array_equal(arrays["A"], j)
    np.testing.assert_array_equal(arrays["B"], 2 * j)
    np.testing.assert_array_equal(arrays["C"], j)


def test_softmax_divides_once_a_row(tmp_path: Path) -> None:
    """Its divisions were half of its instructions."""
    _, made = built(SAMPLES / "softmax.tl", "sm_90a")
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(made.cubin)
    code = disassembled(cubin).instructions
    assert not any(one.stem == "FCHK" for one in code)
    assert len(code) < 700  # 1074 with a division an element


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("divisor", [8192.0, 2.0**-20, -4.0, 2.0**100, 3.0, 2.0**127])
def test_quotients_by_powers_of_two_are_products(divisor: float, dtype: str) -> None:
    """The quotient is exact then, or rounded alike: also a subnormal one, and where a constant is not fused."""
    text = f"""
import tilelang.language as T
@T.prim_func
def quotients(X: T.Tensor((256,), "{dtype}"), Y: T.Tensor((256,), "{dtype}")):
    with T.Kernel(1, threads=128) as bx:
        for i in T.Parallel(256):
            Y[i] = X[i] / {divisor!r} - 1.5
"""
    made = driver.build_kernel(SourceFile("k.tl", text), CompileOptions(), driver.Observer())
    is_exact = divisor != 3.0 and not (dtype == "float32" and divisor == 2.0**127)
    assert ("div.rn" in made.ptx) != is_exact
    random = np.random.default_rng(5)
    x = (np.exp2(random.uniform(-126, 120, 256)) * random.choice((-1, 1), 256)).astype(dtype)
    arguments = emulate.KernelArguments({"X": x, "Y": np.zeros_like(x)}, {})
    emulate.emulate_build(made, arguments)
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_array_equal(arguments.tensors["Y"], x / x.dtype.type(divisor) - x.dtype.type(1.5))
