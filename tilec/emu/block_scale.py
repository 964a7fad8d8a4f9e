"""Block scaling of `mma.sync`: a factor for each row of A, each column of B and each block along k."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.decode import Form
from tilec.emu.numbers import FORMAT_DECODERS, Array
from tilec.ptx.module import Operand, Vector

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Threads

ScaleFunction = Callable[["Cta", "Threads", Array, Array], tuple[Array, Array]]
_LEGAL = {
    "kind::mxf8f6f4": {("1X", "ue8m0")},
    "kind::mxf4": {("2X", "ue8m0")},
    "kind::mxf4nvf4": {("2X", "ue8m0"), ("4X", "ue8m0"), ("4X", "ue4m3")},
}
_DEFAULTS = {"kind::mxf8f6f4": "1X", "kind::mxf4": "2X"}


def build_scaling(form: Form, kind: str, operands: tuple[Operand, ...]) -> ScaleFunction | None:
    """Return a function that multiplies A [w, row, k] and B [w, k, n] by their factors, or None where there are none.

    The operands are, for A and B, a register and a pair {byte, thread}. A quad holds two rows of A in two of its lanes,
    a column of B in one; the blocks along k take neighbouring bytes.
    """
    if not form.has("block_scale"):
        if kind not in ("", "kind::f8f6f4") or operands:
            raise form.unsupported("no .block_scale")
        return None
    size = form.match(r"scale_vec::([124]X)")
    vector = size[1] if size is not None else _DEFAULTS.get(kind, "")
    element = form.find_modifier("ue8m0", "ue4m3")
    if (vector, element) not in _LEGAL.get(kind, set()):
        raise form.unsupported("this kind of scales")
    blocks = int(vector[0])
    if len(operands) != 4:
        raise form.unsupported(f"{len(operands)} operands for scales")
    a_slot, b_slot = form.read(operands[0], "b32"), form.read(operands[2], "b32")
    a_byte, a_lane = _parse_selectors(form, operands[1], blocks, 2)
    b_byte, b_lane = _parse_selectors(form, operands[3], blocks, 4)
    lanes_of_a = np.array([2 * a_lane, 2 * a_lane + 1])

    def decode_factors(words: Array, first: int) -> Array:
        return FORMAT_DECODERS[element](np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4))[
            ..., first : first + blocks
        ]

    def scale_operands(cta: Cta, threads: Threads, a: Array, b: Array) -> tuple[Array, Array]:
        length = a.shape[2] // blocks
        a_words = cta.views[a_slot][threads].reshape(-1, 8, 4)[:, :, lanes_of_a].transpose(0, 2, 1).reshape(-1, 16)
        b_words = cta.views[b_slot][threads].reshape(-1, 8, 4)[:, :, b_lane]
        of_a = decode_factors(a_words, a_byte).repeat(length, axis=2).astype(np.float64)
        of_b = decode_factors(b_words, b_byte).repeat(length, axis=2).transpose(0, 2, 1).astype(np.float64)
        return a * of_a, b * of_b

    return scale_operands


def _parse_selectors(form: Form, operand: Operand, blocks: int, lanes: int) -> tuple[int, int]:
    if not isinstance(operand, Vector) or len(operand.items) != 2:
        raise form.unsupported(f"{operand} where {{byte, thread}} belongs")
    byte, lane = (form.parse_constant(item) for item in operand.items)
    if byte not in range(0, 4, blocks) or not 0 <= lane < lanes:
        raise form.unsupported(f"byte {byte} and thread {lane} of the scales")
    return byte, lane
