"""Addition in the tensor cores of an H200, bit for bit.

A product of matrices is added one instruction's depth (k) at a time. All k products of an element and the previous sum
are aligned to the largest exponent among them, where a product's exponent is the sum of its factors'. Each is truncated
a fixed number of bits below that exponent, and their exact sum is truncated to the bits that the result keeps. Measured
on an H200 with random inputs of several ranges: see `tests/emu/test_silicon_sums.py`, whose records of the GPU this
reproduces in every bit. For wgmma of any type, and mma.sync of 16 bits and tf32.
"""

from __future__ import annotations

import numpy as np

from tilec.emu.numbers import Array
from tilec.support.records import dataclass

_ZERO_EXPONENT = -(1 << 14)
"""The exponent of 0: below all others."""


@dataclass(frozen=True, slots=True)
class Adder:
    """Bits that an addend keeps below the largest one's leading bit, and that the sum keeps below its own."""

    aligned: int
    kept: int


EIGHT_BITS = Adder(13, 13)
SIXTEEN_BITS = Adder(25, 23)
"""The adder of tf32 too."""


def add_product(total: Array, a: Array, b: Array, adder: Adder) -> Array:
    """Add the product of `a` [m, k] and `b` [n, k] to `total` [m, n], all finite numbers; as float64.

    Where one is not finite, the sum is the exact one's.
    """
    a, b, total = (np.asarray(x, np.float64) for x in (a, b, total))
    with np.errstate(all="ignore"):
        products = a[:, None, :] * b[None, :, :]
        exponents = np.where(
            products == 0, _ZERO_EXPONENT, _leading_exponent(a)[:, None, :] + _leading_exponent(b)[None, :, :]
        )
        largest = np.maximum(exponents.max(axis=-1), _leading_exponent(total))
        step = adder.aligned - np.where(largest == _ZERO_EXPONENT, 0, largest)
        whole = np.trunc(np.ldexp(products, step[..., None])).sum(axis=-1) + np.trunc(np.ldexp(total, step))
        exact = np.ldexp(whole, -step)
        step = adder.kept - np.where(exact == 0, 0, _leading_exponent(exact))
        cut = np.ldexp(np.trunc(np.ldexp(exact, step)), -step)
        return np.where(np.isfinite(cut), cut, a @ b.T + total)


def _leading_exponent(values: Array) -> Array:
    """Return the exponent of the leading bit."""
    return np.where(values == 0, _ZERO_EXPONENT, np.frexp(values)[1] - 1)
