"""Forms that came with sm_90 and sm_100: rows gathered by TMA, masked stores, the cluster launcher, states of
mbarriers, packed and mixed f32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_instruction import THREADS, U16, U32, U64, compute, floats, integers
from ptx_source import kernel

from tilec.emu import Fault, TensorMap, launch
from tilec.emu.numbers import Array, bf16_to_f32, f32_to_bf16

SMEM = ".extern .shared .align 1024 .b8 smem[];\n.shared .align 8 .b64 bar[128];"
"""A KiB of barriers: dynamic shared memory begins right behind, and boxes want multiples of their swizzle."""
PARAMS = ".param .align 64 .b8 map[128], .param .u64 out"


def run(
    body: str, args: list[object], params: str = PARAMS, threads: int = 1, registers: str = "", **more: Any
) -> None:
    source = kernel(body, params, variables=SMEM, registers=registers, target="sm_100a", version="8.8")
    launch(source, "k", 1, threads, args, dynamic_smem=1024, **more)


@pytest.mark.parametrize("swizzle", [0, 64])
@pytest.mark.parametrize("adversary", [None, 1])
def test_four_rows(swizzle: int, adversary: int | None) -> None:
    x = np.arange(20 * 32, dtype=np.float32).reshape(20, 32)
    out = np.zeros((20, 32), np.float32)
    body = """
    mov.u32 %r1, smem; mov.u32 %r2, bar;
    mov.u64 %rd1, map; cvta.param.u64 %rd1, %rd1; mov.u64 %rd2, back; cvta.param.u64 %rd2, %rd2;
    mbarrier.init.shared::cta.b64 [%r2], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
    mov.u32 %r3, 4; mov.u32 %r4, 7; mov.u32 %r5, 0; mov.u32 %r6, 19; mov.u32 %r7, 25;
    cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes
        [%r1], [%rd1, {%r3, %r4, %r5, %r6, %r7}], [%r2];
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;
    @!%p1 bra wait;
    mov.u32 %r8, 3; mov.u32 %r9, 20;
    cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%rd2, {%r3, %r8, %r9, %r6, %r4}], [%r1];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    """
    maps = [TensorMap(array, (1, 16), swizzle=swizzle) for array in (x, out)]
    params = ".param .align 64 .b8 map[128], .param .align 64 .b8 back[128]"
    run(body, [*maps], params, adversary=adversary)
    expected = np.zeros_like(out)
    # Row 0 of the tensor goes nowhere; row 25 does not exist, and arrives as zeros.
    expected[3, 4:20], expected[19, 4:20], expected[7, 4:20] = x[7, 4:20], x[19, 4:20], 0
    np.testing.assert_array_equal(out, expected)


def test_four_rows_want_boxes_of_one_row() -> None:
    body = """
    mov.u32 %r1, smem; mov.u64 %rd1, map; cvta.param.u64 %rd1, %rd1; mov.u32 %r2, 0;
    cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%rd1, {%r2, %r2, %r2, %r2, %r2}], [%r1];
    """
    x = np.zeros((8, 16), np.float32)
    with pytest.raises(Fault, match="one row of a matrix"):
        run(body, [TensorMap(x, (2, 16)), x])


def test_a_mask_of_bytes() -> None:
    out = np.full(64, 0xEE, np.uint8)
    body = """
    mov.u32 %r1, smem; ld.param.u64 %rd1, [out]; mov.u64 %rd2, 64; mov.b16 %h1, 0x8003;
    st.bulk.weak.shared::cta [%r1], %rd2, 0;
    st.shared.u8 [%r1+17], 5;
    fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [%r1], 64, %h1;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    """
    run(body, [out], ".param .u64 out")
    expected = np.full((4, 16), 0xEE, np.uint8)
    expected[:, [0, 1, 15]] = 0
    expected[1, 1] = 5
    np.testing.assert_array_equal(out.reshape(4, 16), expected)


@pytest.mark.parametrize("adversary", [None, 1, 2])
def test_the_cluster_launcher_may_refuse(adversary: int | None) -> None:
    out = np.zeros(1, np.uint32)
    body = """
    mov.u32 %r1, smem; mov.u32 %r2, bar; ld.param.u64 %rd1, [out];
    mbarrier.init.shared::cta.b64 [%r2], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 16;
    clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;
    @!%p1 bra wait;
    ld.shared.b128 wide, [%r1];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, wide;
    @%p2 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r3, %r4, %r5, _}, wide;
    selp.u32 %r6, 1, 2, %p2;
    st.global.u32 [%rd1], %r6;
    """
    run(body, [out], ".param .u64 out", registers=".reg .b128 wide;", adversary=adversary)
    assert out.tolist() == [2]


def test_states_of_mbarriers() -> None:
    out = np.zeros(4, np.uint32)
    body = """
    mov.u32 %r2, bar; ld.param.u64 %rd1, [out];
    mbarrier.init.shared::cta.b64 [%r2], 5;
    mbarrier.arrive.noComplete.shared::cta.b64 %rd2, [%r2], 2;
    mbarrier.arrive.shared::cta.b64 %rd3, [%r2];
    mbarrier.pending_count.b64 %r3, %rd2;
    mbarrier.pending_count.b64 %r4, %rd3;
    mbarrier.test_wait.shared::cta.b64 %p1, [%r2], %rd2;
    selp.u32 %r5, 1, 0, %p1;
    mbarrier.arrive.shared::cta.b64 %rd4, [%r2], 2;
    mbarrier.try_wait.acquire.cta.shared::cta.b64 %p1, [%r2], %rd2, 100;
    selp.u32 %r6, 1, 0, %p1;
    st.global.v4.u32 [%rd1], {%r3, %r4, %r5, %r6};
    """
    run(body, [out], ".param .u64 out")
    assert out.tolist() == [5, 3, 0, 1]
    last = "mov.u32 %r2, bar; mbarrier.init.shared::cta.b64 [%r2], 2;"
    last += "mbarrier.arrive.noComplete.shared::cta.b64 %rd1, [%r2], 2;"
    with pytest.raises(Fault, match="noComplete is the last") as caught:
        run(last, [out], ".param .u64 out")
    assert caught.value.kind == "bad-barrier"


def test_a_copy_that_ignores_its_source() -> None:
    x, out = np.arange(1, 129, dtype=np.uint32), np.zeros(128, np.uint32)
    body = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mad.lo.u32 %r2, %r1, 16, %r2;
    ld.param.u64 %rd1, [x]; mad.wide.u32 %rd1, %r1, 16, %rd1;
    ld.param.u64 %rd2, [out]; mad.wide.u32 %rd2, %r1, 16, %rd2;
    and.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 1;
    cp.async.cg.shared.global [%r2], [%rd1], 16, %p1;
    cp.async.wait_all;
    ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r2];
    st.global.v4.b32 [%rd2], {%r4, %r5, %r6, %r7};
    """
    run(body, [x, out], ".param .u64 x, .param .u64 out", threads=32)
    rows = x.reshape(32, 4).copy()
    rows[1::2] = 0
    np.testing.assert_array_equal(out.reshape(32, 4), rows)


