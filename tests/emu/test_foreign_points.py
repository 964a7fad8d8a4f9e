"""The 24 points that other compilers' PTX demands (docs/foreign-ptx.md): where each is tested, and those that have no
better place."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptx_source import kernel
from test_foreign import SMEM, STORE, result, run

from tilec.emu import Fault, TensorMap, launch

POINTS = {
    1: ["test_foreign.test_a_descriptor_argument_and_null_scratch"],
    2: ["test_foreign.test_byte_arrays_that_hold_pointers_and_structs"],
    3: [
        "test_foreign.test_bfloat16_maps_over_raw_bits_and_both_edges",
        "test_tensormaps.test_element_strides",
        "test_tensormaps.test_boxes_need_not_cover_falling_strides",
        "test_async_copies.test_tma_fills_with_nan",
    ],
    4: ["test_foreign.test_where_things_lie", "test_async_copies.test_swizzle_follows_the_address_and_not_the_tile"],
    5: ["test_foreign.test_white_space_and_spellings"],
    6: ["test_foreign.test_names_belong_to_their_braces"],
    7: ["test_foreign.test_registers_are_bits"],
    8: [
        "test_functions.test_calls_through_a_table",
        "test_functions.test_branch_tables",
        "test_mma_shapes.test_wmma",
        "test_foreign_points.test_8_time_advances",
    ],
    9: ["test_foreign.test_unwritten_registers_may_feed_a_shuffle", "test_foreign.test_what_wgmma_may_read"],
    10: ["test_foreign.test_threads_that_store_one_value"],
    11: ["test_foreign.test_what_wgmma_may_read"],
    12: ["test_foreign.test_what_wgmma_may_read", "test_async_copies.test_a_fence_on_the_readers_side_counts"],
    13: ["test_foreign.test_barriers_may_be_made_again"],
    14: ["test_foreign_points.test_14_stores_finish_with_the_kernel"],
    15: ["test_foreign.test_register_pools"],
    16: ["test_foreign_points.test_16_warp_wide_under_a_predicate_of_the_warp"],
    17: ["test_foreign.test_a_warp_comes_together_again", "test_foreign_points.test_17_a_wait_answers_all_lanes_alike"],
    18: ["test_foreign.test_named_barriers_count_threads_wherever_they_are"],
    19: ["test_foreign.test_ways_to_arrive_and_wait"],
    20: ["test_foreign.test_bfloat16_maps_over_raw_bits_and_both_edges", "test_tensormaps.test_im2col"],
    21: ["test_tensormaps.test_a_map_made_by_the_kernel", "test_foreign_points.test_21_numbers_of_fields"],
    22: [
        "test_foreign.test_generic_addresses_reach_other_blocks",
        "test_async_copies.test_multicast_reaches_every_block_of_the_mask",
    ],
    23: ["test_foreign_points.test_23_what_the_assembler_would_repair_is_a_fault"],
    24: ["test_foreign.test_low_bits_of_tf32_do_not_count", "test_arithmetic.test_functions"],
}


@pytest.mark.parametrize("point", range(1, 25))
def test_every_point_has_its_test(point: int) -> None:
    for name in POINTS[point]:
        module, _, function = name.partition(".")
        assert callable(getattr(importlib.import_module(module), function))


def test_8_time_advances() -> None:
    # A library's wait loop: it ends only because the timer runs.
    body = """
    mov.u64 %rd1, %globaltimer;
again:
    nanosleep.u32 100;
    mov.u64 %rd2, %globaltimer;
    sub.u64 %rd3, %rd2, %rd1;
    setp.lt.u64 %p1, %rd3, 20000;
    @%p1 bra again;
    cvt.u32.u64 %r62, %rd3;
    """
    assert min(result(body)) >= 20000


@pytest.mark.parametrize("adversary", [None, 1, 2])
def test_14_stores_finish_with_the_kernel(adversary: int | None) -> None:
    out = np.zeros(32, np.uint32)
    body = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mad.lo.u32 %r3, %r1, 4, %r2; add.u32 %r4, %r1, 5;
    st.shared.u32 [%r3], %r4;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    ld.param.u64 %rd1, [out];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra done;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
done:
    """
    run(body, out, variables=SMEM, dynamic_smem=128, adversary=adversary)
    assert out.tolist() == [t + 5 for t in range(32)]


