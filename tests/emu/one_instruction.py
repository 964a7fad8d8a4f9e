"""Runs single instructions over random operands and special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from ptx_source import kernel

from tilec.emu import launch
from tilec.emu.numbers import Array

THREADS = 256
LETTER = {2: "h", 4: "r", 8: "rd"}


def compute(instruction: str, result: np.dtype[Any] | type, *inputs: Array, target: str = "sm_90a") -> Array:
    """Run one instruction; `$d` is the result, `$a`, `$b`, `$c`, … the inputs, one element per thread."""
    out = np.zeros(THREADS, result)
    lines = ["mov.u32 %r60, %tid.x;"]
    for position, array in enumerate([out, *inputs]):
        size = array.dtype.itemsize
        lines.append(f"ld.param.u64 %rd{20 + position}, [p{position}];")
        lines.append(f"mad.wide.u32 %rd{20 + position}, %r60, {size}, %rd{20 + position};")
    text = instruction
    for position, array in enumerate(inputs):
        size = array.dtype.itemsize
        register = f"%{LETTER[size]}{position + 1}"
        lines.append(f"ld.global.b{8 * size} {register}, [%rd{21 + position}];")
        text = text.replace("$" + "abce"[position], register)
    destination = f"%{LETTER[out.dtype.itemsize]}0"
    lines.append(text.replace("$d", destination))
    lines.append(f"st.global.b{8 * out.dtype.itemsize} [%rd20], {destination};")
    params = ", ".join(f".param .u64 p{position}" for position in range(len(inputs) + 1))
    launch(kernel("\n".join(lines), params, target=target), "k", 1, THREADS, [out, *inputs])
    return out


def integers(dtype: type, seed: int, small: bool = False) -> Array:
    generator = np.random.default_rng(seed)
    limits = np.iinfo(dtype)
    values = generator.integers(limits.min, limits.max, THREADS, dtype, endpoint=True)
    if small:
        values = (values % 70).astype(dtype)
    specials = [0, 1, limits.max, limits.min, limits.max - 1, 2, 31, 32]
    values[:64] = generator.permutation(np.resize(np.array(specials, object).astype(dtype), 64))
    return values


def floats(dtype: type, seed: int) -> Array:
    generator = np.random.default_rng(seed)
    values = (generator.standard_normal(THREADS) * 10.0 ** generator.integers(-4, 4, THREADS)).astype(dtype)
    tiny, huge = float(np.finfo(dtype).tiny), float(np.finfo(dtype).max)
    specials = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, tiny, -tiny / 2, huge, -huge, 0.5]
    values[:96] = generator.permutation(np.resize(np.array(specials).astype(dtype), 96))
    return values


I32, U32, I64, U64, I16, U16 = np.int32, np.uint32, np.int64, np.uint64, np.int16, np.uint16
WRAPPED = {"s32": I32, "u32": U32, "s64": I64, "u64": U64, "s16": I16, "u16": U16}


def exact(function: Callable[..., int], dtype: type, *arrays: Array) -> Array:
    """Apply to Python integers and wrap to the type."""
    bits = np.dtype(dtype).itemsize * 8
    values = [function(*row) & ((1 << bits) - 1) for row in zip(*(array.tolist() for array in arrays), strict=True)]
    return np.array(values, dtype=f"u{bits // 8}").view(dtype)
