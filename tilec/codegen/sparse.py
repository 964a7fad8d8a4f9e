"""Loads the metadata of a sparse A from shared memory to the registers that mma.sp and wgmma.sp take.

A row of A has four bits for each four elements along k, of float32 for each two, the first lowest. The figures of the
PTX ISA, "Sparse matrix storage", give the share of each thread. For 16-bit and 32-bit types each of two neighbours in a
quad has half of the columns of two rows; for 8-bit types each of the four has half of the columns of one row.
"""

from __future__ import annotations

from tilec.codegen.matrix import LANE, extract_digit
from tilec.codegen.state import State
from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.types import INT32
from tilec.ir.warp import Cursor, Mma, Wgmma
from tilec.ptx.module import Address, Imm, Operand, Reg, Vector

ROW, QUAD = extract_digit(LANE, 4, 8), extract_digit(LANE, 1, 4)


def load_metadata(op: Mma | Wgmma, state: State, row: tile.Expr, step: int) -> tuple[Operand, ...]:
    """Return the operands of one instruction's sparsity: the metadata of 16 rows, and the selector of the threads that
    provide it. A dense A has none."""
    buffer = op.metadata
    if buffer is None:
        return ()
    builder = state.builder
    if op.a.buffer.dtype.bytes == 1:
        mine = add_exprs(add_exprs(row, ROW), scale_expr(extract_digit(LANE, 1, 2), 8))
        byte = add_exprs(tile.int32_const(8 * step), scale_expr(extract_digit(LANE, 2, 2), 4))
        return _legalise_metadata(
            state, builder.create("b32", "ld.shared.b32", _address_byte(state, buffer, mine, byte, op.cursors))
        ), Imm(0)
    steps = op.a.extent[-2 if op.transpose_a else -1] * op.a.buffer.dtype.bytes // 32
    # The other two threads of a quad load the next instruction's metadata at the same time.
    paired = steps % 2 == 0
    lane = QUAD if paired else extract_digit(LANE, 1, 2)
    byte = add_exprs(tile.int32_const(4 * (step - step % 2 if paired else step)), scale_expr(lane, 2))

    def load_both_rows() -> Reg:
        rows = (add_exprs(row, ROW), add_exprs(add_exprs(row, ROW), tile.int32_const(8)))
        halves = [
            builder.create("b16", "ld.shared.b16", _address_byte(state, buffer, r, byte, op.cursors)) for r in rows
        ]
        return _legalise_metadata(state, builder.create("b32", "mov.b32", Vector(tuple(halves))))

    return state.scalars.compute_once(("metadata", buffer.name, row, byte), load_both_rows), Imm(
        step % 2 if paired else 0
    )


def _legalise_metadata(state: State, fields: Reg) -> Reg:
    """Replace fields of 0000, which come from outside the tensor, by 0100, the first two positions. 0000 gives two
    elements the same position, which is undefined."""
    create = state.builder.create
    pairs = create("b32", "or.b32", fields, create("b32", "shr.u32", fields, Imm(2)))
    ones = create("b32", "or.b32", pairs, create("b32", "shr.u32", pairs, Imm(1)))
    empty = create("b32", "and.b32", create("b32", "not.b32", ones), Imm(0x11111111))
    return create("b32", "or.b32", fields, create("b32", "shl.b32", empty, Imm(2)))


def _address_byte(
    state: State, buffer: tile.Buffer, row: tile.Expr, byte: tile.Expr, cursors: tuple[Cursor, ...]
) -> Address:
    """Return the address of a byte of a row, for any element type of the tile."""
    size = buffer.dtype.bytes
    if size == 1:
        return state.addresses.address_shared_element(buffer, (row, byte), cursors)
    column, inside = (tile.Binary(op, byte, tile.int32_const(size), INT32) for op in ("floordiv", "floormod"))
    address = state.addresses.address_shared_element(buffer, (row, column), cursors)
    if size == 2:
        return address
    base = state.builder.create("b32", "add.u32", address.base, state.scalars.get_register(inside))
    return Address(base, address.offset)
