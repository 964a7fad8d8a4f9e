"""Transposition of shared tiles by matrices of 8 × 8 (PTX ISA, ldmatrix and stmatrix).

ldmatrix.trans gives each lane two neighbours of a column, in units of 16 bits, and stmatrix stores a lane's 32 bits as
part of a row: together they transpose 16-bit elements. A unit of two 8-bit elements spans two columns, so two `prmt`
separate the columns of two matrices. There a lane holds four neighbours of a row: the row is 16 elements long, and its
matrices are two, of 8 rows each.
"""

from __future__ import annotations

from tilec.codegen.state import State
from tilec.codegen.tensor_cores.matrix import LANE, QUAD, ROW, extract_digit
from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.tile import int32_const
from tilec.ir.types import INT32
from tilec.ir.warp import TransposeMatrix
from tilec.ptx.module import Imm, Reg, Vector

MATRIX_ROWS = 8
CHUNK_BYTES = 16
"""The bytes of a row of a matrix."""
LOADS_IN_FLIGHT = 4
"""The loads that a warp issues before it stores the first one's block: as many as four registers each can wait for."""
EVEN_BYTES, ODD_BYTES = 0x6420, 0x7531
"""Selectors of `prmt` for the even and the odd bytes of two registers."""


def emit_transpose_matrix(op: TransposeMatrix, state: State) -> None:
    """Emit the warp's share of a tile's transposition, by blocks of `op.rows` rows of 16 bytes.

    Several loads precede their stores, since the assembler does not move loads over stores.
    """
    is_bytes = op.source.dtype.bytes == 1
    with state.scalars.open_scope():
        selectors = _create_selectors(state) if is_bytes else None
        origins = _list_block_origins(op)
        for first in range(0, len(origins), LOADS_IN_FLIGHT):
            loaded = [(origin, _load_block(op, state, *origin)) for origin in origins[first : first + LOADS_IN_FLIGHT]]
            for origin, words in loaded:
                _store_block(
                    op, state, *origin, words if selectors is None else _separate_columns(words, selectors, state)
                )


def _load_block(op: TransposeMatrix, state: State, row: tile.Expr, column: tile.Expr) -> tuple[Reg, ...]:
    """Emit the transposing ldmatrix of the block at a row and column of the source, and return its registers."""
    is_bytes = op.source.dtype.bytes == 1
    lane_row = _build_byte_row(op) if is_bytes else extract_digit(LANE, 1, op.rows)
    address = state.addresses.address_shared_element(op.source, (add_exprs(row, lane_row), column), op.cursors)
    words: tuple[Reg, ...] = state.builder.new_registers("b32", op.rows // MATRIX_ROWS)
    state.builder.emit(f"ldmatrix.sync.aligned.m8n8.x{len(words)}.trans.shared.b16", Vector(words), address)
    return words


def _separate_columns(words: tuple[Reg, ...], selectors: tuple[Reg, Reg], state: State) -> tuple[Reg, ...]:
    """Emit and return registers with the two columns of bytes of each register pair separated, by the selectors."""
    return tuple(
        state.builder.create("b32", "prmt.b32", *words[first : first + 2], selector)
        for first in range(0, len(words), 2)
        for selector in selectors
    )


def _list_block_origins(op: TransposeMatrix) -> list[tuple[tile.Expr, tile.Expr]]:
    """Return the first row and column, in the source, of each block that the warp transposes."""
    rows, columns = op.source.shape
    width = CHUNK_BYTES // op.source.dtype.bytes
    down = rows // op.rows
    each = down * (columns // width) // op.warps
    warp = extract_digit(tile.THREAD, 32, op.warps)
    origins = []
    for step in range(each):
        if each % down == 0:
            # The warp has whole columns of blocks, so that only constants change inside one.
            block_row: tile.Expr = int32_const(step % down)
            block_column = add_exprs(scale_expr(warp, each // down), int32_const(step // down))
        else:
            block = add_exprs(scale_expr(warp, each), int32_const(step))
            block_row, block_column = extract_digit(block, 1, down), extract_digit(block, down, columns // width)
        origins.append((scale_expr(block_row, op.rows), scale_expr(block_column, width)))
    return origins


def _build_byte_row(op: TransposeMatrix) -> tile.Expr:
    """Return the row of a block whose address this lane gives to ldmatrix, for 8-bit elements.

    It is that of the elements which the transposed row has at the positions 4t + 2h and the next, for rows 2t and 2t +
    1 of matrix h of two.
    """
    block = scale_expr(extract_digit(LANE, 16, op.rows // 16), 16)
    if op.accumulated:
        return add_exprs(extract_digit(LANE, 1, 16), block)
    pair = add_exprs(scale_expr(extract_digit(LANE, 2, 4), 4), scale_expr(extract_digit(LANE, 8, 2), 2))
    return add_exprs(add_exprs(pair, extract_digit(LANE, 1, 2)), block)


def _create_selectors(state: State) -> tuple[Reg, Reg]:
    """Emit and return the registers with `prmt` selectors of the first and the second transposed matrix of bytes.

    The lower half of the lanes takes the even columns first, the upper half the odd ones: eight rows of a swizzled tile
    that differ by two share banks.
    """
    upper = state.scalars.get_register(extract_digit(LANE, 16, 2))
    step = ODD_BYTES - EVEN_BYTES
    first = state.builder.create("b32", "mad.lo.u32", upper, Imm(step), Imm(EVEN_BYTES))
    return first, state.builder.create("b32", "sub.u32", Imm(EVEN_BYTES + ODD_BYTES), first)


def _exclusive_or(left: tile.Expr, right: tile.Expr) -> tile.Expr:
    return tile.Binary("xor", left, right, INT32)


def _store_block(op: TransposeMatrix, state: State, across: tile.Expr, down: tile.Expr, words: tuple[Reg, ...]) -> None:
    """Emit the store of a transposed block at column `across` and row `down`: by stmatrix, else word by word."""
    is_bytes = op.source.dtype.bytes == 1
    if state.target.has("stmatrix"):
        row, column = extract_digit(LANE, 1, MATRIX_ROWS), scale_expr(extract_digit(LANE, 8, len(words)), MATRIX_ROWS)
        if is_bytes:
            is_odd = _exclusive_or(extract_digit(LANE, 4, 2), extract_digit(LANE, 8, 2))
            row = add_exprs(scale_expr(row, 2), is_odd)
            column = scale_expr(extract_digit(LANE, 16, len(words) // 2), 16)
        place = (add_exprs(down, row), add_exprs(across, column))
        address = state.addresses.address_shared_element(op.destination, place, op.cursors)
        opcode = f"stmatrix.sync.aligned.m8n8.x{len(words)}.shared.b16"
        state.builder.emit(opcode, address, Vector(words))
        return
    for number, word in enumerate(words):
        row, column = ROW, add_exprs(scale_expr(QUAD, 2), int32_const(MATRIX_ROWS * number))
        if is_bytes:
            row = add_exprs(scale_expr(ROW, 2), _exclusive_or(extract_digit(LANE, 16, 2), int32_const(number % 2)))
            column = add_exprs(scale_expr(QUAD, 4), int32_const(16 * (number // 2)))
        place = (add_exprs(down, row), add_exprs(across, column))
        address = state.addresses.address_shared_element(op.destination, place, op.cursors)
        state.builder.emit("st.shared.b32", address, word)
