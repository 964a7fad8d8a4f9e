"""What other compilers' PTX relies on, point by point: arguments, spellings, and what must not be a fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import TensorMap, launch
from tilec.emu.numbers import Array, f32_to_bf16

SMEM = ".extern .shared .align 128 .b8 smem[];\n.shared .align 8 .b64 bar;"


def run(body: str, out: Array, threads: int = 32, *, variables: str = "", registers: str = "", **more: Any) -> None:
    source = kernel(body, variables=variables, registers=registers)
    launch(source, "k", 1, threads, [out], **more)


STORE = """
    ld.param.u64 %rd31, [out];
    mov.u32 %r63, %tid.x;
    mad.wide.u32 %rd31, %r63, 4, %rd31;
    st.global.u32 [%rd31], %r62;
"""


def result(body: str, threads: int = 32, *, variables: str = "", registers: str = "", **more: Any) -> list[int]:
    """What each thread leaves in %r62."""
    out = np.zeros(threads, np.uint32)
    run(body + STORE, out, threads, variables=variables, registers=registers, **more)
    values: list[int] = out.tolist()
    return values


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_a_descriptor_argument_and_null_scratch() -> None:
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    out = np.zeros(4, np.uint64)
    params = (
        ".param .align 64 .b8 map[128], .param .u32 rows, .param .u32 columns, .param .u64 s0, .param .u64 s1, "
        ".param .u64 out, .param .u64 .ptr .global .align 1 scratch, .param .u64 .ptr .global .align 1 profile"
    )
    body = """
    ld.param.u32 %r1, [rows]; ld.param.u64 %rd2, [s0]; ld.param.u64 %rd3, [scratch]; ld.param.u64 %rd4, [profile];
    cvt.u64.u32 %rd5, %r1;
    ld.param.u64 %rd1, [out];
    st.global.v2.u64 [%rd1], {%rd5, %rd2};
    st.global.v2.u64 [%rd1+16], {%rd3, %rd4};
    """
    launch(kernel(body, params), "k", 1, 1, [TensorMap(x, (16, 32)), 64, 64, 64, 1, out, None, 0])
    assert out.tolist() == [64, 64, 0, 0]


def test_byte_arrays_that_hold_pointers_and_structs() -> None:
    x, out = np.arange(4, dtype=np.uint32), np.zeros(4, np.uint32)
    params = ".param .align 8 .b8 pointer[8], .param .align 1 .b8 empty[1], .param .align 8 .b8 fields[40]"
    body = """
    ld.param.u64 %rd1, [pointer];
    ld.param.u64 %rd2, [fields]; ld.param.u16 %h1, [fields+8]; ld.param.u32 %r1, [fields+12];
    ld.param.u64 %rd3, [fields+16]; ld.param.f64 %fd1, [fields+24]; ld.param.s8 %r6, [fields+32];
    cvt.u32.u16 %r2, %h1; cvt.rni.u32.f64 %r3, %fd1;
    ld.global.u32 %r4, [%rd1+8]; ld.global.u32 %r5, [%rd2+12];
    add.u32 %r4, %r4, %r5;
    add.u32 %r3, %r3, %r6;
    st.global.v4.u32 [%rd3], {%r1, %r2, %r3, %r4};
    """
    struct = (x, np.uint16(7), np.int32(9), out, np.float64(11), np.int8(-3))
    launch(kernel(body, params), "k", 1, 1, [x, b"\0", struct])
    assert out.tolist() == [9, 7, 8, 5]


def test_bfloat16_maps_over_raw_bits_and_both_edges() -> None:
    x = f32_to_bf16(np.arange(1, 65, dtype=np.float32)).reshape(4, 16)
    out = np.zeros((4, 16), np.uint16)
    params = ".param .align 64 .b8 map[128], .param .align 64 .b8 back[128], .param .u64 out"
    body = """
    mov.u32 %r1, smem; mov.u32 %r2, bar;
    mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1;
    mov.b32 %r9, back; cvt.u64.u32 %rd2, %r9; cvta.param.u64 %rd2, %rd2;
    mbarrier.init.shared::cta.b64 [%r2], 1;
    // The whole box counts, in or out of the tensor.
    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 128;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {-8, -2}], [%r2];
    mbarrier.arrive.shared::cta.b64 %rd3, [%r2];
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0, 1000;
    @%p1 bra.uni DONE;
    bra.uni wait;
