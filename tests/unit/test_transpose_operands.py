"""Which operands of products are transposed in shared memory first, and in which order their elements then lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilec.ir import tile
from tilec.ir.tile import Kernel
from tilec.ops.products.gemm import Gemm
from tilec.passes.layout.shared.transpose_operands import transpose_operands

STAGED = """
A_shared = T.alloc_shared((64, 64), "float8_e4m3fn")
B_shared = T.alloc_shared((64, 64), "float8_e4m3fn")
acc = T.alloc_fragment((64, 64), "float32")
T.gemm(A_shared, B_shared, acc)
"""
IN_REGISTERS = STAGED.replace("A_shared = T.alloc_shared((64, 64)", "A_shared = T.alloc_fragment((64, 64)")


def gemm_of(kernel: Kernel) -> Gemm:
    (found,) = (stmt for stmt in tile.walk_statements(kernel.body) if isinstance(stmt, Gemm))
    return found


@pytest.mark.parametrize(
    ("text", "order"), [(STAGED, None), (IN_REGISTERS, "as accumulated")], ids=["shared", "registers"]
)
def test_only_a_factor_in_registers_gives_its_order(body: Callable[..., Kernel], text: str, order: str | None) -> None:
    """B is transposed for both; its order follows A where A stays in the registers in which it was accumulated."""
    made: list[tile.Buffer] = []

    def make(buffer: tile.Buffer) -> tile.Buffer:
        made.append(buffer)
        return buffer

    steps, changed = transpose_operands(gemm_of(body(text)), lambda op: op.transpose_B, make)
    assert [step.order for step in steps] == [order]
    assert (changed.order, changed.transpose_B, changed.transpose_A) == (order, True, False)
    assert len(made) == 1
