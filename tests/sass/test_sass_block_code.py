"""How long a warp takes through a function, by the loops in it, and how long its instructions keep a pipe: by hand."""

from __future__ import annotations

import pytest
from test_sass_loops import BRA, EXIT, FFMA, LDG, branch, made

from tilec.sass.block_code import CodePart, add_inner_parts, measure_code_parts
from tilec.sass.cubin import Function
from tilec.sass.latencies import Latencies, count_pipe_cycles
from tilec.sass.loops import PtxLoop, find_ptx_loops
from tilec.target.table import load_target

IADD3, IMAD, MUFU = 0x210, 0x224, 0x308
HOPPER = Latencies(load_target("sm_90a"))


def test_parts_are_those_of_the_innermost_loop() -> None:
    """Three cycles before the loops, 5 + 5 an outer iteration, 2 + 5 an inner one; none are behind the end."""
    code = (
        made(0, FFMA, 3),
        made(1, FFMA, 5, line=9),
        made(2, FFMA, 2, line=10),
        branch(3, 2, guarded=1, line=11),
        branch(4, 1, guarded=1, line=12),
        made(5, EXIT, 1),
        made(6, FFMA, 15),
    )
    parts = measure_code_parts(Function("k", code), HOPPER)
    assert [(part.ptx_line, part.cycles, part.stalls, part.held) for part in parts] == [
        (None, 4, 4, 2),
        (12, 10, 10, 2),
        (11, 7, 7, 2),
    ]


def test_a_load_is_waited_for_where_it_is_used() -> None:
    code = (made(0, LDG, writes=0), made(1, FFMA, 4, waits=1, line=10), branch(2, 1, guarded=1, line=11), made(3, EXIT))
    around, loop = measure_code_parts(Function("k", code), HOPPER)
    alone = measure_code_parts(Function("k", (code[0], made(1, FFMA, 4, waits=1), made(2, EXIT))), HOPPER)[0]
    assert around.cycles == 2 and loop.cycles == pytest.approx(9 + (alone.cycles - 6) / 3)


def test_a_branch_that_is_always_taken_skips_code_and_a_guarded_one_does_not() -> None:
    skipping = (branch(0, 2), made(1, FFMA, 15), made(2, EXIT))
    perhaps = (branch(0, 2, guarded=1), made(1, FFMA, 15), made(2, EXIT))
    assert [measure_code_parts(Function("k", code), HOPPER)[0].cycles for code in (skipping, perhaps)] == [6, 21]


def test_loops_inside_count_as_often_as_they_run() -> None:
    loops = (PtxLoop("k", 1, 40, (), 10), PtxLoop("k", 5, 20, (), 4), PtxLoop("k", 6, 12, (), 3))
    parts = [CodePart(None, 100), CodePart(40, 50), CodePart(20, 7), CodePart(12, 1)]
    assert add_inner_parts(parts, loops)[None].cycles == 100 + 10 * (50 + 4 * (7 + 3 * 1))
    kept = add_inner_parts(parts, loops, (20,))
    assert (kept[None].cycles, kept[20].cycles) == (100 + 10 * 50, 7 + 3 * 1)


@pytest.mark.parametrize(
    ("begin", "end", "count"),
    [
        ("mov.b32 %r5, 0;", "add.s32 %r5, %r5, 1;\n    setp.lt.s32 %p1, %r5, 8;", 8),
        ("mov.b32 %r5, 0;", "add.u32 %r5, %r5, 4;\n    setp.lt.u32 %p1, %r5, 10;", 3),
        ("mov.b32 %r5, 10000;", "add.s32 %r5, %r5, 1;\n    setp.lt.s32 %p1, %r5, 10100;", 100),
        ("mov.b32 %r5, -4;", "add.s32 %r5, %r5, 2;\n    setp.lt.s32 %p1, %r5, -1;", 2),
        ("mov.b32 %r5, 0;\n    mov.b32 %r5, %r6;", "add.s32 %r5, %r5, 1;\n    setp.lt.s32 %p1, %r5, 8;", None),
        ("", "add.s32 %r5, %r5, 1;\n    setp.lt.s32 %p1, %r5, 8;", None),
        ("mov.b32 %r5, 0;", "add.s32 %r5, %r5, 1;\n    setp.lt.s32 %p1, %r5, %r9;", None),
        ("mov.b32 %r5, 0;", "add.s32 %r5, %r5, 1;\n    setp.lt.s32 %p1, %r6, 8;", None),
    ],
)
def test_a_counter_says_how_often_a_loop_runs(begin: str, end: str, count: int | None) -> None:
    head = f".visible .entry k(\n)\n{{\n    .loc 1 4 9\n    {begin}\n$L1_loop:\n    mov.b32 %r7, 1;\n"
    (loop,) = find_ptx_loops(f"{head}    {end}\n    @%p1 bra $L1_loop;\n")
    assert loop.trip_count == count


@pytest.mark.parametrize(
    ("target", "opcodes", "cycles"),
    [
        ("sm_90a", [FFMA] * 8, 8),
        ("sm_80", [FFMA] * 8, 16),  # half the lanes of float arithmetic
        ("sm_90a", [IADD3] * 8, 16),
        ("sm_90a", [IADD3, FFMA] * 4, 8),
        ("sm_90a", [IMAD] * 4 + [FFMA] * 4, 8),
        ("sm_80", [IMAD] * 4 + [FFMA] * 4, 16),
        ("sm_90a", [MUFU] * 2 + [FFMA] * 6, 16),
        ("sm_90a", [BRA] * 8, 8),
    ],
)
def test_the_busiest_pipe(target: str, opcodes: list[int], cycles: int) -> None:
    code = [made(at, opcode) for at, opcode in enumerate(opcodes)]
    assert count_pipe_cycles(code, Latencies(load_target(target)).float_cycles()) == cycles
