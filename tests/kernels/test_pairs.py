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
    "T.cast(N[i] & T.uint8(15), dtype)": True,
    "T.cast(N[i // 2] >> T.uint8(i % 2 * 4) & T.uint8(15), dtype) * A[i]": True,
    "T.cast((T.int32(N[i]) & 7) + i // 1024, dtype)": True,
    "T.cast(((T.int32(N[i]) >> 4) & 7 | 8) & 15, dtype)": True,  # a bit that is always 1, where the others are
    "T.cast((((T.int32(N[i]) & 96) >> 5) | 4) % 8, dtype)": True,
    "T.cast((((T.int32(N[i // 2]) >> (i % 2 * 4)) & 6) | 1) & 7, dtype)": True,
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


NIBBLE = "(T.int32(N[i // 2]) >> (i % 2 * 4) & 15)"
E2M1 = {"float16": (12, 9), "bfloat16": (12, 6)}
"""By how many bits the sign and the rest of a four-bit float are moved to lie where these types have them."""
FIELDS = {
    "four-bit floats": "T.reinterpret(T.uint16(({n} & 8) << {sign} | ({n} & 7) << {rest}), dtype)",
    "bytes as upper halves": "T.reinterpret(T.uint16(T.int32(N[i]) << 8), dtype)",
    "two bytes each": "T.reinterpret(T.uint16(T.int32(N[i]) << 8 | T.int32(N[1023 - i])), dtype)",
    "swapped parts": "T.reinterpret(T.uint16((T.int32(N[i]) & 15) << 12 | T.int32(N[i]) >> 4 | 64), dtype)",
    "a changed bit": "T.reinterpret(T.uint16(T.int32(N[i]) << 7 ^ 0x4000), dtype)",
    "a sum": "T.reinterpret(T.uint16((T.int32(N[i]) + 3) * 16), dtype)",
    "in the type": "T.reinterpret(T.uint16(N[i] << T.uint8(3) | N[i] >> T.uint8(5)) << T.uint16(8), dtype)",
    "a sign": "T.reinterpret(T.uint16(T.int32(T.int8(N[i]) >> T.int8(2))), dtype)",
    "lanes unlike": "T.reinterpret(T.uint16(T.if_then_else(i % 2 == 0, T.int32(N[i]) << 4, 7)), dtype)",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("expression", FIELDS.values(), ids=FIELDS)
def test_floats_of_bit_fields(expression: str, dtype: str, target: str) -> None:
    sign, rest = E2M1[dtype]
    filled = expression.format(n=NIBBLE, sign=sign, rest=rest).replace("dtype", f"'{dtype}'")
    for wanted in (filled, f"{filled} * A[i]", f"T.cast(T.float32({filled}) * T.float32(A[i]), '{dtype}')"):
        same(made(wanted, dtype, target), 1)


@pytest.mark.parametrize("byte", ["T.int32(N[i // 2])", "N[i // 2]", "T.int32(N[i * 3 // 2 % 1024])"])
def test_every_weight_of_four_bits_by_numpy(byte: str) -> None:
    """Also negative zero, which is 8 of the four-bit floats; bytes of a word, and bytes one by one."""
    shift, mask = ("T.uint8(i % 2 * 4)", "T.uint8(15)") if byte[0] == "N" else ("(i % 2 * 4)", "15")
    nibble = f"({byte} >> {shift} & {mask})"
    whole = same(made(f"T.cast({nibble}, 'float16') - T.float16(8)", "float16", "sm_90a"), 5).tensors
    bits = f"T.uint16((T.int32({nibble}) & 8) << 12 | (T.int32({nibble}) & 7) << 9)"
    small = same(made(f"T.reinterpret({bits}, 'float16') * T.float16(16384)", "float16", "sm_90a"), 5).tensors
    i = np.arange(1024)
    held = whole["N"][i * 3 // 2 % 1024 if "* 3" in byte else i // 2] >> (i % 2 * 4) & 15
    assert set(held) == set(range(16))
    np.testing.assert_array_equal(whole["O"], held.astype(np.float16) - 8)
    sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float16)
    values = np.concatenate([sizes, -sizes])[held]
    np.testing.assert_array_equal(small["O"].view(np.uint16), values.view(np.uint16))


def count_instructions(expression: str, pattern: str) -> float:
    """How many instructions with these names there are for each element."""
    body = made(expression, "float16", "sm_90a").ptx
    return len(re.findall(rf"^    (?:{pattern})\S* ", body, re.M)) / 16


def test_a_pair_of_weights_is_gathered_by_few_instructions() -> None:
    """Two integers take a permutation, a mask and a sum, and eight a shift; floats of four bits take a shift and a mask
    more. Seven for 16 are addresses."""
    moves = "and|or|xor|shl|shr|lop3|bfe|prmt|mul.lo|cvt"
    weight = "T.cast((T.int32(N[i // 2]) >> (i % 2 * 4) & 15) - 8, 'float16')"
    assert count_instructions(weight, moves) < 1.6
    assert count_instructions(weight, "add.rn") == 0.5
    field = FIELDS["four-bit floats"].format(n=NIBBLE, sign=12, rest=9).replace("dtype", "'float16'")
    assert count_instructions(field, moves) < 3
