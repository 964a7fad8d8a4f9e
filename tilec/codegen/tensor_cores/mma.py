"""mma.sync: each warp multiplies its rows of A, from registers or shared memory, with its columns of B.

Fragment formats are those of the PTX ISA, "Matrix fragments for mma.m16n8k16" and its like. They agree for all types
once k is counted in bytes: an instruction takes 32 bytes of k, a register 4.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.codegen.memory import ZERO, load_element, pack_word
from tilec.codegen.state import State
from tilec.codegen.tensor_cores import matrix
from tilec.codegen.tensor_cores.mma_runs import Step, find_run, load_run_steps
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.tile import Expr, Region, int32_const
from tilec.ir.types import FLOAT32, FLOAT64
from tilec.ir.warp import Cursor, Mma
from tilec.ptx.module import Operand, Reg, Vector

LANE_OF_8, LANE_OF_16 = matrix.extract_digit(matrix.LANE, 1, 8), matrix.extract_digit(matrix.LANE, 1, 16)
SECOND_OF_8, SECOND_OF_16 = matrix.extract_digit(matrix.LANE, 8, 2), matrix.extract_digit(matrix.LANE, 16, 2)
"""The lane's number among 8 or 16 lanes, and whether these are the second ones of 16 or 32."""
ACCUMULATORS = 4
"""Of a block of 16 × 8 in each thread."""
IN_FLIGHT = 4
"""Products of a warp that hide each other's latency. On an H200, with two sums in place of one for each of two blocks,
a product of 16 rows and weights of four bits took 21.5 µs in place of 23.2."""
MOST_CHAINED_BLOCKS, LEAST_CHAINED_STEPS = 2, 8
"""Sums are split for so few blocks of a warp, and so many steps along k that adding the parts costs little."""


def emit_mma(op: Mma, state: State) -> None:
    """Emit mma.sync for the warp's tile of C: per k step, load A's rows and B's columns, then multiply each pair."""
    layout = state.layouts[op.c.name]
    rows, columns = layout.registers[3].size, layout.registers[2].size  # in blocks of 16 and of 8
    row, column = matrix.compute_warp_origin(layout, 2)
    if op.clear:
        matrix.clear_accumulators(op.c, state)
    sums = matrix.get_accumulators(op.c, state)
    count = len(sums) // (rows * columns)
    run = find_run(op, state)
    origin, blocks = (row, column), (rows, columns)
    steps = load_run_steps(op, state, origin, blocks, run) if run else _load_steps(op, state, origin, blocks)
    chains = [sums, *_start_chains(op, state, rows * columns)]
    with state.scalars.open_scope():
        for number, (a, b) in enumerate(steps):
            for i in range(rows):
                where = matrix.load_metadata(op, state, add_exprs(row, int32_const(16 * i)), number)
                for j in range(columns):
                    first = count * (i * columns + j)
                    _emit_product(op, state, a[i], b[j], chains[number % len(chains)][first : first + count], where)
    for chain in chains[1:]:
        for total, part in zip(sums, chain, strict=True):
            state.builder.emit("add.rn.f32", total, total, part)


