"""Tensor-core operations: mma.sync with ldmatrix, wgmma from descriptors, and stmatrix.

Fragment and descriptor formats are those of the PTX ISA: "Matrix fragments for mma.m16n8k16", "Asynchronous
warpgroup level matrix shared memory layout", "Matrix descriptor format".
"""

from __future__ import annotations

from tilec.codegen.builder import f32
from tilec.codegen.memory import pack_f32
from tilec.codegen.state import State
from tilec.ir.affine import add, scale
from tilec.ir.layout import THREAD, Axis, Fragment, SharedLayout
from tilec.ir.tile import Binary, Buffer, Expr, Var, integer
from tilec.ir.types import INT32, DType
from tilec.ir.warp import Cursor, Mma, StoreMatrix, Wgmma
from tilec.ptx.module import Imm, Operand, Reg, Vector

WARP = Var("%warp")
"""The warp's index within its role, in a register that the assembler knows to be uniform."""

STEP = 16  # k of one instruction, 16-bit operands


def _digit(value: Expr, divisor: int, modulus: int) -> Expr:
    shifted = Binary("floordiv", value, integer(divisor), INT32) if divisor > 1 else value
    return Binary("floormod", shifted, integer(modulus), INT32)


LANE = _digit(THREAD, 1, 32)


def _short(dtype: DType) -> str:
    return {"float16": "f16", "bfloat16": "bf16"}[dtype.name]


def warp_part(layout: Fragment, lane_axes: int) -> tuple[Expr, ...]:
    """What the digits above the lanes add to each coordinate: where the warp's block starts."""
    lanes = 1
    for axis in layout.threads[:lane_axes]:
        lanes *= axis.size
    above = Fragment(layout.shape, (Axis(lanes, -1, 0), *layout.threads[lane_axes:]), ())
    return above.thread_coordinates()


def clear(registers: tuple[Reg, ...], state: State) -> None:
    for register in registers:
        state.builder.emit("mov.f32", register, f32(0.0))


# ---- mma.sync --------------------------------------------------------------------------------------------------------


def emit_mma(op: Mma, state: State) -> None:
    """Per k step of 16: the warp's rows of A and columns of B by ldmatrix, then every product of the two."""
    state.builder.at(op.span)
    layout = state.layouts[op.c.name]
    accumulators = state.fragments[op.c.name]
    rows, columns = layout.registers[3].size, layout.registers[2].size  # in blocks of 16 and of 8
    row, column = warp_part(layout, 2)
    depth = op.a.shape[0] if op.transpose_a else op.a.shape[1]
    if op.clear:
        clear(accumulators, state)
    kind = _short(op.a.dtype)
    opcode = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
    with state.scalars.scope():
        for k in range(0, depth, STEP):
            a = [load_a(op, state, add(row, integer(16 * i)), k) for i in range(rows)]
            b: list[tuple[Reg, ...]] = []
            for j in range(0, columns, 2):
                b += load_b(op, state, add(column, integer(8 * j)), k, min(2, columns - j))
            for i in range(rows):
                for j in range(columns):
                    first = 4 * (i * columns + j)
                    c = Vector(accumulators[first : first + 4])
                    state.builder.emit(opcode, c, Vector(a[i]), Vector(b[j]), c)


def ldmatrix(
    state: State, buffer: Buffer, row: Expr, column: Expr, cursors: tuple[Cursor, ...], count: int, transposed: bool
) -> tuple[Reg, ...]:
    """`count` 8 × 8 matrices of 16-bit elements; `row` and `column` are this lane's address row."""
    registers = state.builder.many("b32", count)
    address = state.addresses.shared_element(buffer, (row, column), cursors)
    opcode = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    state.builder.emit(opcode, Vector(registers), address)
    return registers


