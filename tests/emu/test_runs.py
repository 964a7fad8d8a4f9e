"""How a launch is run: hostile machines, processes, samples, timelines, and the pool of registers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ptx_source import gemm_sm90, kernel
from test_async_copies import SMEM, STORE, TMA_PARAMS, tma_load, tma_store

from tilec.emu import Fault, TensorMap, launch
from tilec.emu.machine.timeline import format_chrome_trace
from tilec.emu.memory.memory import Memory
from tilec.emu.numbers import bf16_to_f32, f32_to_bf16

ADD_ONE = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mad.lo.u32 %r3, %r2, 32, %r1;
    ld.param.u64 %rd1, [out];
    mad.wide.u32 %rd1, %r3, 4, %rd1;
    ld.global.u32 %r4, [%rd1];
    add.u32 %r4, %r4, 1;
    {}
    st.global.u32 [%rd1], %r4;
"""


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_processes_share_the_blocks(jobs: int) -> None:
    out = np.arange(320, dtype=np.uint32)
    done: list[tuple[int, int]] = []
    report = launch(
        kernel(ADD_ONE.format("")), "k", 10, 32, [out], jobs=jobs, progress=lambda n, total: done.append((n, total))
    )
    np.testing.assert_array_equal(out, np.arange(1, 321))
    assert report.blocks == 10
    assert report.counts["st"] == 10
    assert report.instructions == sum(report.counts.values())
    assert done[-1] == (10, 10)


def test_the_first_block_that_faults_is_reported() -> None:
    body = ADD_ONE.format("setp.ge.u32 %p1, %r2, 3;\n @%p1 trap;")
    for jobs in (1, 2):
        with pytest.raises(Fault) as caught:
            launch(kernel(body), "k", 10, 32, [np.zeros(320, np.uint32)], jobs=jobs)
        assert caught.value.kind == "trap"
        assert "block (3, 0, 0)" in caught.value.where
        assert caught.value.text == "@%p1 trap;"


def test_blocks_that_meet_in_memory_stay_in_one_process() -> None:
    out = np.zeros(1, np.uint32)
    launch(kernel("ld.param.u64 %rd1, [out];\n red.global.add.u32 [%rd1], 1;"), "k", 50, 32, [out], jobs=2)
    assert out[0] == 1600


def test_bulk_stores_that_nobody_waits_for_end_with_their_process() -> None:
    tensor = np.zeros((8, 16), np.float32)
    source = tma_store(STORE.replace("{%r5, %r6}", "{0, %r7}"), fence="mov.u32 %r7, %ctaid.x;\n mul.lo.u32 %r7, %r7, 4;"
                       " fence.proxy.async;")  # fmt: skip
    launch(source, "k", 2, 32, [TensorMap(tensor, (4, 16)), None, 0, 0], dynamic_smem=512, jobs=2)
    np.testing.assert_array_equal(tensor[:4], tensor[4:])
    assert tensor[0, 0] == 1


def test_a_sample_runs_some_blocks_and_says_what_they_wrote() -> None:
    out = np.full((10, 32), 5, np.uint32)
    report = launch(kernel(ADD_ONE.format("")), "k", 10, 32, [out], sample=(3, 1))
    (written,) = report.written
    assert report.blocks == 3
    assert written is not None
    assert written.sum() == 3 * 32
    np.testing.assert_array_equal(out, np.where(written, 6, 5))
    again = launch(kernel(ADD_ONE.format("")), "k", 10, 32, [out], sample=(3, 1))
    np.testing.assert_array_equal(again.written[0], written)


@pytest.mark.parametrize("kind", ["another block reads", "TMA"])
def test_blocks_must_not_see_each_others_work(kind: str) -> None:
    if kind == "TMA":
        source = tma_store(STORE, fence="mov.u32 %r7, %ctaid.x;\n add.u32 %r7, %r7, %r1;\n st.shared.u32 [%r3], %r7;"
                           "fence.proxy.async;")  # fmt: skip
        arguments: list[object] = [TensorMap(np.zeros((8, 16), np.float32), (8, 16)), None, 0, 0]
    else:
        source = kernel(ADD_ONE.format("").replace("%r3, %r2, 32", "%r3, %r2, 16"))
        arguments = [np.zeros(64, np.uint32)]
    with pytest.raises(Fault) as caught:
        launch(source, "k", 2, 32, arguments, dynamic_smem=512)
    assert caught.value.kind == "data-race"
    launch(source, "k", 2, 32, arguments, dynamic_smem=512, races=False)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("last", [0, 1, 300])
