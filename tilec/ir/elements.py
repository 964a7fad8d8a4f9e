"""Tensor elements in numpy: as stored, and as values to compute with.

bfloat16 and smaller floats, which numpy lacks, are stored as their bits and computed with as float32. Two neighbouring
four-bit elements of the last dimension share a byte, the first in its lowest bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.expr import SMALL_FLOATS, SmallFloat
from tilec.ir.types import BFLOAT16, BOOL, FLOAT4_E2M1, FLOAT8_E8M0, NARROW_TYPES, DType

Array = NDArray[Any]


def is_stored_as_bits(dtype: DType) -> bool:
    """Return whether numpy stores a type's elements as their bits: bfloat16, 8-bit floats, and four-bit types."""
    return dtype == BFLOAT16 or dtype in SMALL_FLOATS or dtype in NARROW_TYPES


def numpy_storage_type(dtype: DType) -> np.dtype[Any]:
    """Return the numpy type that stores a tensor's elements: unsigned bits for types that numpy lacks, else the type
    itself."""
    return np.dtype(f"uint{max(dtype.bits, 8)}" if is_stored_as_bits(dtype) else dtype.name)


def storage_shape(shape: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """Return the shape of the numpy array that stores a tensor of `shape`; four-bit types halve the last extent,
    rounded up."""
    return (*shape[:-1], -(-shape[-1] // dtype.per_byte)) if shape else shape


def element_shape(shape: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """Return the shape in elements of a numpy array that stores a tensor; four-bit types double the last extent."""
    return (*shape[:-1], shape[-1] * dtype.per_byte) if shape else shape


_POISON = {
    "float64": 0x7FFD_A5A5_A5A5_A5A5,
    "float32": 0x7FDA_5A5A,
    "float16": 0x7E5A,
    "bfloat16": 0x7FDA,
    "float8_e4m3fn": 0xFF,
    "float8_e5m2": 0xFF,
    "float8_e8m0fnu": 0xFF,
    "float4_e2m1fn": 0x7F,
}
"""By type: the bits of a NaN, where the type has one, other than the NaN that instructions and numpy produce."""


def fill_with_poison(array: Array, dtype: DType) -> None:
    """Fill an array in place with bits that no correct kernel writes: a NaN of its own, the byte 0xAB, or 1 for
    bool."""
    if dtype.name in _POISON:
        array.view(f"uint{8 * array.itemsize}").fill(_POISON[dtype.name])
    else:
        array.reshape(-1).view(np.uint8).fill(0x01 if dtype == BOOL else 0xAB)


def is_poison(array: Array, dtype: DType) -> Array:
    """Return a mask with an entry for each element: whether it has the bits that `fill_with_poison` wrote; False for
    bool.
    """
    left = _POISON.get(dtype.name, int.from_bytes(b"\xab" * array.itemsize))
    marked: Array = array.view(f"uint{8 * array.itemsize}") == left
    return np.repeat(marked, dtype.per_byte, axis=-1) if dtype.per_byte > 1 else marked


def copy_with_strides(array: Array, steps: tuple[int, ...]) -> Array:
    """Return a copy whose elements are `steps` elements apart along each dimension; its `base` is the memory, as bytes.
    Raises `ValueError` for a negative step, and where elements would overlap."""
    if any(step < 0 for step in steps):
        raise ValueError(f"has strides {list(steps)}, and negative strides are not supported")
    places: Array = np.zeros(array.shape, np.int64)
    for axis, step in enumerate(steps):
        places += (np.arange(array.shape[axis]) * step).reshape(-1, *(1 for _ in steps[axis + 1 :]))
    if len(np.unique(places)) < array.size:
        raise ValueError(f"has strides {list(steps)}: elements of shape {list(array.shape)} overlap")
    memory = np.full((int(places.max(initial=0)) + 1) * array.itemsize, 0xAB, np.uint8)
    copied: Array = np.ndarray(array.shape, array.dtype, memory.data, strides=[s * array.itemsize for s in steps])
    copied[...] = array
    return copied


def numpy_compute_type(dtype: DType) -> np.dtype[Any]:
    """Return the numpy type to compute with: float32 for floats stored as bits, 8-bit integers for four-bit ones."""
    if dtype in NARROW_TYPES and not dtype.is_float:
        return np.dtype(f"{dtype.kind}8")
    return np.dtype("float32" if is_stored_as_bits(dtype) else dtype.name)


def decode_values(stored: Array, dtype: DType) -> Array:
    """Return stored elements as numbers that numpy can compute with; four-bit elements are unpacked, two from each
    byte."""
    if dtype.per_byte == 2:
        pairs: Array = _NIBBLES[dtype.name][np.stack((stored & 15, stored >> 4), axis=-1)]
        flat: Array = pairs.reshape(*stored.shape[:-1], 2 * stored.shape[-1])
        return flat
    if dtype == FLOAT8_E8M0:
        powers: Array = np.ldexp(np.float32(1), np.minimum(stored, 254).astype(np.int32) - 127)
        return np.where(stored == 255, np.float32(np.nan), powers)
    if dtype == BFLOAT16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    if dtype in SMALL_FLOATS:
        values: Array = _decode_table(SMALL_FLOATS[dtype])[stored]
        return values
    return stored


def encode_values(values: Array, dtype: DType) -> Array:
    """Return numbers as numpy stores them in `dtype`, rounded to nearest, ties to even; two four-bit numbers share a
    byte. Beyond its range, bfloat16 is infinite and a smaller float its largest number. A scale, float8_e8m0fnu, is
    rounded up to a power of two."""
    if dtype.per_byte == 2:
        codes = _encode_nibbles(np.asarray(values), dtype)
        pairs = codes.reshape(*codes.shape[:-1], -1, 2)
        joined: Array = pairs[..., 0] | pairs[..., 1] << 4
        return joined
    if dtype == FLOAT8_E8M0:
        return _encode_exponents(np.asarray(values, np.float32))
    if dtype == BFLOAT16:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16).reshape(np.shape(values))
    if dtype in SMALL_FLOATS:
        return _encode_small_floats(np.asarray(values, np.float64), SMALL_FLOATS[dtype])
    return values.astype(numpy_storage_type(dtype))


_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
"""OCP microscaling formats 1.0, table 5: the numbers of float4_e2m1fn without a sign."""

_NIBBLES: dict[str, Array] = {
    "uint4": np.arange(16, dtype=np.uint8),
    "int4": np.array([*range(8), *range(-8, 0)], np.int8),
    "float4_e2m1fn": np.concatenate((_E2M1, -_E2M1)),
}
"""The value of each of the sixteen bit patterns."""


def _encode_nibbles(values: Array, dtype: DType) -> Array:
    """Return each number's four-bit code in the low bits of a byte: an integer modulo 16, a float rounded and saturated
    at 6."""
    if not dtype.is_float:
        return values.astype(np.int64).astype(np.uint8) & 15
    size = np.minimum(np.abs(np.nan_to_num(values, nan=6.0)), 6.0)
    # A tie goes to the number whose last bit is 0: where that is the lower one, halfway is not beyond.
    halfway = (_E2M1[1:] + _E2M1[:-1]) / 2
    beyond = np.where(np.arange(7) % 2 == 0, size[..., None] > halfway, size[..., None] >= halfway)
    negative = np.signbit(values) & ~np.isnan(values)
    codes: Array = beyond.sum(axis=-1) | np.where(negative, 8, 0)
    return codes.astype(np.uint8)


def _encode_exponents(values: Array) -> Array:
    """Return each magnitude as float8_e8m0fnu: its exponent code, rounded up to a power of two, 255 for a NaN."""
    fraction, exponent = np.frexp(np.abs(np.nan_to_num(values, nan=1.0, posinf=3e38, neginf=3e38)))
    power = np.where(fraction == 0, -127, exponent - (fraction == 0.5))
    return np.where(np.isnan(values), 255, np.clip(power, -127, 127) + 127).astype(np.uint8)


def values_to_bits(values: Array, dtype: DType) -> Array:
    """Return the bits of each number as `encode_values` stores it, but a four-bit code in a byte of its own."""
    return (
        _encode_nibbles(np.asarray(values), dtype) if dtype.per_byte == 2 else encode_values(np.asarray(values), dtype)
    )


def bits_to_values(bits: Array, dtype: DType) -> Array:
    """Return the numbers that have these bits; of a four-bit type, one code in each byte."""
    if dtype.per_byte == 2:
        return _NIBBLES[dtype.name][bits.view(np.uint8)]
    return decode_values(np.ascontiguousarray(bits).view(numpy_storage_type(dtype)).reshape(bits.shape), dtype)


def round_values(values: Array, dtype: DType) -> Array:
    """Return the nearest numbers that `dtype`, a type stored as bits, can hold, as numpy computes with them."""
    if dtype.per_byte == 2:
        return _NIBBLES[dtype.name][_encode_nibbles(np.asarray(values), dtype)]
    return decode_values(encode_values(values, dtype), dtype).reshape(np.shape(values))


def largest_finite(dtype: DType) -> float:
    """Return the largest finite number of a float type."""
    if dtype in (FLOAT4_E2M1, FLOAT8_E8M0):
        return 6.0 if dtype == FLOAT4_E2M1 else 2.0**127
    if dtype in SMALL_FLOATS:
        return SMALL_FLOATS[dtype].largest
    return float(decode_values(np.array(0x7F7F), dtype) if dtype == BFLOAT16 else np.finfo(dtype.name).max)


@cache
def _decode_table(form: SmallFloat) -> Array:
    """Return the float32 value of each of the 256 bit patterns of an 8-bit float format."""
    bits = np.arange(256)
    field, fraction = bits >> form.fraction & (1 << 7 - form.fraction) - 1, bits & (1 << form.fraction) - 1
    scale = np.exp2(np.maximum(field, 1) - 1.0 + form.lowest)
    values = scale * (fraction / (1 << form.fraction) + (field > 0))
    values[values > form.largest] = np.nan
    if form.has_infinity:
        values[(field == field.max()) & (fraction == 0)] = np.inf
    signed: Array = np.where(bits & 0x80, -values, values).astype(np.float32)
    return signed


def _encode_small_floats(values: Array, form: SmallFloat) -> Array:
    """Return each number's bits as an 8-bit float of this format, rounded to nearest and saturated; 0x7F for a NaN."""
    magnitude = np.minimum(np.abs(values), form.largest)
    exponent = np.maximum(np.where(magnitude > 0, np.frexp(magnitude)[1] - 1, form.lowest), form.lowest)
    # In steps of the last bit; a carry moves on into the exponent field by itself.
    steps = np.rint(np.where(np.isnan(magnitude), 0.0, magnitude) / np.exp2(exponent - form.fraction)).astype(np.int64)
    bits = np.minimum(steps + (exponent - form.lowest << form.fraction), _compute_bits_of_largest(form))
    return np.where(np.isnan(values), 0x7F, bits | np.signbit(values) * 0x80).astype(np.uint8)


def _compute_bits_of_largest(form: SmallFloat) -> int:
    """Return the bits of a format's largest number."""
    return int(np.flatnonzero(_decode_table(form) == np.float32(form.largest))[0])
