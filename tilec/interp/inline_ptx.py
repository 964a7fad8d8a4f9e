"""Computes inline PTX of a kernel with the emulator, one thread for each element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.elements import bits_to_values, values_to_bits
from tilec.ir.ptx_values import REGISTERS, build_snippet_kernel
from tilec.ir.types import DType

Array = NDArray[Any]

_BLOCK = 128


def evaluate_ptx(text: str, values: Sequence[Array], types: Sequence[DType], dtype: DType) -> Array:
    """Run inline PTX in the emulator for each element of the broadcast values, and return the results in `dtype`."""
    from tilec.emu.launcher import launch

    shape = np.broadcast_shapes(*(v.shape for v in values))
    count = int(np.prod(shape))
    blocks = -(-count // _BLOCK)
    given = [_pad_bits(np.broadcast_to(v, shape), t, blocks * _BLOCK) for v, t in zip(values, types, strict=True)]
    result = np.zeros(blocks * _BLOCK, _get_word_type(dtype))
    if count:
        launch(build_snippet_kernel(text, types, dtype), "snippet", blocks, _BLOCK, [result, *given])
    found = result[:count].reshape(shape)
    return found != 0 if dtype.kind == "bool" else bits_to_values(found, dtype)


def _get_word_type(dtype: DType) -> np.dtype[Any]:
    """Return the unsigned type as wide as the register that holds a type."""
    return np.dtype(f"u{REGISTERS[dtype.name].bytes}")


def _pad_bits(value: Array, dtype: DType, count: int) -> Array:
    """Return the bits of an array's elements as register words, with zeros behind them up to `count`."""
    made = np.zeros(count, _get_word_type(dtype))
    bits = value if dtype.kind == "bool" else values_to_bits(np.ascontiguousarray(value), dtype)
    made[: value.size] = bits.reshape(-1).view(made.dtype) if dtype.kind != "bool" else bits.reshape(-1)
    return made
