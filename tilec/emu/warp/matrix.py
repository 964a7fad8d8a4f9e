"""Matrices of a warp between registers and shared memory: ldmatrix, stmatrix and movmatrix.

Fragments are numpy reshapes: a lane of a warp is (g, t) = (lane / 4, lane % 4), and each layout of the PTX manual is
one permutation of these axes with the register number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilec.emu.machine.decode import Form, register_decoder
from tilec.emu.numbers import Array
from tilec.ptx.module import Operand, Vector

if TYPE_CHECKING:
    from tilec.emu.machine.machine import Cta, Threads


def list_registers(form: Form, operand: Operand, count: int) -> tuple[Operand, ...]:
    """Return the registers of a fragment operand; fault unless there are `count` of them."""
    items: tuple[Operand, ...] = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != count:
        raise form.unsupported(f"a fragment of {len(items)} registers instead of {count}")
    return items


# -- ldmatrix ----------------------------------------------------------------------------------------------------------


def _count_matrices(form: Form) -> int:
    """Return the number of matrices that an opcode names, else 1, and make its step wait for whole warps."""
    form.step.gather = 32
    return int(form.find_modifier("x1", "x2", "x4", default="x1")[1])


def _take_first_lanes(values: Array, count: int) -> Array:
    """Return the values of the first `count` lanes of each warp, warp after warp."""
    warps: Array = values.reshape(-1, 32)[:, :count].reshape(-1)
    return warps


def _unpack_rows(rows: Array, form: Form) -> Array:
    """Return rows of 16 bytes with packed codes of 4 or 6 bits spread to a byte each, unchanged without such a
    format."""
    bits = 4 if form.has("b4x16_p64") else 6
    if not form.has("b4x16_p64", "b6x16_p32"):
        return rows
    stream = np.unpackbits(rows, axis=1, bitorder="little")[:, : 16 * bits].reshape(-1, 16, bits)
    spread = np.zeros((*stream.shape[:2], 8), np.uint8)
    spread[:, :, :bits] = stream
    return np.packbits(spread, axis=2, bitorder="little").reshape(-1, 16)


@register_decoder("ldmatrix.sync", accepts="shared shared::cta b8x16 b4x16_p64 b6x16_p32")
def _decode_ldmatrix(form: Form) -> None:
    """Decode `ldmatrix` into a step that loads matrices of a warp from shared memory; fault on an illegal shape."""
    count = _count_matrices(form)
    shape, element = form.find_modifier("m8n8", "m8n16", "m16n16"), form.find_modifier("b16", "b8", "b8x16")
    is_packed = form.has("b4x16_p64", "b6x16_p32")
    is_transposed = form.has("trans")
    legal = {
        "m8n8": element == "b16" and not is_packed,
        "m8n16": element == "b8x16" and is_packed and not is_transposed,
        "m16n16": is_transposed and count < 4 and element == ("b8x16" if is_packed else "b8"),
    }
    if not legal.get(shape):
        raise form.unsupported("this shape of these elements")
    is_tall = shape == "m16n16"
    row_count, register_count = (16 * count, 2 * count) if is_tall else (8 * count, count)
    pointer = form.build_address(form.operands[1])
    targets = [form.write(item, "b32") for item in list_registers(form, form.operands[0], register_count)]

    @form.set_run
    def run_ldmatrix(cta: Cta, threads: Threads) -> None:
        """Load the rows whose addresses the first lanes hold, and write their elements to the lanes' registers."""
        rows, actors = (_take_first_lanes(x, row_count) for x in (pointer(cta, threads), cta.actors[threads]))
        loaded = np.ascontiguousarray(cta.shared.load(rows, 16, actors, is_collective=True))
        data = _unpack_rows(loaded.view(np.uint8).reshape(-1, 16), form)
        lanes: Array
        if is_tall:
            # Rows (t, register, pair) and columns (half, g): a register takes a pair of rows in two columns.
            parts = data.reshape(-1, count, 4, 2, 2, 2, 8)
            lanes = parts.transpose(0, 1, 3, 6, 2, 5, 4).reshape(-1, 4).view(np.uint32)
        elif is_transposed:
            matrices = data.view(np.uint16).reshape(-1, count, 8, 8)
            lanes = np.ascontiguousarray(matrices.transpose(0, 1, 3, 2)).view(np.uint32)
        else:
            # Lane l holds the four bytes from 4(l % 4) on of row l / 4.
            lanes = data.view(np.uint32)
        lanes = lanes.reshape(-1, register_count, 32)
        for position, target in enumerate(targets):
            cta.views[target][threads] = lanes[:, position].reshape(-1)


# -- stmatrix and movmatrix --------------------------------------------------------------------------------------------


@register_decoder("stmatrix.sync", accepts="shared shared::cta")
def _decode_stmatrix(form: Form) -> None:
    """Decode `stmatrix` into a step that stores matrices of a warp to shared memory; fault on an illegal shape."""
    count = _count_matrices(form)
    is_transposed, is_bytes = form.has("trans"), form.has("b8")
    if not (form.has("m16n8") and is_transposed) if is_bytes else not (form.has("m8n8") and form.has("b16")):
        raise form.unsupported("this shape of these elements")
    pointer = form.build_address(form.operands[0])
    sources = [form.read(item, "b32") for item in list_registers(form, form.operands[1], count)]

    @form.set_run
    def run_stmatrix(cta: Cta, threads: Threads) -> None:
        """Collect the matrices from the lanes' registers, and store them at the row addresses that the first lanes
        hold."""
        rows, actors = (_take_first_lanes(x, 8 * count) for x in (pointer(cta, threads), cta.actors[threads]))
        lanes = np.stack([cta.views[source][threads].reshape(-1, 32) for source in sources], axis=1)
        data: Array
        if is_bytes:
            # Of eight rows in memory, a lane's bytes are those of rows 2t and 2t + 1 in the columns g and g + 8.
            data = lanes.view(np.uint8).reshape(-1, count, 8, 4, 2, 2).transpose(0, 1, 3, 5, 4, 2)
        else:
            data = lanes.view(np.uint16).reshape(-1, count, 8, 8)
            if is_transposed:
                data = data.transpose(0, 1, 3, 2)
        packed = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint64).reshape(-1, 2)
        cta.shared.store(rows, 16, packed, actors)


@register_decoder("movmatrix.sync", accepts="trans m8n8 b16")
def _decode_movmatrix(form: Form) -> None:
    """Decode `movmatrix` into a step that transposes a warp's 8 x 8 matrix in registers."""
    form.step.gather = 32
    target, source = form.write(form.operands[0], "b32"), form.read(form.operands[1], "b32")

    @form.set_run
    def run_movmatrix(cta: Cta, threads: Threads) -> None:
        """Write each warp's 8 x 8 matrix of 16-bit elements transposed."""
        data = np.ascontiguousarray(cta.views[source][threads]).view(np.uint16).reshape(-1, 8, 8)
        cta.views[target][threads] = np.ascontiguousarray(data.transpose(0, 2, 1)).view(np.uint32).reshape(-1)
