"""Votes, matches, reductions and barriers of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import Fault, launch
from tilec.emu.numbers import Array

BODY = """
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [out];
    mad.wide.u32 %rd1, %r1, 4, %rd1;
    mad.wide.u32 %rd2, %r1, 4, %rd2;
    ld.global.b32 %r2, [%rd1];
    setp.gt.s32 %p1, %r2, 3;
"""


def run(text: str, a: Array, block: int = 64, *, target: str = "sm_90a") -> Array:
    out = np.zeros(len(a), a.dtype)
    source = kernel(BODY + text + "\n    st.global.b32 [%rd2], %r3;", ".param .u64 a, .param .u64 out", target=target)
    launch(source, "k", 1, block, [a, out])
    return out


A = np.random.default_rng(1).integers(0, 7, 64).astype(np.int32)
A[32:] = 4


def test_match_all() -> None:
    found = run("match.all.sync.b32 %r3|%p2, %r2, -1; @!%p2 add.u32 %r3, %r3, 5;", A)
    assert found.view(np.uint32).tolist() == [5] * 32 + [0xFFFFFFFF] * 32


def test_votes() -> None:
    passes = A > 3
    for mode, first in (("all", passes[:32].all()), ("any", passes[:32].any()), ("uni", passes[:32].all())):
        found = run(f"vote.sync.{mode}.pred %p2, %p1, -1; selp.u32 %r3, 1, 0, %p2;", A)
        assert found.tolist() == [int(first)] * 32 + [1] * 32
    found = run("vote.sync.ballot.b32 %r3, !%p1, 0xffffffff;", A)
    ballot = sum(1 << lane for lane in range(32) if not passes[lane])
    assert found.view(np.uint32).tolist() == [ballot] * 32 + [0] * 32


@pytest.mark.parametrize("operation", ["add", "min", "max", "and", "or", "xor"])
def test_integer_reductions(operation: str) -> None:
    function = {"min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}.get(operation, np.add)
    function = np.bitwise_xor if operation == "xor" else function
    name = "b32" if operation in ("and", "or", "xor") else "s32"
    found = run(f"redux.sync.{operation}.{name} %r3, %r2, -1;", A)
    assert found.tolist() == [function.reduce(A[:32])] * 32 + [function.reduce(A[32:])] * 32


def test_float_reductions() -> None:
    x = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    x[40] = np.nan
    for operation, function in (("min", np.fmin), ("max", np.fmax)):
        found = run(f"redux.sync.{operation}.f32 %r3, %r2, -1;", x, target="sm_100a")
        np.testing.assert_array_equal(found, np.repeat([function.reduce(x[:32]), function.reduce(x[32:])], 32))
        found = run(f"redux.sync.{operation}.abs.NaN.f32 %r3, %r2, -1;", x, target="sm_100a")
        np.testing.assert_array_equal(found, np.repeat([function.reduce(np.abs(x[:32])), np.nan], 32))


@pytest.mark.parametrize("name", ["bar", "bar.cta", "barrier", "barrier.cta"])
def test_reducing_barriers(name: str) -> None:
    count = int((A > 3).sum())
    assert run(f"{name}.red.popc.u32 %r3, 0, %p1;", A).tolist() == [count] * 64
    assert run(f"{name}.red.and.pred %p2, 0, %p1; selp.u32 %r3, 1, 0, %p2;", A).tolist() == [0] * 64
    assert run(f"{name}.red.or.pred %p2, 1, 64, !%p1; selp.u32 %r3, 1, 0, %p2;", A).tolist() == [1] * 64
    assert run(f"{name}.sync 0; mov.u32 %r3, %r2;", A).tolist() == A.tolist()


def test_barrier_numbers_in_registers_may_differ_between_warps() -> None:
    # Warps 0 and 2 meet at barrier 1, warps 1 and 3 at barrier 2.
    text = "shr.u32 %r4, %r1, 5; and.b32 %r4, %r4, 1; add.u32 %r4, %r4, 1; barrier.sync %r4, 64; mov.u32 %r3, %r4;"
    found = run(text, np.zeros(128, np.int32), 128)
    assert found.tolist() == [1 + (t // 32) % 2 for t in range(128)]


def test_movmatrix() -> None:
    halves = np.arange(64, dtype=np.uint16).reshape(8, 8)
    a = halves.view(np.int32).reshape(-1)
    found = run("movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r2;", a, 32)
    np.testing.assert_array_equal(found.view(np.uint16).reshape(8, 8), halves.T)


def test_time_advances() -> None:
    text = """
    mov.u64 %rd5, %globaltimer; nanosleep.u32 100; mov.u64 %rd6, %globaltimer; setp.gt.u64 %p2, %rd6, %rd5;
    mov.u32 %r5, %clock; mov.u32 %r6, %clock; setp.gt.and.u32 %p2, %r6, %r5, %p2;
    mov.u32 %r7, %globaltimer_hi; mov.u32 %r8, %smid; mov.u32 %r9, %envreg3;
    selp.u32 %r3, 1, 0, %p2;
    """
    assert run(text, A).tolist() == [1] * 64


@pytest.mark.parametrize("adversary", [None, 1, 2, 3])
def test_teams_within_a_warp(adversary: int | None) -> None:
    # Odd and even lanes run the same instructions under masks of their own, which registers hold.
    text = """
    and.b32 %r4, %r1, 1;
    shl.b32 %r5, 0x55555555, %r4;
    setp.eq.u32 %p3, %r4, 0;
    @%p3 bra even;
    add.u32 %r2, %r2, 1;
