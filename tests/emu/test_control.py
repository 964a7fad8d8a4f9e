"""Branches, barriers between threads, warp-wide instructions, and deadlocks that are named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import Fault, launch

STORE = """
    ld.param.u64 %rd9, [out];
    mov.u32 %r9, %tid.x;
    mad.wide.u32 %rd9, %r9, 4, %rd9;
    st.global.u32 [%rd9], %r8;
"""


def run(body: str, block: int = 64, *, variables: str = "", adversary: int | None = None) -> list[int]:
    out = np.zeros(block, np.uint32)
    launch(kernel(body + STORE, variables=variables), "k", 1, block, [out], adversary=adversary)
    return [int(value) for value in out]


@pytest.mark.parametrize("adversary", [None, 1, 2])
def test_divergent_loops_meet_again(adversary: int | None) -> None:
    body = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r8, 0;
again:
    setp.ge.u32 %p1, %r8, %r1;
    @%p1 bra done;
    add.u32 %r8, %r8, 1;
    bra again;
done:
    // Only a warp that is whole again may shuffle.
    shfl.sync.bfly.b32 %r8, %r8, 1, 31, -1;
    """
    assert run(body, adversary=adversary) == [thread ^ 1 for thread in range(64)]


def test_scoped_registers_and_labels() -> None:
    body = """
    .reg .b32 x;
    mov.u32 x, 1;
    { .reg .b32 x; .reg .pred p;
      mov.u32 x, 5;
      setp.eq.u32 p, x, 5;
      @p bra done;
      mov.u32 x, 6;
    done:
      mov.u32 %r8, x; }
    { .reg .b32 x; mov.u32 x, 7; bra.uni done; mov.u32 x, 8;
    done: add.u32 %r8, %r8, x; }
    add.u32 %r8, %r8, x;
    """
    assert run(body, 2) == [13, 13]


def test_special_registers() -> None:
    out = np.zeros((4, 24, 4), np.uint32)
    body = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %tid.y;
    mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    mov.u32 %r5, %ctaid.x;
    mad.lo.u32 %r6, %r5, 24, %r4;
    ld.param.u64 %rd1, [out];
    mad.wide.u32 %rd1, %r6, 16, %rd1;
    mov.u32 %r7, %laneid;
    mov.u32 %r8, %nctaid.x;
    st.global.v4.u32 [%rd1], {%r1, %r2, %r7, %r8};
    """
    launch(kernel(body), "k", 4, (6, 4), [out])
    thread = np.arange(24)
    np.testing.assert_array_equal(out[3], np.stack([thread % 6, thread // 6, thread, np.full(24, 4)], axis=1))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("idx.b32 %r8|%p1, %r1, 3, 31, -1", lambda lane: (3, True)),
        ("idx.b32 %r8|%p1, %r1, 2, 0x1C1F, -1", lambda lane: (lane // 4 * 4 + 2, True)),
        ("up.b32 %r8|%p1, %r1, 1, 0, -1", lambda lane: (max(lane - 1, 0), lane >= 1)),
        ("down.b32 %r8|%p1, %r1, 2, 31, -1", lambda lane: (lane + 2 if lane < 30 else lane, lane < 30)),
        ("bfly.b32 %r8|%p1, %r1, 16, 31, -1", lambda lane: (lane ^ 16, True)),
    ],
)
def test_shuffles(mode: str, expected: Callable[[int], tuple[int, bool]]) -> None:
    body = f"""
    mov.u32 %r1, %tid.x;
    shfl.sync.{mode};
    @!%p1 add.u32 %r8, %r8, 1000;
    """
    wanted = []
    for thread in range(64):
        lane, valid = expected(thread % 32)
        wanted.append(thread // 32 * 32 + lane + (0 if valid else 1000))
    assert run(body) == wanted


def test_votes_and_reductions() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    and.b32 %r2, %r1, 3;
    setp.eq.u32 %p1, %r2, 0;
    vote.sync.ballot.b32 %r3, %p1, -1;
    vote.sync.any.pred %p2, !%p1, -1;
    vote.sync.all.pred %p3, %p1, -1;
    redux.sync.add.u32 %r4, %r1, -1;
    activemask.b32 %r5;
    match.any.sync.b32 %r6, %r2, -1;
    popc.b32 %r7, %r3;
    add.u32 %r8, %r7, %r4;
    @%p2 add.u32 %r8, %r8, 10000;
    @%p3 add.u32 %r8, %r8, 20000;
    popc.b32 %r6, %r6;
    mad.lo.u32 %r8, %r6, 100000, %r8;
    not.b32 %r5, %r5;
    add.u32 %r8, %r8, %r5;
    """
    low, high = sum(range(32)), sum(range(32, 64))
    assert run(body) == [810008 + low] * 32 + [810008 + high] * 32


