"""Matrix instructions of a warp: ldmatrix, stmatrix and mma.sync.

Fragments are numpy reshapes: a lane of a warp is (g, t) = (lane / 4, lane % 4), and each layout of the manual is one
permutation of these axes with the register number. Below, w counts warps and e the elements of one register.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emu.decode import Form, semantics
from tilec.emu.numbers import DECODE, Array
from tilec.ptx.module import Operand, Vector

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Threads

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_BYTES: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}


def registers(form: Form, operand: Operand, count: int) -> tuple[Operand, ...]:
    """The registers of a fragment."""
    items: tuple[Operand, ...] = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != count:
        raise form.unsupported(f"a fragment of {len(items)} registers instead of {count}")
    return items


# -- ldmatrix and stmatrix ---------------------------------------------------------------------------------------------


def _matrix_count(form: Form) -> int:
    if not form.has("m8n8") or "b16" not in form.modifiers:
        raise form.unsupported("a matrix other than 8x8 of b16")
    form.step.gather = 32
    return int(form.first("x1", "x2", "x4", default="x1")[1])


def _rows(values: Array, count: int) -> Array:
    """Of the row addresses, or of the threads, those of `count` matrices per warp: lanes 8j to 8j+7 are matrix j's."""
    warps: Array = values.reshape(-1, 32)[:, : 8 * count].reshape(-1)
    return warps


@semantics("ldmatrix.sync")
def _ldmatrix(form: Form) -> None:
    count = _matrix_count(form)
    is_transposed = form.has("trans")
    pointer = form.address(form.operands[1])
    targets = [form.write(item, "b32") for item in registers(form, form.operands[0], count)]

    def run(cta: Cta, threads: Threads) -> None:
        rows, actors = _rows(pointer(cta, threads), count), _rows(cta.actors[threads], count)
        # [warp, matrix, row, column]
        data = cta.shared.load(rows, 16, actors, is_collective=True).view(np.uint16).reshape(-1, count, 8, 8)
        if is_transposed:
            data = np.ascontiguousarray(data.transpose(0, 1, 3, 2))
        # Lane l holds columns 2(l%4) and the next of row l/4.
        lanes = data.view(np.uint32).reshape(-1, count, 32)
        views = cta.views
        for position, target in enumerate(targets):
            views[target][threads] = lanes[:, position].reshape(-1)

    form.step.run = run


@semantics("stmatrix.sync")
def _stmatrix(form: Form) -> None:
    count = _matrix_count(form)
    is_transposed = form.has("trans")
    pointer = form.address(form.operands[0])
    sources = [form.read(item, "b32") for item in registers(form, form.operands[1], count)]

    def run(cta: Cta, threads: Threads) -> None:
        rows, actors = _rows(pointer(cta, threads), count), _rows(cta.actors[threads], count)
        lanes = np.stack([cta.views[source][threads].reshape(-1, 32) for source in sources], axis=1)
        data = lanes.view(np.uint16).reshape(-1, count, 8, 8)
        if is_transposed:
            data = data.transpose(0, 1, 3, 2)
        cta.shared.store(rows, 16, np.ascontiguousarray(data).view(np.uint64).reshape(-1, 2), actors)

    form.step.run = run


# -- mma.sync ----------------------------------------------------------------------------------------------------------


@semantics("mma.sync")
def _mma(form: Form) -> None:
    shape = re.fullmatch(r"m16n8k(\d+)", form.first(*(part for part in form.modifiers if part.startswith("m16n8"))))
    kinds = [part for part in form.modifiers if part in ELEMENT_BYTES or part in ("f32", "s32")]
    if shape is None or len(kinds) != 4 or not form.has("row") or not form.has("col"):
        raise form.unsupported("this shape or type")
    result_kind, a_kind, b_kind, c_kind = kinds
    if a_kind not in ELEMENT_BYTES or result_kind != c_kind or result_kind not in ("f32", "f16", "s32"):
        raise form.unsupported("this mixture of types")
    if ELEMENT_BYTES[a_kind] != ELEMENT_BYTES[b_kind]:
        raise form.unsupported("operands of different widths")
    form.step.gather = 32
    k = int(shape[1])
    per_register = 4 // ELEMENT_BYTES[a_kind]
    columns = k // (4 * per_register)
    if columns not in (1, 2) or columns * 4 * per_register != k:
        raise form.unsupported(f"k = {k} of {a_kind}")
    accumulators = 2 if result_kind == "f16" else 4
    view = {"f32": "f32", "s32": "s32", "f16": "b32"}[result_kind]
    targets = [form.write(item, view) for item in registers(form, form.operands[0], accumulators)]
    a_slots = [form.read(item, "b32") for item in registers(form, form.operands[1], 2 * columns)]
    b_slots = [form.read(item, "b32") for item in registers(form, form.operands[2], columns)]
    c_slots = [form.read(item, view) for item in registers(form, form.operands[3], accumulators)]
    saturates = form.has("satfinite")
    a_word, b_word = _BYTES[ELEMENT_BYTES[a_kind]], _BYTES[ELEMENT_BYTES[b_kind]]
    decode_a, decode_b = DECODE[a_kind], DECODE[b_kind]

    def run(cta: Cta, threads: Threads) -> None:
        views = cta.views
        a_bits = np.array([views[slot][threads] for slot in a_slots]).view(a_word)
        b_bits = np.array([views[slot][threads] for slot in b_slots]).view(b_word)
        # a: registers (column half, row half), lanes (w, g, t), e  →  [w, row, k]
        a = decode_a(a_bits).reshape(columns, 2, -1, 8, 4, per_register).transpose(2, 1, 3, 0, 4, 5).reshape(-1, 16, k)
        # b: registers k half, lanes (w, n, t), e  →  [w, k, n]
        b = decode_b(b_bits).reshape(columns, -1, 8, 4, per_register).transpose(1, 0, 3, 4, 2).reshape(-1, k, 8)
        product = np.matmul(a, b)
        # [w, (row half, g), (t, e)]  →  registers (row half, e), lanes (w, g, t)
        lanes = product.reshape(-1, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3)
        if result_kind == "f16":
            packed = np.array([views[slot][threads] for slot in c_slots]).view(np.float16).reshape(2, -1, 8, 4, 2)
            total = (lanes.transpose(0, 2, 3, 4, 1) + packed).astype(np.float16)
            values = np.ascontiguousarray(total).view(np.uint32).reshape(2, -1)
        else:
            flat = lanes.reshape(4, -1)
            values = flat + np.array([views[slot][threads] for slot in c_slots])
            if result_kind == "s32":
                values = _to_s32(values, saturates)
        for target, value in zip(targets, values, strict=True):
            views[target][threads] = value

    form.step.run = run


def _to_s32(values: Array, saturates: bool) -> Array:
    exact = values.astype(np.int64)
    if saturates:
        return np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)
    return exact.astype(np.int32)
