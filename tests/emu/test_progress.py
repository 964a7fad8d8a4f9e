"""Threads that poll memory: those that wait for ever are a deadlock, and those that are slow are not."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import Fault, launch

ADVERSARIES = [None, 1, 2]
HEAD = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %nctaid.x;
    ld.param.u64 %rd1, [out];
"""


def hang(body: str, *, grid: int = 1, block: int = 64, cluster: int = 1, variables: str = "") -> Fault:
    found = []
    for adversary in ADVERSARIES:
        with pytest.raises(Fault) as caught:
            launch(kernel(HEAD + body, variables=variables), "k", grid, block, [np.zeros(8, np.uint32)],
                   cluster=cluster, adversary=adversary)  # fmt: skip
        assert caught.value.kind == "deadlock", str(caught.value)
        found.append(caught.value)
    return found[0]


@pytest.mark.parametrize("pause", ["", "nanosleep.u32 100;"])
def test_a_flag_that_nobody_sets(pause: str) -> None:
    look = "ld.acquire.gpu.global.u32 %r4, [%rd1+4];\n setp.eq.u32 %p1, %r4, 0;"
    fault = hang(f"again: {pause}\n {look}\n @%p1 bra again;")
    assert "threads 0-63 loop over PTX lines" in fault.message
    assert "poll address 0x10000000004 at PTX line" in fault.message
    assert "(ld.acquire.gpu.global.u32 %r4, [%rd1+4];)" in fault.message


def test_a_lock_that_nobody_gives_back() -> None:
    body = """
again:
    atom.acquire.gpu.global.cas.b32 %r4, [%rd1], 0, 1;
    setp.ne.u32 %p1, %r4, 0;
    @%p1 bra again;
"""
    assert "atom.acquire.gpu.global.cas.b32" in hang(body, block=2).message
    # One thread after the other gets it where it is given back.
    body += "st.release.gpu.global.u32 [%rd1], 0;"
    for adversary in ADVERSARIES:
        launch(kernel(HEAD + body), "k", 3, 4, [np.zeros(8, np.uint32)], adversary=adversary)


def test_threads_that_wait_for_one_that_polls() -> None:
    body = """
    setp.ge.u32 %p1, %r1, 32;
    @%p1 bra wait;
again:
    ld.volatile.global.u32 %r4, [%rd1];
    setp.eq.u32 %p1, %r4, 0;
    @%p1 bra again;
wait:
    bar.sync 0;
"""
    fault = hang(body)
    assert "threads 32-63 wait at PTX line" in fault.message
    assert "named barrier 0, where 32 of all threads have arrived" in fault.message
    assert "threads 0-31 loop over" in fault.message


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_slow_is_not_stuck(adversary: int | None) -> None:
    """The other warp counts for a long time before it sets the flag."""
    body = """
    setp.ge.u32 %p1, %r1, 32;
    @%p1 bra slow;
again:
    ld.acquire.gpu.global.u32 %r4, [%rd1];
    setp.eq.u32 %p1, %r4, 0;
    @%p1 bra again;
    bra finish;
slow:
    mov.u32 %r5, 0;
count:
    add.u32 %r5, %r5, 1;
    setp.lt.u32 %p1, %r5, 30000;
    @%p1 bra count;
    fence.acq_rel.gpu;
    st.relaxed.gpu.global.u32 [%rd1], 1;
finish:
"""
    launch(kernel(HEAD + body), "k", 1, 64, [np.zeros(8, np.uint32)], adversary=adversary)


def test_a_clock_ends_a_wait() -> None:
    body = """
    mov.u64 %rd2, %globaltimer;
again:
    ld.acquire.gpu.global.u32 %r4, [%rd1];
    setp.ne.u32 %p1, %r4, 0;
    @%p1 bra finish;
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd3, %rd3, %rd2;
    setp.lt.u64 %p1, %rd3, 10000000;
    @%p1 bra again;
    st.global.u32 [%rd1+4], 7;
finish:
"""
    out = np.zeros(8, np.uint32)
    launch(kernel(HEAD + body), "k", 1, 1, [out])
    assert out[1] == 7


GRID_BARRIER = """
    setp.ne.u32 %p1, %r1, 0;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd2, %rd1, %rd2;
    @!%p1 st.global.u32 [%rd2+8], 5;
    bar.sync 0;
    @%p1 bra together;
    fence.acq_rel.gpu;
    atom.add.relaxed.gpu.global.u32 %r4, [%rd1], 1;
again:
    ld.relaxed.gpu.global.u32 %r4, [%rd1];
    setp.lt.u32 %p2, %r4, COUNT;
    @%p2 bra again;
    fence.acq_rel.gpu;
together:
    bar.sync 0;
    ld.global.u32 %r5, [%rd1+8];
    @!%p1 red.relaxed.gpu.global.add.u32 [%rd1+4], %r5;
"""


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("cluster", [1, 2])
def test_blocks_that_wait_for_each_other(cluster: int, adversary: int | None) -> None:
    out = np.zeros(8, np.uint32)
    source = kernel(HEAD + GRID_BARRIER.replace("COUNT", "%r3"))
    launch(source, "k", 4, 64, [out], cluster=cluster, adversary=adversary)
    assert out[:2].tolist() == [4, 20]


def test_blocks_that_wait_for_one_too_many() -> None:
    fault = hang(GRID_BARRIER.replace("COUNT", "5"), grid=4)
    assert "block (0, 0, 0): threads 1-63 wait at" in fault.message
    assert "block (0, 0, 0): thread 0 loop over" in fault.message


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_blocks_of_a_cluster_poll_each_others_memory(adversary: int | None) -> None:
    body = """
    mapa.shared::cluster.u32 %r6, box, 0;
    mov.u32 %r7, 0;
    setp.eq.u32 %p3, %r2, 0;
    @%p3 st.shared.u32 [box], %r7;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    @!%p3 st.release.cluster.shared::cluster.u32 [%r6], 1;
    @!%p3 bra finish;
again:
    ld.acquire.cluster.shared.u32 %r4, [box];
    setp.eq.u32 %p1, %r4, VALUE;
    @%p1 bra again;
finish:
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
    variables = ".shared .align 16 .b8 box[16];"
    source = kernel(HEAD + body.replace("VALUE", "0"), variables=variables)
    launch(source, "k", 2, 1, [np.zeros(8, np.uint32)], cluster=2, adversary=adversary)


def test_a_loop_that_counts_for_ever_meets_the_limit() -> None:
    body = "again:\n add.u32 %r5, %r5, 1;\n bra again;"
    with pytest.raises(Fault) as caught:
        launch(kernel(HEAD + body), "k", 1, 1, [np.zeros(8, np.uint32)], step_limit=50_000)
    assert caught.value.kind == "step-limit"
    assert "more than 50,000 steps" in caught.value.message
    assert caught.value.text in ("add.u32 %r5, %r5, 1;", "bra again;")