def test_elect_picks_one_lane_of_each_warp() -> None:
    body = "elect.sync %r8|%p1, -1;\n @%p1 add.u32 %r8, %r8, 100;"
    assert run(body) == ([100] + [0] * 31) * 2


@pytest.mark.parametrize("adversary", [None, 1, 2, 3])
def test_named_barriers_count_threads(adversary: int | None) -> None:
    # Warp 0 produces for warp 1 through barriers 1 and 2, each side in a loop of its own.
    body = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, box;
    mov.u32 %r3, 0;
    mov.u32 %r8, 0;
    setp.ge.u32 %p1, %r1, 32;
    @%p1 bra consumer;
produce:
    setp.gt.u32 %p2, %r3, 0;
    @%p2 bar.sync 2, 64;
    setp.eq.u32 %p3, %r1, 0;
    add.u32 %r4, %r3, 10;
    @%p3 st.shared.u32 [%r2], %r4;
    bar.arrive 1, 64;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p2, %r3, 3;
    @%p2 bra produce;
    bra finish;
consumer:
    bar.sync 1, 64;
    ld.shared.u32 %r4, [%r2];
    add.u32 %r8, %r8, %r4;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p2, %r3, 3;
    @%p2 bar.arrive 2, 64;
    @%p2 bra consumer;
finish:
    """
    variables = ".shared .align 4 .b8 box[4];"
    assert run(body, variables=variables, adversary=adversary) == [0] * 32 + [33] * 32


def test_bar_red() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 7;
    bar.red.popc.u32 %r8, 0, %p1;
    bar.red.and.pred %p2, 0, !%p1;
    @%p2 add.u32 %r8, %r8, 100;
    """
    assert run(body) == [7] * 64


def test_exited_threads_are_not_awaited() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r8, 1;
    setp.ge.u32 %p1, %r1, 32;
    @%p1 ret;
    bar.sync 0;
    """
    assert run(body) == [1] * 32 + [0] * 32


def test_a_poll_on_memory_lets_others_run() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, flag;
    mov.u32 %r8, 0;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 st.shared.u32 [%r2], 0;
    bar.sync 0;
    setp.lt.u32 %p1, %r1, 32;
    @!%p1 bra signal;
poll:
    ld.volatile.shared.u32 %r8, [%r2];
    setp.eq.u32 %p2, %r8, 0;
    @%p2 bra poll;
    bra finish;
signal:
    mov.u32 %r8, 5;
    st.volatile.shared.u32 [%r2], %r8;
finish:
    """
    assert run(body, variables=".shared .align 4 .b8 flag[4];") == [5] * 64


def deadlock(source: str, block: int, dynamic_smem: int = 0) -> Fault:
    with pytest.raises(Fault) as caught:
        launch(source, "k", 1, block, [None], dynamic_smem=dynamic_smem)
    assert caught.value.kind == "deadlock"
    return caught.value


def test_deadlock_on_a_named_barrier() -> None:
    source = kernel("mov.u32 %r1, %tid.x;\n setp.lt.u32 %p1, %r1, 32;\n @%p1 bar.sync 3, 64;")
    found = deadlock(source, 64)
    line = source.split("\n").index(" @%p1 bar.sync 3, 64;") + 1
    assert f"threads 0-31 wait at PTX line {line} (@%p1 bar.sync 3, 64;)" in found.message
    assert "named barrier 3, where 32 of 64 threads have arrived" in found.message