DONE:
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd2, {0, 1}], [%r1];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    """
    maps = [TensorMap(array, (4, 16), element="bfloat16") for array in (x, out)]
    launch(kernel(body, params, variables=SMEM), "k", 1, 1, [*maps, out], dynamic_smem=128, whole_program=True)
    shifted = np.zeros((4, 16), np.uint16)
    shifted[2:, 8:] = x[:2, :8]
    expected = np.zeros((4, 16), np.uint16)
    # The block may end once its stores have read; they finish with the kernel.
    expected[1:] = shifted[:3]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(("whole_program", "start"), [(False, 1024 + 32), (True, 2048)])
def test_where_things_lie(whole_program: bool, start: int) -> None:
    """nvJitLink ignores the alignment that dynamic shared memory asks for, ptxas alone does not."""
    out = np.zeros(4, np.uint64)
    body = """
    mov.u32 %r1, small; mov.u32 %r2, smem;
    ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [a];
    cvt.u64.u32 %rd3, %r1; cvt.u64.u32 %rd4, %r2;
    st.global.v2.u64 [%rd1], {%rd3, %rd4}; st.global.u64 [%rd1+16], %rd2; st.global.u64 [%rd1+24], %rd1;
    """
    variables = ".extern .shared .align 1024 .b8 smem[];\n.shared .align 4 .b8 small[20];"
    source = kernel(body, ".param .u64 a, .param .u64 out", variables=variables)
    launch(source, "k", 1, 1, [np.zeros(3, np.uint8), out], dynamic_smem=100, whole_program=whole_program)
    small, dynamic, first, second = out.tolist()
    assert (small, dynamic) == (1024, start)
    assert (first % 256, second % 256, first != second) == (0, 0, True)


# -- text --------------------------------------------------------------------------------------------------------------


def test_white_space_and_spellings() -> None:
    body = """
    mov.u32 %r1, smem;
    {.reg.b32 f;
     mov .u32 f, 0x8000U;
     st.shared .v2 .b32 [ %r1 + 0 ], {0, 16843009};
     st.shared.b32 [smem+8], f;
    }
    add.s32 %r2, %r1, 1024;
    ld.shared.v2.b32 {_, %r3}, [%r2+-1024];
    ld.shared.b32 %r4, [ %r2 + -1016 ];
    cp.async.bulk.commit_group ;
    fence.proxy.async .shared::cta;
    add.s32 %r62, %r3, %r4;
    """
    assert result(body, 1, variables=SMEM, dynamic_smem=64) == [16843009 + 0x8000]


def test_names_belong_to_their_braces() -> None:
    wait = """
    {
    .reg .pred P1;
    .reg .b32 p, a;
    mov.u32 p, 0;
LAB_WAIT:
    add.u32 p, p, 1;
    mov.u32 a, p;
    setp.lt.u32 P1, a, %r1;
    @P1 bra LAB_WAIT;
    bra.uni DONE;
DONE:
    add.u32 %r62, %r62, p;
    }
    """
    assert result("mov.u32 %r62, 0; mov.u32 %r1, 3;" + wait + "mov.u32 %r1, 5;" + wait) == [8] * 32


def test_registers_are_bits() -> None:
    body = """
    mov.b32 %r1, 0f40400000;
    add.f32 %r2, %r1, %r1;
    mul.f32 %r2, %r2, 0f3F000000;
    cvt.rzi.s32.f32 %r3, %r2;
    mov.b64 %rd1, 0d4008000000000000;
    fma.rn.f64 %rd1, %rd1, %rd1, %rd1;
    cvt.rzi.s32.f64 %r4, %rd1;
    mov.u32 %r5, 0x1FF;
    cvt.s8.s32 %h1, %r5;
    cvt.u32.u16 %r6, %h1;
    mad.lo.u32 %r62, %r4, 100, %r3;
    add.u32 %r62, %r62, %r6;
    """
    assert result(body) == [1203 + 0xFFFF] * 32


# -- no fault ----------------------------------------------------------------------------------------------------------


def test_unwritten_registers_may_feed_a_shuffle() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 16;
    @%p1 mov.u32 %r2, %r1;
    shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1;
    selp.b32 %r62, %r2, %r3, %p1;
    """
    assert result(body) == [t % 16 for t in range(32)]


