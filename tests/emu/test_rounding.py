"""Directed rounding, fused products, and conversions, against exact fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from one_instruction import I64, THREADS, U16, U32, U64, compute, floats, integers

from tilec.emu.numbers import SMALL_FLOATS, Array, bf16_to_f32, f32_to_bf16, small_from_f32, small_to_f32

MODES = ("rn", "rz", "rm", "rp")


def format_of(name: str) -> tuple[int, int, int]:
    """Bits of precision, exponent of the smallest normal number, and of the largest."""
    return {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}[name]


def rounded(value: Fraction, name: str, mode: str) -> float:
    """The number of a format that a fraction rounds to."""
    precision, lowest, highest = format_of(name)
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = max(magnitude.numerator.bit_length() - magnitude.denominator.bit_length(), lowest)
    while Fraction(2) ** exponent > magnitude and exponent > lowest:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    unit = Fraction(2) ** (exponent - precision + 1)
    below = math.floor(value / unit)
    rest = value / unit - below
    up = {"rm": False, "rp": rest > 0, "rz": rest > 0 and value < 0}.get(mode)
    if up is None:
        up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1)
    result = (below + up) * unit
    largest = (Fraction(2) ** precision - 1) * Fraction(2) ** (highest - precision + 1)
    if abs(result) > largest:
        away = mode == "rn" or (mode == "rp" and result > 0) or (mode == "rm" and result < 0)
        sign = 1 if result > 0 else -1
        return sign * math.inf if away else sign * float(largest)
    return math.copysign(float(result), value)


def wide_range(dtype: type, seed: int) -> Array:
    """Numbers that nearly cancel, and some far apart."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(THREADS) * 2.0 ** generator.integers(-40, 40, THREADS)
    values[:32] = 1 + generator.integers(-4, 5, 32) * float(np.finfo(dtype).eps)
    values[32:40] = float(np.finfo(dtype).max)
    values[40:48] = float(np.finfo(dtype).tiny) * generator.uniform(0, 2, 8)
    return values.astype(dtype)


OPERATIONS: dict[str, tuple[int, Callable[..., Fraction]]] = {
    "add": (2, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b),
    "mul": (2, lambda a, b: a * b),
    "fma": (3, lambda a, b, c: a * b + c),
    "div": (2, lambda a, b: a / b),
    "rcp": (1, lambda a: 1 / a),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "dtype"), [("f32", np.float32), ("f64", np.float64)])
@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_arithmetic(operation: str, name: str, dtype: type, mode: str) -> None:
    count, function = OPERATIONS[operation]
    operands = [wide_range(dtype, seed) for seed in range(count)]
    names = ", ".join("$" + letter for letter in "abc"[:count])
    result = compute(f"{operation}.{mode}.{name} $d, {names};", dtype, *operands)
    for found, *row in zip(result.tolist(), *(operand.tolist() for operand in operands), strict=True):
        expected = rounded(function(*map(Fraction, row)), name, mode)
        assert found == expected, (row, mode)


@pytest.mark.parametrize("mode", MODES)
def test_square_roots(mode: str) -> None:
    for name, dtype in (("f32", np.float32), ("f64", np.float64)):
        values = np.abs(wide_range(dtype, 1))
        for found, value in zip(
            compute(f"sqrt.{mode}.{name} $d, $a;", dtype, values).tolist(), values.tolist(), strict=True
        ):
            # The root of a number with more bits, rounded once.
            wide = Fraction(math.isqrt(int(Fraction(value) * 2**2400)), 2**1200)
            wide += Fraction(1, 2**1300) if wide * wide != Fraction(value) else 0
            assert found == rounded(wide, name, mode)


