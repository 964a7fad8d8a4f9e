"""Parts shared by mma.sync and wgmma: names of types, the origin of a warp's block, operands in registers; stmatrix."""

from __future__ import annotations

from tilec.codegen.builder import get_register_class
from tilec.codegen.memory import ZERO, pack_f32, pack_word
from tilec.codegen.scalar import FLOAT_NAMES
from tilec.codegen.state import State
from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.layout import Axis, Fragment
from tilec.ir.types import FLOAT32, FLOAT64, INT8, INT32, UINT8, DType
from tilec.ir.warp import StoreMatrix
from tilec.ptx.module import Imm, Reg, Vector

WARP = tile.Var("%warp")
"""The warp's index within its role, in a register that the assembler knows to be uniform."""

K_BYTES = 32
"""Bytes along k that one instruction takes, whatever the type."""

TYPE_NAMES = {**FLOAT_NAMES, FLOAT32: "f32", FLOAT64: "f64", INT8: "s8", UINT8: "u8", INT32: "s32"}
"""The names of types in tensor-core instructions."""


def get_operand_kind(dtype: DType) -> str:
    """Return the name of the type of A or B: float32 is tf32, of which 19 bits are used."""
    return "tf32" if dtype == FLOAT32 else TYPE_NAMES[dtype]


def extract_digit(value: tile.Expr, divisor: int, modulus: int) -> tile.Expr:
    shifted = tile.Binary("floordiv", value, tile.int32_const(divisor), INT32) if divisor > 1 else value
    return tile.Binary("floormod", shifted, tile.int32_const(modulus), INT32)


LANE = extract_digit(tile.THREAD, 1, 32)


def compute_warp_origin(layout: Fragment, lane_axes: int) -> tuple[tile.Expr, ...]:
    """Return the coordinates where the warp's block starts: those of its lane 0."""
    lanes = 1
    for axis in layout.threads[:lane_axes]:
        lanes *= axis.size
    above = Fragment(layout.shape, (Axis(lanes, -1, 0), *layout.threads[lane_axes:]), ())
    return above.thread_coordinates()


def index_part(part: tile.Region, row: tile.Expr, column: tile.Expr) -> tuple[tile.Expr, ...]:
    """Return the indices, in the tile, of an element of a part of it."""
    *outer, down, across = part.start
    return *outer, add_exprs(down, row), add_exprs(across, column)


def get_accumulators(buffer: tile.Buffer, state: State) -> tuple[Reg, ...]:
    """Return a product's accumulators, float16 two to a register."""
    return state.pairs.get(buffer.name) or state.fragments[buffer.name]


def clear_accumulators(buffer: tile.Buffer, state: State) -> None:
    """Set the accumulators of a product to zero."""
    cls = "b32" if buffer.name in state.pairs else get_register_class(buffer.dtype)
    for register in get_accumulators(buffer, state):
        state.builder.emit(f"mov.{cls}", register, ZERO.get(cls, Imm(0)))


def pack_operand(buffer: tile.Buffer, state: State) -> tuple[Reg, ...]:
    """Return a fragment as an operand, 4 bytes to a register, in the order of its layout (see `operand_a`,
    `operand_b`)."""
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


# ---- stmatrix --------------------------------------------------------------------------------------------------------


def emit_store_matrix(op: StoreMatrix, state: State) -> None:
    """Store an accumulator to a 16-bit tile: two 8-column blocks of 16 rows per instruction."""
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
    """Convert two neighbours to the tile's type, and pack them into one register."""
    if op.source.dtype == FLOAT32:
        return pack_f32(state.scalars, op.destination.dtype, low, high)
    return pack_word(state.builder, [low, high], op.destination.dtype)