def test_deadlock_on_an_mbarrier_says_what_is_missing() -> None:
    source = kernel(
        """
    mov.u32 %r1, bar;
    mov.u32 %r2, %tid.x;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r1], 2;
    bar.sync 0;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;
    .loc 1 21 0
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra wait;
    """,
        variables=".shared .align 8 .b64 bar;",
    )
    found = deadlock(source, 64)
    assert "phase 0 awaits 1 of 2 arrivals and 64 bytes, 0 of them in flight" in found.message
    assert "kernel.tl:21" in found.message


def test_warpgroup_instructions_wait_for_their_warpgroup() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 64;
    @%p1 bra over;
    wgmma.fence.sync.aligned;
over:
    bar.sync 0;
    """
    source = kernel(body)
    assert "the other threads of its warpgroup" in deadlock(source, 128).message


def test_barrier_misuse() -> None:
    for text, kind in (("bar.sync 0, 33;", "bad-barrier"), ("bar.sync 16, 32;", "bad-barrier")):
        with pytest.raises(Fault) as caught:
            launch(kernel(text), "k", 1, 32, [None])
        assert caught.value.kind == kind
    with pytest.raises(Fault) as caught:
        launch(kernel("bar.sync 1, 64;"), "k", 1, 96, [None])
    assert caught.value.kind == "barrier-overflow"


def test_cluster_barrier_and_remote_shared_memory() -> None:
    out = np.zeros(4, np.uint32)
    body = """
    mov.u32 %r1, %cluster_ctarank;
    mov.u32 %r2, box;
    add.u32 %r3, %r1, 40;
    st.shared.u32 [%r2], %r3;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    xor.b32 %r4, %r1, 1;
    mapa.shared::cluster.u32 %r5, %r2, %r4;
    ld.shared::cluster.u32 %r6, [%r5];
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    ld.param.u64 %rd1, [out];
    mov.u32 %r7, %ctaid.x;
    mad.wide.u32 %rd1, %r7, 4, %rd1;
    st.global.u32 [%rd1], %r6;
    """
    launch(kernel(body, variables=".shared .align 4 .b8 box[4];"), "k", 4, 1, [out], cluster=2)
    assert out.tolist() == [41, 40, 41, 40]


def test_a_block_that_has_ended_cannot_be_reached() -> None:
    body = """
    mov.u32 %r1, %cluster_ctarank;
    mov.u32 %r2, box;
    st.shared.u32 [%r2], 1;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    setp.eq.u32 %p1, %r1, 1;
    @%p1 bra finish;
    mov.u32 %r4, 1;
    mapa.shared::cluster.u32 %r5, %r2, %r4;
    ld.shared::cluster.u32 %r6, [%r5];
finish:
    """
    with pytest.raises(Fault, match="has ended") as caught:
        launch(kernel(body, variables=".shared .align 4 .b8 box[4];"), "k", 2, 1, [None], cluster=2)
    assert caught.value.kind == "ended-block"


def test_paths_of_a_branch_join_at_its_end() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 7;
    @!%p1 bra otherwise;
    mov.u32 %r8, 1;
    bra.uni joined;
otherwise:
    mov.u32 %r8, 2;
joined:
    add.u32 %r8, %r8, 10;
    """
    out = np.zeros(32, np.uint32)
    report = launch(kernel(body + STORE), "k", 1, 32, [out])
    assert out.tolist() == [11] * 7 + [12] * 25
    assert report.counts["add"] == 1


def test_predicate_logic() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 40;
    setp.gt.u32 %p2, %r1, 10;
    and.pred %p3, %p1, %p2;
    not.pred %p4, %p3;
    mov.pred %p5, %p4;
    xor.pred %p6, %p5, %p1;
    selp.u32 %r8, 1, 0, %p6;
    """
    assert run(body) == [int((not 10 < t < 40) != (t < 40)) for t in range(64)]