def test_sums_that_cancel_have_the_sign_of_the_rounding() -> None:
    a = floats(np.float32, 1)
    a = np.where(np.isfinite(a), a, np.float32(3))
    for mode in MODES:
        sums = compute(f"add.{mode}.f32 $d, $a, $b;", np.float32, a, -a)
        assert (np.signbit(sums) == (mode == "rm")).all()


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_fused_products_of_halves_round_once(name: str) -> None:
    generator = np.random.default_rng(1)
    wide = [(generator.standard_normal(THREADS) * 2.0 ** generator.integers(-9, 9, THREADS)).astype(np.float32)] * 2
    wide.append((generator.standard_normal(THREADS) * 2.0 ** generator.integers(-14, 6, THREADS)).astype(np.float32))
    bits = [value.astype(np.float16).view(U16) if name == "f16" else f32_to_bf16(value) for value in wide]
    numbers = [
        value.view(np.float16).astype(float) if name == "f16" else bf16_to_f32(value).astype(float) for value in bits
    ]
    result = compute(f"fma.rn.{name} $d, $a, $b, $c;", U16, *bits)
    found = result.view(np.float16).astype(float) if name == "f16" else bf16_to_f32(result).astype(float)
    for got, a, b, c in zip(found.tolist(), *(values.tolist() for values in numbers), strict=True):
        assert got == rounded(Fraction(a) * Fraction(b) + Fraction(c), name, "rn")
    relu = compute(f"fma.rn.relu.{name} $d, $a, $b, $c;", U16, *bits)
    np.testing.assert_array_equal(relu, np.where(result & 0x8000, 0, result))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_fused_product_between_two_numbers_rounds_once(sign: int) -> None:
    """What decides is more bits away than a double has."""
    factor = np.full(THREADS, 1 + 2.0**-12, np.float32)
    addend = np.full(THREADS, sign * 2.0**-80, np.float32)
    for mode in MODES:
        expected = rounded(Fraction(float(factor[0])) ** 2 + Fraction(float(addend[0])), "f32", mode)
        assert (compute(f"fma.{mode}.f32 $d, $a, $b, $c;", np.float32, factor, factor, addend) == expected).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("target", "source"), [("f16", "f32"), ("bf16", "f32"), ("f32", "f64"), ("f16", "f64")])
def test_narrowing(target: str, source: str, mode: str) -> None:
    values = wide_range(np.float32 if source == "f32" else np.float64, 3)
    dtype: Any = {"f16": np.float16, "bf16": U16, "f32": np.float32}[target]
    result = compute(f"cvt.{mode}.{target}.{source} $d, $a;", dtype, values)
    found = bf16_to_f32(result) if target == "bf16" else result
    for got, value in zip(found.astype(float).tolist(), values.tolist(), strict=True):
        assert got == rounded(Fraction(value), target, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("source", "dtype"), [("s64", I64), ("u64", U64), ("u32", U32)])
def test_integers_to_floats(source: str, dtype: type, mode: str) -> None:
    values = integers(dtype, 5)
    for name, result_type in (("f32", np.float32), ("f64", np.float64), ("f16", np.float16)):
        result = compute(f"cvt.{mode}.{name}.{source} $d, $a;", result_type, values)
        for got, value in zip(result.astype(float).tolist(), values.tolist(), strict=True):
            assert got == rounded(Fraction(value), name, mode), value


# -- small floats ------------------------------------------------------------------------------------------------------

SMALL_TYPES = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