even:
    setp.gt.s32 %p1, %r2, 3;
    shfl.sync.bfly.b32 %r6, %r2, 2, 31, %r5;
    redux.sync.add.s32 %r7, %r2, %r5;
    vote.sync.ballot.b32 %r8, %p1, %r5;
    match.any.sync.b32 %r9, %r2, %r5;
    bar.warp.sync %r5;
    popc.b32 %r8, %r8; popc.b32 %r9, %r9;
    mad.lo.u32 %r3, %r7, 1000, %r6;
    mad.lo.u32 %r8, %r8, 32, %r9;
    mad.lo.u32 %r3, %r8, 1000000, %r3;
    """
    out = np.zeros(64, np.int32)
    body = BODY + text + "\n    st.global.b32 [%rd2], %r3;"
    launch(kernel(body, ".param .u64 a, .param .u64 out"), "k", 1, 64, [A, out], adversary=adversary)
    values = A + np.arange(64) % 2
    for thread in range(64):
        lane_group = [t for t in range(thread // 32 * 32, thread // 32 * 32 + 32) if t % 2 == thread % 2]
        ballot, match = sum(values[t] > 3 for t in lane_group), sum(values[t] == values[thread] for t in lane_group)
        expected = (ballot * 32 + match) * 1000000 + sum(values[t] for t in lane_group) * 1000 + values[thread ^ 2]
        assert out[thread] == expected


ARMS = """
    mov.u32 %r1, %tid.x;
    and.b32 %r2, %r1, 31;
    setp.lt.u32 %p1, %r2, 16;
    mul.lo.u32 %r3, %r1, 10;
    add.u32 %r4, %r1, 1000;
    mov.u32 %r5, 77;
    mov.u32 %r6, 78;
    @%p1 bra low;
    {high}
    bra join;
low:
    {low}
join:
    ld.param.u64 %rd1, [out];
    mad.wide.u32 %rd1, %r1, 8, %rd1;
    st.global.u32 [%rd1], %r5;
    st.global.u32 [%rd1+4], %r6;
"""


def run_arms(high: str, low: str, adversary: int | None) -> np.ndarray:
    out = np.zeros((64, 2), np.uint32)
    launch(kernel(ARMS.format(high=high, low=low)), "k", 1, 64, [out], adversary=adversary)
    return out


@pytest.mark.parametrize("adversary", [None, 1, 2, 3])
def test_lanes_meet_at_different_instructions(adversary: int | None) -> None:
    """As the CUDA guide allows since Volta: both arms of a branch shuffle, each with registers of its own."""
    lane = np.arange(64)
    low = lane % 32 < 16
    # Lanes below 16 give tid * 10 and take into r5; the others give tid + 1000 and take into r6.
    out = run_arms("shfl.sync.bfly.b32 %r6, %r4, 16, 31, -1;", "shfl.sync.bfly.b32 %r5, %r3, 16, 31, -1;", adversary)
    np.testing.assert_array_equal(out[:, 0], np.where(low, (lane ^ 16) + 1000, 77))
    np.testing.assert_array_equal(out[:, 1], np.where(low, 78, (lane ^ 16) * 10))
    # The registers of one side must not leak into the other.
    out = run_arms(
        "mov.u32 %r7, -1;\n vote.sync.ballot.b32 %r6, %p1, %r7;", "vote.sync.ballot.b32 %r5, !%p2, -1;", adversary
    )
    np.testing.assert_array_equal(out[:, 0], np.where(low, 0xFFFF, 77))
    np.testing.assert_array_equal(out[:, 1], np.where(low, 78, 0xFFFF))


@pytest.mark.parametrize("adversary", [None, 1, 2])
def test_warp_barriers_at_different_instructions_order(adversary: int | None) -> None:
    body = """
    mov.u32 %r9, box;
    mad.lo.u32 %r8, %r1, 4, %r9;
    xor.b32 %r7, %r1, 16;
    mad.lo.u32 %r7, %r7, 4, %r9;
    st.shared.u32 [%r8], %r1;
    bar.warp.sync {};
    ld.shared.u32 %r5, [%r7];
    """
    source = kernel(ARMS.format(high=body.format("-1"), low=body.format("%r10")).replace(
        "@%p1 bra low;", "mov.u32 %r10, -1;\n @%p1 bra low;"), variables=".shared .align 16 .b8 box[256];")  # fmt: skip
    out = np.zeros((64, 2), np.uint32)
    launch(source, "k", 1, 64, [out], adversary=adversary)
    np.testing.assert_array_equal(out[:, 0], np.arange(64) ^ 16)


def test_what_does_not_meet_is_a_deadlock() -> None:
    """Other qualifiers; and an instruction that must be one for the whole warp."""
    for high, low in (
        ("shfl.sync.up.b32 %r6, %r4, 16, 0, -1;", "shfl.sync.bfly.b32 %r5, %r3, 16, 31, -1;"),
        *[("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r4];",) * 2],
    ):
        with pytest.raises(Fault) as caught:
            run_arms(high, low, None)
        assert caught.value.kind == "deadlock", str(caught.value)
        assert "the other threads of its warp" in caught.value.message
