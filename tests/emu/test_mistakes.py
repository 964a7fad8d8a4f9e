"""The mistakes that are made most often, planted in kernels that are right: each is a fault, or numbers that differ.

| # | mistake                                             | what the emulator says                              |
|---|-----------------------------------------------------|-----------------------------------------------------|
| 1 | swizzle code of the tensor map in the descriptor    | swizzle-mismatch; numbers differ without TMA        |
| 2 | tile base not on its pattern, base offset 0         | bad-descriptor                                      |
| 3 | offsets swapped, MN-major without swizzle           | numbers differ                                      |
| 4 | fp8 or tf32 transposed on wgmma                     | unsupported, before anything runs                   |
| 5 | expect_tx with the bytes of the clipped box         | deadlock: more bytes came than were expected        |
| 6 | producer waits for parity 0 of a fresh barrier      | deadlock                                            |
| 7 | count of the empty barrier is not its arrivals      | deadlock; early-reuse, data-race or overflow        |
| 8 | no fence.proxy.async                                | missing-proxy-fence                                 |
| 9 | no fence.mbarrier_init, or no cluster barrier       | missing-init-fence; data-race or bad-barrier        |
| 10 | .maxntid without .minnctapersm                     | setmaxnreg-ignored                                  |
| 11 | tcgen05 version bits 48:46 = 0                     | bad-descriptor (these four: test_tcgen05_mistakes)  |
| 12 | tensor memory not freed                            | tmem-leak                                           |
| 13 | no fence::after_thread_sync before tcgen05.ld      | missing-tcgen05-fence                               |
| 14 | a warp reads lanes of another quarter              | foreign-lanes                                       |
| 15 | wgmma under a branch on %tid                        | deadlock (waits for its warpgroup); divergent-warpgroup  |
| 16 | box row longer than the swizzle                     | refused when the tensor map is made                 |
| 17 | sm_90 instead of sm_90a                             | unsupported, before anything runs                   |
| 18 | a pair's tensor memory given back by one block      | data-race (test_tcgen05_pairs)                      |

Below them come the mistakes of pipelines: a barrier, a wait or a fence less.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from ptx_source import gemm_sm80, gemm_sm90, kernel
from test_async_copies import SMEM, STORE, TMA_LOAD, TMA_PARAMS, tma_store
from test_matrix import random_bits, to_f32
from test_wgmma import SMEM_BYTES, Layout, a_fragment, fragment, k_major, mn_major, place, wgmma_source

from tilec.emu import Fault, TensorMap, launch
from tilec.emu.numbers import bf16_to_f32, f32_to_bf16

ADVERSARIES = [None, 1, 2]


def replaced(source: str, old: str, new: str, count: int = -1) -> str:
    """The mutant; the text must be there."""
    assert old in source, old
    return source.replace(old, new, count)


def run_sm90(source: str, *, k_tiles: int = 4, stages: int = 2, rows: int = 128, adversary: int | None = None) -> None:
    """The warp-specialised GEMM; raises `AssertionError` where the numbers differ."""
    generator = np.random.default_rng(1)
    a = f32_to_bf16(generator.standard_normal((rows, 64 * k_tiles)).astype(np.float32))
    b = f32_to_bf16(generator.standard_normal((128, 64 * k_tiles)).astype(np.float32))
    c = np.zeros((128, 128), np.float32)
    maps = [TensorMap(matrix, (128, 64), 128, "bfloat16") for matrix in (a, b)]
    launch(source, "gemm", 1, 384, [*maps, c, 128], dynamic_smem=stages * 32768 + 1024, adversary=adversary)
    expected = bf16_to_f32(a) @ bf16_to_f32(b).T
    np.testing.assert_allclose(c[:rows], expected, rtol=1e-5, atol=1e-3)


def run_sm80(source: str, *, k_tiles: int = 5, stages: int = 3, adversary: int | None = None) -> None:
    generator = np.random.default_rng(1)
    a = generator.standard_normal((64, 32 * k_tiles)).astype(np.float16)
    b = generator.standard_normal((64, 32 * k_tiles)).astype(np.float16)
    c = np.zeros((64, 64), np.float32)
    arguments = [a, b, c, 32 * k_tiles, 64]
    launch(source, "gemm", 1, 128, arguments, dynamic_smem=stages * 10240, adversary=adversary)
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32).T, rtol=1e-5, atol=1e-4)


def fault_of(source: str, *kinds: str, rows: int = 128) -> Fault:
    """What the GEMM for sm_90a comes to, on a patient machine and on hostile ones."""
    found = []
    for adversary in ADVERSARIES:
        with pytest.raises(Fault) as caught:
            run_sm90(source, rows=rows, adversary=adversary)
        assert caught.value.kind in kinds, str(caught.value)
        found.append(caught.value)
    return found[0]


GEMM = gemm_sm90(4, 2)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_the_kernels_are_right(adversary: int | None) -> None:
    run_sm90(GEMM, adversary=adversary)
    run_sm90(GEMM, rows=100, adversary=adversary)
    run_sm80(gemm_sm80(5, 3), adversary=adversary)


# -- the checklist -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["0xC000004000010000", "0x8000004000010000", "0x0000004000010000"])
def test_1_swizzle_code_of_the_tensor_map(code: str) -> None:
    fault = fault_of(replaced(GEMM, "0x4000004000010000", code), "swizzle-mismatch")
    assert "where TMA wrote with a swizzle of 128" in fault.message


def test_1_swizzle_code_without_tma() -> None:
    """Nobody knows how ordinary stores meant it: only the numbers tell."""
    assert differs(k_major(128, 64), Layout("K", 32, 16, 1024))


def test_2_tile_between_boxes() -> None:
    """As panels of an odd number of rows would lie."""
    fault = fault_of(replaced(GEMM, "mov.u32 %base, smem;", "mov.u32 %base, smem;\n add.u32 %base, %base, 32;"),
                     "misaligned")  # fmt: skip
    assert "which is not a multiple of 128" in fault.message


def test_2_tile_inside_a_pattern() -> None:
    fault = fault_of(replaced(GEMM, "mov.u32 %base, smem;", "mov.u32 %base, smem;\n add.u32 %base, %base, 256;"),
                     "bad-descriptor")  # fmt: skip
    assert "inside a pattern of 1024 bytes" in fault.message


def test_3_offsets_swapped_for_mn_major_without_swizzle() -> None:
    right = mn_major(0, 64, 2)
    assert not differs(right, right)
    assert differs(right, Layout("MN", 0, right.stride, right.leading))


def differs(written: Layout, read: Layout) -> bool:
    """Whether a wgmma computes nonsense (or faults) when A was laid out in one way and is read in another."""
    a, b = random_bits("f16", (64, 16), 1), random_bits("f16", (16, 16), 2)
    image = np.zeros(SMEM_BYTES, np.uint8)
    place(image, a, written, 0)
    place(image, b, k_major(128, 16), 32 * 1024)
    d = np.zeros((128, 8), np.float32)
    source = wgmma_source(16, 16, "f32", ("f16", "f16"), f", 1, 1, {int(read.major == 'MN')}, 0")
    arguments = [image, read.bits(), k_major(128, 16).bits() + 2048, a_fragment(a), d, 0]
    launch(source, "k", 1, 128, arguments, dynamic_smem=SMEM_BYTES)
    return not np.allclose(d, fragment(to_f32(a, "f16") @ to_f32(b, "f16").T), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("kinds", "k"), [(("e4m3", "e4m3"), 32), (("tf32", "tf32"), 8)])
def test_4_transposed_operands_of_other_widths(kinds: tuple[str, str], k: int) -> None:
    source = wgmma_source(16, k, "f32", kinds, ", 1, 1, 0, 1")
    with pytest.raises(Fault) as caught:
        launch(source, "k", 1, 128, [None] * 5 + [1], dynamic_smem=SMEM_BYTES)
    assert caught.value.kind == "unsupported"


def test_5_expected_bytes_of_the_clipped_box() -> None:
    clipped = replaced(GEMM, "[%bar], 32768;", f"[%bar], {100 * 128 + 16384};")
    fault = fault_of(clipped, "deadlock", rows=100)
    assert "bytes more have arrived than were expected" in fault.message


def test_6_producer_waits_for_parity_0() -> None:
    fault = fault_of(replaced(GEMM, "mov.u32 %parity, 1;", "mov.u32 %parity, 0;"), "deadlock")
    assert "phase 0 awaits 2 of 2 arrivals; no thread has arrived at it" in fault.message
    assert "phase 0 awaits 1 of 1 arrivals" in fault.message


def test_7_empty_barrier_awaits_too_many() -> None:
    fault = fault_of(replaced(GEMM, "[%bar], 2;", "[%bar], 3;"), "deadlock")
    assert re.search(r"awaits 1 of 3 arrivals; arrivals so far: PTX line \d+ \(2\)", fault.message)


def test_7_empty_barrier_awaits_too_few() -> None:
    fault_of(replaced(GEMM, "[%bar], 2;", "[%bar], 1;"), "early-reuse", "data-race", "barrier-overflow")


def test_8_no_proxy_fence() -> None:
    with pytest.raises(Fault) as caught:
        launch(tma_store(STORE, fence=""), "k", 1, 32,
               [TensorMap(np.zeros((8, 16), np.float32), (8, 16)), None, 0, 0], dynamic_smem=4096)  # fmt: skip
    assert caught.value.kind == "missing-proxy-fence"


MULTICAST = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    mov.u32 %r7, %cluster_ctarank;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared::cta.b64 [bar], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 1024;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    setp.eq.and.u32 %p1, %r7, 0, %p1;
    mov.u64 %rd1, map;
    cvta.param.u64 %rd1, %rd1;
    mov.u16 %h1, 3;
    @%p1 LOAD.multicast::cluster [%r2], [%rd1, {0, 0}], [bar], %h1;
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0;
    @!%p2 bra wait;
    mad.lo.u32 %r2, %r1, 16, %r2;
    ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];
""".replace("LOAD", TMA_LOAD)