@pytest.mark.parametrize("name", list(SMALL_TYPES))
def test_small_floats(name: str) -> None:
    codes = np.arange(1 << SMALL_FLOATS[name].bits, dtype=np.uint8)
    values = codes.view(SMALL_TYPES[name]).astype(np.float32)
    np.testing.assert_array_equal(small_to_f32(codes, name), values)
    x = np.random.default_rng(1).standard_normal(4096).astype(np.float32) * 4
    limit = float(values[np.isfinite(values)].max())
    x[:4] = [limit, -limit * 4, np.float32(limit) * 1.01, 0]
    clipped = np.clip(x, -limit, limit).astype(SMALL_TYPES[name]).view(np.uint8)
    np.testing.assert_array_equal(small_from_f32(x, name), clipped)


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_pairs_of_fp8(name: str) -> None:
    a, b = floats(np.float32, 1), floats(np.float32, 2)
    result = compute(f"cvt.rn.satfinite.{name}x2.f32 $d, $a, $b;", U16, a, b)
    np.testing.assert_array_equal(result & 0xFF, small_from_f32(b, name))
    np.testing.assert_array_equal(result >> 8, small_from_f32(a, name))
    relu = compute(f"cvt.rn.satfinite.relu.{name}x2.f32 $d, $a, $b;", U16, a, b)
    np.testing.assert_array_equal(relu & 0xFF, small_from_f32(np.where(b < 0, np.float32(0), b), name))
    with np.errstate(over="ignore"):
        halves = np.stack([b, a], axis=1).astype(np.float16)
    packed = np.ascontiguousarray(halves).view(U32).reshape(-1)
    result = compute(f"cvt.rn.satfinite.{name}x2.f16x2 $d, $a;", U16, packed)
    np.testing.assert_array_equal(result & 0xFF, small_from_f32(halves[:, 0].astype(np.float32), name))
    back = compute(f"cvt.rn.f16x2.{name}x2 $d, $a;", U32, result).view(np.float16).reshape(-1, 2)
    np.testing.assert_array_equal(back[:, 1], small_to_f32((result >> 8).astype(np.uint8), name).astype(np.float16))


def test_tf32() -> None:
    a = floats(np.float32, 1)
    bits = a.view(U32).astype(np.int64)
    finite = np.isfinite(a)
    away = (bits + 0x1000) & 0xFFFFE000
    even = (bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000
    for mode, expected in (("rna", away), ("rn", even), ("rz", bits & 0xFFFFE000)):
        result = compute(f"cvt.{mode}.tf32.f32 $d, $a;", U32, a)
        np.testing.assert_array_equal(result, np.where(finite, expected, bits))


def test_packed_integers() -> None:
    a, b, c = integers(np.int32, 1), integers(np.int32, 2), integers(U32, 3)
    a[100:] //= 1 << 20
    b[100:] //= 1 << 20
    low, high = np.clip(b, -(2**15), 2**15 - 1) & 0xFFFF, np.clip(a, -(2**15), 2**15 - 1) & 0xFFFF
    result = compute("cvt.pack.sat.s16.s32 $d, $a, $b;", U32, a, b)
    np.testing.assert_array_equal(result, high.astype(np.int64) << 16 | low)
    low, high = (np.clip(x, 0, 255).astype(np.int64) for x in (b, a))
    result = compute("cvt.pack.sat.u8.s32.b32 $d, $a, $b, $c;", U32, a, b, c)
    np.testing.assert_array_equal(result, ((c.astype(np.int64) << 16) & 0xFFFFFFFF) | high << 8 | low)
    low, high = (np.clip(x, -8, 7).astype(np.int64) & 15 for x in (b, a))
    result = compute("cvt.pack.sat.s4.s32.b32 $d, $a, $b, $c;", U32, a, b, c)
    np.testing.assert_array_equal(result, ((c.astype(np.int64) << 8) & 0xFFFFFFFF) | high << 4 | low)
    low, high = (np.clip(x, 0, 3).astype(np.int64) for x in (b, a))
    result = compute("cvt.pack.sat.u2.s32.b32 $d, $a, $b, $c;", U32, a, b, c)
    np.testing.assert_array_equal(result, ((c.astype(np.int64) << 4) & 0xFFFFFFFF) | high << 2 | low)


def test_float_to_integer_of_nan() -> None:
    nan = np.full(THREADS, np.nan)
    cases = {("f32", "s32"): 0, ("f32", "u32"): 0, ("f16", "s32"): 0}
    for (source, target), expected in cases.items():
        dtype = {"f32": np.float32, "f16": np.float16}[source]
        assert (compute(f"cvt.rzi.{target}.{source} $d, $a;", U32, nan.astype(dtype)) == expected).all()
    assert (compute("cvt.rzi.s64.f32 $d, $a;", U64, nan.astype(np.float32)) == 1 << 63).all()
    assert (compute("cvt.rzi.s32.f64 $d, $a;", U32, nan) == 1 << 31).all()
    assert (compute("cvt.rzi.u64.f64 $d, $a;", U64, nan) == 1 << 63).all()