def load_a(op: Mma, state: State, row: Expr, k: int) -> tuple[Reg, ...]:
    """A's 16 × 16 block: matrices (rows 0–7, k 0–7), (8–15, 0–7), (0–7, 8–15), (8–15, 8–15)."""
    if not op.transpose_a:
        m = add(row, _digit(LANE, 1, 16))
        kk = add(scale(_digit(LANE, 16, 2), 8), integer(k))
        return ldmatrix(state, op.a, m, kk, op.cursors, 4, False)
    kk = add(add(_digit(LANE, 1, 8), scale(_digit(LANE, 16, 2), 8)), integer(k))
    m = add(row, scale(_digit(LANE, 8, 2), 8))
    return ldmatrix(state, op.a, kk, m, op.cursors, 4, True)


def load_b(op: Mma, state: State, column: Expr, k: int, blocks: int) -> list[tuple[Reg, ...]]:
    """B's 16 × 8 blocks, one or two side by side: matrices (k 0–7, n 0–7), (8–15, 0–7), then the next eight columns."""
    if op.transpose_b:  # stored as (N, K): rows are columns of B
        n = (
            add(column, add(_digit(LANE, 1, 8), scale(_digit(LANE, 16, 2), 8)))
            if blocks == 2
            else add(column, _digit(LANE, 1, 8))
        )
        kk = add(scale(_digit(LANE, 8, 2), 8), integer(k))
        registers = ldmatrix(state, op.b, n, kk, op.cursors, 2 * blocks, False)
    else:
        kk = add(_digit(LANE, 1, 16), integer(k))
        n = add(column, scale(_digit(LANE, 16, 2), 8)) if blocks == 2 else column
        registers = ldmatrix(state, op.b, kk, n, op.cursors, 2 * blocks, True)
    return [registers[2 * i : 2 * i + 2] for i in range(blocks)]


# ---- wgmma -----------------------------------------------------------------------------------------------------------

SWIZZLE_CODE = {128: 1, 64: 2, 32: 3}


