"""mma.sync: products of small matrices that a warp holds in its registers.

Fragments are numpy reshapes: a lane of a warp is (g, t) = (lane / 4, lane % 4), and each layout of the manual is one
permutation of these axes with the register number. Below, w counts warps and e the elements of one register.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emu.decode import Form, semantics
from tilec.emu.matrix import registers
from tilec.emu.numbers import DECODE, Array

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Threads

ELEMENT_BITS = {"f64": 64, "tf32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4}
ELEMENT_BITS["b1"] = 1
_WORDS: dict[int, np.dtype[Any]] = {bits: np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)}
_RESULTS = ("f32", "f16", "s32", "f64")


def unpack(bits: Array, kind: str) -> Array:
    """The elements of words, as numbers on a new last axis."""
    size = ELEMENT_BITS[kind]
    if size >= 8:
        words = np.ascontiguousarray(bits).view(_WORDS[size]).reshape(*bits.shape, -1)
        decoded: Array = words.view(np.float64) if kind == "f64" else DECODE[kind](words)
        return decoded
    shifts = np.arange(0, 32, size, dtype=np.uint32)
    shifted: Array = bits[..., None] >> shifts
    fields: Array = (shifted & np.uint32((1 << size) - 1)).astype(np.float64)
    if kind == "s4":
        fields = np.where(fields >= 8, fields - 16, fields)
    return fields


def multiply(a: Array, b: Array, kinds: tuple[str, str], bit_operation: str) -> Array:
    """The product of [.., m, k] and [.., k, n]; bits are combined by and or xor and counted."""
    both: Array = np.matmul(a, b)
    if kinds[0] != "b1" or bit_operation == "and":
        return both
    ones: Array = a.sum(axis=-1)[..., :, None] + b.sum(axis=-2)[..., None, :]
    differing: Array = ones - 2 * both
    return differing


def to_s32(values: Array, saturates: bool) -> Array:
    """Exact sums in float64 as 32-bit integers."""
    exact = values.astype(np.int64)
    if saturates:
        return np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)
    return exact.astype(np.int32)


def result_view(kind: str) -> str:
    """How the registers of C and D are seen; halves go two to a register."""
    return "b32" if kind == "f16" else kind


def _kinds(form: Form) -> tuple[str, str, str]:
    kinds = [part for part in form.modifiers if part in ELEMENT_BITS or part in _RESULTS]
    if len(kinds) != 4 or not form.has("row") or not form.has("col"):
        raise form.unsupported("this shape or type")
    result, a_kind, b_kind, c_kind = kinds
    if a_kind not in ELEMENT_BITS or b_kind not in ELEMENT_BITS or result != c_kind or result not in _RESULTS:
        raise form.unsupported("this mixture of types")
    if ELEMENT_BITS[a_kind] != ELEMENT_BITS[b_kind]:
        raise form.unsupported("operands of different widths")
    return result, a_kind, b_kind


def _shape(form: Form) -> tuple[int, int]:
    text = next((part for part in form.modifiers if re.fullmatch(r"m\d+n\d+k\d+", part)), "")
    shape = re.fullmatch(r"m(8|16)n8k(\d+)", text)
    if shape is None:
        raise form.unsupported("this shape or type")
    return int(shape[1]) // 8, int(shape[2])


@semantics("mma.sync")
def _mma(form: Form) -> None:
    result, a_kind, b_kind = _kinds(form)
    if a_kind == "f16" and form.has("m8n8k4"):
        raise form.unsupported("the layout of sm_70")
    halves, k = _shape(form)
    form.step.gather = 32
    per_register = max(32 // ELEMENT_BITS[a_kind], 1)
    columns = k // (4 * per_register)
    if columns not in (1, 2, 4) or columns * 4 * per_register != k:
        raise form.unsupported(f"k = {k} of {a_kind}")
    source = "b64" if a_kind == "f64" else "b32"
    a_slots = [form.read(item, source) for item in registers(form, form.operands[1], halves * columns)]
    b_slots = [form.read(item, source) for item in registers(form, form.operands[2], columns)]
    finish = accumulate(form, result, halves)
    operation = form.first("and", "xor", default="xor")

    def run(cta: Cta, threads: Threads) -> None:
        views = cta.views
        a_bits = np.array([views[slot][threads] for slot in a_slots])
        b_bits = np.array([views[slot][threads] for slot in b_slots])
        # a: registers (columns, row half), lanes (w, g, t), e  →  [w, row, k]
        a = unpack(a_bits, a_kind).reshape(columns, halves, -1, 8, 4, per_register)
        a = a.transpose(2, 1, 3, 0, 4, 5).reshape(-1, 8 * halves, k)
        # b: registers over k, lanes (w, n, t), e  →  [w, k, n]
        b = unpack(b_bits, b_kind).reshape(columns, -1, 8, 4, per_register).transpose(1, 0, 3, 4, 2).reshape(-1, k, 8)
        finish(cta, threads, multiply(a, b, (a_kind, b_kind), operation))

    form.step.run = run


def accumulate(form: Form, result: str, halves: int) -> Callable[[Cta, Threads, Array], None]:
    """What adds C to a product [w, row, n] and leaves it in D."""
    count = halves * (1 if result == "f16" else 2)
    view = result_view(result)
    targets = [form.write(item, view) for item in registers(form, form.operands[0], count)]
    c_slots = [form.read(item, view) for item in registers(form, form.operands[3], count)]
    saturates = form.has("satfinite")

    def finish(cta: Cta, threads: Threads, product: Array) -> None:
        views = cta.views
        # [w, (row half, g), (t, e)]  →  registers (row half, e), lanes (w, g, t)
        lanes = product.reshape(-1, halves, 8, 4, 2).transpose(1, 4, 0, 2, 3)
        addend = np.array([views[slot][threads] for slot in c_slots])
        if result == "f16":
            packed = addend.view(np.float16).reshape(halves, -1, 8, 4, 2)
            total = (lanes.transpose(0, 2, 3, 4, 1) + packed).astype(np.float16)
            values = np.ascontiguousarray(total).view(np.uint32).reshape(halves, -1)
        else:
            values = lanes.reshape(2 * halves, -1) + addend
            if result == "s32":
                values = to_s32(values, saturates)
        for target, value in zip(targets, values, strict=True):
            views[target][threads] = value

    return finish
