"""clusterlaunchcontrol: blocks that take over the work of clusters which have not begun."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import Fault, launch

VARIABLES = ".shared .align 16 .b8 answer[16];\n.shared .align 8 .b64 bar;"
TRY = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];"
TRY_FOR_ALL = TRY.replace(".b128", ".multicast::cluster::all.b128")
IS = "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, wide;"
FIRST = "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r3, %r4, %r5, _}, wide;"
EACH = "\n".join(
    f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis}.b32.b128 %r{3 + place}, wide;"
    for place, axis in enumerate("xyz")
)
WAIT = """
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], %r6;
    @!%p1 bra wait;"""
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 16;"
FENCE = "fence.proxy.async.shared::cta;"
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
AGAIN = f"@%p2 bra next;\n{EXPECT}\n{TRY}\nbra done;\nnext:"


def work(ask: str = TRY, first: str = FIRST, again: str = "@!%p2 bra done;", cluster: str = "") -> str:
    """One thread to a block: the word of every position that it works for becomes one more, and that of its own block
    in another array too."""
    return f"""
    mov.u32 %r1, answer; mov.u32 %r2, bar; mov.u32 %r6, 0;
    ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [worked];
    mbarrier.init.shared::cta.b64 [%r2], 1;
    {f"fence.mbarrier_init.release.cluster; {MEET}" if cluster else ""}
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y; mov.u32 %r5, %ctaid.z;
    mov.u32 %r7, %nctaid.x; mov.u32 %r8, %nctaid.y; mov.u32 %r12, %cluster_ctarank;
    mad.lo.u32 %r9, %r5, %r8, %r4; mad.lo.u32 %r9, %r9, %r7, %r3;
    mul.wide.u32 %rd3, %r9, 4; add.u64 %rd2, %rd2, %rd3;
more:
    mad.lo.u32 %r9, %r5, %r8, %r4; mad.lo.u32 %r9, %r9, %r7, %r3;
    mul.wide.u32 %rd3, %r9, 4; add.u64 %rd3, %rd1, %rd3;
    ld.global.u32 %r10, [%rd3]; add.u32 %r10, %r10, 1; st.global.u32 [%rd3], %r10;
    ld.global.u32 %r11, [%rd2]; add.u32 %r11, %r11, 1; st.global.u32 [%rd2], %r11;
    {EXPECT}
    {cluster}
    {ask}
{cluster and "asked:"}
    {WAIT}
    xor.b32 %r6, %r6, 1;
    ld.shared.b128 wide, [%r1];
    {FENCE}
    {IS}
    {again}
    {first}
    {"add.u32 %r3, %r3, %r12;" if cluster else ""}
    bra more;
done:
    {MEET if cluster else ""}
    """


ONE_ASKS = f"""
    {MEET}
    setp.ne.u32 %p3, %r12, 0;
    @%p3 bra asked;"""


def run(body: str, grid: tuple[int, int, int], adversary: int | None, cluster: int = 1) -> tuple[np.ndarray, ...]:
    out, worked = (np.zeros(grid[::-1], np.uint32) for _ in range(2))
    registers, params = ".reg .b128 wide;", ".param .u64 out, .param .u64 worked"
    source = kernel(body, params, variables=VARIABLES, registers=registers, target="sm_100a", version="8.8")
    launch(source, "k", grid, 1, [out, worked], cluster=cluster, adversary=adversary)
    return out, worked


@pytest.mark.parametrize("first", [FIRST, EACH], ids=["at once", "each"])
@pytest.mark.parametrize("grid", [(1, 1, 1), (7, 1, 1), (5, 3, 2)])
def test_every_block_is_worked_for_once(grid: tuple[int, int, int], first: str) -> None:
    """By the first one that runs, where no request is refused; else by several."""
    out, worked = run(work(first=first), grid, None)
    assert (out == 1).all() and worked.flat[0] == out.size and np.count_nonzero(worked) == 1
    spread = 0
    for adversary in range(1, 5):
        out, worked = run(work(first=first), grid, adversary)
        assert (out == 1).all() and worked.sum() == out.size
        spread += np.count_nonzero(worked)
    assert out.size == 1 or 4 < spread < 4 * out.size


@pytest.mark.parametrize("adversary", [None, 1, 2, 3])
def test_clusters_take_whole_clusters(adversary: int | None) -> None:
    """One block asks, and all of its cluster hear the answer."""
    out, worked = run(work(TRY_FOR_ALL, cluster=ONE_ASKS), (6, 2, 1), adversary, cluster=2)
    assert (out == 1).all() and (worked[..., ::2] == worked[..., 1::2]).all()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (work(again=""), "bad-descriptor"),
        (work(again=AGAIN), "bad-descriptor"),
        (work().replace(WAIT, ""), "unarrived-read"),
        (work().replace(EXPECT, "mbarrier.arrive.shared::cta.b64 _, [%r2];"), None),
        (work().replace("[%r1], [%r2];", "[%r1+8], [%r2];"), "misaligned"),
        (work().replace(EXPECT, ""), "deadlock"),
    ],
    ids=["no refusal", "asks again", "no wait", "no bytes", "elsewhere", "no arrival"],
)
def test_mistakes(body: str, kind: str | None) -> None:
    """The position of a refusal, a request after one, and what is true of every asynchronous copy."""
    found = set()
    for adversary in (None, 1, 2, 3):
        try:
            run(body, (3, 1, 1), adversary)
        except Fault as fault:
            found.add(fault.kind)
    assert found and (kind is None or kind in found), found
