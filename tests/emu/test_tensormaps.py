"""Tensor maps: element strides, im2col, and maps that the kernel makes itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import Columns, Fault, TensorMap, launch
from tilec.emu.numbers import Array

SMEM = ".extern .shared .align 1024 .b8 smem[];\n.shared .align 8 .b64 bar[128];"
"""A KiB of barriers: dynamic shared memory begins right behind, and boxes want multiples of their swizzle."""
LOAD = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    mov.u32 %r3, bar;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra wait;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {size};
    mov.u64 %rd1, map;
    cvta.param.u64 %rd1, %rd1;
    {copy}
wait:
    bar.sync 0;
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
    @!%p2 bra wait;
    ld.param.u64 %rd2, [out];
    mad.wide.u32 %rd2, %r1, 16, %rd2;
    mad.lo.u32 %r2, %r1, 16, %r2;
    ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r2];
    st.global.v4.b32 [%rd2], {{%r4, %r5, %r6, %r7}};
"""
PARAMS = ".param .align 64 .b8 map[128], .param .u64 out"


def copied(tensor_map: TensorMap, shape: tuple[int, ...], copy: str) -> Array:
    """The box that a copy leaves in shared memory."""
    out = np.zeros(shape, tensor_map.array.dtype)
    body = LOAD.format(size=out.nbytes, copy=copy)
    launch(kernel(body, PARAMS, variables=SMEM), "k", 1, out.nbytes // 16, [tensor_map, out], dynamic_smem=out.nbytes)
    return out


@pytest.mark.parametrize("start", [(0, 0), (4, -2), (-8, 4)])
def test_element_strides(start: tuple[int, int]) -> None:
    x = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
    # Of the fastest dimension the stride is ignored.
    tensor_map = TensorMap(x, (9, 16), element_strides=(3, 2))
    copy = f"""mov.s32 %r8, {start[0]}; mov.s32 %r9, {start[1]};
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd1, {{%r8, %r9}}], [%r3];"""
    found = copied(tensor_map, (3, 16), copy)
    expected = np.zeros((3, 16), np.float32)
    for i in range(3):
        for j in range(16):
            row, column = start[1] + 3 * i, start[0] + j
            if 0 <= row < 16 and 0 <= column < 32:
                expected[i, j] = x[row, column]
    np.testing.assert_array_equal(found, expected)


def columns(x: Array, map_: Columns, steps: tuple[int, int], start: tuple[int, ...], taps: tuple[int, int]) -> Array:
    """im2col as loops, for NHWC; `start` and `taps` run from the fastest dimension as in PTX."""
    images, height, width, _ = x.shape
    (low_h, low_w), (high_h, high_w) = map_.lower, map_.upper
    c, w, h, n = start
    out = np.zeros((map_.pixels, map_.channels), x.dtype)
    for pixel in range(map_.pixels):
        row, column = h + taps[1], w + taps[0]
        if 0 <= row < height and 0 <= column < width and n < images:
            out[pixel] = x[n, row, column, c : c + map_.channels]
        w += steps[1]
        if w >= width + high_w:
            w, h = low_w, h + steps[0]
        if h >= height + high_h:
            h, n = low_h, n + 1
    return out


IM2COL = [
    # lower and upper corners (h, w), steps, start (c, w, h, n), taps (w, h)
    ((-1, -1), (-1, -1), (1, 1), (0, -1, -1, 0), (0, 0)),
    ((-1, -1), (-1, -1), (1, 1), (8, 2, 3, 0), (2, 1)),
    ((0, 0), (-2, -2), (1, 1), (0, 0, 4, 1), (2, 2)),
    ((0, 0), (-2, -2), (2, 2), (0, 0, 0, 0), (1, 0)),
]


@pytest.mark.parametrize(("lower", "upper", "steps", "start", "taps"), IM2COL)
def test_im2col(lower: Any, upper: Any, steps: Any, start: tuple[int, ...], taps: tuple[int, int]) -> None:
    x = np.random.default_rng(1).standard_normal((3, 7, 6, 16)).astype(np.float16)
    map_ = Columns(lower, upper, 8, 48)
    tensor_map = TensorMap(x, (), element_strides=(1, *steps, 1), im2col=map_)
    moves = " ".join(f"mov.s32 %r{20 + index}, {value};" for index, value in enumerate(start))
    copy = f"""{moves} mov.u16 %h1, {taps[0]}; mov.u16 %h2, {taps[1]};
    cp.async.bulk.tensor.4d.shared::cta.global.im2col.mbarrier::complete_tx::bytes
        [%r2], [%rd1, {{%r20, %r21, %r22, %r23}}], [%r3], {{%h1, %h2}};"""
    np.testing.assert_array_equal(copied(tensor_map, (48, 8), copy), columns(x, map_, steps, start, taps))


def test_im2col_wants_its_own_maps() -> None:
    x = np.zeros((2, 4, 4, 8), np.float16)
    copy = """cp.async.bulk.tensor.4d.shared::cta.global.im2col.mbarrier::complete_tx::bytes
        [%r2], [%rd1, {0, 0, 0, 0}], [%r3], {0, 0};"""
    with pytest.raises(Fault, match="a tensor map for tiles"):
        copied(TensorMap(x, (1, 2, 2, 8)), (4, 8), copy)
    with pytest.raises(ValueError, match="im2col corners"):
        copied(TensorMap(x, (), im2col=Columns((0,), (0,), 8, 4)), (4, 8), copy)
    for corners, message in (
        (((-129, 0), (0, 0)), "each must be -128 to 127"),
        (((0, 0), (-4, 0)), "leave no filter positions"),
    ):
        with pytest.raises(ValueError, match=message):
            copied(TensorMap(x, (), im2col=Columns(*corners, 8, 4)), (4, 8), copy)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("[%rd1, {4, 0, 0, 0}], [%r3], {0, 0}", "misaligned: a box that begins at element 4"),
        ("[%rd1, {0, -2, 0, 0}], [%r3], {0, 0}", "outside of the corners of its map"),
        ("[%rd1, {0, 0, 3, 0}], [%r3], {0, 0}", "outside of the corners of its map"),
        ("[%rd1, {0, 0, 0, 0}], [%r3], {0, 256}", "each must be less than 256"),
    ],
)
def test_where_im2col_may_not_begin(where: str, message: str) -> None:
    x = np.zeros((2, 4, 4, 16), np.float16)
    copy = f"cp.async.bulk.tensor.4d.shared::cta.global.im2col.mbarrier::complete_tx::bytes [%r2], {where};"
    with pytest.raises(Fault, match=message):
        copied(TensorMap(x, (), im2col=Columns((-1, -1), (-1, -1), 8, 4)), (4, 8), copy)


