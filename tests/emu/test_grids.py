"""A grid that begins early: global memory is the one before's until a thread, or one that it waits for, has waited."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.emu import Fault, launch

KERNEL = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 X, .param .u64 Y) {{
    .reg .b64 %x, %y;
    .reg .b32 %t, %v;
    .reg .pred %p;
    .shared .align 8 .b8 tile[64];
    mov.u32 %t, %tid.x;
    ld.param.u64 %x, [X];
    ld.param.u64 %y, [Y];
    setp.lt.u32 %p, %t, 32;
    {first}
    ld.global.u32 %v, [%x];
    {second}
    st.global.u32 [%y], %v;
    ret;
}}
"""
WAIT = "griddepcontrol.wait;"
BY_ONE_WARP = f"@!%p bra $met;\n{WAIT}\n$met:"


def run(first: str, second: str = "", early: bool = True, threads: int = 64) -> int:
    x, y = np.full(1, 7, np.int32), np.zeros(1, np.int32)
    launch(KERNEL.format(first=first, second=second), "k", 1, threads, [x, y], begins_early=early)
    return int(y[0])


@pytest.mark.parametrize(
    "first",
    [WAIT, f"{WAIT} griddepcontrol.launch_dependents;", f"{BY_ONE_WARP} bar.sync 0;"],
    ids=["all", "and-on", "one-for-all"],
)
def test_who_has_waited_may_read_and_write(first: str) -> None:
    assert run(first) == 7


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ("", "", "reads global memory while the previous grid may still run"),
        ("", WAIT, "reads global memory"),
        ("griddepcontrol.launch_dependents;", "", "reads global memory"),
        (BY_ONE_WARP, "", "reads global memory"),  # the other warp has heard of nothing
        ("bar.sync 0;", "", "reads global memory"),
    ],
)
def test_who_has_not_may_not(first: str, second: str, says: str) -> None:
    with pytest.raises(Fault, match=says) as found:
        run(first, second)
    assert found.value.kind == "missing-grid-wait"


def test_a_write_must_wait_too() -> None:
    """What the grid before still reads must not be overwritten."""
    ptx = KERNEL.format(first="mov.u32 %v, 3;", second="").replace("ld.global.u32 %v, [%x];", "")
    with pytest.raises(Fault, match="writes global memory while the previous grid"):
        launch(ptx, "k", 1, 32, [np.zeros(1, np.int32), np.zeros(1, np.int32)], begins_early=True)


def test_a_grid_that_begins_when_the_one_before_has_ended_need_not_wait() -> None:
    assert run("", early=False) == 7


def test_every_block_waits_for_itself() -> None:
    """Also the second one, whatever the first has done."""
    first = "mov.u32 %t, %ctaid.x; setp.eq.u32 %p, %t, 0; " + BY_ONE_WARP
    x, y = np.full(1, 7, np.int32), np.zeros(1, np.int32)
    with pytest.raises(Fault) as found:
        launch(KERNEL.format(first=first, second=""), "k", 2, 32, [x, y], begins_early=True)
    assert found.value.kind == "missing-grid-wait"
