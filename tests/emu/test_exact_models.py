"""Single instructions against models in exact integers, where edges and special values go wrong."""

from __future__ import annotations

import numpy as np
import pytest
from one_instruction import I32, I64, THREADS, U16, U32, U64, compute, exact, floats, integers

from tilec.emu.numbers import Array, f32_to_bf16

MASK32 = 0xFFFFFFFF


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


@pytest.mark.parametrize("side", ["l", "r"])
@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shifts(side: str, mode: str) -> None:
    a, b, n = integers(U32, 1), integers(U32, 2), integers(U32, 3, small=True)

    def shift(low: int, high: int, amount: int) -> int:
        amount = amount & 31 if mode == "wrap" else min(amount, 32)
        both = high << 32 | low
        return both << amount >> 32 if side == "l" else both >> amount

    found = compute(f"shf.{side}.{mode}.b32 $d, $a, $b, $c;", U32, a, b, n)
    np.testing.assert_array_equal(found, exact(shift, U32, a, b, n))


@pytest.mark.parametrize("bits", [32, 64])
def test_leading_bits_of_signed_numbers(bits: int) -> None:
    a = integers(I32 if bits == 32 else I64, 1)
    a[64:128] >>= np.arange(64) % bits

    def find(value: int) -> int:
        return (~value if value < 0 else value).bit_length() - 1

    found = compute(f"bfind.s{bits} $d, $a;", U32, a)
    np.testing.assert_array_equal(found, exact(find, U32, a))
    found = compute(f"bfind.shiftamt.s{bits} $d, $a;", U32, a)
    np.testing.assert_array_equal(found, exact(lambda v: bits - 1 - find(v) if find(v) >= 0 else -1, U32, a))


def test_sums_that_saturate() -> None:
    a, b, c = (integers(I32, seed) for seed in range(3))

    def clamp(value: int) -> int:
        return max(-(2**31), min(2**31 - 1, value))

    for text, function in {
        "add.sat.s32 $d, $a, $b;": lambda x, y, z: clamp(x + y),
        "sub.sat.s32 $d, $a, $b;": lambda x, y, z: clamp(x - y),
        "mad.hi.sat.s32 $d, $a, $b, $c;": lambda x, y, z: clamp((x * y >> 32) + z),
        "sad.s32 $d, $a, $b, $c;": lambda x, y, z: abs(x - y) + z,
    }.items():
        np.testing.assert_array_equal(compute(text, I32, a, b, c), exact(function, I32, a, b, c), text)
    d, e, f = (integers(U64, seed) for seed in range(3))
    found = compute("sad.u64 $d, $a, $b, $c;", U64, d, e, f)
    np.testing.assert_array_equal(found, exact(lambda x, y, z: abs(x - y) + z, U64, d, e, f))


@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
@pytest.mark.parametrize("target", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_floats_to_integers(source: str, target: str) -> None:
    values = floats({"f16": np.float16, "f32": np.float32, "f64": np.float64}[source], 1)
    edges = [127.5, 128.0, -128.5, -129.0, 255.5, 256.0, -0.5, 0.5, 1.5, 2.5, 32767.5, 65535.5, -1.0, 2.0**31, 2.0**63]
    with np.errstate(over="ignore"):
        values[100 : 100 + len(edges)] = np.array(edges).astype(values.dtype)
    bits, is_signed = int(target[1:]), target[0] == "s"
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    # Results of 8 bits are sign- or zero-extended to the register.
    width = max(bits, 16)
    dtype = np.dtype(f"{'i' if is_signed else 'u'}{width // 8}")

    def model(value: float, rounding: str) -> int:
        if np.isnan(value):
            # Zero, or the sign bit alone where one side has 64 bits.
            return (1 << (bits - 1)) if bits == 64 or source == "f64" else 0
        if np.isinf(value):
            return high if value > 0 else low
        whole = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}[rounding](value)
        return max(low, min(high, int(whole)))

    for rounding in ("rzi", "rni", "rmi", "rpi"):
        found = compute(f"cvt.{rounding}.{target}.{source} $d, $a;", dtype, values)
        expected = [model(value, rounding) & ((1 << width) - 1) for value in values.astype(np.float64).tolist()]
        if bits == 8 and is_signed:
            expected = [
                signed(value, 8) & 0xFFFF if not np.isnan(v) else value
                for value, v in zip(expected, values, strict=True)
            ]
        found_bits = found.view(f"u{width // 8}")
        not_nan = ~np.isnan(values)
        np.testing.assert_array_equal(found_bits[not_nan], np.array(expected, object)[not_nan].astype(f"u{width // 8}"))
        if bits >= 16:
            np.testing.assert_array_equal(
                found_bits[~not_nan], np.array(expected, object)[~not_nan].astype(found_bits.dtype)
            )