def replaced(fields: str, size: int) -> str:
    """A kernel that makes a map in shared memory from zeros, publishes it, and copies a box through it."""
    return f"""
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    mov.u32 %r3, bar;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd3, [room];
    shl.b32 %r8, %r1, 2;
    mov.u32 %r10, making;
    add.u32 %r9, %r8, %r10;
    st.shared.b32 [%r9], 0;
    bar.warp.sync -1;
    cvt.u64.u32 %rd4, %r10;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra made;
    tensormap.replace.tile.global_address.shared::cta.b1024.b64 [ %rd4 + 0 ], %rd1;
{fields}
made:
    bar.warp.sync -1;
    cvta.shared.u64 %rd5, %rd4;
    setp.lt.u32 %p3, %r1, 32;
    @%p3 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd3], [%rd5], 128;
    fence.proxy.tensormap::generic.acquire.gpu [%rd3], 128;
    @%p1 bra wait;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {size};
    cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd3, {{8, 3}}], [%r3];
wait:
    bar.sync 0;
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
    @!%p2 bra wait;
    ld.param.u64 %rd2, [out];
    mad.wide.u32 %rd2, %r1, 16, %rd2;
    mad.lo.u32 %r2, %r1, 16, %r2;
    ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r2];
    st.global.v4.b32 [%rd2], {{%r4, %r5, %r6, %r7}};
    """


FIELDS = {
    "rank": "b32 [%rd4], 0x1",
    "box_dim 0": "b32 [%rd4], 0x0, 16",
    "box_dim 1": "b32 [%rd4], 0x1, 16",
    "global_dim 0": "b32 [%rd4], 0x0, 20",
    "global_dim 1": "b32 [%rd4], 0x1, 40",
    "global_stride": "b64 [%rd4], 0x0, 48",
    "element_stride 0": "b32 [%rd4], 0x0, 1",
    "element_stride 1": "b32 [%rd4], 0x1, 1",
    "elemtype": "b32 [%rd4], 0xa",
    "interleave_layout": "b32 [%rd4], 0x0",
    "swizzle_mode": "b32 [%rd4], 0x0",
    "fill_mode": "b32 [%rd4], 0x0",
}


