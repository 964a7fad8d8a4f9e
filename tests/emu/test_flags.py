"""Flags in memory: what releases, acquires, fences and scopes order, and what they do not."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel
from test_races import BOX, START

from tilec.emu import Fault, launch

ADVERSARIES = [None, 1, 2]
# Warp 1 writes and sets the flag; warp 0 polls it and reads.
PAIR = (
    START
    + """
    @%p1 st.shared.u32 [other], 0;
    bar.sync 0;
    @%p2 bra consumer;
    st.SPACE.u32 [DATA+64], %r1;
    bar.warp.sync -1;
    and.b32 %r5, %r1, 31;
    setp.eq.u32 %p3, %r5, 0;
    RELEASE
    bra finish;
consumer:
    LOOK
    setp.eq.u32 %p3, %r5, 0;
    @%p3 bra consumer;
    AFTER
    ld.SPACE.u32 %r6, [DATA+192];
finish:
"""
)


def run(release: str, look: str, after: str, adversary: int | None, *, space: str = "shared") -> None:
    flag = "other" if space == "shared" else "%rd1"
    data = "%r3" if space == "shared" else "%rd2"
    body = PAIR.replace("RELEASE", release).replace("LOOK", look).replace("AFTER", after)
    body = body.replace("SPACE", space).replace("DATA", data).replace("FLAG", flag)
    launch(kernel(body, variables=BOX), "k", 1, 64, [np.zeros(256, np.uint32)], adversary=adversary)


RIGHT = [
    ("@%p3 st.release.cta.SPACE.u32 [FLAG], 1;", "ld.acquire.cta.SPACE.u32 %r5, [FLAG];", ""),
    ("@%p3 fence.acq_rel.cta;\n @%p3 st.relaxed.cta.SPACE.u32 [FLAG], 1;", "ld.acquire.cta.SPACE.u32 %r5, [FLAG];", ""),
    ("@%p3 st.release.gpu.SPACE.u32 [FLAG], 1;", "ld.relaxed.gpu.SPACE.u32 %r5, [FLAG];", "fence.acq_rel.gpu;"),
    ("membar.gl;\n @%p3 atom.SPACE.add.u32 %r5, [FLAG], 1;", "ld.relaxed.gpu.SPACE.u32 %r5, [FLAG];", "membar.gl;"),
    # Every thread fences for itself, and one of them sets the flag.
    ("membar.gl;\n bar.warp.sync -1;\n @%p3 red.SPACE.add.u32 [FLAG], 1;", "ld.acquire.gpu.SPACE.u32 %r5, [FLAG];", ""),
    ("membar.gl;\n @%p3 st.volatile.SPACE.u32 [FLAG], 1;", "ld.volatile.SPACE.u32 %r5, [FLAG];", ""),
    ("@%p3 atom.release.gpu.SPACE.exch.b32 %r5, [FLAG], 1;", "atom.acquire.gpu.SPACE.or.b32 %r5, [FLAG], 0;", ""),
]
WRONG = [
    # No fence on one side, or on the wrong side of the flag.
    ("@%p3 st.relaxed.cta.SPACE.u32 [FLAG], 1;", "ld.acquire.cta.SPACE.u32 %r5, [FLAG];", ""),
    ("@%p3 st.relaxed.gpu.SPACE.u32 [FLAG], 1;\n membar.gl;", "ld.acquire.gpu.SPACE.u32 %r5, [FLAG];", ""),
    ("@%p3 st.release.gpu.SPACE.u32 [FLAG], 1;", "ld.relaxed.gpu.SPACE.u32 %r5, [FLAG];", ""),
    ("@%p3 atom.SPACE.add.u32 %r5, [FLAG], 1;", "ld.acquire.gpu.SPACE.u32 %r5, [FLAG];", ""),
]


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("space", ["shared", "global"])
def test_flags_that_order(space: str, adversary: int | None) -> None:
    for case in RIGHT:
        run(*case, adversary, space=space)


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("space", ["shared", "global"])
@pytest.mark.parametrize("case", WRONG)
def test_flags_that_do_not(case: tuple[str, str, str], space: str, adversary: int | None) -> None:
    with pytest.raises(Fault) as caught:
        run(*case, adversary, space=space)
    assert caught.value.kind == "data-race", str(caught.value)


CLUSTER = """
    mov.u32 %r9, %cluster_ctarank;
    setp.eq.u32 %p4, %r9, 0;
    @%p4 st.shared.u32 [other], 0;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    mapa.shared::cluster.u32 %r8, other, 0;
    mapa.shared::cluster.u32 %r7, box, 0;
    @%p4 bra consumer;
    st.shared::cluster.u32 [%r7], 7;
    st.release.SCOPE.shared::cluster.u32 [%r8], 1;
    bra finish;
consumer:
    ld.acquire.SCOPE.shared.u32 %r5, [other];
    setp.eq.u32 %p3, %r5, 0;
    @%p3 bra consumer;
    ld.shared.u32 %r6, [box];
finish:
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_a_scope_of_one_block_does_not_reach_another_one_of_the_cluster(adversary: int | None) -> None:
    def run(scope: str) -> None:
        source = kernel(START + CLUSTER.replace("SCOPE", scope), variables=BOX)
        launch(source, "k", 2, 1, [np.zeros(64, np.uint32)], cluster=2, adversary=adversary)

    run("cluster")
    with pytest.raises(Fault) as caught:
        run("cta")
    assert caught.value.kind == "data-race"


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("cluster", [1, 2])
def test_atomics_of_one_blocks_scope_race_between_blocks(cluster: int, adversary: int | None) -> None:
    body = f"{START}\n mov.u32 %r9, %ctaid.x;\n mad.wide.u32 %rd3, %r9, 4, %rd1;\n"
    body += "red.relaxed.cta.global.add.u32 [%rd3], 1;\n red.relaxed.gpu.global.add.u32 [%rd1+128], 1;"
    launch(kernel(body, variables=BOX), "k", 4, 32, [np.zeros(64, np.uint32)], cluster=cluster, adversary=adversary)
    body = f"{START} red.relaxed.SCOPE.global.add.u32 [%rd1], 1;"
    for scope, is_right in (("gpu", True), ("cta", False)):
        source = kernel(body.replace("SCOPE", scope), variables=BOX)
        if is_right:
            launch(source, "k", 4, 32, [np.zeros(64, np.uint32)], cluster=cluster, adversary=adversary)
            continue
        with pytest.raises(Fault) as caught:
            launch(source, "k", 4, 32, [np.zeros(64, np.uint32)], cluster=cluster, adversary=adversary)
        assert "scope .cta does not order two blocks" in caught.value.message
