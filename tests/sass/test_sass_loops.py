"""Loops of machine code, and when a warp issues what is in them, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilec.driver.build import Library, Observer, build_library
from tilec.sass.cubin import Function, read_functions
from tilec.sass.instruction import Instruction
from tilec.sass.issue import WarpInterval, measure_loop_interval, sum_stalls
from tilec.sass.latencies import Latencies
from tilec.sass.loops import Loop, PtxLoop, find_loop_of_ptx, find_loops, find_ptx_loops, select_kernel_loops
from tilec.support import files
from tilec.support.options import CompileOptions
from tilec.target.table import load_target

SAMPLES = Path(__file__).parents[2] / "samples"
LDG, STS, FFMA, BAR, HMMA, DEPBAR = 0x981, 0x388, 0x223, 0xB1D, 0x23C, 0x91A
LDGSTS, LDGDEPBAR, BRA, EXIT = 0xFAE, 0x9AF, 0x947, 0x94D
ALWAYS = 7 << 12
WORD = 4 << 9
"""The size field of an access of four bytes."""


def made(at: int, opcode: int, stall: int = 1, **fields: int) -> Instruction:
    """`writes` and `reads`: scoreboards; `waits`: a mask of them; `line`: of the PTX; `low`, `high`: further bits."""
    word = stall | fields.get("writes", 7) << 5 | fields.get("reads", 7) << 8 | fields.get("waits", 0) << 11
    guard = 0 if "guarded" in fields else ALWAYS
    low = opcode | guard | fields.get("low", 0)
    return Instruction(16 * at, low, word << 41 | fields.get("high", WORD), ptx_line=fields.get("line"))


def branch(at: int, to: int, **fields: int) -> Instruction:
    words = (16 * to - 16 * (at + 1)) // 4 & (1 << 48) - 1
    return made(at, BRA, 5, low=words << 34 & (1 << 64) - 1, high=words >> 30, **fields)


def cycles(*body: Instruction, target: str = "sm_80") -> WarpInterval:
    return measure_loop_interval(Loop("k", body), Latencies(load_target(target)))


def test_stall_counts_alone() -> None:
    body = (made(0, FFMA, 4), made(1, FFMA, 2), made(2, FFMA, 0))
    assert sum_stalls(body) == 4 + 2 + 1
    found = cycles(*body)
    assert (found.issue, found.cycles, found.waits) == (7, 7, ())


def test_a_load_that_its_own_iteration_uses() -> None:
    """466 cycles and 2 for its 128 bytes, of which 1 is the load's own stall count."""
    load_, use = made(0, LDG, writes=0), made(1, FFMA, 4, waits=1)
    found = cycles(load_, use)
    assert found.issue == 5
    assert found.cycles == 468 + 4
    (wait,) = found.waits
    assert (wait.cycles, wait.at, wait.producer, wait.earlier) == (467, use, load_, 0)


def test_a_load_that_the_next_iteration_uses() -> None:
    """The use stands before the load: the rest of the iteration hides a part of it."""
    use, load_ = made(0, FFMA, 15, waits=1), made(1, LDG, 10, writes=0)
    found = cycles(use, load_)
    assert found.cycles == 468 + 15
    (wait,) = found.waits
    assert (wait.cycles, wait.earlier) == (468 - 10, 1)


def test_operands_that_are_still_read() -> None:
    """A store of shared memory frees its registers after 29 cycles and 1 for its 128 bytes."""
    found = cycles(made(0, STS, 2, reads=3), made(1, FFMA, 4, waits=8))
    assert found.cycles == 30 + 4


def test_copies_are_waited_for_by_their_group() -> None:
    """With one group that may be in flight the wait is for the one of the iteration before: 496 + 2 cycles of latency
    are shared by two iterations."""
    body = (
        made(0, LDGSTS, 2),
        made(1, LDGDEPBAR, 2, writes=0),
        made(2, DEPBAR, 4, low=1 << 47 | 1 << 38),
        made(3, BAR, 6, high=1 << 16),
    )
    found = cycles(*body)
    assert found.waits[0].producer == body[0] and found.waits[0].earlier == 1
    barrier = load_target("sm_80").price("barrier").latency
    # Two iterations: the latency from copy to wait, the wait's own stall count, and the barrier with its own.
    assert 2 * found.cycles == 498 + 4 + barrier + 6


def test_products_share_the_tensor_core() -> None:
    """8 cycles each of them, on the tensor core of the warp's quarter: more than a stall count of 2."""
    found = cycles(*(made(at, HMMA, 2) for at in range(4)))
    assert (found.issue, found.cycles) == (8, 32)
    assert {wait.producer for wait in found.waits} == {None}


