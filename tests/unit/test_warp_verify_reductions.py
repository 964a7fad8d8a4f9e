"""The promise of the warp verifier about threads that have parts of a row, broken by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_warp_verify import one_role, violations

from tilec.ir import warp
from tilec.ir.layout import Axis, Fragment
from tilec.ir.tile import Buffer
from tilec.ir.types import FLOAT32


@pytest.mark.parametrize(("lanes", "meet"), [(8, True), (32, True), (64, True), (24, False), (48, False)])
def test_rows_are_reduced_among_lanes_that_meet(lanes: int, meet: bool) -> None:
    """So many threads share each row."""
    rows = 192 // lanes
    held = Buffer("held", (rows, lanes), FLOAT32, "fragment")
    total = Buffer("total", (rows,), FLOAT32, "fragment")
    layout = Fragment(held.shape, (Axis(lanes, 1, 1), Axis(rows, 0, 1)), ())
    reduce = warp.Reduce(held, total, "max", 1, True, None)
    program = one_role(reduce, warps=6)
    found = violations(replace(program, fragments=((held, layout), (total, layout.project((0,))))))
    assert found == ("" if meet else "line 0: Reduce of held has rows whose lanes do not form a butterfly")
