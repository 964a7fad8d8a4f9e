"""Neighbours of 16 bits are computed in pairs, and give the very bits that each alone would."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TARGETS = ("sm_80", "sm_90a", "sm_100a")
HEAD = """
import tilelang.language as T
@T.prim_func
def k(A: T.Tensor((1024,), "DTYPE"), B: T.Tensor((1024,), "DTYPE"), C: T.Tensor((1024,), "DTYPE"),
      N: T.Tensor((1024,), "uint8"), S: T.Tensor((2,), "DTYPE"), O: T.Tensor((1024,), "DTYPE")):
    with T.Kernel(1, threads=64) as bx:
        for i in T.Parallel(1024):
            O[i] = EXPRESSION
"""
ALL = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def made(expression: str, dtype: str, target: str, **options: Any) -> driver.Build:
    text = HEAD.replace("EXPRESSION", expression).replace("DTYPE", dtype)
    return driver.build_kernel(SourceFile("k.tl", text), CompileOptions(target=target, **options), driver.Observer())


def same(build: driver.Build, seed: int) -> emulate.KernelArguments:
    """The arguments with what the emulator leaves in them, which is what the reference does."""
    found = emulate.draw_arguments(build.kernel, build.manifest, seed)
    generator = np.random.default_rng(seed)
    for name in "ABC":  # of all sizes: subnormal numbers, infinities, NaNs
        found.tensors[name][:] = generator.choice(ALL, 1024).view(found.tensors[name].dtype)
    found.tensors["N"][:] = generator.integers(0, 256, 1024)
    expected = found.copy()
    emulate.emulate_build(build, found)
    with np.errstate(all="ignore"):
        emulate.run_reference(build.kernel, expected)
    left, right = (np.asarray(each.tensors["O"]) for each in (found, expected))
    unequal = left.view(np.uint16) != right.view(np.uint16)
    assert not (unequal & ~(_is_nan(left) & _is_nan(right))).any()
    return found


def _is_nan(values: Any) -> Any:
    """bfloat16 is held as its bits."""
    return values & 0x7FFF > 0x7F80 if values.dtype == np.uint16 else np.isnan(values)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "expression",
    ["A[i] + B[i]", "A[i] - B[i]", "A[i] * B[i]", "T.max(A[i], B[i])", "T.min(A[i], B[i])", "A[i] * B[i] + C[i]",
     "A[i] * S[0] - S[1]", "-A[i] * B[i]", "(A[i] + B[i]) * (A[i] - C[i])", "A[i] * A[i] - B[i] * C[i]",
     "T.if_then_else(i % 3 == 0, A[i] + B[i], C[i])"],
)  # fmt: skip
def test_arithmetic(expression: str, dtype: str, target: str) -> None:
    build = made(expression, dtype, target)
    for seed in range(3):
        same(build, seed)
    if expression[0] == "A" and "if" not in expression:
        assert "cvt." not in build.ptx, "no way through float32"
        assert re.search(r"\.b?f16x2 ", build.ptx)


def test_float16_by_numpy() -> None:
    found = same(made("A[i] * B[i]", "float16", "sm_80"), 7).tensors
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found["O"], found["A"] * found["B"])


CONVERTED = {
    "T.cast(T.int32(N[i]) & 15, dtype)": True,
    "T.cast((T.int32(N[i]) & 15) - 8, dtype)": True,
    "T.cast((T.int32(N[i // 2]) >> (i % 2 * 4) & 15) - 8, dtype) * S[0]": True,
    "T.cast((T.int32(N[i // 4]) >> (i % 4 * 2) & 3) - 2, dtype) * A[i] + B[i]": True,
    "T.cast(T.int32(N[i] >> 1) + 120, dtype)": True,
    "T.cast((T.int32(N[i]) & 7) + i // 1024, dtype)": True,
    "T.cast((T.int32(N[i]) & 15) - 5000, dtype)": False,  # not all of them are floats
    "T.cast(T.int32(N[i]) * 16, dtype)": False,
    "T.cast(T.int32(N[i]) - i, dtype)": False,
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("expression", CONVERTED)
def test_small_numbers_take_no_conversion(expression: str, dtype: str, target: str) -> None:
    build = made(expression.replace("dtype", f"'{dtype}'"), dtype, target)
    for seed in range(2):
        same(build, seed)
    assert ("cvt.rn" not in build.ptx) == CONVERTED[expression]


def test_of_all_numbers_that_fit() -> None:
    """Both ends of what a pair can hold, and one beyond each."""
    for dtype, most in (("float16", 1023), ("bfloat16", 127)):
        for bits, offset in ((most, 0), (most, -most - 1), (most, 1), (2 * most + 1, 0)):
            build = made(f"T.cast((i & {bits}) + {offset}, '{dtype}')", dtype, "sm_90a")
            found = same(build, 0).tensors["O"].astype(np.float64)
            expected = (np.arange(1024) & bits) + offset
            exact = expected if dtype == "float16" else found  # of bfloat16 the reference has judged
            np.testing.assert_array_equal(found, exact)


def test_weights_of_four_bits_take_few_instructions() -> None:
    """Less than five with those for bytes and addresses, where conversions, product and what is between took nine."""
    body = made("T.cast((T.int32(N[i // 2]) >> (i % 2 * 4) & 15) - 8, 'float16') * S[0]", "float16", "sm_90a").ptx
    each = len(re.findall(r"^    (?:and|or|shl|shr|lop3|add\.rn|mul\.rn|cvt|bfe)\S* ", body, re.M)) / 16
    assert each < 5
