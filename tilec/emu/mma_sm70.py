"""`mma.m8n8k4` of f16, in the layout of sm_70: four products, each by two quads of a warp that lie 16 lanes apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.decode import Form
from tilec.emu.matrix import registers
from tilec.emu.numbers import Array

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Threads


def quad_pairs(form: Form, result: str) -> None:
    """Decode it. Lane (high, pair, low) of 2 x 4 x 4 is thread 4·high + low of product `pair`."""
    layouts = form.among("row", "col")
    if len(layouts) != 2 or result not in ("f16", "f32"):
        raise form.unsupported("this layout or type")
    a_slots, b_slots = (
        [form.read(item, "b32") for item in registers(form, operand, 2)] for operand in form.operands[1:3]
    )
    view, count = ("b32", 4) if result == "f16" else ("f32", 8)
    targets = [form.write(item, view) for item in registers(form, form.operands[0], count)]
    c_slots = [form.read(item, view) for item in registers(form, form.operands[3], count)]

    def operand(cta: Cta, threads: Threads, slots: list[int], is_own_row: bool) -> Array:
        """[w, pair, row of eight, k]: a thread holds a row, or four of them at one k."""
        words = np.stack([cta.views[slot][threads] for slot in slots], axis=1)
        halves = np.ascontiguousarray(words).view(np.float16).astype(np.float32).reshape(-1, 2, 4, 4, 4)
        if is_own_row:
            return halves.transpose(0, 2, 1, 3, 4).reshape(-1, 4, 8, 4)
        return halves.transpose(0, 2, 1, 4, 3).reshape(-1, 4, 8, 4)

    def run(cta: Cta, threads: Threads) -> None:
        a = operand(cta, threads, a_slots, layouts[0] == "row")
        b = operand(cta, threads, b_slots, layouts[1] == "col")
        product = np.matmul(a, b.transpose(0, 1, 3, 2))
        words = np.stack([cta.views[slot][threads] for slot in c_slots], axis=1)
        if result == "f16":
            # Thread i holds row i.
            lanes = product.reshape(-1, 4, 2, 4, 8).transpose(0, 2, 1, 3, 4).reshape(-1, 8)
            total = (lanes + np.ascontiguousarray(words).view(np.float16)).astype(np.float16).view(np.uint32)
        else:
            # Row bits: low bit of the thread, register bit 1, high. Column bits: register bit 0, middle bit, bit 2.
            parts = product.reshape(-1, 4, 2, 2, 2, 2, 2, 2)  # w, pair, high, r1, t0, v2, t1, v0
            lanes = parts.transpose(0, 2, 1, 6, 4, 5, 3, 7).reshape(-1, 8)
            total = (lanes + words).astype(np.float32)
        for position, target in enumerate(targets):
            cta.views[target][threads] = total[:, position]

    form.step.run = run
