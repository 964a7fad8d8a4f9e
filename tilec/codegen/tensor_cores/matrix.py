"""Parts shared by mma.sync and wgmma: names of types, the origin of a warp's block, operands in registers, the metadata
of a sparse A; ldmatrix and stmatrix.

A row of A has four bits for each four elements along k, of float32 for each two, the first lowest. The figures of the
PTX ISA, "Sparse matrix storage", give the share of each thread. For 16-bit and 32-bit types each of two neighbours in a
quad has half of the columns of two rows; for 8-bit types each of the four has half of the columns of one row.
"""

from __future__ import annotations

from tilec.codegen.builder import get_register_class
from tilec.codegen.memory import ZERO, pack_f32, pack_word
from tilec.codegen.scalar.scalar import FLOAT_NAMES
from tilec.codegen.state import State
from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.layout import Axis, Fragment
from tilec.ir.tile import int32_const
from tilec.ir.types import FLOAT32, FLOAT64, INT8, INT32, UINT8, DType
from tilec.ir.warp import Cursor, LoadMatrix, Mma, StoreMatrix, Wgmma
from tilec.ptx.module import Address, Imm, Operand, Reg, Vector

WARP = tile.Var("%warp")
"""The warp's index within its role, in a register that the assembler knows to be uniform."""
K_BYTES = 32
"""Bytes along k that one instruction takes, whatever the type."""
TYPE_NAMES = {**FLOAT_NAMES, FLOAT32: "f32", FLOAT64: "f64", INT8: "s8", UINT8: "u8", INT32: "s32"}
"""The names of types in tensor-core instructions."""


def get_operand_kind(dtype: DType) -> str:
    """Return the PTX name of the type of A or B: float32 is tf32, of which 19 bits are used."""
    return "tf32" if dtype == FLOAT32 else TYPE_NAMES[dtype]


def extract_digit(value: tile.Expr, divisor: int, modulus: int) -> tile.Expr:
    """Return the expression value // divisor % modulus, without the division by 1."""
    shifted = tile.Binary("floordiv", value, tile.int32_const(divisor), INT32) if divisor > 1 else value
    return tile.Binary("floormod", shifted, tile.int32_const(modulus), INT32)


LANE = extract_digit(tile.THREAD, 1, 32)


def compute_warp_origin(layout: Fragment, lane_axes: int) -> tuple[tile.Expr, ...]:
    """Return the coordinates of lane 0 of a warp or warpgroup, as expressions, with its first `lane_axes` axes at 0."""
    lanes = 1
    for axis in layout.threads[:lane_axes]:
        lanes *= axis.size
    above = Fragment(layout.shape, (Axis(lanes, -1, 0), *layout.threads[lane_axes:]), ())
    return above.thread_coordinates()


def index_part(part: tile.Region, row: tile.Expr, column: tile.Expr) -> tuple[tile.Expr, ...]:
    """Return the indices in the whole tile of the element at this row and column of a region."""
    *outer, down, across = part.start
    return *outer, add_exprs(down, row), add_exprs(across, column)


def get_accumulators(buffer: tile.Buffer, state: State) -> tuple[Reg, ...]:
    """Return a product's accumulator registers: pairs for float16, else one per element."""
    return state.pairs.get(buffer.name) or state.fragments[buffer.name]


def clear_accumulators(buffer: tile.Buffer, state: State) -> None:
    """Emit moves that set the accumulators of a product to zero."""
    cls = "b32" if buffer.name in state.pairs else get_register_class(buffer.dtype)
    for register in get_accumulators(buffer, state):
        state.builder.emit(f"mov.{cls}", register, ZERO.get(cls, Imm(0)))


def pack_operand(buffer: tile.Buffer, state: State) -> tuple[Reg, ...]:
    """Return a fragment's registers as a product's operand, 4 bytes each (float64: 8); emit their packing if needed."""
    for held in (state.words, state.pairs):
        if buffer.name in held:
            return held[buffer.name]
    registers = state.fragments[buffer.name]
    dtype = buffer.dtype
    if dtype == FLOAT64:
        return registers
    if dtype.bytes == 4:
        return tuple(state.builder.create("b32", "mov.b32", r) for r in registers)
    per = 4 // dtype.bytes
    return tuple(pack_word(state.builder, list(registers[i : i + per]), dtype) for i in range(0, len(registers), per))


def emit_store_matrix(op: StoreMatrix, state: State) -> None:
    """Emit stmatrix for an accumulator's share of a 16-bit tile: 16 rows by up to 16 columns each.

    It converts float32.
    """
    builder = state.builder
    layout = state.layouts[op.source.name]
    registers = state.fragments[op.source.name]
    lane_axes = 2
    row, column = compute_warp_origin(layout, lane_axes)
    row = add_exprs(row, add_exprs(extract_digit(LANE, 1, 8), scale_expr(extract_digit(LANE, 8, 2), 8)))
    column = add_exprs(column, scale_expr(extract_digit(LANE, 16, 2), 8))
    blocks, rows = layout.registers[2].size, layout.registers[3].size
    begin = op.column // 8
    end = blocks if op.destination.shape == op.source.shape else begin + op.destination.shape[-1] // 8
    with state.scalars.open_scope():
        for i in range(rows):
            m = add_exprs(row, tile.int32_const(i * layout.registers[3].stride))
            for j in range(begin, end, 2):
                words = []
                for block in range(j, min(j + 2, end)):
                    for half in range(2):
                        first = 4 * (i * blocks + block) + 2 * half
                        words.append(_pack_pair(op, registers[first], registers[first + 1], state))
                n = add_exprs(column, tile.int32_const(8 * (j - begin)))
                address = state.addresses.address_shared_element(op.destination, (m, n), op.cursors)
                builder.emit(f"stmatrix.sync.aligned.m8n8.x{len(words)}.shared.b16", address, Vector(tuple(words)))


