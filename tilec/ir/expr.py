"""Builds typed scalar expressions: constants that fit their type, casts, and the common type of two operands."""

from __future__ import annotations

import math
import struct

from tilec.ir import tile, types
from tilec.ir.types import BOOL, INT32, DType
from tilec.support.records import dataclass
from tilec.support.sizes import OPERATIONS, Size


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """A format of 8 bits: bits of fraction, the exponent of the smallest normal number, the largest number. Larger
    values become the largest, as hardware conversions with .satfinite do."""

    fraction: int
    lowest: int
    largest: float
    has_infinity: bool


SMALL_FLOATS = {
    types.FLOAT8_E4M3: SmallFloat(3, -6, 448.0, False),
    types.FLOAT8_E5M2: SmallFloat(2, -14, 57344.0, True),
}
"""OCP 8-bit floating point specification (OFP8), table 1."""


def _round_small(value: float, form: SmallFloat) -> float:
    """Return the nearest number of a small float format, ties to even, at most the largest one; NaN and 0 as they
    are."""
    if math.isnan(value) or value == 0:
        return value
    if math.isinf(value):
        return math.copysign(form.largest, value)
    step = 2.0 ** (max(math.frexp(value)[1] - 1, form.lowest) - form.fraction)
    return math.copysign(min(round(abs(value) / step) * step, form.largest), value)


E2M1 = SmallFloat(1, 0, 6.0, False)
"""OCP microscaling formats 1.0, section 5.3.3: four bits, without NaN, which becomes the largest number."""


def _round_up_to_power_of_two(value: float) -> float:
    """Return |value| rounded up to a power of two between 2**-127 and 2**127, as float8_e8m0fnu holds it; a NaN as it
    is."""
    if math.isnan(value):
        return value
    fraction, exponent = math.frexp(min(abs(value), 2.0**127))
    return 2.0 ** max(exponent - (fraction == 0.5), -127)


def round_to(value: float, dtype: DType) -> float:
    """Return the nearest value that a float type holds, ties to even; beyond its range an infinity, or a small float's
    largest. float8_e8m0fnu, a type for scales, is rounded up to a power of two."""
    if dtype in SMALL_FLOATS:
        return _round_small(value, SMALL_FLOATS[dtype])
    if dtype == types.FLOAT4_E2M1:
        return E2M1.largest if math.isnan(value) else _round_small(value, E2M1)
    if dtype == types.FLOAT8_E8M0:
        return _round_up_to_power_of_two(value) if value else 2.0**-127
    if math.isinf(value) or math.isnan(value):
        return value
    if dtype == types.BFLOAT16:
        # Rounding twice would go wrong in a tie: keep what float32 drops as a sticky lowest bit.
        single = round_to(value, types.FLOAT32)
        if math.isinf(single):
            return single
        bits: int = struct.unpack("<I", struct.pack("<f", single))[0]
        if single != value and bits & 0xFFFF == 0x8000:
            bits += 1 if abs(value) > abs(single) else -1
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        result: float = struct.unpack("<f", struct.pack("<I", bits))[0]
        return result
    code = {types.FLOAT16: "<e", types.FLOAT32: "<f"}.get(dtype)
    if code is None:
        return value
    try:
        rounded: float = struct.unpack(code, struct.pack(code, value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def integer_range(dtype: DType) -> tuple[int, int]:
    """Return the smallest and largest value of an integer type."""
    if dtype.kind == "int":
        return -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
    return 0, (1 << dtype.bits) - 1


def wrap_integer(value: int, dtype: DType) -> int:
    """Return an integer wrapped around into the range of `dtype`."""
    low, high = integer_range(dtype)
    return (value - low) % (high - low + 1) + low


def _to_float(value: int | float | bool) -> float:
    """Return the value as a float; an infinity of its sign where the integer is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def make_constant(value: int | float | bool, dtype: DType) -> tile.Const:
    """Return a constant of `dtype` with the value that a cast gives: rounded, saturated from float to integer, else
    wrapped. Floats become integers toward zero, as in hardware, and a NaN becomes 0."""
    if dtype == BOOL:
        return tile.Const(bool(value), BOOL)
    if dtype.is_float:
        return tile.Const(round_to(_to_float(value), dtype), dtype)
    if not isinstance(value, float):
        return tile.Const(wrap_integer(value, dtype), dtype)
    low, high = integer_range(dtype)
    if math.isnan(value):
        return tile.Const(0, dtype)
    return tile.Const(high if value >= high else low if value <= low else int(value), dtype)


def cast_expr(expr: tile.Expr, dtype: DType) -> tile.Expr:
    """Return `expr` cast to `dtype`: itself where it has that type, a converted constant for a constant."""
    if expr.dtype == dtype:
        return expr
    if isinstance(expr, tile.Const):
        return make_constant(expr.value, dtype)
    return tile.Cast(expr, dtype)


def common_type(a: DType, b: DType) -> DType | None:
    """Return the type that `a op b` is computed in: the float, wider or unsigned one; None for unlike floats of equal
    size. Two bools are computed as int32.
    """
    if a == b:
        return INT32 if a == BOOL else a
    if a == BOOL or b == BOOL:
        return b if a == BOOL else a
    if a.is_float and b.is_float:
        if a.bits == b.bits:
            return None
        return a if a.bits > b.bits else b
    if a.is_float or b.is_float:
        return a if a.is_float else b
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    return a if a.kind == "uint" else b


def extent_to_size(extent: tile.Extent) -> Size | None:
    """Return an extent as a size that a host computes at launch; None if it loads elements or has other operations or
    floats."""
    match extent:
        case int():
            return extent
        case tile.Const(value=value) if not extent.dtype.is_float:
            return int(value)
        case tile.Var(name=name) if not extent.dtype.is_float:
            return name
        case tile.Cast(a=a) if not a.dtype.is_float:
            return extent_to_size(a)
        case tile.Binary(op=op, a=a, b=b) if op in OPERATIONS and not extent.dtype.is_float:
            left, right = extent_to_size(a), extent_to_size(b)
            return None if left is None or right is None else (op, left, right)
        case _:
            return None