def test_a_block_that_reads_before_another_one_writes_races_too(last: int, jobs: int) -> None:
    """All blocks but one read; `last` writes, whenever it comes."""
    body = f"""
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r3, 0;
    setp.eq.u32 %p1, %r1, {last};
    @%p1 bra $WRITE;
    ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd1];
    bra $END;
$WRITE:
    mov.u32 %r3, VALUE;
    st.global.u32 [%rd1+4], %r3;
$END:
    """
    with pytest.raises(Fault) as caught:
        launch(kernel(body.replace("VALUE", "7")), "k", last + 2, 1, [np.zeros(4, np.uint32)], jobs=jobs)
    assert caught.value.kind == "data-race"
    assert "address 0x10000000004 " in caught.value.message
    if last and jobs == 1:
        assert "and another block has read it at PTX line" in caught.value.message
    launch(kernel(body.replace("VALUE", "7")), "k", last + 2, 1, [np.zeros(4, np.uint32)], jobs=jobs, races=False)


@pytest.mark.parametrize("jobs", [1, 2])
def test_blocks_may_read_the_same_and_write_what_is_there(jobs: int) -> None:
    body = """
    ld.param.u64 %rd1, [out];
    ld.global.v2.b32 {%r4, %r5}, [%rd1];
    st.global.v2.b32 [%rd1+8], {%r4, %r5};
    """
    launch(kernel(body), "k", 300, 1, [np.zeros(4, np.uint32)], jobs=jobs)


NARROW = {"b8": "b8 [%rd1+3], %h5", "b16": "b16 [%rd1+2], %h5", "b32": "b32 [%rd1], %r5", "b64": "b64 [%rd1+8], %rd5"}
WIDE = {"v4.b32": "{%r6, %r7, %r8, %r9}", "v2.b64": "{%rd6, %rd7}", "b64": "%rd6"}


def part_of_a_vector(narrow: str, wide: str, block_bytes: int) -> str:
    """Each block writes part of its 16 bytes, reads all of them, writes all and reads the part."""
    return kernel(f"""
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %ctaid.x;
    mad.wide.u32 %rd1, %r1, {block_bytes}, %rd1;
    mov.u32 %r5, %r1;
    cvt.u16.u32 %h5, %r5;
    cvt.u64.u32 %rd5, %r5;
    st.global.{NARROW[narrow]};
    bar.sync 0;
    ld.global.{wide} {WIDE[wide]}, [%rd1];
    bar.sync 0;
    st.global.{wide} [%rd1], {WIDE[wide]};
    """)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("narrow", NARROW)
def test_bytes_that_nobody_wrote_are_nobodys(narrow: str, wide: str, jobs: int) -> None:
    for blocks in (1, 3):
        launch(part_of_a_vector(narrow, wide, 16), "k", blocks, 1, [np.zeros(16 * blocks, np.uint8)], jobs=jobs)


@pytest.mark.parametrize("wide", ["v4.b32", "v2.b64"])
@pytest.mark.parametrize(("narrow", "place"), [("b8", 3), ("b16", 2), ("b32", 0), ("b64", 8)])
def test_the_byte_that_another_block_wrote_is_named(narrow: str, place: int, wide: str) -> None:
    """Both blocks write another number to the same part of one vector."""
    body = part_of_a_vector(narrow, wide, 0).replace("mov.u32 %r5, %r1;", "add.u32 %r5, %r1, 1;")
    with pytest.raises(Fault) as caught:
        launch(body, "k", 2, 1, [np.zeros(16, np.uint8)])
    assert caught.value.kind == "data-race"
    assert f"{0x0100_0000_0000 + place:#x} is written here" in caught.value.message


def gemm(adversary: int | None, *, timeline: bool = False) -> str:
    generator = np.random.default_rng(0)
    a = f32_to_bf16(generator.standard_normal((128, 192)).astype(np.float32))
    b = f32_to_bf16(generator.standard_normal((128, 192)).astype(np.float32))
    c = np.zeros((128, 128), np.float32)
    maps = [TensorMap(matrix, (128, 64), 128, "bfloat16") for matrix in (a, b)]
    report = launch(
        gemm_sm90(3, 2), "gemm", 1, 384, [*maps, c, 128], dynamic_smem=65536, adversary=adversary, timeline=timeline
    )
    np.testing.assert_allclose(c, bf16_to_f32(a) @ bf16_to_f32(b).T, rtol=1e-5, atol=1e-3)
    return format_chrome_trace(report.timeline)


