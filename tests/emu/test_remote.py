"""Asynchronous stores and reductions into the shared memory of a cluster, and addresses that reach it."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import Fault, launch
from tilec.emu.numbers import Array

VARIABLES = ".shared .align 16 .b8 data[64];\n.shared .align 16 .b8 source[64];\n.shared .align 8 .b64 bar;"
FRAME = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %cluster_ctarank;
    mov.u32 %r3, data;
    mov.u32 %r4, bar;
    xor.b32 %r5, %r2, 1;
    mad.lo.u32 %r6, %r1, 4, %r3;
    mad.lo.u32 %r7, %r2, 100, %r1;
    st.shared.u32 [%r6], 1000;
    mov.u32 %r8, source;
    mad.lo.u32 %r8, %r1, 4, %r8;
    st.shared.u32 [%r8], %r7;
    fence.proxy.async.shared::cta;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra ready;
    mbarrier.init.shared::cta.b64 [%r4], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 64;
ready:
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    mapa.shared::cluster.u32 %r9, %r6, %r5;
    mapa.shared::cluster.u32 %r10, %r4, %r5;
    {action}
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r4], 0;
    @!%p2 bra wait;
    ld.shared.u32 %r11, [%r6];
    ld.param.u64 %rd1, [out];
    mad.lo.u32 %r12, %r2, 16, %r1;
    mad.wide.u32 %rd1, %r12, 4, %rd1;
    st.global.u32 [%rd1], %r11;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
"""


def run(action: str) -> Array:
    """Two blocks of 16 threads, each of which writes to the other's `data`."""
    out = np.zeros((2, 16), np.uint32)
    launch(kernel(FRAME.format(action=action), variables=VARIABLES), "k", 2, 16, [out], cluster=2)
    return out


MINE = np.array([[rank * 100 + thread for thread in range(16)] for rank in range(2)])


def test_asynchronous_stores() -> None:
    store = "st.async.shared::cluster.mbarrier::complete_tx::bytes"
    assert run(f"{store}.b32 [%r9], %r7, [%r10];").tolist() == MINE[::-1].tolist()
    wide = f"""
    and.b32 %r13, %r1, 3; setp.eq.u32 %p3, %r13, 0; add.u32 %r14, %r7, 1; add.u32 %r15, %r7, 2; add.u32 %r16, %r7, 3;
    @%p3 {store}.v4.b32 [%r9], {{%r7, %r14, %r15, %r16}}, [%r10];"""
    assert run(wide).tolist() == MINE[::-1].tolist()


def test_asynchronous_reductions() -> None:
    found = run("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r9], %r7, [%r10];")
    assert found.tolist() == (MINE[::-1] + 1000).tolist()
    bulk = """
    @%p1 bra wait;
    mov.u32 %r8, source;
    cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r9], [%r8], 64, [%r10];"""
    assert run(bulk).tolist() == (MINE[::-1] + 1000).tolist()
    copy = bulk.replace("cp.reduce.async", "cp.async").replace(".add.u32", "")
    assert run(copy).tolist() == MINE[::-1].tolist()


@pytest.mark.parametrize("block", ["own", "other"])
def test_the_blocks_own_memory_as_a_destination(block: str) -> None:
    """What mapa gives for the block itself is its own memory too."""
    copy = """
    @%p1 bra wait;
    {mapa}
    ld.param.u64 %rd1, [out];
    cp.async.bulk.{space}.global.mbarrier::complete_tx::bytes [%r9], [%rd1], 64, [%r10];"""
    mapa = "mapa.shared::cluster.u32 %r9, %r6, %r2; mapa.shared::cluster.u32 %r10, %r4, %r2;" if block == "own" else ""
    assert run(copy.format(mapa=mapa, space="shared::cluster")).tolist() == [[0] * 16] * 2
    if block == "own":
        assert run(copy.format(mapa=mapa, space="shared::cta")).tolist() == [[0] * 16] * 2
        return
    with pytest.raises(Fault, match=r"use .shared::cluster to copy") as caught:
        run(copy.format(mapa=mapa, space="shared::cta"))
    assert caught.value.kind == "out-of-bounds"