# -- arithmetic --------------------------------------------------------------------------------------------------------


def both(text: str, result: type, *inputs: Array) -> Array:
    return compute(text, result, *inputs, target="sm_100a")


def test_pairs_of_f32() -> None:
    a, b, c = (np.resize(floats(np.float32, seed), (THREADS, 2)) for seed in range(3))
    packed = [np.ascontiguousarray(x).view(U64).reshape(-1) for x in (a, b, c)]
    with np.errstate(all="ignore"):
        cases = {
            "add.rn.f32x2 $d, $a, $b;": a + b,
            "sub.rn.f32x2 $d, $a, $b;": a - b,
            "mul.rn.f32x2 $d, $a, $b;": a * b,
        }
        fused = (a.astype(np.float64) * b + c).astype(np.float32)
    for text, expected in cases.items():
        np.testing.assert_array_equal(both(text, U64, *packed[:2]).view(np.float32).reshape(-1, 2), expected, text)
    found = both("fma.rn.f32x2 $d, $a, $b, $c;", U64, *packed).view(np.float32).reshape(-1, 2)
    np.testing.assert_allclose(found, fused, rtol=2e-7)
    for rounding in ("rz", "rm", "rp"):
        single = [np.ascontiguousarray(x[:, 1]) for x in (a, b)]
        one = compute(f"add.{rounding}.f32 $d, $a, $b;", np.float32, *single)
        found = both(f"add.{rounding}.f32x2 $d, $a, $b;", U64, *packed[:2]).view(np.float32).reshape(-1, 2)
        np.testing.assert_array_equal(found[:, 1].view(U32), one.view(U32))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_mixed_precision(kind: str) -> None:
    wide = floats(np.float32, 1)
    halves = []
    for seed in (2, 3):
        values = floats(np.float32, seed)
        with np.errstate(over="ignore"):
            halves.append(values.astype(np.float16).view(U16) if kind == "f16" else f32_to_bf16(values))
    a, b = (x.view(np.float16).astype(np.float32) if kind == "f16" else bf16_to_f32(x) for x in halves)
    with np.errstate(all="ignore"):
        found = both(f"add.rn.f32.{kind} $d, $a, $b;", np.float32, halves[0], wide)
        np.testing.assert_array_equal(found, a + wide)
        found = both(f"sub.f32.{kind} $d, $a, $b;", np.float32, halves[0], wide)
        np.testing.assert_array_equal(found, a - wide)
        found = both(f"fma.rn.f32.{kind} $d, $a, $b, $c;", np.float32, *halves, wide)
        expected = (a.astype(np.float64) * b + wide).astype(np.float32)
        np.testing.assert_allclose(found, expected, rtol=2e-7)
        # In another direction: what the same instruction on f32 gives.
        found = both(f"add.rp.sat.f32.{kind} $d, $a, $b;", np.float32, halves[0], wide)
        np.testing.assert_array_equal(found, compute("add.rp.sat.f32 $d, $a, $b;", np.float32, a, wide))