def test_clamping_never_leaves_a_negative_zero() -> None:
    a = floats(np.float32, 1)
    minus = np.full(THREADS, -0.0, np.float32)
    with np.errstate(all="ignore"):
        halves = a.astype(np.float16)
        half_zero = minus.astype(np.float16)
        for text, inputs, expected in (
            ("add.sat.f32 $d, $a, $b;", (a, minus), np.where(np.isnan(a), 0, np.clip(a, 0, 1))),
            ("mul.sat.f32 $d, $a, $a;", (a,), np.where(np.isnan(a), 0, np.clip(a * a, 0, 1))),
            ("cvt.sat.f32.f32 $d, $a;", (a,), np.where(np.isnan(a), 0, np.clip(a, 0, 1))),
            ("fma.rn.relu.f16 $d, $a, $b, $a;", (halves, half_zero), np.where(halves > 0, halves, 0)),
        ):
            dtype = inputs[0].dtype
            found = compute(text, dtype.type, *inputs)
            # Infinity times zero is no number.
            numbers = np.isfinite(inputs[0])
            np.testing.assert_array_equal(found[numbers], expected[numbers].astype(dtype), text)
            assert not np.signbit(found[numbers]).any(), text
    # Of a NaN, .sat makes zero and .relu a NaN.
    nan = np.isnan(a)
    assert not compute("add.sat.f32 $d, $a, $a;", np.float32, a)[nan].any()
    assert np.isnan(compute("fma.rn.relu.f16 $d, $a, $a, $a;", np.float16, halves)[nan]).all()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("rounding", ["rn", "rz"])
def test_packed_conversions_with_relu(kind: str, rounding: str) -> None:
    high, low = floats(np.float32, 1), floats(np.float32, 2)
    relu = compute(f"cvt.{rounding}.relu.{kind}x2.f32 $d, $a, $b;", U32, high, low).view(U16).reshape(-1, 2)
    plain = compute(f"cvt.{rounding}.{kind}x2.f32 $d, $a, $b;", U32, high, low).view(U16).reshape(-1, 2)
    nan = np.stack([np.isnan(low), np.isnan(high)], axis=1)
    # Whether −0 keeps its sign the manual does not say.
    ordinary = ~nan & (plain != 0x8000)
    np.testing.assert_array_equal(relu[ordinary], np.where(plain[ordinary] & 0x8000, 0, plain[ordinary]))
    assert not (relu[~nan & (plain == 0x8000)] & 0x7FFF).any()
    exponent = 0x7C00 if kind == "f16" else 0x7F80
    assert ((relu[nan] & 0x7FFF) > exponent).all()


def signs(values: Array) -> Array:
    return np.signbit(values)


def test_signs() -> None:
    a, b = floats(np.float32, 1), floats(np.float32, 2)
    found = compute("copysign.f32 $d, $a, $b;", np.float32, a, b)
    # The sign of the first on the magnitude of the second.
    np.testing.assert_array_equal(found, np.copysign(b, a))
    numbers = ~np.isnan(b)
    np.testing.assert_array_equal(signs(found)[numbers], signs(a)[numbers])
    bits = f32_to_bf16(a)
    np.testing.assert_array_equal(compute("neg.bf16 $d, $a;", U16, bits)[~np.isnan(a)], (bits ^ 0x8000)[~np.isnan(a)])


def test_default_permutations_repeat_signs() -> None:
    a, b = integers(U32, 1), integers(U32, 2)
    for selector in (0x3210, 0x7654, 0x89AB, 0xFEDC, 0x0F1E, 0x8888):

        def permute(x: int, y: int, s: int = selector) -> int:
            data = (y << 32 | x).to_bytes(8, "little")
            picked = [data[s >> 4 * i & 7] for i in range(4)]
            out = [(0xFF if p & 0x80 else 0) if s >> 4 * i & 8 else p for i, p in enumerate(picked)]
            return int.from_bytes(bytes(out), "little")

        found = compute(f"prmt.b32 $d, $a, $b, {selector};", U32, a, b)
        np.testing.assert_array_equal(found, exact(permute, U32, a, b))


@pytest.mark.parametrize("bits", [32, 64])
def test_long_fields(bits: int) -> None:
    """Positions and lengths are bytes: only eight bits of their registers count, and 255 is a legal one."""
    unsigned = U32 if bits == 32 else U64
    a, b = integers(unsigned, 1), integers(unsigned, 2)
    generator = np.random.default_rng(3)
    start, length = (generator.choice([0, 1, 31, 32, 33, 63, 64, 65, 255, 256, 257, 0x1F05], THREADS) for _ in range(2))
    start, length = start.astype(U32), length.astype(U32)
    mask = (1 << bits) - 1

    def extract(x: int, p: int, n: int) -> int:
        p, n = p & 255, n & 255
        return (x >> p) & ((1 << n) - 1)

    def insert(x: int, y: int, p: int, n: int) -> int:
        p, n = p & 255, n & 255
        window = ((1 << n) - 1) << p & mask
        return x << p & window | y & ~window

    found = compute(f"bfe.u{bits} $d, $a, $b, $c;", unsigned, a, start, length)
    np.testing.assert_array_equal(found, exact(extract, unsigned, a, start, length))
    found = compute(f"bfi.b{bits} $d, $a, $b, $c, $e;", unsigned, a, b, start, length)
    np.testing.assert_array_equal(found, exact(insert, unsigned, a, b, start, length))
