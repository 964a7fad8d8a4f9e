"""Elements of tensors as numpy has them: as stored, and as values to compute with.

bfloat16 and the 8-bit floats, which numpy lacks, are stored as their bits and are float32 in between.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.expr import SMALL_FLOATS, SmallFloat
from tilec.ir.types import BFLOAT16, DType

Array = NDArray[Any]


def is_raw(dtype: DType) -> bool:
    """Whether numpy stores the elements as bits."""
    return dtype == BFLOAT16 or dtype in SMALL_FLOATS


def storage_type(dtype: DType) -> np.dtype[Any]:
    """The numpy type that a tensor's bytes travel as."""
    return np.dtype(f"uint{dtype.bits}" if is_raw(dtype) else dtype.name)


def numpy_type(dtype: DType) -> np.dtype[Any]:
    """The numpy type that values of `dtype` have while they are computed with."""
    return np.dtype("float32" if is_raw(dtype) else dtype.name)


def values_of(stored: Array, dtype: DType) -> Array:
    """Stored elements as numbers that numpy can compute with."""
    if dtype == BFLOAT16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    if dtype in SMALL_FLOATS:
        values: Array = _decoded(SMALL_FLOATS[dtype])[stored]
        return values
    return stored


def stored(values: Array, dtype: DType) -> Array:
    """Numbers as stored, rounded to nearest, ties to even; beyond its range, bfloat16 is infinite and an 8-bit float
    its largest number."""
    if dtype == BFLOAT16:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16).reshape(np.shape(values))
    if dtype in SMALL_FLOATS:
        return _encoded(np.asarray(values, np.float64), SMALL_FLOATS[dtype])
    return values.astype(storage_type(dtype))


def largest(dtype: DType) -> float:
    """The largest finite number of a float type."""
    if dtype in SMALL_FLOATS:
        return SMALL_FLOATS[dtype].largest
    return float(values_of(np.array(0x7F7F), dtype) if dtype == BFLOAT16 else np.finfo(dtype.name).max)


@cache
def _decoded(form: SmallFloat) -> Array:
    """The value of every bit pattern."""
    bits = np.arange(256)
    field, fraction = bits >> form.fraction & (1 << 7 - form.fraction) - 1, bits & (1 << form.fraction) - 1
    scale = np.exp2(np.maximum(field, 1) - 1.0 + form.lowest)
    values = scale * (fraction / (1 << form.fraction) + (field > 0))
    values[values > form.largest] = np.nan
    if form.has_infinity:
        values[(field == field.max()) & (fraction == 0)] = np.inf
    signed: Array = np.where(bits & 0x80, -values, values).astype(np.float32)
    return signed


def _encoded(values: Array, form: SmallFloat) -> Array:
    magnitude = np.minimum(np.abs(values), form.largest)
    exponent = np.maximum(np.where(magnitude > 0, np.frexp(magnitude)[1] - 1, form.lowest), form.lowest)
    # In steps of the last bit; a carry moves on into the exponent field by itself.
    steps = np.rint(np.where(np.isnan(magnitude), 0.0, magnitude) / np.exp2(exponent - form.fraction)).astype(np.int64)
    bits = np.minimum(steps + (exponent - form.lowest << form.fraction), _last(form))
    return np.where(np.isnan(values), 0x7F, bits | np.signbit(values) * 0x80).astype(np.uint8)


def _last(form: SmallFloat) -> int:
    """The bits of the largest number."""
    return int(np.flatnonzero(_decoded(form) == np.float32(form.largest))[0])