def _start_chains(op: Mma, state: State, blocks: int) -> list[tuple[Reg, ...]]:
    """Emit the zeros of more sums for a product of few blocks and many steps, which would wait for each other; return
    them.
    """
    steps = op.a.extent[-2 if op.transpose_a else -1] * op.a.buffer.dtype.bytes // matrix.K_BYTES
    if op.c.dtype != FLOAT32 or blocks > MOST_CHAINED_BLOCKS or steps < LEAST_CHAINED_STEPS:
        return []
    chains = [state.builder.new_registers("f32", ACCUMULATORS * blocks) for _ in range(IN_FLIGHT // blocks - 1)]
    for register in (r for chain in chains for r in chain):
        state.builder.emit("mov.f32", register, ZERO["f32"])
    return chains


def _load_steps(op: Mma, state: State, origin: tuple[Expr, ...], blocks: tuple[int, int]) -> Iterator[Step]:
    """Yield the operands of each step along k, in registers or loaded by ldmatrix."""
    (row, column), (rows, columns) = origin, blocks
    depth = op.a.extent[-2 if op.transpose_a else -1]
    step = matrix.K_BYTES // op.a.buffer.dtype.bytes
    dense = 1 if op.metadata is None else 2  # elements of B along k for one of A
    per_step = 2 if op.a.buffer.dtype == FLOAT64 else 4
    factors = (op.a.buffer, op.b.buffer)
    a_registers, b_registers = (matrix.pack_operand(f, state) if f.scope == "fragment" else () for f in factors)
    b_per_step = per_step // 2
    for k in range(0, depth, step):
        a: list[tuple[Reg, ...]] = []
        for i in range(rows):
            first = per_step * (i * depth + k) // step
            held = a_registers[first : first + per_step]
            a.append(held or load_a(op, state, add_exprs(row, int32_const(16 * i)), k))
        b: list[tuple[Reg, ...]] = []
        for j in range(0, columns, 2):
            if b_registers:
                firsts = [b_per_step * (i * depth + k) // step for i in range(j, min(j + 2, columns))]
                b += [b_registers[first : first + b_per_step] for first in firsts]
                continue
            n, count = add_exprs(column, int32_const(8 * j)), min(2, columns - j)
            parts = [load_b(op, state, n, dense * k + half * step, count) for half in range(dense)]
            b += [tuple(register for part in block for register in part) for block in zip(*parts, strict=True)]
        yield a, b


def _emit_product(
    op: Mma, state: State, a: tuple[Reg, ...], b: tuple[Reg, ...], c: tuple[Reg, ...], where: tuple[Operand, ...]
) -> None:
    """Emit C += A × B for one block of 16 × 8, or twice 8 × 8 for float64; `where` is the sparsity of A."""
    a_kind, b_kind = (op.nibbles or matrix.get_operand_kind(part.buffer.dtype) for part in (op.a, op.b))
    kinds = f"{matrix.TYPE_NAMES[op.c.dtype]}.{a_kind}.{b_kind}.{matrix.TYPE_NAMES[op.c.dtype]}"
    if op.a.buffer.dtype == FLOAT64:
        for half in range(2):  # 8 rows each
            rows = Vector(c[2 * half : 2 * half + 2])
            state.builder.emit(f"mma.sync.aligned.m8n8k4.row.col.{kinds}", rows, Vector((a[half],)), Vector(b), rows)
        return
    both = Vector(c)
    step = matrix.K_BYTES // op.a.buffer.dtype.bytes * (2 if op.nibbles else 1)
    opcode = f"mma.sp.sync.aligned.m16n8k{2 * step}" if where else f"mma.sync.aligned.m16n8k{step}"
    state.builder.emit(f"{opcode}.row.col.{kinds}", both, Vector(a), Vector(b), both, *where)


def emit_ldmatrix(
    state: State, part: Region, row: Expr, column: Expr, cursors: tuple[Cursor, ...], count: int, transposed: bool
) -> tuple[Reg, ...]:
    """Emit ldmatrix of `count` matrices of 8 rows of 16 bytes, and return a register for each.

    This lane gives the address of the row at `row` and `column`.
    """
    registers = state.builder.new_registers("b32", count)
    address = state.addresses.address_shared_element(part.buffer, matrix.index_part(part, row, column), cursors)
    opcode = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    state.builder.emit(opcode, Vector(registers), address)
    return registers


def load_a(op: Mma, state: State, row: Expr, k: int) -> tuple[Reg, ...]:
    """Emit loads of 16 rows of A and 32 bytes along k from element `k`; return the registers as mma.sync takes them.

    These are quarters: rows 0–7 and 8–15 of bytes 0–15, then the same rows of bytes 16–31; of float64, one register for
    8 rows.
    """
    dtype = op.a.buffer.dtype
    chunk = 16 // dtype.bytes
    if dtype == FLOAT64:
        rows = (add_exprs(row, int32_const(8 * h)) for h in (0, 1))
        return tuple(gather_register(op.a, not op.transpose_a, m, k, op.cursors, state) for m in rows)
    if not op.transpose_a:
        m = add_exprs(row, LANE_OF_16)
        kk = add_exprs(scale_expr(SECOND_OF_16, chunk), int32_const(k))
        return emit_ldmatrix(state, op.a, m, kk, op.cursors, 4, False)
    if dtype.bits == 16:
        kk = add_exprs(add_exprs(LANE_OF_8, scale_expr(SECOND_OF_16, 8)), int32_const(k))
        m = add_exprs(row, scale_expr(SECOND_OF_8, 8))
        return emit_ldmatrix(state, op.a, kk, m, op.cursors, 4, True)
    quarters = [(add_exprs(row, int32_const(8 * h)), k + chunk * c) for c in (0, 1) for h in (0, 1)]
    return tuple(gather_register(op.a, False, m, at, op.cursors, state) for m, at in quarters)


def load_b(op: Mma, state: State, column: Expr, k: int, blocks: int) -> list[tuple[Reg, ...]]:
    """Emit loads of one or two blocks of 8 columns of B, 32 bytes along k from element `k`; return the registers.

    They are k 0–15 and 16–31 of a block, then the next block.
    """
    dtype = op.b.buffer.dtype
    chunk = 16 // dtype.bytes
    if dtype.bits == 64 or (dtype.bits != 16 and not op.transpose_b):
        starts = (k,) if dtype == FLOAT64 else (k, k + chunk)
        return [
            tuple(
                gather_register(op.b, op.transpose_b, add_exprs(column, int32_const(8 * i)), at, op.cursors, state)
                for at in starts
            )
            for i in range(blocks)
        ]
    if op.transpose_b:  # stored as (N, K): rows are columns of B
        n = add_exprs(column, LANE_OF_8)
        if blocks == 2:
            n = add_exprs(column, add_exprs(LANE_OF_8, scale_expr(SECOND_OF_16, 8)))
        kk = add_exprs(scale_expr(SECOND_OF_8, chunk), int32_const(k))
        registers = emit_ldmatrix(state, op.b, n, kk, op.cursors, 2 * blocks, False)
    else:
        kk = add_exprs(LANE_OF_16, int32_const(k))
        n = add_exprs(column, scale_expr(SECOND_OF_16, 8)) if blocks == 2 else column
        registers = emit_ldmatrix(state, op.b, kk, n, op.cursors, 2 * blocks, True)
    return [registers[2 * i : 2 * i + 2] for i in range(blocks)]


def gather_register(part: Region, k_major: bool, first: Expr, k: int, cursors: tuple[Cursor, ...], state: State) -> Reg:
    """Emit loads of one register of an operand element by element, for types that ldmatrix cannot transpose; return it.

    The elements are neighbours along k of this lane's row or column, counted from `first`.
    """
    dtype = part.buffer.dtype
    per = max(4 // dtype.bytes, 1)
    mn = add_exprs(first, matrix.ROW)
    parts: list[Operand] = []
    for e in range(per):
        at = add_exprs(scale_expr(matrix.QUAD, per), int32_const(k + e))
        indices = matrix.index_part(part, mn, at) if k_major else matrix.index_part(part, at, mn)
        address = state.addresses.address_shared_element(part.buffer, indices, cursors)
        parts.append(load_element(state.builder, part.buffer, address, None))
    registers = [p for p in parts if isinstance(p, Reg)]
    if dtype == FLOAT64:
        return registers[0]
    if per == 1:
        return state.builder.create("b32", "mov.b32", registers[0])
    return pack_word(state.builder, registers, dtype)
