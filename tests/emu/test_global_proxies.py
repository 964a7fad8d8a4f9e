"""Bulk copies and ordinary accesses that meet in global memory: what orders them, and which fence they need."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel
from test_races import BOX, START

from tilec.emu import Fault, TensorMap, launch

ADVERSARIES = [None, 1, 2]
MAPPED = ".param .u64 out, .param .align 64 .b8 map[128]"
HEAD = (
    START
    + """
    shl.b32 %r5, %r1, 2;
    add.u32 %r6, %r2, 1024;
    @%p1 mbarrier.init.shared.b64 [bar], 1;
    st.shared.u32 [%r3], %r1;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    mov.u64 %rd9, map;
    cvta.param.u64 %rd9, %rd9;
"""
)
STORE = "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 256;\n @%p1 cp.async.bulk.commit_group;\n"
REDUCE = """
    @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r2], 256;
    @%p1 cp.async.bulk.commit_group;
"""
LOAD = """
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 256;
    @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd1], 256, [bar];
"""
WAIT = "loaded: mbarrier.try_wait.parity.shared.b64 %p3, [bar], 0;\n @!%p3 bra loaded;\n"
TENSOR = {
    STORE: "@%p1 cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd9, {0}], [%r2];\n"
    "@%p1 cp.async.bulk.commit_group;\n",
    REDUCE: "@%p1 cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%rd9, {0}], [%r2];\n"
    "@%p1 cp.async.bulk.commit_group;\n",
    LOAD: "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 256;\n"
    "@%p1 cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd9, {0}], [bar];\n",
}
DONE = "@%p1 cp.async.bulk.wait_group 0;\n"
READ = "@%p1 cp.async.bulk.wait_group.read 0;\n"
BAR = "bar.sync 0;\n"
FENCE = "fence.proxy.async.global;\n"
WRITE = "st.global.u32 [%rd2], %r1;\n"
OVERWRITTEN = "add.u32 %r9, %r6, %r5;\n st.shared.u32 [%r9], %r1;\n"  # where LOAD will write
SHARED_FENCE = "fence.proxy.async.shared::cta;\n"
LOOK = "xor.b32 %r7, %r1, 33;\n mad.wide.u32 %rd3, %r7, 4, %rd1;\n ld.global.u32 %r8, [%rd3];\n"


def run(body: str, adversary: int | None = None, *, races: bool = True) -> np.ndarray:
    out = np.arange(64, dtype=np.uint32) + 100
    source = kernel(HEAD + body, MAPPED, variables=BOX)
    launch(source, "k", 1, 64, [out, TensorMap(out, (64,))], adversary=adversary, races=races)
    return out


def forms(body: str) -> list[str]:
    """With plain copies of bytes, and with copies through a tensor map."""
    tensor = body
    for plain, mapped in TENSOR.items():
        tensor = tensor.replace(plain, mapped)
    return [body, tensor]


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize(
    "body",
    [
        WRITE + FENCE + BAR + LOAD + WAIT,
        WRITE + BAR + "@%p1 fence.proxy.async;\n" + LOAD + WAIT,
        STORE + DONE + BAR + LOOK,
        STORE + DONE + LOAD + WAIT,
        STORE + DONE + BAR + WRITE,
        REDUCE + REDUCE + DONE + BAR + LOOK,
        LOAD + WAIT + WRITE,
        LOOK + BAR + STORE + READ,
        WRITE + FENCE + BAR + REDUCE + DONE + BAR + LOOK,
        OVERWRITTEN + SHARED_FENCE + BAR + LOAD + WAIT,
        OVERWRITTEN + BAR + "@%p1 fence.proxy.async;\n" + LOAD + WAIT,
    ],
)
def test_right(body: str, adversary: int | None) -> None:
    for form in forms(body):
        run(form, adversary)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (WRITE + BAR + LOAD + WAIT, "missing-proxy-fence"),
        (WRITE + "fence.proxy.async.shared::cta;\n" + BAR + LOAD + WAIT, "missing-proxy-fence"),
        (WRITE + "@%p1 " + FENCE + BAR + LOAD + WAIT, "missing-proxy-fence"),
        (FENCE + WRITE + BAR + LOAD + WAIT, "missing-proxy-fence"),
        (WRITE + BAR + REDUCE + DONE, "missing-proxy-fence"),
        (OVERWRITTEN + BAR + LOAD + WAIT, "missing-proxy-fence"),
        (OVERWRITTEN + "@%p1 " + SHARED_FENCE + BAR + LOAD + WAIT, "missing-proxy-fence"),
        (WRITE + FENCE + LOAD + WAIT, "data-race"),
        (WRITE + FENCE + STORE + READ, "data-race"),
        (STORE + READ + BAR + LOOK, "data-race"),
        (STORE + DONE + LOOK, "data-race"),
        (STORE + READ + LOAD + WAIT, "data-race"),
        (STORE + STORE + READ, "data-race"),
        (STORE + REDUCE + READ, "data-race"),
        (STORE + READ + BAR + WRITE, "data-race"),
        (REDUCE + READ + BAR + LOOK, "data-race"),
        (LOAD + WRITE + WAIT, "data-race"),
        (LOOK + STORE + READ, "data-race"),
        (LOOK + REDUCE + READ, "data-race"),
    ],
)
def test_wrong(body: str, kind: str) -> None:
    for form in forms(body):
        for adversary in ADVERSARIES:
            with pytest.raises(Fault) as caught:
                run(form, adversary)
            assert caught.value.kind == kind, str(caught.value)


def test_both_lines_are_named() -> None:
    with pytest.raises(Fault) as caught:
        run(STORE + READ + BAR + LOOK)
    assert "the bulk store of thread 0 at PTX line" in caught.value.message
    assert "(@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 256;) writes it" in caught.value.message
    assert "nothing has waited for it" in caught.value.message
    assert caught.value.text == "ld.global.u32 %r8, [%rd3];"
    with pytest.raises(Fault) as caught:
        run(WRITE + BAR + LOAD + WAIT)
    assert "written at PTX line" in caught.value.message
    assert "(st.global.u32 [%rd2], %r1;) with no fence.proxy.async" in caught.value.message


def test_what_lies_beside_the_box_is_left_alone() -> None:
    """A box of 40 elements, the last of which fall off the tensor, next to an array that threads write."""
    both = np.zeros((2, 64), np.uint16)
    source = kernel(
        HEAD
        + """
        cvt.u16.u32 %h1, %r1;
        mul.wide.u32 %rd2, %r1, 2;
        add.s64 %rd2, %rd1, %rd2;
        setp.lt.u32 %p3, %r1, 40;
        @%p3 bra copy;
        st.global.u16 [%rd2], %h1;
    copy:
        @%p1 cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd9, {0}], [%r2];
        @%p1 cp.async.bulk.commit_group;
        @%p1 cp.async.bulk.wait_group 0;
        """,
        MAPPED,
        variables=BOX,
    )
    launch(source, "k", 1, 64, [both[0], TensorMap(both[0, :40], (48,))])
    np.testing.assert_array_equal(both[0, 40:], np.arange(40, 64))
