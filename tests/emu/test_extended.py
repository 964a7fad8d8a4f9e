"""Instructions that our own compiler never emits and others do: carries, masks, SIMD within a register, choices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from one_instruction import I32, THREADS, U16, U32, U64, compute, exact, floats, integers
from ptx_source import kernel

from tilec.emu import launch
from tilec.emu.numbers import Array, bf16_to_f32, f32_to_bf16

MASK32 = 0xFFFFFFFF


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


@pytest.mark.parametrize("bits", [32, 64])
def test_sums_and_differences_with_carry(bits: int) -> None:
    dtype = U32 if bits == 32 else U64
    letter = "r" if bits == 32 else "rd"
    a, b, c, e = (integers(dtype, seed) for seed in range(4))
    span = 1 << bits
    for first, second, sign in ((f"add.cc.u{bits}", f"addc.u{bits}", 1), (f"sub.cc.s{bits}", f"subc.s{bits}", -1)):
        text = f"{first} %{letter}10, $a, $b; {second} $d, $c, $e;"
        expected = exact(lambda x, y, z, w, s=sign: ((z << bits | x) + s * (w << bits | y)) // span, dtype, a, b, c, e)
        np.testing.assert_array_equal(compute(text, dtype, a, b, c, e), expected)
    # The middle instruction takes the carry and leaves another.
    text = f"add.cc.u{bits} %{letter}10, $a, $b; addc.cc.u{bits} %{letter}11, $b, $c; addc.u{bits} $d, 0, 0;"
    expected = exact(lambda x, y, z: (y + z + (x + y) // span) // span, dtype, a, b, c)
    np.testing.assert_array_equal(compute(text, dtype, a, b, c), expected)


def test_products_with_carry() -> None:
    a, b, c = (integers(U32, seed) for seed in range(3))
    text = "mad.lo.cc.u32 %r10, $a, $b, $c; madc.hi.u32 $d, $a, $b, $c;"
    expected = exact(lambda x, y, z: (x * y + (z << 32 | z)) >> 32, U32, a, b, c)
    np.testing.assert_array_equal(compute(text, U32, a, b, c), expected)
    text = "mad.hi.cc.s32 %r10, $a, $b, $c; madc.lo.cc.u32 %r11, 0, 0, 0; mov.b32 $d, %r11;"
    carried = exact(lambda x, y, z: (((x * y >> 32) & MASK32) + (z & MASK32)) >> 32, U32, a.view(I32), b.view(I32), c)
    np.testing.assert_array_equal(compute(text, U32, a, b, c), carried)


def test_24_bit_products() -> None:
    for name, dtype in (("s32", I32), ("u32", U32)):
        a, b, c = (integers(dtype, seed) for seed in range(3))

        def low(x: int, name: str = name) -> int:
            return signed(x, 24) if name == "s32" else x & 0xFFFFFF

        for part, shift in (("lo", 0), ("hi", 16)):
            product = exact(lambda x, y, n=shift: low(x) * low(y) >> n, dtype, a, b)
            np.testing.assert_array_equal(compute(f"mul24.{part}.{name} $d, $a, $b;", dtype, a, b), product)
            total = exact(lambda x, y, z, n=shift: (low(x) * low(y) >> n) + z, dtype, a, b, c)
            np.testing.assert_array_equal(compute(f"mad24.{part}.{name} $d, $a, $b, $c;", dtype, a, b, c), total)
    a, b, c = (integers(I32, seed) for seed in range(3))
    expected = exact(lambda x, y, z: max(min((x * y >> 32) + z, 2**31 - 1), -(2**31)), I32, a, b, c)
    np.testing.assert_array_equal(compute("mad.hi.sat.s32 $d, $a, $b, $c;", I32, a, b, c), expected)


@pytest.mark.parametrize("types", ["s32.s32", "u32.u32", "s32.u32", "u32.s32"])
def test_dot_products(types: str) -> None:
    a, b, c = (integers(U32, seed) for seed in range(3))
    left, right = (name[0] == "s" for name in types.split("."))

    def parts(word: int, width: int, is_signed: bool) -> list[int]:
        fields = [word >> width * k & ((1 << width) - 1) for k in range(32 // width)]
        return [signed(field, width) for field in fields] if is_signed else fields

    four = exact(
        lambda x, y, z: sum(p * q for p, q in zip(parts(x, 8, left), parts(y, 8, right), strict=True)) + z, U32, a, b, c
    )
    np.testing.assert_array_equal(compute(f"dp4a.{types} $d, $a, $b, $c;", U32, a, b, c), four)
    for mode, first in (("lo", 0), ("hi", 2)):
        two = exact(
            lambda x, y, z, n=first: (
                sum(p * q for p, q in zip(parts(x, 16, left), parts(y, 8, right)[n : n + 2], strict=True)) + z
            ),
            U32,
            a,
            b,
            c,
        )
        np.testing.assert_array_equal(compute(f"dp2a.{mode}.{types} $d, $a, $b, $c;", U32, a, b, c), two)


def test_fields_and_masks() -> None:
    a, n = integers(U32, 1), integers(U32, 2, small=True)
    m = integers(U32, 3, small=True)
    for mode in ("clamp", "wrap"):

        def width(x: int, mode: str = mode) -> int:
            return x & 31 if mode == "wrap" else min(x, 32)

        unsigned = exact(lambda x, y: x & ((1 << width(y)) - 1), U32, a, n)
        np.testing.assert_array_equal(compute(f"szext.{mode}.u32 $d, $a, $b;", U32, a, n), unsigned)
        extended = exact(lambda x, y: signed(x, width(y)) if width(y) else 0, U32, a, n)
        np.testing.assert_array_equal(compute(f"szext.{mode}.s32 $d, $a, $b;", U32, a, n), extended)
        mask = exact(lambda x, y: ((1 << width(y)) - 1) << width(x), U32, n, m)
        np.testing.assert_array_equal(compute(f"bmsk.{mode}.b32 $d, $a, $b;", U32, n, m), mask)


def test_nth_set_bit() -> None:
    mask, base = integers(U32, 1), (integers(U32, 2) % 32).astype(U32)
    offset = (integers(I32, 3) % 9 - 4).astype(I32)

    def find(bits: int, start: int, count: int) -> int:
        if count == 0:
            return start if bits >> start & 1 else MASK32
        step = 1 if count > 0 else -1
        seen = 0
        while 0 <= start < 32:
            seen += bits >> start & 1
            if seen == abs(count):
                return start
            start += step
        return MASK32

    np.testing.assert_array_equal(
        compute("fns.b32 $d, $a, $b, $c;", U32, mask, base, offset), exact(find, U32, mask, base, offset)
    )


def test_byte_permutations() -> None:
    a, b, c = (integers(U32, seed) for seed in range(3))
    orders: dict[str, list[str]] = {
        "f4e": ["3210", "4321", "5432", "6543"],
        "b4e": ["5670", "6701", "7012", "0123"],
        "rc8": ["0000", "1111", "2222", "3333"],
        "ecl": ["3210", "3211", "3222", "3333"],
        "ecr": ["0000", "1110", "2210", "3210"],
        "rc16": ["1010", "3232", "1010", "3232"],
    }
    for mode, table in orders.items():

        def permute(x: int, y: int, s: int, table: list[str] = table) -> int:
            source = (y << 32 | x).to_bytes(8, "little")
            return int.from_bytes(bytes(source[int(digit)] for digit in reversed(table[s & 3])), "little")

        np.testing.assert_array_equal(
            compute(f"prmt.b32.{mode} $d, $a, $b, $c;", U32, a, b, c), exact(permute, U32, a, b, c)
        )


@pytest.mark.parametrize("lanes", [2, 4])
def test_simd_within_a_register(lanes: int) -> None:
    a, b, c = (integers(U32, seed) for seed in range(3))
    width = 32 // lanes
    functions: dict[str, Callable[[int, int], int]] = {
        "vadd": lambda x, y: x + y,
        "vsub": lambda x, y: x - y,
        "vavrg": lambda x, y: (x + y + 1) >> 1,
        "vabsdiff": lambda x, y: abs(x - y),
        "vmin": min,
        "vmax": max,
    }

    def fields(word: int, is_signed: bool) -> list[int]:
        parts = [word >> width * k & ((1 << width) - 1) for k in range(lanes)]
        return [signed(part, width) for part in parts] if is_signed else parts

    for name, function in functions.items():
        for sign in ("s32", "u32"):
            is_signed = sign == "s32"

            def plain(x: int, y: int, f: Callable[[int, int], int] = function, s: bool = is_signed) -> int:
                pairs = zip(fields(x, s), fields(y, s), strict=True)
                return sum((f(p, q) & ((1 << width) - 1)) << width * k for k, (p, q) in enumerate(pairs))

            opcode = f"{name}{lanes}.{sign}.{sign}.{sign}"
            np.testing.assert_array_equal(compute(f"{opcode} $d, $a, $b, $c;", U32, a, b, c), exact(plain, U32, a, b))

            def added(x: int, y: int, z: int, f: Callable[[int, int], int] = function, s: bool = is_signed) -> int:
                return sum(f(p, q) for p, q in zip(fields(x, s), fields(y, s), strict=True)) + z

            np.testing.assert_array_equal(
                compute(f"{opcode}.add $d, $a, $b, $c;", U32, a, b, c), exact(added, U32, a, b, c)
            )


# -- choices and tests -------------------------------------------------------------------------------------------------


def test_slct() -> None:
    a, b, c = integers(U32, 1), integers(U32, 2), integers(I32, 3)
    np.testing.assert_array_equal(compute("slct.b32.s32 $d, $a, $b, $c;", U32, a, b, c), np.where(c >= 0, a, b))
    f = floats(np.float32, 4)
    np.testing.assert_array_equal(compute("slct.u32.f32 $d, $a, $b, $c;", U32, a, b, f), np.where(f >= 0, a, b))
    flushed = np.where((f < 0) & (np.abs(f) < 2.0**-126), 0, f)
    np.testing.assert_array_equal(
        compute("slct.ftz.u32.f32 $d, $a, $b, $c;", U32, a, b, f), np.where(flushed >= 0, a, b)
    )


@pytest.mark.parametrize(("name", "dtype"), [("f32", np.float32), ("f64", np.float64)])
def test_testp(name: str, dtype: type) -> None:
    a = floats(dtype, 1)
    tiny = float(np.finfo(dtype).tiny)
    tests = {
        "finite": np.isfinite(a),
        "infinite": np.isinf(a),
        "number": ~np.isnan(a),
        "notanumber": np.isnan(a),
        "normal": np.isfinite(a) & (np.abs(a) >= tiny),
        "subnormal": (np.abs(a) < tiny) & (a != 0),
    }
    for test, expected in tests.items():
        text = f"testp.{test}.{name} %p1, $a; selp.u32 $d, 1, 0, %p1;"
        np.testing.assert_array_equal(compute(text, U32, a), expected, test)


def test_set() -> None:
    a, b = floats(np.float32, 1), floats(np.float32, 2)
    b[::3] = a[::3]
    ones = np.where(a < b, MASK32, 0)
    np.testing.assert_array_equal(compute("set.lt.u32.f32 $d, $a, $b;", U32, a, b), ones)
    np.testing.assert_array_equal(compute("set.lt.f32.f32 $d, $a, $b;", np.float32, a, b), (a < b).astype(np.float32))
    text = "setp.gt.f32 %p1, $a, 0f00000000; set.{}.{}u32.f32 $d, $a, $b, {}%p1;"
    for combine, function in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
        for sign in ("", "!"):
            result = compute(text.format(f"equ.{combine}", "", sign), U32, a, b)
            equal = (a == b) | np.isnan(a) | np.isnan(b)
            expected = function(equal, (a > 0) ^ (sign == "!"))
            np.testing.assert_array_equal(result, np.where(expected, MASK32, 0))
    x, y = (floats(np.float16, seed).reshape(-1, 2) for seed in (3, 4))
    packed = [np.ascontiguousarray(np.tile(z, (2, 1))).view(U32).reshape(-1) for z in (x, y)]
    result = compute("set.ge.f16x2.f16x2 $d, $a, $b;", U32, *packed).view(np.float16).reshape(-1, 2)
    np.testing.assert_array_equal(result[: len(x)], (x >= y).astype(np.float16))
    result = compute("set.ge.u32.f16x2 $d, $a, $b;", U32, *packed).view(U16).reshape(-1, 2)
    np.testing.assert_array_equal(result[: len(x)], np.where(x >= y, 0xFFFF, 0))


def test_setp_of_pairs() -> None:
    x, y = (np.tile(floats(np.float16, seed).reshape(-1, 2), (2, 1)) for seed in (3, 4))
    packed = [np.ascontiguousarray(z).view(U32).reshape(-1) for z in (x, y)]
    text = "setp.lt.f16x2 %p1|%p2, $a, $b; selp.u32 %r10, 1, 0, %p1; selp.u32 %r11, 2, 0, %p2; or.b32 $d, %r10, %r11;"
    np.testing.assert_array_equal(compute(text, U32, *packed), (x < y)[:, 0] + 2 * (x < y)[:, 1])
    a, b = integers(I32, 1), integers(I32, 2)
    text = (
        "setp.gt.s32 %p3, $a, 0; setp.le.or.s32 %p1|%p2, $a, $b, !%p3; selp.u32 %r10, 1, 0, %p1; "
        "selp.u32 %r11, 2, 0, %p2; or.b32 $d, %r10, %r11;"
    )
    first, second = (a <= b) | ~(a > 0), (a > b) | ~(a > 0)
    np.testing.assert_array_equal(compute(text, U32, a, b), first + 2 * second)


# -- extremes ----------------------------------------------------------------------------------------------------------


def model(is_max: bool, propagates: bool) -> Callable[[float, float], float]:
    def pick(x: float, y: float) -> float:
        if np.isnan(x) or np.isnan(y):
            return float("nan") if propagates or (np.isnan(x) and np.isnan(y)) else (y if np.isnan(x) else x)
        if x == y:
            negative = np.signbit(x) and np.signbit(y) if is_max else np.signbit(x) or np.signbit(y)
            return -abs(x) if negative and x == 0 else x if x != 0 else abs(x)
        return max(x, y) if is_max else min(x, y)

    return pick


@pytest.mark.parametrize("propagates", [False, True])
@pytest.mark.parametrize("operation", ["min", "max"])
def test_extremes(operation: str, propagates: bool) -> None:
    pick = model(operation == "max", propagates)
    a, b, c = (floats(np.float32, seed) for seed in range(3))
    nan = ".NaN" if propagates else ""

    def check(text: str, function: Callable[..., float], *inputs: Array) -> None:
        found = compute(text, np.float32, *inputs)
        expected = np.array([function(*row) for row in zip(*(x.tolist() for x in inputs), strict=True)], np.float32)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(found), ~numbers, text)
        np.testing.assert_array_equal(found[numbers].view(U32), expected[numbers].view(U32), text)

    def by_magnitude(x: float, y: float) -> float:
        return float(np.copysign(pick(abs(x), abs(y)), -1 if np.signbit(x) != np.signbit(y) else 1))

    check(f"{operation}{nan}.f32 $d, $a, $b;", pick, a, b)
    check(f"{operation}{nan}.xorsign.abs.f32 $d, $a, $b;", by_magnitude, a, b)
    check(f"{operation}{nan}.f32 $d, $a, $b, $c;", lambda x, y, z: pick(pick(x, y), z), a, b, c)
    check(f"{operation}{nan}.abs.f32 $d, $a, $b, $c;", lambda x, y, z: pick(abs(pick(abs(x), abs(y))), abs(z)), a, b, c)


def test_integer_extremes_of_pairs() -> None:
    a, b = integers(U32, 1), integers(U32, 2)
    x, y = (z.view(np.int16).reshape(-1, 2) for z in (a, b))
    for name, function in (("min", np.minimum), ("max", np.maximum)):
        result = compute(f"{name}.s16x2 $d, $a, $b;", U32, a, b).view(np.int16).reshape(-1, 2)
        np.testing.assert_array_equal(result, function(x, y))
        result = compute(f"{name}.relu.s16x2 $d, $a, $b;", U32, a, b).view(np.int16).reshape(-1, 2)
        np.testing.assert_array_equal(result, np.maximum(function(x, y), 0))
        result = compute(f"{name}.u16x2 $d, $a, $b;", U32, a, b).view(U16).reshape(-1, 2)
        np.testing.assert_array_equal(result, function(x.view(U16), y.view(U16)))
        single = compute(f"{name}.relu.s32 $d, $a, $b;", I32, a.view(I32), b.view(I32))
        np.testing.assert_array_equal(single, np.maximum(function(a.view(I32), b.view(I32)), 0))


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_packed_halves(kind: str) -> None:
    generator = np.random.default_rng(1)
    a, b, c = (generator.standard_normal((THREADS, 2)).astype(np.float32) * 3 for _ in range(3))
    words = [(x.astype(np.float16).view(U16) if kind == "f16x2" else f32_to_bf16(x)) for x in (a, b, c)]
    wide = [(w.view(np.float16) if kind == "f16x2" else bf16_to_f32(w)).astype(np.float64) for w in words]
    packed = [np.ascontiguousarray(w).view(U32).reshape(-1) for w in words]

    def narrow(values: Array) -> Array:
        if kind == "f16x2":
            return values.astype(np.float16).view(U16)
        return f32_to_bf16(values.astype(np.float32))

    cases: dict[str, Array] = {
        "add.{} $d, $a, $b;": wide[0] + wide[1],
        "sub.{} $d, $a, $b;": wide[0] - wide[1],
        "mul.{} $d, $a, $b;": wide[0] * wide[1],
        "fma.rn.{} $d, $a, $b, $c;": wide[0] * wide[1] + wide[2],
        "neg.{} $d, $a;": -wide[0],
        "abs.{} $d, $a;": np.abs(wide[0]),
        "max.{} $d, $a, $b;": np.maximum(wide[0], wide[1]),
        "ex2.approx{} $d, $a;": np.exp2(wide[0]),
        "tanh.approx.{} $d, $a;": np.tanh(wide[0]),
    }
    for text, expected in cases.items():
        spelled = text.format(kind if "approx{" not in text else (".f16x2" if kind == "f16x2" else ".ftz.bf16x2"))
        count = sum(f"${letter}" in text for letter in "abc")
        found = compute(spelled, U32, *packed[:count]).view(U16).reshape(-1, 2)
        # Doubles that land between two halves are ties that both ways of rounding may break.
        np.testing.assert_array_equal(found, narrow(expected), spelled)
    if kind == "f16x2":
        found = compute("add.sat.f16x2 $d, $a, $b;", U32, *packed[:2]).view(np.float16).reshape(-1, 2)
        np.testing.assert_array_equal(found, np.clip(wide[0] + wide[1], 0, 1).astype(np.float16))


def test_flushed_halves_and_approximate_doubles() -> None:
    tiny = np.full(THREADS, 2.0**-20, np.float16)
    assert (compute("add.ftz.f16 $d, $a, $b;", np.float16, tiny, tiny) == 0).all()
    assert (compute("add.f16 $d, $a, $b;", np.float16, tiny, tiny) == np.float16(2.0**-19)).all()
    a = np.abs(floats(np.float64, 1)) + 1
    for text, expected in (("rcp.approx.ftz.f64", 1 / a), ("rsqrt.approx.ftz.f64", 1 / np.sqrt(a))):
        found = compute(f"{text} $d, $a;", np.float64, a)
        np.testing.assert_allclose(found, expected, rtol=2.0**-20)
        assert not (found.view(U64) & 0xFFFFFFFF)[np.isfinite(found)].any()
    np.testing.assert_allclose(compute("rsqrt.approx.f64 $d, $a;", np.float64, a), 1 / np.sqrt(a), rtol=1e-15)


def test_wide_moves() -> None:
    out = np.zeros(4, U64)
    body = """
    ld.param.u64 %rd1, [out];
    mov.u64 %rd2, 0x1111222233334444;
    mov.u64 %rd3, -1;
    mov.b128 wide, {%rd2, %rd3};
    st.global.b128 [%rd1], wide;
    ld.global.b128 other, [%rd1];
    mov.b128 {%rd5, %rd4}, other;
    st.global.v2.b64 [%rd1+16], {%rd4, %rd5};
    """
    launch(kernel(body, registers=".reg .b128 wide, other;"), "k", 1, 1, [out])
    assert out.tolist() == [0x1111222233334444, 2**64 - 1, 2**64 - 1, 0x1111222233334444]
