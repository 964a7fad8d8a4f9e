"""Arithmetic with a single rounding, in every direction.

The tool is rounding to odd: an inexact result with its last bit set keeps, for any later rounding to fewer bits, the
side of the true value on which it lies. Where float64 does not suffice for that, results are computed in exact
fractions.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tilec.emu.numbers import Array, f32_to_bf16, fma_f64, narrow_float

_UINT: dict[int, Any] = {4: np.uint32, 8: np.uint64}


def _make_odd(values: Array, error: Array) -> Array:
    """Return inexact floats moved to the neighbour with an odd last bit; `error` is the sign of true value minus
    rounded."""
    word = _UINT[values.dtype.itemsize]
    odd = (np.ascontiguousarray(values).view(word) & word(1)) == 1
    moved = np.nextafter(values, np.where(error > 0, np.array(np.inf, values.dtype), np.array(-np.inf, values.dtype)))
    return np.where((error != 0) & ~odd & np.isfinite(values), moved, values)


def add_to_odd(a: Array, b: Array) -> Array:
    """Compute `a + b` in float64, rounded to odd."""
    total = a + b
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)
    return _make_odd(total, np.where(np.isfinite(error), error, 0))


def round_to_odd_f32(values: Array) -> Array:
    """Round float64 to float32, to odd; a finite number never becomes infinite."""
    nearest = values.astype(np.float32)
    error = values - nearest
    odd = _make_odd(nearest, np.where(np.isfinite(error), error, 0))
    # Large values must not become infinite before the last rounding.
    largest = np.finfo(np.float32).max
    return np.where(np.isinf(nearest) & np.isfinite(values), np.copysign(largest, nearest), odd)


def round_to_bf16(values: Array, rounding: str) -> Array:
    """Round float64 to bf16 codes once, as "rn", "rz", "rm" or "rp" says; every NaN becomes the canonical one."""
    odd = round_to_odd_f32(values)
    if rounding == "rn":
        # Beyond the largest f32 the nearest bf16 is infinity, which an odd number never reaches by itself.
        infinity = np.where(values > 0, np.uint16(0x7F80), np.uint16(0xFF80))
        return np.where(np.isinf(values.astype(np.float32)) & ~np.isnan(values), infinity, f32_to_bf16(odd))
    bits = odd.view(np.uint32)
    kept, rest = bits >> np.uint32(16), (bits & np.uint32(0xFFFF)) != 0
    rounds_away = np.zeros(values.shape, np.bool_)
    if rounding != "rz":
        rounds_away = np.signbit(values) == (rounding == "rm")
    result = kept + (rest & rounds_away & np.isfinite(values)).astype(np.uint32)
    return np.where(np.isnan(values), np.uint32(0x7FFF), result).astype(np.uint16)


def fma_f32(a: Array, b: Array, c: Array, rounding: str = "rn") -> Array:
    """Compute `a·b+c` of f32 with one rounding, through float64, where the product is exact."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    if rounding == "rn":
        # The float64 sum is itself rounded. That can only show where it fell exactly between two f32, or where f32 is
        # subnormal, whose midpoints lie elsewhere.
        total: Array = product + addend
        doubtful = (total.view(np.uint64) & np.uint64(0x1FFFFFFF)) == np.uint64(0x10000000)
        doubtful |= (np.abs(total) < 2.0**-126) & (total != 0)
        if not doubtful.any():
            return total.astype(np.float32)
    return narrow_float(add_to_odd(product, addend), np.dtype(np.float32), rounding)


def compute_directed(name: str, dtype: np.dtype[Any], rounding: str, *values: Array) -> Array:
    """Compute add, sub, mul, div, fma, rcp or sqrt, rounded by rz, rm or rp, with the signs of zeros."""
    if dtype.itemsize < 8 and name in ("add", "sub", "mul", "fma"):
        wide = [value.astype(np.float64) for value in values]
        if name == "sub":
            wide[1] = -wide[1]
        total = add_to_odd(*wide) if name in ("add", "sub") else wide[0] * wide[1]
        if name == "fma":
            total = add_to_odd(total, wide[2])
        result = narrow_float(total, dtype, rounding)
    else:
        result = _compute_exactly(name, dtype, rounding, *values)
    if rounding == "rm" and name in ("add", "sub", "fma"):
        # Rounded down, an exact zero is −0, unless both terms are +0.
        nearest = _compute_nearest(name, *values)
        first = values[0] * values[1] if name == "fma" else values[0]
        last = -values[1] if name == "sub" else values[-1]
        both_positive = ~np.signbit(first) & ~np.signbit(last)
        result = np.where((nearest == 0) & (result == 0) & ~both_positive, np.copysign(dtype.type(0), -1), result)
    return result.astype(dtype)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "fma": lambda a, b, c: a * b + c,
    "rcp": lambda a: 1 / a,
    "sqrt": np.sqrt,
}
"""Operations on arrays, rounded to nearest, and except for the root on fractions, exactly."""


def _compute_nearest(name: str, *values: Array) -> Array:
    """Compute an operation by name, rounded to nearest."""
    result: Array = (fma_f64 if name == "fma" and values[0].dtype == np.float64 else _OPERATIONS[name])(*values)
    return result


def _compute_exactly(name: str, dtype: np.dtype[Any], rounding: str, *values: Array) -> Array:
    """Compute an operation rounded by rz, rm or rp: nearest results are compared with exact fractions and moved."""
    result = np.array(_compute_nearest(name, *values), dtype)
    flat = result.reshape(-1)
    rows = zip(*(value.reshape(-1).tolist() for value in values), strict=True)
    for index, row in enumerate(rows):
        if all(map(math.isfinite, row)):
            compared = _compare_exactly(name, [Fraction(number) for number in row], flat[index])
            flat[index] = _adjust_nearest(flat[index], compared, dtype, rounding)
    return result


def _compare_exactly(name: str, row: list[Fraction], nearest: Any) -> int:
    """Return the sign of an operation's exact value minus its nearest float, 0 for NaN or a division by zero."""
    if math.isnan(nearest) or (math.isinf(nearest) and name in ("div", "rcp") and row[-1] == 0):
        return 0
    if math.isinf(nearest):
        return -1 if nearest > 0 else 1
    found = Fraction(float(nearest))
    difference = row[0] - found * found if name == "sqrt" else _OPERATIONS[name](*row) - found
    return (difference > 0) - (difference < 0)


def _adjust_nearest(nearest: Any, compared: int, dtype: np.dtype[Any], rounding: str) -> Any:
    """Return the nearest number, or its neighbour where the exact value and the rounding (rz, rm, rp) demand that."""
    if compared == 0:
        return nearest
    positive = nearest > 0 or (nearest == 0 and compared > 0)
    goes_up = rounding == "rp" or (rounding == "rz" and not positive)
    if goes_up != (compared > 0):
        return nearest
    return np.nextafter(nearest, dtype.type(np.inf if goes_up else -np.inf))
