"""Matrices of a warp between registers and shared memory: ldmatrix, stmatrix and movmatrix.

Fragments are numpy reshapes: a lane of a warp is (g, t) = (lane / 4, lane % 4), and each layout of the manual is one
permutation of these axes with the register number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.decode import Form, semantics
from tilec.emu.numbers import Array
from tilec.ptx.module import Operand, Vector

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Threads

ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}


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


@semantics("movmatrix.sync")
def _movmatrix(form: Form) -> None:
    form.step.gather = 32
    target, source = form.write(form.operands[0], "b32"), form.read(form.operands[1], "b32")

    def run(cta: Cta, threads: Threads) -> None:
        data = np.ascontiguousarray(cta.views[source][threads]).view(np.uint16).reshape(-1, 8, 8)
        cta.views[target][threads] = np.ascontiguousarray(data.transpose(0, 2, 1)).view(np.uint32).reshape(-1)

    form.step.run = run