@pytest.mark.parametrize("adversary", range(12))
def test_a_right_kernel_is_right_on_every_machine(adversary: int) -> None:
    assert gemm(adversary) == gemm(adversary)


def test_the_timeline_shows_arrivals_waits_and_copies() -> None:
    events = json.loads(gemm(None, timeline=True))["traceEvents"]
    names = [event["name"] for event in events]
    assert sum(name.startswith("issue copy to") for name in names) == 6
    assert sum(name.startswith("done copy to") for name in names) == 6
    assert "arrive barrier 0" in names
    waits = [event for event in events if event["ph"] == "X"]
    assert waits
    assert all(event["dur"] > 0 and event["args"]["PTX line"] > 0 for event in waits)
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} >= {"warp 0", "warp 4"}


def test_an_adversary_reads_sources_at_any_moment() -> None:
    """The source changes between issue and wait: which value arrives is the machine's choice."""
    body = """
    ld.param.u64 %rd1, [out];
    mov.u32 %r2, smem;
    cp.async.ca.shared.global [%r2], [%rd1], 4;
    st.global.u32 [%rd1], 9;
    nanosleep.u32 20;
    cp.async.wait_all;
    ld.shared.u32 %r3, [%r2];
    st.global.u32 [%rd1+4], %r3;
    """
    seen = set()
    for adversary in range(12):
        out = np.zeros(2, np.uint32)
        launch(kernel(body, variables=SMEM), "k", 1, 1, [out], dynamic_smem=16, adversary=adversary)
        seen.add(int(out[1]))
    assert seen == {0, 9}


def test_a_block_must_not_end_before_its_copies_have_arrived() -> None:
    source = tma_load(1024).replace("wait: mbarrier", "bra done;\nwait: mbarrier").replace("\n    ret;", "\ndone: ret;")
    arguments = [TensorMap(np.zeros((8, 64), np.uint16), (8, 64), 128), np.zeros(512, np.uint16), 0, 0]
    source = source.replace("mbarrier.arrive.expect_tx", "mbarrier.expect_tx").replace("_, [bar], 1024", "[bar], 1024")
    source = source.replace("mbarrier.expect_tx.shared::cta.b64", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64")
    with pytest.raises(Fault) as caught:
        launch(source, "k", 1, 32, arguments, dynamic_smem=4096)
    assert caught.value.kind == "exit-before-arrival"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        # Nobody has used the first one: that is allowed.
        ("mbarrier.init.shared.b64 [bar], 1; mbarrier.init.shared.b64 [bar], 2;", ""),
        ("mbarrier.init.shared.b64 [bar], 2; mbarrier.arrive.shared.b64 _, [bar]; mbarrier.init.shared.b64 [bar], 1;",
         "bad-barrier"),
        ("mbarrier.init.shared.b64 [bar], 2; mbarrier.arrive.shared.b64 _, [bar]; mbarrier.inval.shared.b64 [bar];"
         "mbarrier.init.shared.b64 [bar], 1;", ""),
        ("mbarrier.init.shared.b64 [bar], 1; mbarrier.arrive.shared.b64 %rd1, [bar];"
         "mbarrier.arrive.shared.b64 _, [bar];"
         "mbarrier.test_wait.shared.b64 %p1, [bar], %rd1;", "phase-skipped"),
        ("mbarrier.init.shared.b64 [bar], 1; mbarrier.expect_tx.relaxed.cta.shared.b64 [bar], 1000000;"
         "mbarrier.expect_tx.relaxed.cta.shared.b64 [bar], 1000000;", "barrier-overflow"),
    ],
)  # fmt: skip
def test_lives_of_an_mbarrier(body: str, kind: str) -> None:
    source = kernel(body, TMA_PARAMS, variables=SMEM)
    arguments = [bytes(128), None, 0, 0]
    if not kind:
        launch(source, "k", 1, 1, arguments, dynamic_smem=16)
        return
    with pytest.raises(Fault) as caught:
        launch(source, "k", 1, 1, arguments, dynamic_smem=16)
    assert caught.value.kind == kind