def _pack_pair(op: StoreMatrix, low: Reg, high: Reg, state: State) -> Reg:
    """Return two neighbouring elements converted to the tile's type and packed in one 32-bit register."""
    if op.source.dtype == FLOAT32:
        return pack_f32(state.scalars, op.destination.dtype, low, high)
    return pack_word(state.builder, [low, high], op.destination.dtype)


def emit_load_matrix(op: LoadMatrix, state: State) -> None:
    """Emit ldmatrix for a fragment from a shared tile, 1, 2 or 4 blocks of 8 × 8 each, to words or elements.

    Lanes 8·i … 8·i + 7 have the addresses of the rows of block i.
    """
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
        """Return the offset inside the tile of this lane's row of the blocks from word `first` on: register and
        constant.
        """
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
    """Return the (row, column) distance that each bit of a block's number adds, within one instruction."""
    layout = state.layouts[op.destination.name]
    return [layout.register_offset(2 << bit) for bit in range(together.bit_length() - 1)]


def _is_linear(op: LoadMatrix, state: State, together: int) -> bool:
    """Return whether `together` blocks can share an ldmatrix: each one's place is the sum of its number's bit steps."""
    layout, steps = state.layouts[op.destination.name], _list_block_steps(op, state, together)
    for first in range(0, layout.register_count // 2, together):
        origin = layout.register_offset(2 * first)
        for block in range(together):
            bits = [step for bit, step in enumerate(steps) if block >> bit & 1]
            moved = tuple(at + sum(step[d] for step in bits) for d, at in enumerate(origin))
            if moved != layout.register_offset(2 * (first + block)):
                return False
    return True


ROW, QUAD = extract_digit(LANE, 4, 8), extract_digit(LANE, 1, 4)


def load_metadata(op: Mma | Wgmma, state: State, row: tile.Expr, step: int) -> tuple[Operand, ...]:
    """Emit the load of a sparse A's metadata; return its register and the selector as operands; none for a dense A.

    The metadata is that of 16 rows; the selector says which threads provide it.
    """
    buffer = op.metadata
    if buffer is None:
        return ()
    builder = state.builder
    if op.a.buffer.dtype.bytes == 1:
        mine = add_exprs(add_exprs(row, ROW), scale_expr(extract_digit(LANE, 1, 2), 8))
        byte = add_exprs(tile.int32_const(8 * step), scale_expr(extract_digit(LANE, 2, 2), 4))
        address = _address_byte(state, buffer, mine, byte, op.cursors)
        return _legalise_metadata(state, builder.create("b32", "ld.shared.b32", address)), Imm(0)
    steps = op.a.extent[-2 if op.transpose_a else -1] * op.a.buffer.dtype.bytes // 32
    # The other two threads of a quad load the next instruction's metadata at the same time.
    paired = steps % 2 == 0
    lane = QUAD if paired else extract_digit(LANE, 1, 2)
    byte = add_exprs(tile.int32_const(4 * (step - step % 2 if paired else step)), scale_expr(lane, 2))

    def load_both_rows() -> Reg:
        """Emit loads of the metadata of a lane's two rows, and return them in one word."""
        rows = (add_exprs(row, ROW), add_exprs(add_exprs(row, ROW), tile.int32_const(8)))
        halves = [
            builder.create("b16", "ld.shared.b16", _address_byte(state, buffer, r, byte, op.cursors)) for r in rows
        ]
        return _legalise_metadata(state, builder.create("b32", "mov.b32", Vector(tuple(halves))))

    fields = state.scalars.compute_once(("metadata", buffer.name, row, byte), load_both_rows)
    return fields, Imm(step % 2 if paired else 0)


def _legalise_metadata(state: State, fields: Reg) -> Reg:
    """Emit and return metadata with each field of 0000 replaced by 0100, the first two positions.

    0000 comes from outside the tensor, and gives two elements the same position, which is undefined.
    """
    create = state.builder.create
    pairs = create("b32", "or.b32", fields, create("b32", "shr.u32", fields, Imm(2)))
    ones = create("b32", "or.b32", pairs, create("b32", "shr.u32", pairs, Imm(1)))
    empty = create("b32", "and.b32", create("b32", "not.b32", ones), Imm(0x11111111))
    return create("b32", "or.b32", fields, create("b32", "shl.b32", empty, Imm(2)))


def _address_byte(
    state: State, buffer: tile.Buffer, row: tile.Expr, byte: tile.Expr, cursors: tuple[Cursor, ...]
) -> Address:
    """Emit and return the shared-memory address of a byte of a tile's row, for any element type."""
    size = buffer.dtype.bytes
    if size == 1:
        return state.addresses.address_shared_element(buffer, (row, byte), cursors)
    column, inside = (tile.Binary(op, byte, tile.int32_const(size), INT32) for op in ("floordiv", "floormod"))
    address = state.addresses.address_shared_element(buffer, (row, column), cursors)
    if size == 2:
        return address
    base = state.builder.create("b32", "add.u32", address.base, state.scalars.get_register(inside))
    return Address(base, address.offset)