WGMMA = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, smem;
    mad.lo.u32 %r3, %r1, 32, %r2;
    ld.param.u64 %rd1, [out];
    {write}
    {between}
    bar.sync 0;
    {after}
    shr.u32 %r4, %r2, 4;
    cvt.u64.u32 %rd4, %r4;
    or.b64 %rd4, %rd4, 0x0000000800010000;
    setp.ne.u32 %p1, 0, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%f1, %f2, %f3, %f4}}, %rd4, %rd4, %p1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    mad.wide.u32 %rd2, %r1, 16, %rd1;
    st.global.v4.f32 [%rd2], {{%f1, %f2, %f3, %f4}};
"""
COPY = """
    mad.wide.u32 %rd3, %r1, 32, %rd1;
    cp.async.cg.shared.global [%r3], [%rd3], 16;
    cp.async.cg.shared.global [%r3+16], [%rd3+16], 16;
    cp.async.wait_all;
"""
WRITE = "st.shared.v4.b32 [%r3], {0, 0, 0, 0}; st.shared.v4.b32 [%r3+16], {0, 0, 0, 0};"
ONE_FENCE = "setp.eq.u32 %p2, %r1, 5; @%p2 fence.proxy.async.shared::cta; bar.sync 0;"


@pytest.mark.parametrize(
    ("write", "between", "after"),
    [
        (COPY, "", ""),
        (WRITE, "fence.proxy.async.shared::cta;", ""),
        (WRITE, "", ONE_FENCE),
    ],
    ids=["cp.async without a fence", "fence by the writers", "fence by one reader after the barrier"],
)
def test_what_wgmma_may_read(write: str, between: str, after: str) -> None:
    # The accumulators were never written: the first product does not read them.
    out = np.zeros(128 * 8, np.float32)
    run(WGMMA.format(write=write, between=between, after=after), out, 128, variables=SMEM, dynamic_smem=4096)
    assert not out.any()


def test_threads_that_store_one_value() -> None:
    body = """
    mov.u32 %r1, smem;
    st.shared.u32 [%r1], 42;
    bar.warp.sync -1;
    ld.shared.u32 %r62, [%r1];
    """
    assert result(body, 64, variables=SMEM, dynamic_smem=16) == [42] * 64


def test_barriers_may_be_made_again() -> None:
    body = """
    mov.u32 %r1, bar;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    mbarrier.init.shared::cta.b64 [%r1], 2;
    mbarrier.arrive.shared::cta.b64 _, [%r1], 2;
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    mbarrier.inval.shared::cta.b64 [%r1];
    mbarrier.init.shared::cta.b64 [%r1], 1;
    selp.u32 %r62, 1, 0, %p1;
    """
    assert result(body, 1, variables=SMEM) == [1]


def test_register_pools() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r62, 1;
    setp.ge.u32 %p1, %r1, 128;
    @%p1 bra consumer;
    setmaxnreg.dec.sync.aligned.u32 24;
    setmaxnreg.dec.sync.aligned.u32 24;
    bra.uni done;
consumer:
    setmaxnreg.inc.sync.aligned.u32 256;
done:
    """
    out = np.zeros(256, np.uint32)
    launch(kernel(body + STORE, directives=".reqntid 256, 1, 1 .minnctapersm 1"), "k", 1, 256, [out])
    assert out.tolist() == [1] * 256


# -- behaviour ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adversary", [None, 1, 2, 3])
def test_a_warp_comes_together_again(adversary: int | None) -> None:
    body = """
    mov.u32 %r1, %laneid;
    setp.ne.u32 %p1, %r1, 0;
    mov.u32 %r2, 5;
    @%p1 bra others;
    mov.u32 %r2, 6;
others:
    elect.sync %r3|%p2, -1;
    shfl.sync.idx.b32 %r4, %r2, 0, 31, -1;
    selp.u32 %r5, 100, 0, %p2;
    bar.sync 0;
    add.u32 %r62, %r4, %r5;
    """
    assert result(body, 64, adversary=adversary) == [106 if t % 32 == 0 else 6 for t in range(64)]