def test_loops_are_found_by_the_branch_back() -> None:
    code = (
        made(0, FFMA),
        made(1, FFMA),
        branch(2, 1, guarded=1),  # a loop within
        branch(3, 0, guarded=1),
        made(4, EXIT),
        branch(5, 3),  # the end of a slow path, put out of the way
        branch(6, 6),  # where code ends
    )
    found = find_loops(Function("k", code))
    assert [(loop.first, loop.last, loop.inner) for loop in found] == [(0, 48, 1), (16, 32, 0)]
    assert [one.target for one in code if one.kind == "branch"] == [16, 0, 48, 96]


def test_a_loop_that_the_assembler_unrolled() -> None:
    body = [made(at, (FFMA, LDG)[at % 2], 2, line=10 + at % 2) for at in range(6)]
    code = (*body, branch(6, 0, guarded=1, line=12), made(7, EXIT))
    function = Function("k", code)
    loop = find_loop_of_ptx(function, find_loops(function), PtxLoop("k", 9, 12, ()))
    assert loop is not None and loop.unrolled == 3
    found = measure_loop_interval(loop, Latencies(load_target("sm_80")))
    assert found.issue == found.cycles == pytest.approx((6 * 2 + 5) / 3)
    waiting = replace(loop, body=(made(0, LDG, 2, writes=0, line=10), made(1, FFMA, 1, waits=1, line=11), *loop.body))
    assert measure_loop_interval(waiting, Latencies(load_target("sm_80"))).waits[0].cycles == pytest.approx(
        (468 - 2) / 3
    )


def test_a_loop_whose_iterations_follow_each_other() -> None:
    """Five loads, 8 cycles apart; with fewer nobody could tell."""
    body = [made(at, (LDG, FFMA)[at % 2], 4, line=10 + at % 2) for at in range(10)]
    function = Function("k", (made(0, FFMA, line=3), *body))
    loop = find_loop_of_ptx(function, (), PtxLoop("k", 9, 12, ()))
    assert loop is not None and loop.is_straight and loop.unrolled == 5
    assert measure_loop_interval(loop, Latencies(load_target("sm_80"))).cycles == 8
    few = Function("k", tuple(body[:6]))
    assert find_loop_of_ptx(few, (), PtxLoop("k", 9, 12, ())) is None


def test_a_loop_of_arithmetic_alone() -> None:
    """Five iterations without an access: no instruction tells them apart, so that their mean is measured."""
    body = [made(at, FFMA, 4, line=10 + at % 2) for at in range(10)]
    function = Function("k", (made(0, FFMA, line=3), *body))
    loop = find_loop_of_ptx(function, (), PtxLoop("k", 9, 12, ()))
    assert loop is not None and loop.is_straight and loop.unrolled == 5
    assert measure_loop_interval(loop, Latencies(load_target("sm_80"))).cycles == 8


PTX = """.file 1 "k.tl", 1, 1
.visible .entry k(
)
{
    .loc 1 4 9
$L1_outer:
    .loc 1 7 9
$L2_wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r9], %r10;
    @!%p6 bra $L2_wait;
$L3_loop:
    .loc 1 8 13
    add.s32 %r1, %r1, 1;
    .loc 1 7 9
    @%p0 bra $L3_loop;
    @%p1 bra $L1_outer;
"""


def test_loops_of_ptx() -> None:
    inner, outer = find_ptx_loops(PTX)
    assert (inner.entry, inner.first, inner.last, inner.lines) == ("k", 11, 15, ((1, 8), (1, 7)))
    assert (outer.first, outer.last) == (6, 16)
    assert select_kernel_loops((inner, outer), "k", 1, 7, 8) == (inner,)
    assert select_kernel_loops((inner, outer), "k", 1, 4, 9) == (outer,)
    assert select_kernel_loops((inner, outer), "another", 1, 7, 8) == ()


def library(sample: str, target: str) -> Library:
    source = files.read_source(str(SAMPLES / f"{sample}.tl"))
    return build_library(source, CompileOptions(target=target), Observer())


def test_a_warp_of_a_gemm_on_hopper() -> None:
    """Four products of 64 × 128 × 16 an iteration, of 64 cycles each, and nothing that takes longer."""
    made_ = library("gemm", "sm_90a")
    (function,) = read_functions(made_.cubin)
    consumer, producer = (
        find_loop_of_ptx(function, find_loops(function), each)
        for each in select_kernel_loops(find_ptx_loops(made_.ptx), "gemm", 1, 25, 28)
    )
    assert consumer is not None and producer is not None
    assert [one.name for one in consumer.body].count("HGMMA") == 4
    assert measure_loop_interval(consumer, Latencies(load_target("sm_90a"))).cycles == 256
    assert measure_loop_interval(producer, Latencies(load_target("sm_90a"))).cycles < 256
