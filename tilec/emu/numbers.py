"""Number formats of PTX in numpy: types and their views, bf16, tf32 and fp8, rounding modes, exact fma."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.support.records import dataclass

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PtxType:
    """A PTX type as a view of a register: `lanes` numbers of numpy type `dtype`, together `bits` wide.

    `kind` is "u" for untyped and unsigned, "s", "f" for formats that numpy computes in, "bf16" and "pred".
    """

    name: str
    bits: int
    dtype: np.dtype[Any]
    kind: str
    lanes: int = 1


def _build_types() -> dict[str, PtxType]:
    """Return the table of PTX types by name, packed types and the predicate included."""
    table: dict[str, PtxType] = {"pred": PtxType("pred", 1, np.dtype(np.bool_), "pred")}
    for bits in (8, 16, 32, 64):
        for letter, code in (("b", "u"), ("u", "u"), ("s", "i")):
            kind = "s" if code == "i" else "u"
            table[f"{letter}{bits}"] = PtxType(f"{letter}{bits}", bits, np.dtype(f"{code}{bits // 8}"), kind)
    for bits in (16, 32, 64):
        table[f"f{bits}"] = PtxType(f"f{bits}", bits, np.dtype(f"f{bits // 8}"), "f")
    table["f16x2"] = PtxType("f16x2", 32, np.dtype(np.float16), "f", 2)
    table["f32x2"] = PtxType("f32x2", 64, np.dtype(np.float32), "f", 2)
    table["bf16"] = PtxType("bf16", 16, np.dtype(np.uint16), "bf16")
    table["bf16x2"] = PtxType("bf16x2", 32, np.dtype(np.uint16), "bf16", 2)
    table["tf32"] = PtxType("tf32", 32, np.dtype(np.uint32), "u")
    table["u16x2"] = PtxType("u16x2", 32, np.dtype(np.uint16), "u", 2)
    table["s16x2"] = PtxType("s16x2", 32, np.dtype(np.int16), "s", 2)
    return table


TYPES = _build_types()


def bf16_to_f32(bits: Array) -> Array:
    """Convert bf16 codes to f32 exactly: bf16 is the upper half of an f32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: Array) -> Array:
    """Round f32 to bf16 codes, to nearest even; every NaN becomes the canonical one."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FFF), rounded).astype(np.uint16)


def tf32_to_f32(bits: Array) -> Array:
    """Convert tf32 operands to f32 as the hardware does, which ignores the low 13 bits."""
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """A float format of at most 8 bits. `largest` is the code of the largest finite number. Larger codes are NaN,
    except that the first of them is infinity if `has_infinity`."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest: int
    has_infinity: bool = False
    is_signed: bool = True

    @property
    def bits(self) -> int:
        """Return the bits of a code."""
        return self.exponent_bits + self.mantissa_bits + self.is_signed


SMALL_FLOATS = {
    "e4m3": SmallFloat(4, 3, 7, 0x7E),
    "e5m2": SmallFloat(5, 2, 15, 0x7B, has_infinity=True),
    "e3m2": SmallFloat(3, 2, 3, 0x1F),
    "e2m3": SmallFloat(2, 3, 1, 0x1F),
    "e2m1": SmallFloat(2, 1, 1, 0x7),
    "ue8m0": SmallFloat(8, 0, 127, 0xFE, is_signed=False),
    "ue4m3": SmallFloat(4, 3, 7, 0x7E, is_signed=False),
}


@lru_cache(maxsize=16)
def _small_float_values(name: str) -> Array:
    """Return the f32 value of every code of a small float format, by its name."""
    kind = SMALL_FLOATS[name]
    codes = np.arange(1 << kind.bits)
    magnitude = codes & ((1 << (kind.exponent_bits + kind.mantissa_bits)) - 1)
    exponent, mantissa = magnitude >> kind.mantissa_bits, magnitude & ((1 << kind.mantissa_bits) - 1)
    scale = 2.0**kind.mantissa_bits
    values = (scale + mantissa) / scale * 2.0 ** (exponent - kind.bias)
    if kind.mantissa_bits:
        values = np.where(exponent == 0, mantissa / scale * 2.0 ** (1 - kind.bias), values)
    values = np.where(magnitude > kind.largest, np.nan, values)
    if kind.has_infinity:
        values = np.where(magnitude == kind.largest + 1, np.inf, values)
    return np.where(codes != magnitude, -values, values).astype(np.float32)


def small_to_f32(bits: Array, name: str) -> Array:
    """Convert codes of a small float format to f32 exactly."""
    values: Array = _small_float_values(name)[bits]
    return values


def small_from_f32(values: Array, name: str, rounding: str = "rn") -> Array:
    """Round f32 to codes of a small float by "rn", "rz" or else away from zero, saturated to the largest
    (`.satfinite`).

    NaN becomes NaN where the format has one, and the largest number elsewhere.
    """
    kind = SMALL_FLOATS[name]
    positive = _small_float_values(name)[: kind.largest + 1].astype(np.float64)
    magnitude = np.clip(np.abs(values.astype(np.float64)), positive[0], positive[-1])
    upper = np.clip(np.searchsorted(positive, magnitude), 1, kind.largest)
    below, above = magnitude - positive[upper - 1], positive[upper] - magnitude
    if rounding == "rn":
        takes_lower = (below < above) | ((below == above) & (upper % 2 == 1))
    else:
        takes_lower = (above > 0) if rounding == "rz" else (below == 0)
    code = np.where(takes_lower, upper - 1, upper)
    all_ones = (1 << (kind.exponent_bits + kind.mantissa_bits)) - 1
    code = np.where(np.isnan(values), all_ones, code)
    sign = np.signbit(values) & ~np.isnan(values) if kind.is_signed else np.zeros(values.shape, np.bool_)
    return (code | np.where(sign, 1 << (kind.bits - 1), 0)).astype(np.uint8)


