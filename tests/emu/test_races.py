"""Data races: found in whatever order the threads run, and not invented where barriers or equal values excuse them."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import Fault, launch

BOX = ".shared .align 16 .b8 box[2048];\n.shared .align 8 .b64 bar;\n.shared .align 8 .b64 other;"
START = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, box;
    shl.b32 %r3, %r1, 2;
    add.u32 %r3, %r2, %r3;
    xor.b32 %r4, %r1, 33;
    shl.b32 %r4, %r4, 2;
    add.u32 %r4, %r2, %r4;
    setp.eq.u32 %p1, %r1, 0;
    setp.lt.u32 %p2, %r1, 32;
    shr.u32 %r30, %r1, 5;
    ld.param.u64 %rd1, [out];
    mad.wide.u32 %rd2, %r1, 4, %rd1;
"""


def run(body: str, *, block: int = 64, adversary: int | None = None, out: int = 64) -> None:
    source = kernel(START + body, variables=BOX)
    launch(source, "k", 1, block, [np.zeros(out, np.uint32)], adversary=adversary)


def race(body: str, *, block: int = 64, out: int = 64) -> Fault:
    """The fault must not depend on the order of the threads."""
    found = []
    for adversary in (None, 1, 2):
        with pytest.raises(Fault) as caught:
            run(body, block=block, adversary=adversary, out=out)
        assert caught.value.kind == "data-race", str(caught.value)
        found.append(caught.value)
    return found[0]


EXCHANGE = "st.shared.u32 [%r3], %r1;\n{}\n ld.shared.u32 %r5, [%r4];"


def test_a_read_without_a_barrier_names_both_lines() -> None:
    body = ".loc 1 7 0\n st.shared.u32 [%r3], %r1;\n .loc 1 9 0\n ld.shared.u32 %r5, [%r4];"
    fault = race(body)
    assert "reads shared address" in fault.message
    assert "wrote it at PTX line" in fault.message
    assert "(st.shared.u32 [%r3], %r1;) from kernel.tl:7" in fault.message
    assert fault.text == "ld.shared.u32 %r5, [%r4];"
    assert fault.source is not None
    assert fault.source.line == 9


@pytest.mark.parametrize(
    "sync", ["bar.sync 0;", "barrier.sync 1, 64;", "barrier.cluster.arrive;\n barrier.cluster.wait;"]
)
@pytest.mark.parametrize("adversary", [None, 5])
def test_barriers_order(sync: str, adversary: int | None) -> None:
    run(EXCHANGE.format(sync), adversary=adversary)


@pytest.mark.parametrize("sync", ["", "bar.warp.sync -1;", "membar.cta;", "fence.proxy.async;"])
def test_fences_and_warps_do_not_order_two_warps(sync: str) -> None:
    race(EXCHANGE.format(sync))


def test_a_warp_orders_its_lanes_only_when_asked() -> None:
    neighbour = EXCHANGE.replace("[%r4]", "[%r6]")
    mine = "xor.b32 %r6, %r1, 1;\n shl.b32 %r6, %r6, 2;\n add.u32 %r6, %r2, %r6;\n" + neighbour
    race(mine.format(""))
    run(mine.format("bar.warp.sync -1;"))


def test_overwriting_what_others_read() -> None:
    body = "st.shared.u32 [%r3], %r1;\n bar.sync 0;\n ld.shared.u32 %r5, [%r4];\n{}\n st.shared.u32 [%r3], %r5;"
    assert "read it at" in race(body.format("")).message
    run(body.format("bar.sync 0;"))


def test_neighbouring_bytes_do_not_race() -> None:
    run("cvt.u16.u32 %h1, %r1;\n add.u32 %r5, %r2, %r1;\n st.shared.u8 [%r5], %h1;\n ld.shared.u8 %h2, [%r5];")


def test_equal_values_do_not_race() -> None:
    run("st.shared.u32 [%r2], 7;\n ld.shared.u32 %r5, [%r2];")
    run("st.shared.u32 [%r2], 7;\n bar.sync 0;\n ld.shared.u32 %r5, [%r2];\n st.shared.u32 [%r2], 7;")


def test_different_values_race() -> None:
    fault = race("st.shared.u32 [%r2], %r1;")
    assert "write different values" in fault.message or "wrote it" in fault.message
    race("st.shared.u32 [%r2], %r30;")