def replace_fields(changed: dict[str, str]) -> str:
    chosen = FIELDS | changed
    return "\n".join(
        f"    tensormap.replace.tile.{name.split()[0]}.shared::cta.b1024.{rest};"
        for name, rest in chosen.items()
        if rest
    )


def run_replaced(changed: dict[str, str]) -> tuple[Array, Array]:
    x = np.arange(40 * 24, dtype=np.uint16).reshape(40, 24)
    room, out = np.zeros(128, np.uint8), np.zeros((16, 16), np.uint16)
    variables = SMEM + "\n.shared .align 128 .b8 making[128];"
    source = kernel(
        replaced(replace_fields(changed), 512), ".param .u64 x, .param .u64 room, .param .u64 out", variables=variables
    )
    launch(source, "k", 1, 32, [x, room, out], dynamic_smem=512)
    expected = np.zeros((16, 16), np.uint16)
    expected[:, :12] = x[3:19, 8:20]
    return out, expected


def test_a_map_made_by_the_kernel() -> None:
    found, expected = run_replaced({})
    np.testing.assert_array_equal(found, expected)
    found, expected = run_replaced({"fill_mode": "b32 [%rd4], 1"})
    expected[:, 12:] = 0x7FFF
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "changed",
    [
        {"element_stride 1": ""},
        {"box_dim 0": ""},
        {"interleave_layout": "b32 [%rd4], 2"},
        {"global_stride": "b64 [%rd4], 0x0, 40"},
        {"swizzle_mode": "b32 [%rd4], 0x1", "box_dim 0": "b32 [%rd4], 0x0, 32"},
        {"global_dim 1": ""},
    ],
)
def test_a_map_that_is_not_finished(changed: dict[str, str]) -> None:
    with pytest.raises(Fault) as caught:
        run_replaced(changed)
    assert caught.value.kind == "bad-descriptor"


def test_boxes_need_not_cover_falling_strides() -> None:
    # A transposed view: the second axis of the map is longer in memory than the third.
    x = np.arange(4 * 6 * 16, dtype=np.float32).reshape(4, 6, 16)
    view = x.transpose(1, 0, 2)
    copy = """cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes
        [%r2], [%rd1, {4, 1, 2}], [%r3];"""
    found = copied(TensorMap(view, (3, 2, 8)), (3, 2, 8), copy)
    np.testing.assert_array_equal(found, view[2:5, 1:3, 4:12])


def changed_map(old: str, new: str) -> None:
    x = np.arange(40 * 24, dtype=np.uint16).reshape(40, 24)
    variables = SMEM + "\n.shared .align 128 .b8 making[128];"
    body = replaced(replace_fields({}), 512)
    assert old in body
    source = kernel(body.replace(old, new), ".param .u64 x, .param .u64 room, .param .u64 out", variables=variables)
    launch(source, "k", 1, 32, [x, np.zeros(128, np.uint8), np.zeros((16, 16), np.uint16)], dynamic_smem=512)


ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%rd3], 128;"
WRITE_AGAIN = f"""
    tensormap.replace.tile.fill_mode.global.b1024.b32 [%rd3], 0;
    RELEASE
    bar.warp.sync -1;
    {ACQUIRE}
"""


def test_a_map_that_was_changed_needs_its_fences() -> None:
    changed_map(ACQUIRE, ACQUIRE)
    changed_map(ACQUIRE, WRITE_AGAIN.replace("RELEASE", "fence.proxy.tensormap::generic.release.gpu;"))
    for new, form in (("", "acquire"), (WRITE_AGAIN.replace("RELEASE", ""), "release"),
                      (ACQUIRE.replace("[%rd3]", "[%rd1]"), "acquire")):  # fmt: skip
        with pytest.raises(Fault) as caught:
            changed_map(ACQUIRE, new)
        assert caught.value.kind == "missing-tensormap-fence", str(caught.value)
        assert f"no fence.proxy.tensormap::generic.{form} follows" in caught.value.message
