"""Ordinary instructions over random operands and special values, against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from one_instruction import I16, I32, I64, THREADS, U16, U32, U64, WRAPPED, compute, exact, floats, integers
from ptx_source import kernel

from tilec.emu import Fault, launch
from tilec.emu.numbers import Array, bf16_to_f32, f32_to_bf16


@pytest.mark.parametrize("name", list(WRAPPED))
def test_integer_arithmetic(name: str) -> None:
    dtype = WRAPPED[name]
    bits = np.dtype(dtype).itemsize * 8
    a, b, c = (integers(dtype, seed) for seed in range(3))
    cases: dict[str, Callable[..., int]] = {
        f"add.{name} $d, $a, $b;": lambda x, y, z: x + y,
        f"sub.{name} $d, $a, $b;": lambda x, y, z: x - y,
        f"mul.lo.{name} $d, $a, $b;": lambda x, y, z: x * y,
        f"mul.hi.{name} $d, $a, $b;": lambda x, y, z: (x * y) >> bits,
        f"mad.lo.{name} $d, $a, $b, $c;": lambda x, y, z: x * y + z,
        f"mad.hi.{name} $d, $a, $b, $c;": lambda x, y, z: ((x * y) >> bits) + z,
        f"min.{name} $d, $a, $b;": lambda x, y, z: min(x, y),
        f"max.{name} $d, $a, $b;": lambda x, y, z: max(x, y),
    }
    for text, function in cases.items():
        np.testing.assert_array_equal(compute(text, dtype, a, b, c), exact(function, dtype, a, b, c), text)
    divisor = np.where(b == 0, np.array(3, dtype), b)

    def quotient(x: int, y: int) -> int:
        return int(Fraction(x, y)) if x * y >= 0 else -int(Fraction(-x, y))

    np.testing.assert_array_equal(
        compute(f"div.{name} $d, $a, $b;", dtype, a, divisor), exact(quotient, dtype, a, divisor)
    )
    remainder = exact(lambda x, y: x - y * quotient(x, y), dtype, a, divisor)
    np.testing.assert_array_equal(compute(f"rem.{name} $d, $a, $b;", dtype, a, divisor), remainder)


def test_wide_products() -> None:
    a, b, c = integers(I32, 1), integers(I32, 2), integers(I64, 3)
    np.testing.assert_array_equal(compute("mul.wide.s32 $d, $a, $b;", I64, a, b), a.astype(I64) * b)
    expected = exact(lambda x, y, z: x * y + z, I64, a, b, c)
    np.testing.assert_array_equal(compute("mad.wide.s32 $d, $a, $b, $c;", I64, a, b, c), expected)
    x, y = integers(U16, 4), integers(U16, 5)
    np.testing.assert_array_equal(compute("mul.wide.u16 $d, $a, $b;", U32, x, y), x.astype(U32) * y)


@pytest.mark.parametrize("bits", [32, 64])
def test_bits(bits: int) -> None:
    unsigned, signed = (U32, I32) if bits == 32 else (U64, I64)
    a, b = integers(unsigned, 1), integers(unsigned, 2)
    amount = integers(U32, 3, small=True)
    mask = (1 << bits) - 1
    cases: dict[str, Callable[..., int]] = {
        f"and.b{bits} $d, $a, $b;": lambda x, y, n: x & y,
        f"or.b{bits} $d, $a, $b;": lambda x, y, n: x | y,
        f"xor.b{bits} $d, $a, $b;": lambda x, y, n: x ^ y,
        f"not.b{bits} $d, $a;": lambda x, y, n: ~x,
        f"shl.b{bits} $d, $a, $c;": lambda x, y, n: x << min(n, bits),
        f"shr.u{bits} $d, $a, $c;": lambda x, y, n: x >> min(n, bits),
        f"shr.s{bits} $d, $a, $c;": lambda x, y, n: (x - (mask + 1) * (x >> (bits - 1))) >> min(n, bits),
        f"brev.b{bits} $d, $a;": lambda x, y, n: int(f"{x:0{bits}b}"[::-1], 2),
    }
    for text, function in cases.items():
        np.testing.assert_array_equal(
            compute(text, unsigned, a, b, amount), exact(function, unsigned, a, b, amount), text
        )
    popc = exact(lambda x: x.bit_count(), U32, a)
    np.testing.assert_array_equal(compute(f"popc.b{bits} $d, $a;", U32, a), popc)
    clz = exact(lambda x: bits - x.bit_length(), U32, a)
    np.testing.assert_array_equal(compute(f"clz.b{bits} $d, $a;", U32, a), clz)
    bfind = exact(lambda x: x.bit_length() - 1, U32, a)
    np.testing.assert_array_equal(compute(f"bfind.u{bits} $d, $a;", U32, a), bfind)

    start, length = integers(U32, 4, small=True) % U32(72), integers(U32, 5, small=True) % U32(72)
    field = exact(lambda x, p, n: (x >> p) & ((1 << n) - 1), unsigned, a, start, length)
    np.testing.assert_array_equal(compute(f"bfe.u{bits} $d, $a, $b, $c;", unsigned, a, start, length), field)

    def signed_field(x: int, p: int, n: int) -> int:
        sign = (x >> min(p + n - 1, bits - 1)) & 1 if n else 0
        # Bits past the end of the register are copies of the field's sign.
        return sum(((x >> (p + i)) & 1 if i < n and p + i < bits else sign) << i for i in range(bits))

    expected = exact(signed_field, signed, a, start, length)
    np.testing.assert_array_equal(compute(f"bfe.s{bits} $d, $a, $b, $c;", signed, a, start, length), expected)

    def insert(x: int, y: int, p: int, n: int) -> int:
        window = (((1 << n) - 1) << p) & mask
        return (x << p) & window | y & ~window

    inserted = exact(insert, unsigned, a, b, start, length)
    np.testing.assert_array_equal(compute(f"bfi.b{bits} $d, $a, $b, $c, $e;", unsigned, a, b, start, length), inserted)


def test_lop3_prmt_shf() -> None:
    a, b, c = (integers(U32, seed) for seed in range(3))
    for table in (0xC0, 0x96, 0xE8, 0x1D):

        def lop3(x: int, y: int, z: int, table: int = table) -> int:
            return sum((table >> ((x >> i & 1) * 4 + (y >> i & 1) * 2 + (z >> i & 1)) & 1) << i for i in range(32))

        np.testing.assert_array_equal(
            compute(f"lop3.b32 $d, $a, $b, $c, {table};", U32, a, b, c), exact(lop3, U32, a, b, c)
        )

    def prmt(x: int, y: int, s: int) -> int:
        source = (y << 32 | x).to_bytes(8, "little")
        chosen = []
        for index in range(4):
            nibble = s >> 4 * index & 15
            byte = source[nibble & 7]
            chosen.append((255 if byte & 128 else 0) if nibble & 8 else byte)
        return int.from_bytes(bytes(chosen), "little")

    np.testing.assert_array_equal(compute("prmt.b32 $d, $a, $b, $c;", U32, a, b, c), exact(prmt, U32, a, b, c))
    amount = integers(U32, 6, small=True)
    left = exact(lambda x, y, n: ((y << 32 | x) << (n & 31)) >> 32, U32, a, b, amount)
    np.testing.assert_array_equal(compute("shf.l.wrap.b32 $d, $a, $b, $c;", U32, a, b, amount), left)
    right = exact(lambda x, y, n: (y << 32 | x) >> min(n, 32), U32, a, b, amount)
    np.testing.assert_array_equal(compute("shf.r.clamp.b32 $d, $a, $b, $c;", U32, a, b, amount), right)


@pytest.mark.parametrize(("name", "dtype"), [("f32", np.float32), ("f64", np.float64), ("f16", np.float16)])
def test_float_arithmetic(name: str, dtype: type) -> None:
    a, b = floats(dtype, 1), floats(dtype, 2)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(compute(f"add.{name} $d, $a, $b;", dtype, a, b), a + b)
        np.testing.assert_array_equal(compute(f"sub.rn.{name} $d, $a, $b;", dtype, a, b), a - b)
        np.testing.assert_array_equal(compute(f"mul.{name} $d, $a, $b;", dtype, a, b), a * b)
        np.testing.assert_array_equal(compute(f"min.{name} $d, $a, $b;", dtype, a, b), np.fmin(a, b))
        np.testing.assert_array_equal(compute(f"max.{name} $d, $a, $b;", dtype, a, b), np.fmax(a, b))
        np.testing.assert_array_equal(compute(f"neg.{name} $d, $a;", dtype, a), -a)
        np.testing.assert_array_equal(compute(f"abs.{name} $d, $a;", dtype, a), np.abs(a))
        if name != "f64":
            np.testing.assert_array_equal(compute(f"max.NaN.{name} $d, $a, $b;", dtype, a, b), np.maximum(a, b))
        if name != "f16":
            np.testing.assert_array_equal(compute(f"div.rn.{name} $d, $a, $b;", dtype, a, b), a / b)
            np.testing.assert_array_equal(compute(f"sqrt.rn.{name} $d, $a;", dtype, a), np.sqrt(a))


def rounded_fraction(value: Fraction, dtype: type) -> Any:
    """Round to nearest even, through candidates next to a first guess."""
    guess = dtype(float(value))
    around = [np.nextafter(guess, dtype(-np.inf)), guess, np.nextafter(guess, dtype(np.inf))]
    finite = [candidate for candidate in around if np.isfinite(candidate)]
    unsigned = {2: U16, 4: U32, 8: U64}[np.dtype(dtype).itemsize]
    return min(finite, key=lambda x: (abs(Fraction(float(x)) - value), int(np.array(x).view(unsigned)) & 1))


@pytest.mark.parametrize(("name", "dtype"), [("f32", np.float32), ("f64", np.float64), ("f16", np.float16)])
def test_fma_rounds_once(name: str, dtype: type) -> None:
    generator = np.random.default_rng(5)
    a, b = (generator.uniform(-2, 2, THREADS).astype(dtype) for _ in range(2))
    c = (-a.astype(np.float64) * b).astype(dtype)  # cancels, so that a rounded product would show
    c[::2] = generator.uniform(-2, 2, THREADS // 2).astype(dtype)
    result = compute(f"fma.rn.{name} $d, $a, $b, $c;", dtype, a, b, c)
    for x, y, z, got in zip(a.tolist(), b.tolist(), c.tolist(), result, strict=True):
        value = Fraction(x) * Fraction(y) + Fraction(z)
        assert got == (rounded_fraction(value, dtype) if value else 0)


def test_fma_between_two_floats() -> None:
    # The product is 1 + 2^-24 exactly, halfway between two f32; the tiny addend decides, though float64 drops it.
    a = np.full(THREADS, 1 + 2.0**-12, np.float32)
    b = np.full(THREADS, 1 - 2.0**-12, np.float32)
    c = np.full(THREADS, 2.0**-23 + 2.0**-100, np.float32)
    value = Fraction(1) - Fraction(1, 2**24) + Fraction(float(c[0]))
    assert compute("fma.rn.f32 $d, $a, $b, $c;", np.float32, a, b, c)[0] == rounded_fraction(value, np.float32)
    a[:], b[:], c[:] = 1, 1 + 2.0**-23, 2.0**-24
    c[::2] = np.nextafter(np.float32(2.0**-24), np.float32(1))
    c[1::4] = 2.0**-24
    result = compute("fma.rn.f32 $d, $a, $b, $c;", np.float32, a, b, c)
    for x, y, z, got in zip(a.tolist(), b.tolist(), c.tolist(), result, strict=True):
        assert got == rounded_fraction(Fraction(x) * Fraction(y) + Fraction(z), np.float32)


def test_packed_halves() -> None:
    a, b, c = (floats(np.float16, seed) for seed in range(3))
    packed = [np.concatenate([values, values[::-1]]).view(U32) for values in (a, b, c)]
    a, b, c = (values.view(np.float16) for values in packed)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(compute("add.f16x2 $d, $a, $b;", U32, *packed[:2]).view(np.float16), a + b)
        np.testing.assert_array_equal(
            compute("max.f16x2 $d, $a, $b;", U32, *packed[:2]).view(np.float16), np.fmax(a, b)
        )
        exact_fma = (a.astype(np.float64) * b + c).astype(np.float16)
        np.testing.assert_array_equal(compute("fma.rn.f16x2 $d, $a, $b, $c;", U32, *packed).view(np.float16), exact_fma)


def test_bf16() -> None:
    a, b = (f32_to_bf16(floats(np.float32, seed)) for seed in (1, 2))
    wide_a, wide_b = bf16_to_f32(a), bf16_to_f32(b)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(compute("add.rn.bf16 $d, $a, $b;", U16, a, b), f32_to_bf16(wide_a + wide_b))
        np.testing.assert_array_equal(compute("mul.rn.bf16 $d, $a, $b;", U16, a, b), f32_to_bf16(wide_a * wide_b))
        larger = np.where(wide_a == wide_b, np.where(np.signbit(wide_a), wide_b, wide_a), np.fmax(wide_a, wide_b))
        np.testing.assert_array_equal(compute("max.bf16 $d, $a, $b;", U16, a, b), f32_to_bf16(larger))
        pair_a, pair_b = np.resize(a, 2 * THREADS).view(U32), np.resize(b, 2 * THREADS).view(U32)
        total = f32_to_bf16(np.resize(wide_a + wide_b, 2 * THREADS)).view(U32)
        np.testing.assert_array_equal(compute("add.rn.bf16x2 $d, $a, $b;", U32, pair_a, pair_b), total)


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("rcp.approx.f32", lambda x: 1 / x),
        ("rcp.rn.f32", lambda x: 1 / x),
        ("ex2.approx.f32", np.exp2),
        ("lg2.approx.f32", np.log2),
        ("sqrt.approx.f32", np.sqrt),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)),
        ("sin.approx.f32", np.sin),
        ("cos.approx.f32", np.cos),
        ("tanh.approx.f32", np.tanh),
    ],
)
def test_functions(text: str, function: Callable[[Array], Array]) -> None:
    a = floats(np.float32, 1)
    with np.errstate(all="ignore"):
        expected = function(a.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(compute(f"{text} $d, $a;", np.float32, a), expected, rtol=1e-6)


def test_ftz_and_saturation() -> None:
    a, b = floats(np.float32, 1), floats(np.float32, 2)
    with np.errstate(all="ignore"):
        flushed = [np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x) for x in (a, b)]
        total = flushed[0] * flushed[1]
        total = np.where(np.abs(total) < np.finfo(np.float32).tiny, 0, total)
        np.testing.assert_array_equal(compute("mul.ftz.f32 $d, $a, $b;", np.float32, a, b), total)
        clipped = np.nan_to_num(np.clip(a + b, 0, 1), nan=0)
        np.testing.assert_array_equal(compute("add.sat.f32 $d, $a, $b;", np.float32, a, b), clipped)


@pytest.mark.parametrize("rounding", ["rz", "rm", "rp"])
def test_directed_rounding(rounding: str) -> None:
    generator = np.random.default_rng(1)
    a, b = (generator.uniform(-4, 4, THREADS).astype(np.float32) for _ in range(2))
    result = compute(f"mul.{rounding}.f32 $d, $a, $b;", np.float32, a, b)
    for x, y, got in zip(a.tolist(), b.tolist(), result, strict=True):
        value = Fraction(x) * Fraction(y)
        step = np.nextafter(got, np.float32(math.copysign(np.inf, value)))
        inside = {"rz": abs(Fraction(float(got))) <= abs(value), "rm": float(got) <= value, "rp": float(got) >= value}
        assert inside[rounding]
        assert rounding != "rz" or abs(Fraction(float(step))) > abs(value)


COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@pytest.mark.parametrize("test", list(COMPARISONS))
def test_comparisons(test: str) -> None:
    for name, dtype in (("s32", I32), ("u32", U32), ("s64", I64), ("u16", U16)):
        a, b = integers(dtype, 1), integers(dtype, 2)
        b[::5] = a[::5]
        text = f"setp.{test}.{name} %p1, $a, $b; selp.u32 $d, 1, 0, %p1;"
        np.testing.assert_array_equal(compute(text, U32, a, b), COMPARISONS[test](a, b))
    x, y = floats(np.float32, 1), floats(np.float32, 2)
    y[::5] = x[::5]
    unordered = np.isnan(x) | np.isnan(y)
    ordered_text = f"setp.{test}.f32 %p1, $a, $b; selp.u32 $d, 1, 0, %p1;"
    np.testing.assert_array_equal(compute(ordered_text, U32, x, y), COMPARISONS[test](x, y) & ~unordered)
    unordered_text = f"setp.{test}u.f32 %p1, $a, $b; selp.u32 $d, 1, 0, %p1;"
    np.testing.assert_array_equal(compute(unordered_text, U32, x, y), COMPARISONS[test](x, y) | unordered)


@pytest.mark.parametrize(("test", "same"), [("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge")])
def test_comparisons_of_unsigned_numbers_have_names_of_their_own(test: str, same: str) -> None:
    a, b = integers(U32, 1), integers(U32, 2)
    b[::5] = a[::5]
    found = compute(f"setp.{test}.u32 %p1, $a, $b; selp.u32 $d, 1, 0, %p1;", U32, a, b)
    np.testing.assert_array_equal(found, COMPARISONS[same](a, b))


def test_setp_combines_and_gives_both_results() -> None:
    a, b = integers(I32, 1), integers(I32, 2)
    text = """
        setp.gt.s32 %p1, $b, 0;
        setp.lt.and.s32 %p2|%p3, $a, 5, !%p1;
        selp.u32 $d, 1, 0, %p2;
        @%p3 add.u32 $d, $d, 2;"""
    expected = ((a < 5) & ~(b > 0)) * 1 + ((a >= 5) & ~(b > 0)) * 2
    np.testing.assert_array_equal(compute(text, U32, a, b), expected)


def test_move_packs_and_unpacks() -> None:
    a, b = integers(U32, 1), integers(U32, 2)
    text = "mov.b64 %rd1, {$a, $b}; mov.b64 {%r5, %r6}, %rd1; sub.u32 $d, %r6, %r5;"
    np.testing.assert_array_equal(compute(text, U32, a, b), b - a)
    text = "mov.b32 {%h1, %h2}, $a; mov.b32 $d, {%h2, %h1};"
    np.testing.assert_array_equal(compute(text, U32, a), (a << U32(16)) | (a >> U32(16)))
    text = "mov.b32 {_, %h2}, $a; cvt.u32.u16 $d, %h2;"
    np.testing.assert_array_equal(compute(text, U32, a), a >> U32(16))


INTEGER_TYPES: dict[str, type] = {"s8": np.int8, "u8": np.uint8, **WRAPPED}


@pytest.mark.parametrize("source", list(WRAPPED))
@pytest.mark.parametrize("target", list(INTEGER_TYPES))
def test_integer_conversions(source: str, target: str) -> None:
    a = integers(WRAPPED[source], 1)
    to = INTEGER_TYPES[target]
    # A register wider than the target is extended by the target's sign.
    wide = {"s8": I16, "u8": U16}.get(target, to)
    np.testing.assert_array_equal(compute(f"cvt.{target}.{source} $d, $a;", wide, a), a.astype(to).astype(wide))
    limits = np.iinfo(to)
    clamped = np.array([min(max(value, limits.min), limits.max) for value in a.tolist()], dtype=to)
    from_limits = np.iinfo(WRAPPED[source])
    if from_limits.min < limits.min or from_limits.max > limits.max:
        np.testing.assert_array_equal(compute(f"cvt.sat.{target}.{source} $d, $a;", wide, a), clamped.astype(wide))


@pytest.mark.parametrize("target", ["s32", "u32", "s64", "u64", "s8", "u8", "s16"])
@pytest.mark.parametrize(("source", "dtype"), [("f32", np.float32), ("f64", np.float64), ("f16", np.float16)])
def test_float_to_integer(target: str, source: str, dtype: type) -> None:
    values = np.array([2.5, -2.5, 3.5, 0.5, -0.5, 1e9, -1e9, 1e19, -1e19, 127.5, 300.7, np.inf, -np.inf, np.nan])
    with np.errstate(all="ignore"):
        a = np.resize(values, THREADS).astype(dtype)
    to = INTEGER_TYPES[target]
    wide = {"s8": I16, "u8": U16}.get(target, to)
    limits = np.iinfo(to)
    roundings: dict[str, Callable[[float], int]] = {
        "rzi": math.trunc,
        "rni": round,
        "rmi": math.floor,
        "rpi": math.ceil,
    }
    for rounding, function in roundings.items():
        expected = []
        for value in a.tolist():
            if math.isnan(value):
                is_wide = a.dtype.itemsize == 8 or np.dtype(to).itemsize == 8
                bits = 8 * np.dtype(to).itemsize
                expected.append((limits.min or 1 << (bits - 1)) if is_wide else 0)
            elif math.isinf(value):
                expected.append(limits.max if value > 0 else limits.min)
            else:
                expected.append(min(max(function(value), limits.min), limits.max))
        result = compute(f"cvt.{rounding}.{target}.{source} $d, $a;", wide, a)
        np.testing.assert_array_equal(result, np.array(expected, to).astype(wide))


def test_integer_to_float() -> None:
    for name, dtype in WRAPPED.items():
        a = integers(dtype, 1)
        for target, to in (("f32", np.float32), ("f64", np.float64), ("f16", np.float16)):
            with np.errstate(all="ignore"):
                expected = np.array([float(value) for value in a.tolist()]).astype(to)
            if name in ("s64", "u64") and target == "f32":
                expected = a.astype(np.float32)
            np.testing.assert_array_equal(compute(f"cvt.rn.{target}.{name} $d, $a;", to, a), expected)


def test_float_to_float() -> None:
    a = floats(np.float32, 1)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(compute("cvt.rn.f16.f32 $d, $a;", np.float16, a), a.astype(np.float16))
        np.testing.assert_array_equal(compute("cvt.f64.f32 $d, $a;", np.float64, a), a.astype(np.float64))
        np.testing.assert_array_equal(compute("cvt.rni.f32.f32 $d, $a;", np.float32, a), np.rint(a))
        saturated = np.nan_to_num(np.clip(a, 0, 1), nan=0)
        np.testing.assert_array_equal(compute("cvt.sat.f32.f32 $d, $a;", np.float32, a), saturated)
        bf16 = compute("cvt.rn.bf16.f32 $d, $a;", U16, a)
        np.testing.assert_array_equal(bf16, f32_to_bf16(a))
        np.testing.assert_array_equal(compute("cvt.f32.bf16 $d, $a;", np.float32, bf16), bf16_to_f32(bf16))
        truncated = compute("cvt.rz.f16.f32 $d, $a;", np.float16, a)
        finite = np.isfinite(a)
        assert (np.abs(truncated[finite].astype(np.float64)) <= np.abs(a[finite])).all()


def test_packed_conversions() -> None:
    a, b = floats(np.float32, 1), floats(np.float32, 2)
    with np.errstate(all="ignore"):
        high, low = (values.astype(np.float16).view(U16).astype(U32) for values in (a, b))
        result = compute("cvt.rn.f16x2.f32 $d, $a, $b;", U32, a, b)
        numbers = ~(np.isnan(a) | np.isnan(b))
        np.testing.assert_array_equal(result[numbers], ((high << U32(16)) | low)[numbers])
        high, low = (f32_to_bf16(values).astype(U32) for values in (a, b))
        np.testing.assert_array_equal(compute("cvt.rn.bf16x2.f32 $d, $a, $b;", U32, a, b), (high << U32(16)) | low)
    eighths = np.resize(np.array([1.0, -1.0, 448.0, 1000.0, 0.0625, 17.0, 19.0], np.float32), THREADS)
    codes = compute("cvt.rn.satfinite.e4m3x2.f32 $d, $a, $b;", U16, eighths, eighths) & 0xFF
    assert codes[:7].tolist() == [0x38, 0xB8, 0x7E, 0x7E, 0x18, 0x58, 0x5A]


def test_bf16_rounds_to_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0xFF800000], U32)
    assert f32_to_bf16(bits.view(np.float32)).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0xFF80]


def test_unknown_instructions_are_refused_before_anything_runs() -> None:
    out = np.zeros(4, U32)
    source = kernel("ld.param.u64 %rd1, [out]; st.global.u32 [%rd1], 7;\nfrobnicate.b32 %r1, %r2;")
    with pytest.raises(Fault, match="unknown instruction frobnicate") as caught:
        launch(source, "k", 1, 1, [out])
    assert caught.value.kind == "unsupported"
    assert caught.value.text == "frobnicate.b32 %r1, %r2;"
    assert source.split("\n")[caught.value.line - 1].strip() == "frobnicate.b32 %r1, %r2;"
    assert out[0] == 0


@pytest.mark.parametrize("operation", ["add", "sub", "mul", "fma"])
def test_pairs_of_f32(operation: str) -> None:
    """`f32x2` of sm_100: two numbers in a register of 64 bits."""
    a, b, c = (floats(np.float32, seed).reshape(-1, 2) for seed in (1, 2, 3))
    out = np.zeros_like(a)
    third = ", %rd7" if operation == "fma" else ""
    lines = ["mov.u32 %r0, %tid.x;"]
    for position, name in enumerate("oabc"):
        lines.append(f"ld.param.u64 %rd{position}, [{name}]; mad.wide.u32 %rd{position}, %r0, 8, %rd{position};")
        lines.append(f"ld.global.b64 %rd{position + 4}, [%rd{position}];")
    lines += [f"{operation}.rn.f32x2 %rd8, %rd5, %rd6{third};", "st.global.b64 [%rd0], %rd8;"]
    params = ", ".join(f".param .u64 {name}" for name in "oabc")
    source = kernel("\n".join(lines), params, target="sm_100a")
    launch(source, "k", 1, len(a), [out, a, b, c])
    with np.errstate(all="ignore"):
        exact = {"add": a + b, "sub": a - b, "mul": a * b}.get(operation)
        if exact is None:
            exact = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(out, exact, rtol=1e-7)


def test_pairs_of_f32_are_of_sm_100() -> None:
    with pytest.raises(Fault, match=r"f32x2 of add\.f32x2 needs sm_100"):
        launch(kernel("add.f32x2 %rd1, %rd1, %rd1;"), "k", 1, 1, [0])
