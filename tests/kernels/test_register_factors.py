"""Products whose factors both lie in registers, and copies to registers by ldmatrix."""

from __future__ import annotations

import pytest
from harness import HERE, agrees, built

KERNEL = HERE / "register_factors.tl"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("tB", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_both_factors_in_registers(target: str, tB: bool, changed: bool) -> None:
    made = agrees(KERNEL, target, tB=tB, changed=changed)
    assert ("ldmatrix.sync.aligned.m8n8.x4.shared.b16" in made.ptx) and "mma.sync" in made.ptx
    assert "ld.shared" not in made.ptx
    assert (".trans" in made.ptx) != tB


def test_fewer_blocks_than_an_instruction_takes() -> None:
    """Eight columns of B are two blocks along its depth."""
    made = agrees(KERNEL, "sm_80", bN=8, N=16, threads=32, bM=16, M=16)
    assert "ldmatrix.sync.aligned.m8n8.x2.trans" in made.ptx


def test_columns_that_start_anywhere_are_read_by_the_threads() -> None:
    """ldmatrix takes 16 bytes that are a multiple of 16 apart from the row's start."""
    _, made = built(HERE / "register_columns.tl", "sm_80")
    assert "ldmatrix" not in made.ptx
    agrees(HERE / "register_columns.tl", "sm_80")