@pytest.mark.parametrize("adversary", [None, 1])
def test_16_warp_wide_under_a_predicate_of_the_warp(adversary: int | None) -> None:
    # The second warp of two alone does what whole warps must do.
    body = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mad.lo.u32 %r3, %r1, 16, %r2;
    st.shared.v4.b32 [%r3], {%r1, %r1, %r1, %r1};
    bar.sync 0;
    setp.ge.u32 %p1, %r1, 32;
    mov.u32 %r62, 0;
    @%p1 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r62}, [%r3];
    @%p1 elect.sync _|%p2, -1;
    @%p1 redux.sync.add.u32 %r5, %r1, -1;
    @%p1 add.u32 %r62, %r62, %r5;
    """
    more = {} if adversary is None else {"adversary": adversary}
    total = sum(range(32, 64))
    expected = [0] * 32 + [(t // 4 + 32) + total for t in range(32)]
    assert result(body, 64, variables=SMEM, dynamic_smem=1024, **more) == expected


@pytest.mark.parametrize("adversary", [None, *range(4)])
def test_17_a_wait_answers_all_lanes_alike(adversary: int | None) -> None:
    # Whoever leaves the loop goes straight on to an instruction of the whole warp.
    body = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, bar;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra made;
    mbarrier.init.shared::cta.b64 [%r2], 64;
made:
    bar.sync 0;
    mbarrier.arrive.shared::cta.b64 _, [%r2];
again:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
    @%p2 bra.uni DONE;
    bra.uni again;
DONE:
    vote.sync.ballot.b32 %r62, %p2, -1;
    """
    more = {} if adversary is None else {"adversary": adversary}
    assert result(body, 64, variables=SMEM, **more) == [0xFFFFFFFF] * 64


def test_21_numbers_of_fields() -> None:
    # The rank field is the rank less one, and element types have the numbers that the manual gives them.
    for number, (dtype, name) in {0: (np.uint8, None), 2: (np.uint32, None), 6: (np.float16, None)}.items():
        check_replaced(number, np.dtype(dtype), name)
    check_replaced(10, np.dtype(np.uint16), "bfloat16")


def check_replaced(number: int, dtype: np.dtype[Any], name: str | None) -> None:
    """A map whose element type is written anew is as good as it was."""
    x = np.arange(512 // dtype.itemsize).astype(dtype).reshape(8, -1)
    out = np.zeros_like(x)
    body = f"""
    mov.u32 %r1, smem; mov.u32 %r2, bar; ld.param.u64 %rd3, [room];
    mov.u64 %rd1, map; cvta.param.u64 %rd1, %rd1; mov.u32 %r3, 0;
copy:
    cvt.u64.u32 %rd4, %r3; add.s64 %rd5, %rd1, %rd4; add.s64 %rd6, %rd3, %rd4;
    ld.b64 %rd7, [%rd5]; st.global.b64 [%rd6], %rd7;
    add.u32 %r3, %r3, 8; setp.lt.u32 %p1, %r3, 128;
    @%p1 bra copy;
    tensormap.replace.tile.elemtype.global.b1024.b32 [%rd3], {number};
    tensormap.replace.tile.rank.global.b1024.b32 [%rd3], 1;
    fence.proxy.tensormap::generic.release.gpu;
    fence.proxy.tensormap::generic.acquire.gpu [%rd3], 128;
    mbarrier.init.shared::cta.b64 [%r2], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
    mov.u32 %r4, 0;
    cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd3, {{%r4, %r4}}], [%r2];
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;
    @!%p1 bra wait;
    ld.param.u64 %rd2, [out];
    fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r1], 512;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    """
    params = ".param .align 64 .b8 map[128], .param .u64 room, .param .u64 out"
    tensor_map = TensorMap(x, x.shape, element=name)
    source = kernel(body, params, variables=SMEM)
    launch(source, "k", 1, 1, [tensor_map, np.zeros(128, np.uint8), out], dynamic_smem=512, whole_program=True)
    np.testing.assert_array_equal(out, x)


def test_23_what_the_assembler_would_repair_is_a_fault() -> None:
    body = """
    mov.u32 %r1, smem; shr.u32 %r1, %r1, 4; cvt.u64.u32 %rd1, %r1; or.b64 %rd1, %rd1, 0x0000000800010000;
    mov.u32 %r2, %tid.x; mov.u32 %r3, smem; mad.lo.u32 %r3, %r2, 16, %r3;
    st.shared.v4.b32 [%r3], {0, 0, 0, 0};
    fence.proxy.async.shared::cta;
    bar.sync 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd1, 0, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    // No wgmma.wait_group: the assembler would put one here.
    mov.b32 %r62, %f1;
    """
    with pytest.raises(Fault) as caught:
        run(body + STORE, np.zeros(128, np.uint32), 128, variables=SMEM, dynamic_smem=2048)
    assert caught.value.kind == "unarrived-read"


def test_the_points_are_those_of_the_reference() -> None:
    text = (Path(__file__).parents[2] / "docs" / "foreign-ptx.md").read_text()
    assert [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)] == list(POINTS)