def registers(first: str, second: str) -> None:
    body = f"""
    mov.u32 %r1, %tid.x;
    setp.ge.u32 %p1, %r1, 128;
    @%p1 bra other;
    {first}
    bra finish;
other:
    {second}
finish:
    """
    launch(kernel(body, directives=".reqntid 384, 1, 1 .minnctapersm 1"), "k", 1, 384, [None])


def test_registers_move_between_warpgroups() -> None:
    """384 threads start with 168 registers each, and the block has 1,024 to spare."""
    dec, inc = "setmaxnreg.dec.sync.aligned.u32 {};", "setmaxnreg.inc.sync.aligned.u32 {};"
    registers(dec.format(40), inc.format(232))
    registers(inc.format(176), dec.format(168))
    for first in ("", dec.format(56)):
        with pytest.raises(Fault) as caught:
            registers(first, inc.format(232))
        assert caught.value.kind == "deadlock"
        assert "registers are free; its warpgroups hold" in caught.value.message
    with pytest.raises(Fault) as caught:
        registers(dec.format(40), dec.format(40) + dec.format(48))
    assert caught.value.kind == "bad-setmaxnreg"


@pytest.mark.parametrize(
    ("directives", "body"),
    [
        # What ptxas 13.0 says that a thread of such a kernel starts with: no more than it ever grows to.
        (".maxntid 256, 1, 1 .minnctapersm 1", "setmaxnreg.inc.sync.aligned.u32 240;"),
        (".reqntid 256, 1, 1 .minnctapersm 1", "setmaxnreg.inc.sync.aligned.u32 160;"),
        (".maxntid 256, 1, 1 .minnctapersm 2", "setmaxnreg.inc.sync.aligned.u32 128;"),
        (".maxnreg 200", "setmaxnreg.inc.sync.aligned.u32 160;"),
        (".maxntid 320, 1, 1 .minnctapersm 1", "setmaxnreg.inc.sync.aligned.u32 168;"),
    ],
)
def test_registers_at_the_start(directives: str, body: str) -> None:
    launch(kernel(body, directives=directives), "k", 1, 256, [None])


@pytest.mark.parametrize("directives", ["", ".reqntid 128, 1, 1", ".maxntid 128, 1, 1"])
def test_the_assembler_ignores_setmaxnreg_where_the_start_is_unknown(directives: str) -> None:
    with pytest.raises(Fault) as caught:
        launch(kernel("setmaxnreg.dec.sync.aligned.u32 24;", directives=directives), "k", 1, 128, [None])
    assert caught.value.kind == "setmaxnreg-ignored"


EARLY = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    mad.lo.u32 %r3, %r1, 4, %r2;
    ld.param.u64 %rd1, [out];
    mad.wide.u32 %rd1, %r1, 4, %rd1;
    cp.async.ca.shared.global [%r3], [%rd1], 4;
    ld.shared.u32 %r4, [%r3];
    cp.async.wait_all;
"""


@pytest.mark.parametrize("races", [True, False])
@pytest.mark.parametrize("adversary", [None, 0, 1, 2, 3])
def test_destinations_are_guarded_without_the_watch_on_races(adversary: int | None, races: bool) -> None:
    """Some of these machines have copied long before the wait; that excuses nobody."""
    source = kernel(EARLY, variables=SMEM)
    with pytest.raises(Fault) as caught:
        launch(source, "k", 1, 32, [np.zeros(32, np.uint32)], dynamic_smem=128, adversary=adversary, races=races)
    assert caught.value.kind == "unarrived-read"


def test_destinations_are_poisoned_until_they_are_written() -> None:
    memory = Memory("shared", 0, 64, is_shared=True)
    memory.allocate("box", 0, 64)
    memory.store(np.arange(0, 64, 4), 4, np.full(16, 3, np.uint32))
    memory.fence(np.array([0]))
    memory.claim_rows(np.array([0]), 0)
    memory.claim(np.array([16, 20]), 4, np.array([0, 1]))
    assert np.isnan(memory.bytes[:24].view(np.float32)).all()
    assert np.isnan(memory.bytes[:24].view(np.float16)).all()
    assert memory.bytes[24:].view(np.uint32).tolist() == [3] * 10
    memory.fill(np.array([16, 20]), 4, np.full((2, 4), 5, np.uint8))
    assert memory.bytes[16:24].tolist() == [5] * 8