def test_lop3_with_a_predicate() -> None:
    a, b, c, e = (integers(U32, seed) for seed in range(4))
    a[::3] = b[::5] = 0
    for operation, sign in (("or", ""), ("and", "!")):
        text = f"""setp.gt.u32 %p1, $e, 1000; lop3.{operation}.b32 %r20|%p2, $a, $b, $c, 0x80, {sign}%p1;
        selp.u32 %r21, 1, 0, %p2; xor.b32 $d, %r20, %r21;"""
        bits, other = a & b & c, (e > 1000) ^ (sign == "!")
        expected = (bits != 0) | other if operation == "or" else (bits != 0) & other
        np.testing.assert_array_equal(compute(text, U32, a, b, c, e), bits ^ expected)


def test_every_lop3() -> None:
    a, b, c = (integers(U32, seed) for seed in range(3))
    text = "\n".join(f"lop3.b32 %r20, $a, $b, $c, {t}; mad.lo.u32 $d, $d, 31, %r20;" for t in range(256))
    found = compute("mov.u32 $d, 0;" + text, U32, a, b, c)
    expected = np.zeros(THREADS, U32)
    for table in range(256):
        bits = np.zeros(THREADS, U32)
        for position in range(32):
            row = (a >> position & 1) * 4 + (b >> position & 1) * 2 + (c >> position & 1)
            bits |= (np.uint32(table) >> row.astype(U32) & 1) << np.uint32(position)
        expected = expected * np.uint32(31) + bits
    np.testing.assert_array_equal(found, expected)
