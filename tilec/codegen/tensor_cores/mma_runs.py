"""Operands of mma.sync, one in registers and one in shared memory, of which each thread has runs of neighbours along k.

A product sums over k in any order. In place of two neighbours of every eight, thread q of a quad takes the q-th run of
every four: the registers' layout says so (`operand_a_fragment`), and the other operand is read in the same order, 16
bytes of a row at a time. These are the words of two instructions.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.codegen.state import State
from tilec.codegen.tensor_cores import matrix
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.tile import Expr, Region, int32_const
from tilec.ir.warp import Mma
from tilec.ptx.module import Reg, Vector

Step = tuple[list[tuple[Reg, ...]], list[tuple[Reg, ...]]]
"""The registers of A, by blocks of 16 rows, and of B, by blocks of 8 columns, for one instruction each."""


def find_run(op: Mma, state: State) -> int:
    """Return how many neighbours along k a thread holds of the operand in registers; 0 for those of the instruction."""
    held = [part.buffer for part in (op.a, op.b) if part.buffer.scope == "fragment"]
    if len(held) != 1:
        return 0
    size, alone = state.layouts[held[0].name].registers[0].size, max(4 // held[0].dtype.bytes, 1)
    return size if size > alone else 0


def load_run_steps(
    op: Mma, state: State, origin: tuple[Expr, ...], blocks: tuple[int, int], run: int
) -> Iterator[Step]:
    """Yield the operands of each step along k: those in registers, and those that are loaded here, for two steps.

    `blocks` are the warp's blocks of 16 rows and of 8 columns, from `origin` on.
    """
    (row, column), (rows, columns) = origin, blocks
    depth = op.a.extent[-1]
    if op.a.buffer.scope == "fragment":
        words = matrix.pack_operand(op.a.buffer, state)
        first_rows = [add_exprs(column, int32_const(8 * j)) for j in range(columns)]
        for k in range(0, depth, 32):
            loaded = [_load_words(op.b, op, state, first, k, run) for first in first_rows]
            for half in (0, 1):
                at = k // 4 + 4 * half
                held = [_take_a(words[i * depth // 4 : (i + 1) * depth // 4], at, run) for i in range(rows)]
                yield held, [block[2 * half : 2 * half + 2] for block in loaded]
        return
    words = matrix.pack_operand(op.b.buffer, state)
    first_rows = [add_exprs(row, int32_const(8 * i)) for i in range(2 * rows)]
    for k in range(0, depth, 32):
        loaded = [_load_words(op.a, op, state, first, k, run) for first in first_rows]
        for half in (0, 1):
            upper_and_lower = zip(loaded[::2], loaded[1::2], strict=True)
            a = [tuple(r[2 * half + i] for i in (0, 1) for r in pair) for pair in upper_and_lower]
            first = k // 8 + 2 * half
            yield a, [words[j * depth // 8 + first : j * depth // 8 + first + 2] for j in range(columns)]


def _take_a(words: tuple[Reg, ...], at: int, run: int) -> tuple[Reg, ...]:
    """Return a step's words of a block of A, whose thread has taken `at` elements of each of two rows."""
    before, inside = divmod(at, run)
    first = (2 * before * run + inside) // 2
    return tuple(words[first + i + half * run // 2] for i in (0, 1) for half in (0, 1))


def _load_words(part: Region, op: Mma, state: State, row: Expr, k: int, run: int) -> tuple[Reg, ...]:
    """Emit the load of this thread's next 16 bytes of a row of 8, after `k` elements of it; return the words."""
    before, inside = divmod(k // 4, run)
    column = add_exprs(scale_expr(matrix.QUAD, run), int32_const(4 * before * run + inside))
    indices = matrix.index_part(part, add_exprs(row, matrix.ROW), column)
    words = state.builder.new_registers("b32", 4)
    address = state.addresses.address_shared_element(part.buffer, indices, op.cursors)
    state.builder.emit("ld.shared.v4.b32", Vector(words), address)
    return words
