"""ldmatrix: loads fragments whose layout has blocks of 8 × 8 elements of 16 bits from shared memory."""

from __future__ import annotations

from tilec.codegen.matrix import LANE, compute_warp_origin, extract_digit
from tilec.codegen.state import State
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.tile import int32_const
from tilec.ir.warp import LoadMatrix
from tilec.ptx.module import Reg, Vector


def emit_load_matrix(op: LoadMatrix, state: State) -> None:
    """Load up to four blocks with one instruction: lanes 8·i … 8·i + 7 have the addresses of the rows of block i."""
    builder, layout = state.builder, state.layouts[op.destination.name]
    place = compute_warp_origin(layout, 2)
    words = layout.register_count // 2
    together = next(count for count in (4, 2, 1) if words % count == 0 and _is_linear(op, state, count))
    transposed = ".trans" if layout.registers[0].dim == 0 else ""
    opcode = f"ldmatrix.sync.aligned.m8n8.x{together}{transposed}.shared.b16"
    held = state.words.get(op.destination.name)
    *outer, down, across = op.source.start
    steps = _list_block_steps(op, state, together)
    tile = state.addresses.tiles[op.source.buffer.name].layout

    def compute_offset(first: int) -> tuple[Reg | None, int]:
        row, column = (
            add_exprs(part, int32_const(at)) for part, at in zip(place, layout.register_offset(2 * first), strict=True)
        )
        row = add_exprs(add_exprs(down, row), extract_digit(LANE, 1, 8))
        column = add_exprs(across, column)
        for bit, (rows, columns) in enumerate(steps):
            row = add_exprs(row, scale_expr(extract_digit(LANE, 8 << bit, 2), rows))
            column = add_exprs(column, scale_expr(extract_digit(LANE, 8 << bit, 2), columns))
        return state.addresses.compute_tile_offset(tile, (*outer, row, column))

    # Outside the scope, so that loads of other versions can reuse the offsets inside the tile.
    offsets = {first: compute_offset(first) for first in range(0, words, together)}
    with state.scalars.open_scope():
        for first, inside in offsets.items():
            address = state.addresses.address_tile_offset(op.source.buffer, *inside, op.cursors)
            if held is not None:
                builder.emit(opcode, Vector(held[first : first + together]), address)
                continue
            loaded: tuple[Reg, ...] = builder.new_registers("b32", together)
            builder.emit(opcode, Vector(loaded), address)
            elements = state.fragments[op.destination.name][2 * first :]
            for at, word in enumerate(loaded):
                builder.emit("mov.b32", Vector(elements[2 * at : 2 * at + 2]), word)


def _list_block_steps(op: LoadMatrix, state: State, together: int) -> list[tuple[int, ...]]:
    """Return the distance of an instruction's blocks, for each bit of a block's number."""
    layout = state.layouts[op.destination.name]
    return [layout.register_offset(2 << bit) for bit in range(together.bit_length() - 1)]


def _is_linear(op: LoadMatrix, state: State, together: int) -> bool:
    """Return whether the place of each of `together` blocks is the sum of the steps of its number's bits."""
    layout, steps = state.layouts[op.destination.name], _list_block_steps(op, state, together)
    for first in range(0, layout.register_count // 2, together):
        origin = layout.register_offset(2 * first)
        for block in range(together):
            bits = [step for bit, step in enumerate(steps) if block >> bit & 1]
            moved = tuple(at + sum(step[d] for step in bits) for d, at in enumerate(origin))
            if moved != layout.register_offset(2 * (first + block)):
                return False
    return True