def run_multicast(body: str, adversary: int | None) -> None:
    source = kernel(body, TMA_PARAMS, variables=SMEM)
    tensor = np.arange(8 * 64, dtype=np.uint16).reshape(8, 64)
    arguments = [TensorMap(tensor, (8, 64)), None, 0, 0]
    launch(source, "k", 2, 64, arguments, cluster=2, dynamic_smem=1024, adversary=adversary)


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize(
    ("old", "kinds"),
    [
        ("@%p1 fence.mbarrier_init.release.cluster;", {"missing-init-fence"}),
        # The other block's barrier may not exist yet, or nothing says that it does.
        ("barrier.cluster.arrive.aligned;\n    barrier.cluster.wait.aligned;", {"bad-barrier", "data-race"}),
    ],
)
def test_9_barriers_that_other_blocks_do_not_see(old: str, kinds: set[str], adversary: int | None) -> None:
    run_multicast(MULTICAST, adversary)
    with pytest.raises(Fault) as caught:
        run_multicast(replaced(MULTICAST, old, ""), adversary)
    assert caught.value.kind in kinds, str(caught.value)


def test_10_setmaxnreg_without_a_known_start() -> None:
    directives = ".reqntid 384, 1, 1\n.minnctapersm 1"
    fault = fault_of(replaced(GEMM, directives, ".maxntid 384, 1, 1"), "setmaxnreg-ignored")
    assert fault.text.startswith("setmaxnreg.dec")


