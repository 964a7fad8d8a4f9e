"""wgmma: products of tiles or their parts by a warpgroup; B, and A unless in registers, are given by descriptors.

Descriptors are those of the PTX ISA: "Asynchronous warpgroup level matrix shared memory layout", "Matrix descriptor
format".
"""

from __future__ import annotations

from tilec.codegen.address import SHARED_BASE, compute_copy_offset
from tilec.codegen.state import State
from tilec.codegen.tensor_cores import matrix
from tilec.ir import tile
from tilec.ir.affine import add_exprs, affine_form, scale_expr
from tilec.ir.layout import SharedLayout
from tilec.ir.types import INT32
from tilec.ir.warp import Cursor, Wgmma
from tilec.passes.loop.pools import count_product_pieces
from tilec.ptx.module import Imm, Operand, Reg, Vector

SWIZZLE_CODE = {128: 1, 64: 2, 32: 3}


def emit_wgmma(op: Wgmma, state: State) -> None:
    """Emit a tile product as one committed group of wgmma instructions, which is in flight until a wait."""
    builder = state.builder
    layout = state.layouts[op.c.name]
    row, column = (_make_uniform(e) for e in matrix.compute_warp_origin(layout, 3))
    columns, pieces = count_product_pieces(op.c, layout, state.program.threads, state.target)
    blocks = layout.registers[3].size
    block_rows = layout.registers[3].stride
    a_tile, b_tile = op.a.buffer, op.b.buffer
    step = matrix.K_BYTES // a_tile.dtype.bytes
    depth = op.a.extent[-2 if op.transpose_a else -1]
    in_registers = a_tile.scope == "fragment"
    sums = matrix.get_accumulators(op.c, state)
    count = len(sums) // blocks
    a_kind, b_kind = (matrix.get_operand_kind(factor.dtype) for factor in (a_tile, b_tile))
    kinds = f"{matrix.TYPE_NAMES[op.c.dtype]}.{a_kind}.{b_kind}"
    dense = 1 if op.metadata is None else 2  # elements of B along k for one of A
    shape = f"m64n{columns // pieces}k{dense * step}"
    opcode = f"wgmma.mma_async{'.sp' if op.metadata else ''}.sync.aligned.{shape}.{kinds}"
    modifiers = _list_modifiers(op, in_registers)
    a_registers = matrix.pack_operand(a_tile, state) if in_registers else ()
    assert state.true is not None
    with state.scalars.open_scope():
        first_row = matrix.compute_warp_origin(layout, 2)[0]
        where = {
            (i, k): matrix.load_metadata(op, state, add_exprs(first_row, tile.int32_const(i * block_rows)), k // step)
            for k in range(0, depth, step)
            for i in range(blocks)
        }
        builder.emit("wgmma.fence.sync.aligned")
        a_base = None if in_registers else _build_descriptor(state, a_tile, op.cursors, not op.transpose_a, row)
        b_base = _build_descriptor(state, b_tile, op.cursors, op.transpose_b, column)
        for k in range(0, depth, step):
            scale_d: Operand = state.true
            if op.clear and not k:
                scale_d = builder.create("pred", "setp.ne.b32", Imm(0), Imm(0))
            starts = [
                _compute_offset(state, op.b, op.transpose_b, p * columns // pieces, dense * k) for p in range(pieces)
            ]
            b = [_advance_descriptor(state, b_base, start) for start in starts]
            for i in range(blocks):
                a: Operand
                if a_base is None:
                    first = 4 * (i * depth + k) // step
                    a = Vector(a_registers[first : first + 4])
                else:
                    start = _compute_offset(state, op.a, not op.transpose_a, i * block_rows, k)
                    a = _advance_descriptor(state, a_base, start)
                for p in range(pieces):
                    first, last = (i * count + q * count // pieces for q in (p, p + 1))
                    both = Vector(sums[first:last])
                    builder.emit(opcode, both, a, b[p], *where[i, k], scale_d, *modifiers)
    builder.emit("wgmma.commit_group.sync.aligned")


def _list_modifiers(op: Wgmma, in_registers: bool) -> tuple[Imm, ...]:
    """Return wgmma's last operands: signs for floats, then MN-major flags of 16-bit A, if shared, and B; else none.

    Flags are for A (K, M) and B (K, N).
    """
    if not op.a.buffer.dtype.is_float:
        return ()
    signs = (Imm(1), Imm(1))
    if op.a.buffer.dtype.bits != 16:
        return signs
    b_bit = Imm(int(not op.transpose_b))
    return (*signs, b_bit) if in_registers else (*signs, Imm(int(op.transpose_a)), b_bit)


def _make_uniform(expr: tile.Expr) -> tile.Expr:
    """Return the expression with warpgroup digits of the thread's index computed from the uniform warp index."""
    match expr:
        case tile.Binary(op="floordiv", a=a, b=tile.Const(value=threads)) if a == tile.THREAD:
            return tile.Binary("floordiv", matrix.WARP, tile.int32_const(int(threads) // 32), INT32)
        case tile.Binary(a=a, b=b):
            return tile.Binary(expr.op, _make_uniform(a), _make_uniform(b), expr.dtype)
        case _:
            return expr


def compute_tile_byte(layout: SharedLayout, k_major: bool, mn: int, k: int) -> int:
    """Return the byte offset of an operand's element (mn, k) in its tile, before the swizzle.

    `k_major`: rows of the tile run along K.
    """
    row, column = (mn, k) if k_major else (k, mn)
    panel, inside = divmod(column, layout.panel)
    return panel * layout.panel_bytes + (row * layout.panel + inside) * layout.element_bytes


def _compute_offset(state: State, part: tile.Region, k_major: bool, mn: int, k: int) -> tile.Expr:
    """Return the byte offset, as an expression, of a region's element (mn, k) in its tile, before the swizzle.

    `k_major`: rows of the tile run along K.
    """
    row, column = (mn, k) if k_major else (k, mn)
    layout = state.addresses.tiles[part.buffer.name].layout
    indices = matrix.index_part(part, tile.int32_const(row), tile.int32_const(column))
    return state.addresses.compute_linear_offset(layout, indices)


def _build_descriptor(
    state: State, buffer: tile.Buffer, cursors: tuple[Cursor, ...], k_major: bool, mn: tile.Expr
) -> Reg:
    """Emit and return the matrix descriptor of the operand's first block along `mn`, at the version of the cursors.

    Versions differ only in the start address, in units of 16 bytes.
    """
    builder, layout = state.builder, state.addresses.tiles[buffer.name].layout
    place = state.addresses.locate_version(buffer, cursors)
    units = place.each >> 4
    per_row = layout.panel * layout.element_bytes
    stride = 8 * per_row  # from 8 rows to the next 8
    leading = 16 if k_major else layout.panel_bytes  # K-major swizzled layouts do not use it; CUTLASS writes 1
    fixed = (leading >> 4) << 16 | (stride >> 4) << 32 | SWIZZLE_CODE[layout.swizzle] << 62

    def build_base_descriptor() -> Reg:
        """Return the descriptor for a cursor position of 0."""
        # Blocks are whole rows (K-major) or whole panels (MN-major), so the offset is a multiple of the repeat size.
        inside = add_exprs(
            scale_expr(mn, per_row if k_major else layout.panel_bytes // layout.panel),
            _make_uniform(compute_copy_offset(layout)),
        )
        address = state.scalars.get_register(SHARED_BASE)
        if inside != tile.int32_const(0):
            address = builder.create("b32", "add.u32", address, state.scalars.get_register(inside))
        if place.constant:
            address = builder.create("b32", "add.u32", address, Imm(place.constant))
        # A descriptor has 18 bits of the address; the bits above are the block's number in its cluster.
        start = builder.create("b32", "bfe.u32", address, Imm(4), Imm(14))
        mask = builder.create("b64", "mov.b64", Imm(fixed - (1 << 64) if fixed >> 63 else fixed))
        found = builder.create("b64", "or.b64", builder.create("b64", "cvt.u64.u32", start), mask)
        if place.first is None:
            return found
        return builder.create("b64", "sub.s64", found, builder.create("b64", "mul.wide.u32", place.first, Imm(units)))

    found = state.scalars.compute_hoisted(
        ("descriptor", buffer.name, k_major, mn, place.constant, place.first, units), build_base_descriptor
    )
    if place.register is None:
        return found
    return builder.create("b64", "add.s64", builder.create("b64", "mul.wide.u32", place.register, Imm(units)), found)


def _advance_descriptor(state: State, descriptor: Reg, offset: tile.Expr) -> Reg:
    """Emit and return the descriptor with its address `offset` bytes on.

    Addresses stay below 2^18: the field cannot overflow.
    """
    form = affine_form(offset)
    if form.terms:
        moved = state.scalars.get_register(tile.Binary("floordiv", offset, tile.int32_const(16), INT32))
        return state.builder.create("b64", "add.s64", descriptor, state.builder.create("b64", "cvt.u64.u32", moved))
    units = form.constant >> 4
    return state.builder.create("b64", "add.s64", descriptor, Imm(units)) if units else descriptor