def test_named_barriers_count_threads_wherever_they_are() -> None:
    body = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mov.u32 %r3, 1; mov.u32 %r4, 64; mov.u32 %r5, 0;
    setp.ge.u32 %p1, %r1, 32;
    @%p1 bra second;
first:
    barrier.sync %r3, %r4;
    add.u32 %r5, %r5, 1;
    setp.lt.u32 %p2, %r5, 3;
    @%p2 bra first;
    bra.uni done;
second:
    bar.sync 1, 64;
    barrier.sync 1, 64;
    bar.sync %r3, 64;
done:
    mov.u32 %r62, %r5;
    """
    assert result(body, 64, variables=SMEM, dynamic_smem=16) == [3] * 32 + [0] * 32


def test_ways_to_arrive_and_wait() -> None:
    body = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, bar; mov.u32 %r3, smem; mad.lo.u32 %r4, %r1, 16, %r3;
    ld.param.u64 %rd1, [out];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra ready;
    mbarrier.init.shared.b64 [%r2], 160;
ready:
    bar.sync 0;
    // 128 arrivals by one thread, one by each, with the copies of each.
    @!%p1 mbarrier.arrive.shared::cta.b64 _, [%r2], 128;
    cp.async.ca.shared.global [%r4], [%rd1], 16;
    cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];
again:
    mbarrier.test_wait.parity.shared.b64 %p2, [%r2], 0;
    @!%p2 bra again;
    ld.shared.u32 %r5, [%r4];
    // Each keeps the state of its own arrival.
    @!%p1 mbarrier.arrive.shared::cta.b64 _, [%r2], 128;
    mbarrier.arrive.shared.b64 %rd2, [%r2];
    @!%p1 bra late;
    bra.uni later;
late:
    nanosleep.u32 20;
later:
    mbarrier.test_wait.shared.b64 %p2, [%r2], %rd2;
    @!%p2 bra later;
    add.u32 %r62, %r5, 1;
    """
    assert result(body, variables=SMEM, dynamic_smem=512) == [1] * 32


def test_generic_addresses_reach_other_blocks() -> None:
    out = np.zeros(2, np.uint32)
    body = """
    mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, smem;
    st.shared.u32 [%r2], 100;
    barrier.cluster.arrive; barrier.cluster.wait;
    xor.b32 %r3, %r1, 1;
    cvt.u64.u32 %rd1, %r2; cvta.shared.u64 %rd1, %rd1;
    mapa.u64 %rd2, %rd1, %r3;
    add.u32 %r4, %r1, 1;
    atom.add.u32 %r5, [%rd2], %r4;
    barrier.cluster.arrive; barrier.cluster.wait;
    ld.u32 %r6, [%rd2];
    ld.u32 %r7, [%rd1];
    mad.lo.u32 %r6, %r7, 1000, %r6;
    ld.param.u64 %rd3, [out]; mad.wide.u32 %rd3, %r1, 4, %rd3;
    st.global.u32 [%rd3], %r6;
    barrier.cluster.arrive; barrier.cluster.wait;
    """
    launch(kernel(body, variables=SMEM), "k", 2, 1, [out], cluster=2, dynamic_smem=16)
    assert out.tolist() == [102101, 101102]


def test_low_bits_of_tf32_do_not_count() -> None:
    out = np.zeros((2, 32, 4), np.float32)
    body = """
    mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [out]; mad.wide.u32 %rd1, %r1, 16, %rd1;
    cvt.rn.f32.u32 %f1, %r1; mov.b32 %r2, %f1; and.b32 %r2, %r2, 0xffffe000; or.b32 %r3, %r2, 0x1fff;
    mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%f2, %f3, %f4, %f5}, {%r2, %r2}, {%r2}, {%f9, %f9, %f9, %f9};
    st.global.v4.f32 [%rd1], {%f2, %f3, %f4, %f5};
    mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%f2, %f3, %f4, %f5}, {%r3, %r3}, {%r3}, {%f9, %f9, %f9, %f9};
    st.global.v4.f32 [%rd1+512], {%f2, %f3, %f4, %f5};
    """
    run("mov.f32 %f9, 0f00000000;" + body, out)
    assert out[0].any()
    np.testing.assert_array_equal(out[0], out[1])