def test_an_mbarrier_orders_its_phase_and_no_other() -> None:
    body = """
    @%p1 mbarrier.init.shared.b64 [bar], 32;
    @%p1 mbarrier.init.shared.b64 [other], 32;
    bar.sync 0;
    @!%p2 bra consumer;
    st.shared.u32 [%r3], %r1;
    mbarrier.arrive.shared.b64 _, [bar];
    st.shared.u32 [%r3+512], %r1;
    mbarrier.arrive.shared.b64 _, [other];
    bra finish;
consumer:
    mbarrier.try_wait.parity.shared.b64 %p3, [bar], 0;
    @!%p3 bra consumer;
    ld.shared.u32 %r5, [%r4+{offset}];
finish:
    """
    run(body.replace("{offset}", "0"))
    race(body.replace("{offset}", "512"))
    race(body.replace("{offset}", "0").replace("arrive.shared", "arrive.relaxed.cta.shared"))


def test_a_lane_that_arrives_for_its_warp_must_gather_it_first() -> None:
    body = """
    @%p1 mbarrier.init.shared.b64 [bar], 1;
    bar.sync 0;
    @!%p2 bra consumer;
    st.shared.u32 [%r3], %r1;
    {}
    @%p1 mbarrier.arrive.shared.b64 _, [bar];
    bra finish;
consumer:
    mbarrier.try_wait.parity.shared.b64 %p3, [bar], 0;
    @!%p3 bra consumer;
    ld.shared.u32 %r5, [%r4];
finish:
    """
    run(body.replace("{}", "bar.warp.sync -1;"))
    race(body.replace("{}", ""))


def test_using_an_mbarrier_that_another_thread_initialised() -> None:
    with pytest.raises(Fault) as caught:
        run("@%p1 mbarrier.init.shared.b64 [bar], 64;\n mbarrier.arrive.shared.b64 _, [bar];")
    assert caught.value.kind == "data-race"
    assert "thread 0 initialised it at PTX line" in caught.value.message


@pytest.mark.parametrize("adversary", [None, 1, 2, 3])
def test_a_flag_orders_what_came_before_it(adversary: int | None) -> None:
    body = """
    st.shared.u32 [box], 0;
    bar.sync 0;
    @!%p2 bra consumer;
    st.shared.u32 [%r3+64], %r1;
    bar.warp.sync -1;
    @%p1 fence.acq_rel.cta;
    @%p1 st.relaxed.cta.shared.u32 [box], 1;
    bra finish;
consumer:
    ld.acquire.cta.shared.u32 %r5, [box];
    setp.eq.u32 %p3, %r5, 0;
    @%p3 bra consumer;
    ld.shared.u32 %r6, [%r4+64];
finish:
    """
    run(body, adversary=adversary)


def test_atomics_do_not_race_with_each_other() -> None:
    run(
        "@%p1 st.shared.u32 [box], 0;\n bar.sync 0;\n atom.shared.add.u32 %r5, [box], 1;\n red.shared.add.u32 [box], 1;"
    )
    race("@%p1 st.shared.u32 [box], 0;\n bar.sync 0;\n red.shared.add.u32 [box], 1;\n ld.shared.u32 %r5, [box];")


def test_global_memory_within_a_block() -> None:
    body = """
    st.global.u32 [%rd2], %r1;
    {}
    xor.b32 %r5, %r1, 32;
    mad.wide.u32 %rd3, %r5, 4, %rd1;
    ld.global.u32 %r6, [%rd3];
    """
    race(body.format(""))
    run(body.format("bar.sync 0;"))


def test_cp_async_needs_a_barrier_for_other_threads() -> None:
    body = """
    cp.async.ca.shared.global [%r3], [%rd2], 4;
    cp.async.wait_all;
    {}
    ld.shared.u32 %r5, [%r4];
    """
    assert "cp.async.ca" in race(body.format("")).message
    run(body.format("bar.sync 0;"))


def test_cp_async_over_what_others_still_read() -> None:
    body = """
    st.shared.u32 [%r3], %r1;
    bar.sync 0;
    ld.shared.u32 %r5, [%r4];
    {}
    cp.async.ca.shared.global [%r3], [%rd2], 4;
    cp.async.wait_all;
    """
    assert "copies over" in race(body.format("")).message
    run(body.format("bar.sync 0;"))


def test_a_fence_covers_only_what_came_before_it() -> None:
    # Thread 0 fences before it can know of the others' stores.
    body = """
    st.shared.u32 [%r3], %r1;
    {}
    bar.sync 0;
    @!%p1 bra finish;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
finish:
    """
    run(body.replace("{}", "fence.proxy.async.shared::cta;"))
    with pytest.raises(Fault) as caught:
        run(body.replace("{}", "@%p1 fence.proxy.async.shared::cta;"))
    assert caught.value.kind == "missing-proxy-fence"


def test_a_bulk_store_must_know_of_the_stores_it_reads() -> None:
    body = """
    st.shared.u32 [%r3], %r1;
    fence.proxy.async.shared::cta;
    @!%p1 bra finish;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
finish:
    """
    with pytest.raises(Fault) as caught:
        run(body)
    assert caught.value.kind == "data-race"