def test_what_is_in_flight_must_not_be_read() -> None:
    action = """
    st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r9], %r7, [%r10];
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    ld.shared.u32 %r11, [%r6];"""
    with pytest.raises(Fault) as caught:
        run(action)
    assert caught.value.kind == "unarrived-read"
    with pytest.raises(Fault, match="is in another block"):
        run("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r9], %r7, [%r4];")


def test_only_a_blocks_own_barrier_is_waited_for() -> None:
    with pytest.raises(Fault, match="a block can wait only for its own mbarriers"):
        run("mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0;")


def test_spaces_of_generic_addresses() -> None:
    out = np.zeros(8, np.uint32)
    body = """
    .local .align 4 .b8 mine[16];
    mov.u32 %r2, %cluster_ctarank;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u64 %rd2, data;
    cvta.shared.u64 %rd2, %rd2;
    mapa.u64 %rd3, %rd2, 1;
    mov.u64 %rd4, mine;
    cvta.local.u64 %rd4, %rd4;
    mov.b64 %rd5, out;
    cvta.param.u64 %rd5, %rd5;
    getctarank.u64 %r3, %rd3;
    getctarank.u64 %r4, %rd2;
    isspacep.shared %p1, %rd2;
    isspacep.shared::cta %p2, %rd3;
    isspacep.shared::cluster %p3, %rd3;
    isspacep.local %p4, %rd4;
    isspacep.global %p5, %rd1;
    isspacep.param %p6, %rd5;
    selp.u32 %r5, 1, 0, %p1;
    selp.u32 %r6, 1, 0, %p2;
    selp.u32 %r7, 1, 0, %p3;
    selp.u32 %r8, 1, 0, %p4;
    selp.u32 %r9, 1, 0, %p5;
    selp.u32 %r10, 1, 0, %p6;
    setp.ne.u32 %p7, %r2, 0;
    @%p7 bra done;
    st.global.v4.u32 [%rd1], {%r3, %r4, %r5, %r6};
    st.global.v4.u32 [%rd1+16], {%r7, %r8, %r9, %r10};
done:
    """
    launch(kernel(body, variables=VARIABLES), "k", 2, 1, [out], cluster=2)
    assert out.tolist() == [1, 0, 1, 0, 1, 1, 1, 1]


def test_hints_do_nothing() -> None:
    body = """
    ld.param.u64 %rd1, [out];
    prefetch.global.L2 [%rd1];
    prefetch.L1 [%rd1+400];
    prefetchu.L1 [%rd1];
    discard.global.L2 [%rd1], 128;
    applypriority.global.L2::evict_normal [%rd1], 128;
    createpolicy.fractional.L2::evict_last.b64 %rd2, 1.0;
    createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %rd3, [%rd1], 128, 256;
    createpolicy.cvt.L2.b64 %rd4, 0x10F0000000000000;
    pmevent 1;
    griddepcontrol.launch_dependents;
    griddepcontrol.wait;
    ld.global.L1::evict_last.L2::cache_hint.u32 %r1, [%rd1], %rd2;
    ld.relaxed.gpu.global.L1::no_allocate.u32 %r2, [%rd1];
    ld.acquire.sys.global.u32 %r3, [%rd1];
    ld.volatile.global.u32 %r4, [%rd1];
    ld.mmio.relaxed.sys.global.u32 %r5, [%rd1];
    ld.weak.global.cs.u32 %r6, [%rd1];
    ldu.global.u32 %r7, [%rd1];
    ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%r8, %r9, %r10, %r11}, [%rd1];
    ld.global.v8.b32 {%r12, %r13, %r14, %r15, %r16, %r17, %r18, _}, [%rd1];
    add.u32 %r1, %r1, %r18;
    st.release.gpu.global.u32 [%rd1], %r1;
    st.global.wt.u32 [%rd1+4], %r7;
    st.global.v8.b32 [%rd1+32], {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8};
    """
    out = np.full(16, 7, np.uint32)
    launch(kernel(body), "k", 1, 1, [out])
    assert out.tolist() == [14, *[7] * 7, 14, *[7] * 7]