def test_10_registers_that_nobody_gives_back() -> None:
    fault = fault_of(replaced(GEMM, "setmaxnreg.dec.sync.aligned.u32 40;", ""), "deadlock")
    assert "8192 registers to grow to 232 a thread" in fault.message or "registers are free" in fault.message
    fault_of(replaced(GEMM, "inc.sync.aligned.u32 232", "inc.sync.aligned.u32 240"), "deadlock")
    run_sm90(replaced(GEMM, "dec.sync.aligned.u32 40", "dec.sync.aligned.u32 24"))


def test_15_half_a_warpgroup_branches_away() -> None:
    branch = "and.b32 %t, %thread, 127;\n setp.ge.u32 %p, %t, 64;\n @%p bra finished;\n wgmma.fence.sync.aligned;"
    fault_of(replaced(GEMM, "wgmma.fence.sync.aligned;", branch), "divergent-warpgroup")
    away = "and.b32 %t, %thread, 127;\n setp.ge.u32 %p, %t, 64;\n @%p bar.sync 3, 384;\n wgmma.fence.sync.aligned;"
    fault = fault_of(replaced(GEMM, "wgmma.fence.sync.aligned;", away), "deadlock")
    assert "the other threads of its warpgroup" in fault.message


def test_15_wgmma_under_a_predicate() -> None:
    mma = "    wgmma.mma_async"
    under = f"    setp.lt.u32 %p, %lane, 7;\n    @%p {mma.strip()}"
    source = replaced(GEMM, "consumer:", "consumer:\n and.b32 %lane, %thread, 31;")
    fault_of(replaced(source, mma, under, 1), "divergent-warpgroup")