def _build_code_decoder(name: str) -> Callable[[Array], Array]:
    """Return a function that decodes small floats from the low bits of bytes to f32."""
    mask = np.uint8((1 << SMALL_FLOATS[name].bits) - 1)
    return lambda bits: small_to_f32(bits & mask, name)


FORMAT_DECODERS: dict[str, Callable[[Array], Array]] = {
    "f16": lambda bits: bits.view(np.float16).astype(np.float32),
    "bf16": bf16_to_f32,
    "tf32": tf32_to_f32,
    "f32": lambda bits: bits.view(np.float32),
    "s8": lambda bits: bits.view(np.int8).astype(np.float64),
    "u8": lambda bits: bits.view(np.uint8).astype(np.float64),
    **{name: _build_code_decoder(name) for name in SMALL_FLOATS},
}
"""Decoders of matrix operands and scales by element type: one code of fewer than 8 bits per byte. Integers become
float64, in which products and sums are exact."""


REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, new: np.where(old >= new, old - old, old + np.ones_like(old)),
    "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - np.ones_like(old)),
}
"""Functions of the old value and an operand, by the names of `red` and of bulk reductions."""
INTEGER_ROUNDINGS = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def flush_subnormals(values: Array) -> Array:
    """Return numbers with subnormal ones replaced by zeros of the same sign (`.ftz`)."""
    return np.where(np.abs(values) < np.finfo(values.dtype).tiny, np.copysign(values.dtype.type(0), values), values)


def narrow_float(values: Array, dtype: np.dtype[Any], rounding: str) -> Array:
    """Round wide floats to a narrower float type: to nearest, or as "rz", "rm" or "rp" says."""
    nearest = values.astype(dtype)
    if rounding == "rn":
        return nearest
    wide = nearest.astype(values.dtype)
    if rounding == "rz":
        return np.where(np.abs(wide) > np.abs(values), np.nextafter(nearest, dtype.type(0)), nearest)
    if rounding == "rm":
        return np.where(wide > values, np.nextafter(nearest, dtype.type(-np.inf)), nearest)
    return np.where(wide < values, np.nextafter(nearest, dtype.type(np.inf)), nearest)


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """Compute `a·b+c` in f64 with one rounding, element by element by exact fractions. Numpy has nothing wider than
    float64 on every platform."""
    result = a * b + c
    flat = result.reshape(-1)
    rows = zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), c.reshape(-1).tolist(), strict=True)
    for index, (x, y, z) in enumerate(rows):
        if np.isfinite(x) and np.isfinite(y) and np.isfinite(z):
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            if exact:
                try:
                    flat[index] = float(exact)
                except OverflowError:
                    flat[index] = np.inf if exact > 0 else -np.inf
    return result


def convert_to_integer(values: Array, dtype: np.dtype[Any], rounding: str) -> Array:
    """Round floats to integers by "rni", "rzi", "rmi" or "rpi", clamped to the type's range as by `cvt`.

    NaN becomes zero, or the sign bit alone where either side is 64 bits wide.
    """
    wide = values.astype(np.float64)
    rounded = INTEGER_ROUNDINGS[rounding](wide)
    limits = np.iinfo(dtype)
    with np.errstate(invalid="ignore"):
        inside = np.where((rounded > float(limits.min)) & (rounded < float(limits.max)), rounded, 0).astype(dtype)
    result = np.where(rounded >= float(limits.max), limits.max, inside)
    result = np.where(rounded <= float(limits.min), limits.min, result)
    of_nan = 0 if values.dtype.itemsize < 8 and dtype.itemsize < 8 else 1 << (8 * dtype.itemsize - 1)
    return np.where(np.isnan(wide), np.array(of_nan, np.uint64).astype(dtype), result.astype(dtype))


def clamp_integer(values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert integers to another integer type, clamped to its range (`.sat`)."""
    limits = np.iinfo(dtype)
    source = np.iinfo(values.dtype)
    low, high = max(limits.min, source.min), min(limits.max, source.max)
    return np.clip(values, low, high).astype(dtype)


def divide_truncating(a: Array, b: Array) -> tuple[Array, Array]:
    """Return quotient and remainder of integers, rounded towards zero; a zero divisor gives all ones and the
    dividend."""
    zero = b == 0
    divisor = np.where(zero, np.array(1, b.dtype), b)
    quotient = a // divisor
    remainder = a - quotient * divisor
    if a.dtype.kind == "i":
        adjust = (remainder != 0) & ((a < 0) != (divisor < 0))
        quotient = quotient + adjust.astype(a.dtype)
        remainder = np.where(adjust, remainder - divisor, remainder)
    ones = np.array(-1).astype(a.dtype)
    return np.where(zero, ones, quotient), np.where(zero, a, remainder)


def multiply_high(a: Array, b: Array) -> Array:
    """Return the upper half of the double-width product of integers, 64-bit ones by halves."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
        narrow_high: Array = ((a.astype(wide) * b.astype(wide)) >> np.array(bits, wide)).astype(a.dtype)
        return narrow_high
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    low_x, high_x, low_y, high_y = x & mask, x >> half, y & mask, y >> half
    carry = ((low_x * low_y) >> half) + ((high_x * low_y) & mask) + ((low_x * high_y) & mask)
    high = high_x * high_y + ((high_x * low_y) >> half) + ((low_x * high_y) >> half) + (carry >> half)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    wide_high: Array = high.astype(a.dtype)
    return wide_high
