"""When an mbarrier begins to be known to the threads of a cluster, and when data may take its place."""

from __future__ import annotations

import pytest
from ptx_source import kernel

from tilec.emu import Fault, launch

VARIABLES = ".shared .align 16 .b8 bar[16];\n.shared .align 16 .b8 other[16];"

MEETING = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %cluster_ctarank;
    mov.u32 %r4, bar;
    setp.ne.u32 %p1, %r1, 0;
    {before}
    @%p1 bra ready;
    mbarrier.init.shared::cta.b64 [%r4], 64;
    {fence}
ready:
    barrier.cluster.arrive.{order}.aligned;
    barrier.cluster.wait.acquire.aligned;
    {after}
    mov.u32 %r5, 0;
    mapa.shared::cluster.u32 %r6, %r4, %r5;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
    setp.ne.u32 %p2, %r2, 0;
    @%p2 bra done;
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4], 0;
    @!%p3 bra wait;
done:
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
"""
FENCE = "fence.mbarrier_init.release.cluster;"


def meet(fence: str, order: str, before: str = "", after: str = "") -> None:
    """Two blocks of 32 threads, all of which arrive at a barrier of the first one."""
    body = MEETING.format(fence=fence, order=order, before=before, after=after)
    for adversary in (None, 1, 2, 3):
        launch(kernel(body, variables=VARIABLES), "k", 2, 32, [None], cluster=2, adversary=adversary)


def kind_of(*arguments: str) -> str:
    with pytest.raises(Fault) as caught:
        meet(*arguments)
    return caught.value.kind


@pytest.mark.parametrize("fence", [FENCE, "fence.acq_rel.cluster;", "fence.proxy.async; fence.acq_rel.gpu;"])
def test_a_fence_and_a_relaxed_arrival_announce_a_barrier(fence: str) -> None:
    meet(fence, "relaxed")


def test_a_relaxed_arrival_alone_announces_nothing() -> None:
    assert kind_of("", "relaxed") == "missing-init-fence"
    assert kind_of("fence.proxy.async.shared::cta;", "relaxed") == "data-race"


def test_a_fence_of_initialisations_covers_nothing_else() -> None:
    """What the thread has stored before is not announced with its barrier."""
    store = "@!%p1 st.shared.u32 [other], 7;"
    load = "ld.shared.u32 %r9, [other];"
    assert kind_of(FENCE, "relaxed", store, load) == "data-race"
    meet(FENCE, "release", store, load)
    meet("fence.acq_rel.cluster;", "relaxed", store, load)


def run(body: str, threads: int = 64) -> None:
    for adversary in (None, 1, 2):
        launch(kernel(body, variables=VARIABLES), "k", 1, threads, [None], adversary=adversary)


INITIALISED = """
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @!%p1 mbarrier.init.shared::cta.b64 [bar], 64;
    bar.sync 0;
"""
USED = """
    mbarrier.arrive.shared::cta.b64 _, [bar];
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [bar], 0;
    @!%p3 bra wait;
"""


@pytest.mark.parametrize("use", ["", USED])
@pytest.mark.parametrize(
    "write",
    ["st.shared.u32 [bar], 5;", "st.shared.v2.u64 [bar], {%rd1, %rd1};", "atom.shared.exch.b64 %rd2, [bar], %rd1;"],
)
def test_data_may_take_the_place_of_a_barrier_that_is_done_with(use: str, write: str) -> None:
    run(f"{INITIALISED} mov.u64 %rd1, 3; {use} bar.sync 0; @!%p1 {write}")


def test_a_barrier_that_data_took_the_place_of_is_not_used() -> None:
    with pytest.raises(Fault) as caught:
        run(f"{INITIALISED} @!%p1 st.shared.u32 [bar+4], 5; bar.sync 0; mbarrier.arrive.shared::cta.b64 _, [bar];")
    assert caught.value.kind == "barrier-overwrite"
    assert "st.shared.u32" in caught.value.message
    assert caught.value.text.startswith("mbarrier.arrive")


def test_a_barrier_that_somebody_waits_at_is_not_overwritten() -> None:
    """Thread 0 overwrites what the others wait at, or may yet have to wait at."""
    body = f"""{INITIALISED}
    @!%p1 bra over;
    mbarrier.arrive.shared::cta.b64 _, [bar];
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [bar], 0;
    @!%p3 bra wait;
    bra done;
over:
    st.shared.u32 [bar], 5;
done:
"""
    with pytest.raises(Fault) as caught:
        run(body)
    assert caught.value.kind in ("barrier-overwrite", "data-race")


def test_overwriting_after_the_last_use_needs_a_barrier() -> None:
    with pytest.raises(Fault) as caught:
        run(f"{INITIALISED} {USED} @!%p1 st.shared.u32 [bar], 5;")
    assert caught.value.kind in ("data-race", "barrier-overwrite")


def test_a_barrier_may_be_initialised_where_data_was() -> None:
    overwritten = "bar.sync 0; @!%p1 st.shared.u32 [bar], 5; bar.sync 0;"
    again = "@!%p1 mbarrier.init.shared::cta.b64 [bar], 64; bar.sync 0; mbarrier.arrive.shared::cta.b64 _, [bar];"
    run(f"{INITIALISED} {USED} {overwritten} {again}")


def test_what_is_in_flight_still_reports_to_its_barrier() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    mbarrier.init.shared::cta.b64 [bar], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16;
    st.shared.u32 [bar], 5;
    """
    with pytest.raises(Fault) as caught:
        run(body, threads=1)
    assert caught.value.kind == "barrier-overwrite"
