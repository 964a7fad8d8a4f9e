"""What a thread moves between memory and registers at once."""

from __future__ import annotations

import re

import pytest
from harness import HERE, agrees

CASES = {
    "narrow_out": {"ld.global.nc.v4.b32": 4, "st.global.v4.b32": 2},  # 16 elements a run: two loads, one store
    "by_fragment": {"ld.global.nc.v4.b32": 4},
    "one_of_each_row": {"ld.global.nc.v4.b32": 4, "ld.global.nc.f32": 4, "st.global.v4.b32": 4},
    "gathered": {"ld.global.nc.v4.b32": 4, "ld.global.nc.b32": 4, "st.global.v4.b32": 4},
    "gathered_columns": {"ld.global.nc.b16": 32, "st.global.v4.b32": 4},
    "few": {"ld.global.nc.v2.b32": 1, "st.global.v2.b32": 1},  # wider ones would leave half of the threads idle
    "some_rows": {"ld.global.nc.v4.b32": 4, "ld.global.nc.b32": 4, "st.global.v4.b32": 4},
    "some_columns": {"ld.global.nc.v4.b32": 4, "st.global.b16": 32},
    "by_shared": {"ld.global.nc.v2.b32": 8, "st.shared.v4.f32": 8},  # elements of a tile without bank conflicts
}
ACCESS = re.compile(r"(?:ld|st)\.(?:global|shared)\S*")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kernel", CASES)
def test_accesses(kernel: str, target: str) -> None:
    if kernel == "narrow_out" and target == "sm_80":
        target = "sm_90a"  # where a number in the PTX stands for one conversion; the layout is the same
    made = agrees(HERE / "widths.tl", target, entry=kernel)
    found = ACCESS.findall(made.ptx)
    assert {access: found.count(access) for access in CASES[kernel]} == CASES[kernel]