def test_16_box_wider_than_its_swizzle() -> None:
    with pytest.raises(ValueError, match="more than its swizzle of 128"):
        launch(GEMM, "gemm", 1, 384, [TensorMap(np.zeros((128, 128), np.float16), (128, 128), 128), None, None, 0])


def test_17_the_target_without_its_suffix() -> None:
    fault_of(replaced(GEMM, ".target sm_90a", ".target sm_90"), "unsupported")


# -- pipelines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        # The stage that is given back is still being read.
        (
            "setp.ne.u32 %p, %k, 0;\n    setp.eq.and.u32 %q, %t, 0, %p;\n    add.u32 %t, %slot, 1;",
            "setp.eq.u32 %q, %t, 0;\n    mov.u32 %t, %slot;",
            ("early-reuse", "data-race"),
        ),
        ("wait_group.sync.aligned 1;", "wait_group.sync.aligned 2;", ("early-reuse", "data-race")),
        ("wgmma.wait_group.sync.aligned 0;", "", ("unarrived-read",)),
        ("wgmma.fence.sync.aligned;", "", ("missing-wgmma-fence",)),
        ("[%bar], 32768;", "[%bar], 16384;", ("unarrived-read", "deadlock", "unwritten-read", "data-race")),
        ("[%bar], 32768;", "[%bar], 32784;", ("deadlock",)),
        ("    bar.sync 0;\n", "", ("bad-barrier", "data-race")),
        ("    wgmma.commit_group.sync.aligned;\n", "", ("unarrived-read", "early-reuse", "data-race")),
        ("@%p xor.b32 %parity, %parity, 1;\n    add.u32 %k, %k, 1;\n    setp.lt.u32 %p, %k, 4;\n    @%p bra consume",
         "add.u32 %k, %k, 1;\n    setp.lt.u32 %p, %k, 4;\n    @%p bra consume",
         ("unarrived-read", "deadlock", "data-race", "early-reuse", "barrier-overflow", "unwritten-read")),
        ("mad.lo.u32 %addr, %group, 8192, %addr;", "mad.lo.u32 %addr, %group, 98304, %addr;", ("out-of-bounds",)),
    ],
)  # fmt: skip
def test_a_pipeline_with_one_thing_wrong(old: str, new: str, kinds: tuple[str, ...]) -> None:
    fault_of(replaced(GEMM, old, new), *kinds)


@pytest.mark.parametrize("loop", ["@!%done bra wait_full;", "@!%done bra wait_empty;"])
def test_a_wait_that_does_not_ask_again(loop: str) -> None:
    """`try_wait` may give up, which only a hostile machine does."""
    source = replaced(GEMM, loop, "")
    found = set()
    for adversary in range(10):
        try:
            run_sm90(source, adversary=adversary)
        except Fault as fault:
            found.add(fault.kind)
    assert found & {"unarrived-read", "unwritten-read", "unarrived-write", "early-reuse", "data-race"}


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("cp.async.wait_group 1;", "cp.async.wait_group 2;", {"unarrived-read"}),
        ("    bar.sync 0;\n", "", {"unarrived-read", "data-race"}),
        # Every copy goes to the stage that is being read.
        ("add.u32 %s, %k, 2;", "mov.u32 %next, %now;\n add.u32 %s, %k, 2;", {"unarrived-read", "data-race"}),
        ("    cp.async.commit_group;\n    // A", "    // A", {"unarrived-read"}),
    ],
)  # fmt: skip
def test_a_ring_of_cp_async_with_one_thing_wrong(old: str, new: str, kinds: set[str], adversary: int | None) -> None:
    with pytest.raises(Fault) as caught:
        run_sm80(replaced(gemm_sm80(5, 3), old, new), adversary=adversary)
    assert caught.value.kind in kinds, str(caught.value)


def test_two_blocks_that_write_the_same_elements() -> None:
    body = """
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %ctaid.x;
    shr.u32 %r2, %r1, {};
    mad.wide.u32 %rd1, %r2, 4, %rd1;
    st.global.u32 [%rd1], %r1;
    """
    launch(kernel(body.format(0)), "k", 4, 1, [np.zeros(4, np.uint32)])
    with pytest.raises(Fault) as caught:
        launch(kernel(body.format(1)), "k", 4, 1, [np.zeros(4, np.uint32)])
    assert caught.value.kind == "data-race"
    assert "is written here, and another block has written another value at PTX line" in caught.value.message
    assert "(st.global.u32 [%rd1], %r1;), and nothing orders" in caught.value.message
