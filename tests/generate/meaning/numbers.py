"""Element types: which numbers each has, how it rounds, and how its tensors lie in numpy arrays.

Values of floats are float64 here, whatever their type; those of integers have the numpy type of their width, where two
elements share a byte that of a byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Format:
    """`digits` are the significant bits of a float; `codes` the value of every bit pattern of a small one."""

    name: str
    bits: int
    kind: str
    digits: int = 0
    codes: Array | None = field(default=None, compare=False, repr=False)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def type(self) -> np.dtype[Any]:
        """Of values while they are computed with."""
        if self.is_float:
            return np.dtype(np.float64)
        return np.dtype(np.bool_) if self.kind == "bool" else np.dtype(f"{self.kind}{max(self.bits, 8)}")

    @property
    def storage(self) -> np.dtype[Any]:
        if self.is_float and (self.codes is not None or self.name == "bfloat16"):
            return np.dtype(f"uint{max(self.bits, 8)}")
        if self.bits == 4:
            return np.dtype(np.uint8)
        return np.dtype(self.name)

    @property
    def per_byte(self) -> int:
        return 2 if self.bits == 4 else 1

    @property
    def range(self) -> tuple[int, int]:
        """Of an integer."""
        if self.kind == "bool":
            return 0, 1
        return (0, (1 << self.bits) - 1) if self.kind == "uint" else (-(1 << self.bits - 1), (1 << self.bits - 1) - 1)

    @property
    def largest(self) -> float:
        """Of a float, the largest finite number."""
        if self.codes is not None:
            return float(self.codes[np.isfinite(self.codes)].max())
        return {"bfloat16": 255 * 2.0**120, "float16": 65504.0}.get(self.name) or float(np.finfo(self.name).max)

    @property
    def smallest(self) -> float:
        """Of a float, the smallest above 0."""
        if self.codes is not None:
            return float(self.codes[self.codes > 0].min())
        return {"float64": 5e-324, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}[self.name]


def _small(exponent: int, fraction: int, last: str) -> Array:
    """The values of all codes; `last` says what the largest exponent means: all numbers, one NaN, or as IEEE has it."""
    codes = np.arange(1 << 1 + exponent + fraction)
    power, part = codes >> fraction & (1 << exponent) - 1, codes & (1 << fraction) - 1
    lowest = 2 - (1 << exponent - 1)
    values = np.where(power > 0, 1.0, 0.0) + part / (1 << fraction)
    values = values * np.exp2(np.maximum(power, 1) - 1.0 + lowest)
    if last == "one":
        values[codes & (codes.size // 2 - 1) == codes.size // 2 - 1] = np.nan
    elif last == "ieee":
        values[power == power.max()] = np.where(part[power == power.max()] == 0, np.inf, np.nan)
    return np.where(codes >= codes.size // 2, -values, values)


FORMATS = {
    f.name: f
    for f in (
        Format("float64", 64, "float", 53),
        Format("float32", 32, "float", 24),
        Format("float16", 16, "float", 11),
        Format("bfloat16", 16, "float", 8),
        Format("float8_e4m3fn", 8, "float", 4, _small(4, 3, "one")),
        Format("float8_e5m2", 8, "float", 3, _small(5, 2, "ieee")),
        Format("float8_e8m0fnu", 8, "float", 1, np.append(np.exp2(np.arange(255.0) - 127), np.nan)),
        Format("float4_e2m1fn", 4, "float", 2, _small(2, 1, "all")),
        *(Format(f"{kind}{bits}", bits, kind) for kind in ("int", "uint") for bits in (4, 8, 16, 32, 64)),
        Format("bool", 1, "bool"),
    )
}
ALSO = {
    "float": "float32", "half": "float16", "double": "float64", "float8_e4m3": "float8_e4m3fn", "tf32": "float32",
    "tfloat32": "float32", "float4_e2m1": "float4_e2m1fn", "float8_e8m0": "float8_e8m0fnu", "int": "int32",
    "short": "int16", "long": "int64", "uint": "uint32",
}  # fmt: skip
"""Other names of the same types."""

FORMATS |= {name: FORMATS[of] for name, of in ALSO.items()}
BOOL, INT32, FLOAT32 = FORMATS["bool"], FORMATS["int32"], FORMATS["float32"]


def rounded(values: Array, to: Format) -> Array:
    """The nearest numbers of a float type, ties to even; beyond its largest that or infinity, as the type has it."""
    values = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        if to.name == "bfloat16":
            bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
            upper = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
            cut = upper.astype(np.uint32).view(np.float32).astype(np.float64).reshape(values.shape)
            return np.where(np.isnan(values), np.nan, cut)
        if to.codes is None:
            return values.astype(to.name).astype(np.float64)
    return to.codes[_code(values, to)]


def _code(values: Array, to: Format) -> Array:
    assert to.codes is not None
    if to.name == "float8_e8m0fnu":
        size = np.abs(np.where(np.isnan(values), 1.0, values))
        power = np.ceil(np.log2(np.maximum(size, 2.0**-127)))
        return np.where(np.isnan(values), 255, np.clip(power, -127, 127) + 127).astype(np.int64)
    half = to.codes.size // 2
    numbers = to.codes[:half][np.isfinite(to.codes[:half])]
    is_nan = np.isnan(values)
    size = np.minimum(np.abs(np.where(is_nan, 0.0, values)), numbers[-1])
    upper = np.clip(np.searchsorted(numbers, size), 1, numbers.size - 1)
    to_upper, to_lower = numbers[upper] - size, size - numbers[upper - 1]
    code = np.where((to_lower < to_upper) | ((to_lower == to_upper) & (upper % 2 == 1)), upper - 1, upper)
    nan = half - 1
    if to.bits == 4:
        return np.where(is_nan, nan, code + half * (np.signbit(values) & ~is_nan))
    return np.where(is_nan, nan, code + half * np.signbit(values))


def wrapped(values: Array, to: Format) -> Array:
    """Integers modulo the range of an integer type; of a bool, whether they are not 0."""
    values = np.asarray(values)
    if to.kind == "bool":
        return values != 0
    with np.errstate(all="ignore"):
        if to.bits == 4:
            low = values.astype(np.int64) & 15
            return np.where(low > to.range[1], low - 16, low).astype(to.type)
        return values.astype(np.uint64 if values.dtype == np.uint64 else np.int64).astype(to.type)


def stored(values: Array, of: Format) -> Array:
    """As tensors lie in numpy arrays."""
    if of.is_float and of.codes is not None:
        codes = _code(np.asarray(values, np.float64), of).astype(np.uint8)
    elif of.name == "bfloat16":
        return (rounded(values, of).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif of.bits == 4:
        codes = (values.astype(np.int64) & 15).astype(np.uint8)
    else:
        with np.errstate(all="ignore"):
            return values.astype(of.storage)
    if of.bits == 4:
        pairs = codes.reshape(*codes.shape[:-1], -1, 2)
        return pairs[..., 0] | pairs[..., 1] << 4
    return codes


def values_of(array: Array, of: Format) -> Array:
    """What `stored` has stored."""
    if of.bits == 4:
        array = np.stack((array & 15, array >> 4), axis=-1).reshape(*array.shape[:-1], 2 * array.shape[-1])
    if of.codes is not None:
        return of.codes[array.astype(np.int64)]
    if of.name == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return wrapped(array, of) if of.bits == 4 else array.astype(of.type)
