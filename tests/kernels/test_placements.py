"""Shared tiles with a T.Layout of their own: the same results, wherever elements lie."""

from __future__ import annotations

import re

import pytest
from harness import HERE, agrees

KERNEL = HERE / "placements.tl"
MAPS = ("padded", "rotated", "turned", "blocks", "exchanged", "backwards", "pairs")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("how", MAPS)
def test_every_map(how: str, target: str) -> None:
    made = agrees(KERNEL, target, strict=False, entry="moved", how=how)
    assert "cp.async.bulk" not in made.ptx  # TMA knows none of these


@pytest.mark.parametrize("dtype", ["int8", "float64"])
def test_other_types(dtype: str) -> None:
    agrees(KERNEL, "sm_80", strict=False, entry="moved", how="rotated", dtype=dtype)


@pytest.mark.parametrize(("how", "chunk"), [("padded", "16"), ("exchanged", "16"), ("pairs", "4"), ("turned", None)])
def test_cp_async_moves_what_lies_together(how: str, chunk: str | None) -> None:
    made = agrees(KERNEL, "sm_80", strict=False, entry="moved", how=how)
    assert set(re.findall(r"cp\.async\.c[ag]\.\S+ \S+, \S+, (\d+)", made.ptx)) == ({chunk} if chunk else set())


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_padding_without_conflicts_suits_ldmatrix(target: str) -> None:
    made = agrees(KERNEL, target, entry="product")  # strict: a bank conflict would be a warning
    assert "ldmatrix" in made.ptx and "wgmma" not in made.ptx