def emit_wgmma(op: Wgmma, state: State) -> None:
    """All products of the tile as one group, in flight until a wait."""
    builder = state.builder
    builder.at(op.span)
    layout = state.layouts[op.c.name]
    accumulators = state.fragments[op.c.name]
    row, column = (_uniform(e) for e in warp_part(layout, 3))
    columns, blocks = layout.registers[2].size * 8, layout.registers[3].size
    block_rows = layout.registers[3].stride
    depth = op.a.shape[0] if op.transpose_a else op.a.shape[1]
    kind = _short(op.a.dtype)
    opcode = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind}"
    # The bit says MN-major: A as (K, M), B as (K, N).
    a_bit, b_bit = Imm(int(op.transpose_a)), Imm(int(not op.transpose_b))
    assert state.true is not None
    builder.emit("wgmma.fence.sync.aligned")
    with state.scalars.scope():
        a_base = _descriptor(state, op.a, op.cursors, not op.transpose_a, row)
        b_base = _descriptor(state, op.b, op.cursors, op.transpose_b, column)
        for k in range(0, depth, STEP):
            scale_d: Operand = state.true if k or not op.clear else Imm(0)
            b = _advance(state, b_base, _offset(state, op.b, op.transpose_b, 0, k))
            for i in range(blocks):
                a = _advance(state, a_base, _offset(state, op.a, not op.transpose_a, i * block_rows, k))
                registers = Vector(accumulators[i * columns // 2 : (i + 1) * columns // 2])
                if isinstance(scale_d, Imm):
                    scale_d = builder.into("pred", "setp.ne.b32", Imm(0), Imm(0))
                builder.emit(opcode, registers, a, b, scale_d, Imm(1), Imm(1), a_bit, b_bit)
    builder.emit("wgmma.commit_group.sync.aligned")


def _uniform(expr: Expr) -> Expr:
    """Warpgroup digits, from the warp's index instead of the thread's."""
    match expr:
        case Binary(op="floordiv", a=a, b=b) if a == THREAD:
            return Binary("floordiv", WARP, integer(int(b.value) // 32), INT32)  # type: ignore[union-attr]
        case Binary(a=a, b=b):
            return Binary(expr.op, _uniform(a), _uniform(b), expr.dtype)
        case _:
            return expr


def _tile_byte(layout: SharedLayout, k_major: bool, mn: int, k: int) -> int:
    """Where the element (mn, k) of an operand starts in its tile, before the swizzle."""
    row, column = (mn, k) if k_major else (k, mn)
    panel, inside = divmod(column, layout.panel)
    return panel * layout.panel_bytes + (row * layout.panel + inside) * layout.element_bytes


def _offset(state: State, buffer: Buffer, k_major: bool, mn: int, k: int) -> int:
    return _tile_byte(state.addresses.tiles[buffer.name].layout, k_major, mn, k)


def _descriptor(state: State, buffer: Buffer, cursors: tuple[Cursor, ...], k_major: bool, mn: Expr) -> Reg:
    """The matrix descriptor of the operand's first block along `mn`."""
    builder, layout = state.builder, state.addresses.tiles[buffer.name].layout
    base, offset = state.addresses.tile_base(buffer, cursors)
    per_row = layout.panel * layout.element_bytes
    # Blocks are whole rows (K-major) or whole panels (MN-major), so the offset is a multiple of the repeat size.
    step = per_row if k_major else layout.panel_bytes // layout.panel
    inside, constant = scale(mn, step), offset
    address = base
    if inside != integer(0):
        address = builder.into("b32", "add.u32", address, state.scalars.register(inside))
    if constant:
        address = builder.into("b32", "add.u32", address, Imm(constant))
    encoded = builder.into("b64", "cvt.u64.u32", builder.into("b32", "shr.u32", address, Imm(4)))
    stride = 8 * per_row  # from 8 rows to the next 8
    leading = 16 if k_major else layout.panel_bytes  # K-major swizzled layouts do not use it; CUTLASS writes 1
    fixed = (leading >> 4) << 16 | (stride >> 4) << 32 | SWIZZLE_CODE[layout.swizzle] << 62
    mask = builder.into("b64", "mov.b64", Imm(fixed - (1 << 64) if fixed >> 63 else fixed))
    return builder.into("b64", "or.b64", encoded, mask)


def _advance(state: State, descriptor: Reg, offset: int) -> Reg:
    """The descriptor of a block `offset` bytes on; addresses stay below 2^18, so nothing carries out of the field."""
    return descriptor if not offset else state.builder.into("b64", "add.s64", descriptor, Imm(offset >> 4))


# ---- stmatrix --------------------------------------------------------------------------------------------------------


def emit_store_matrix(op: StoreMatrix, state: State) -> None:
    """An accumulator to a 16-bit tile: two 8-column blocks of 16 rows per instruction."""
    builder = state.builder
    builder.at(op.span)
    layout = state.layouts[op.source.name]
    registers = state.fragments[op.source.name]
    lane_axes = 2
    row, column = warp_part(layout, lane_axes)
    row = add(row, add(_digit(LANE, 1, 8), scale(_digit(LANE, 8, 2), 8)))
    column = add(column, scale(_digit(LANE, 16, 2), 8))
    columns, rows = layout.registers[2].size, layout.registers[3].size
    with state.scalars.scope():
        for i in range(rows):
            m = add(row, integer(i * layout.registers[3].stride))
            for j in range(0, columns, 2):
                blocks = min(2, columns - j)
                words = []
                for block in range(j, j + blocks):
                    for half in range(2):
                        first = 4 * (i * columns + block) + 2 * half
                        words.append(
                            pack_f32(state.scalars, op.destination.dtype, registers[first], registers[first + 1])
                        )
                n = add(column, integer(8 * j))
                address = state.addresses.shared_element(op.destination, (m, n), op.cursors)
                builder.emit(f"stmatrix.sync.aligned.m8n8.x{len(words)}.shared.b16", address, Vector(tuple(words)))
