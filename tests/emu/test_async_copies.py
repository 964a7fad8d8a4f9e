"""cp.async, mbarriers, TMA and bulk copies: right data when they are waited for, a fault when they are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import Columns, Fault, TensorMap, launch
from tilec.emu.numbers import Array
from tilec.emu.tma.asyncops import PendingGroups
from tilec.emu.tma.tensormap import decode_map, encode_map

SMEM = ".extern .shared .align 1024 .b8 smem[];\n.shared .align 8 .b64 bar[128];"
"""A KiB of barriers: dynamic shared memory begins right behind, and boxes want multiples of their swizzle."""


def fault(source: str, arguments: list[object], *, block: int = 32, dynamic_smem: int = 4096) -> Fault:
    with pytest.raises(Fault) as caught:
        launch(source, "k", 1, block, arguments, dynamic_smem=dynamic_smem)
    return caught.value


# -- cp.async ----------------------------------------------------------------------------------------------------------

COPY = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    mad.lo.u32 %r2, %r1, 16, %r2;
    ld.param.u64 %rd1, [a];
    mad.wide.u32 %rd1, %r1, 16, %rd1;
    ld.param.u64 %rd2, [out];
    mad.wide.u32 %rd2, %r1, 16, %rd2;
"""
LOAD_STORE = """
    ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];
    st.global.v4.b32 [%rd2], {%r3, %r4, %r5, %r6};
"""
PARAMS = ".param .u64 a, .param .u64 out"


def test_cp_async_with_zero_fill() -> None:
    a = np.arange(512, dtype=np.uint8)
    out = np.zeros(512, np.uint8)
    body = f"""{COPY}
    and.b32 %r7, %r1, 15;
    cp.async.ca.shared.global [%r2], [%rd1], 16, %r7;
    cp.async.commit_group;
    cp.async.wait_group 0;
    {LOAD_STORE}"""
    launch(kernel(body, PARAMS, variables=SMEM), "k", 1, 32, [a, out], dynamic_smem=512)
    expected = np.where(np.arange(16)[None] < (np.arange(32) % 16)[:, None], a.reshape(32, 16), 0)
    np.testing.assert_array_equal(out.reshape(32, 16), expected)


def test_cp_async_reads_its_source_as_late_as_it_may() -> None:
    # The thread overwrites its source before it waits: the emulated machine copies what is there then.
    a = np.zeros(128, np.uint32)
    out = np.zeros(128, np.uint32)
    body = f"""{COPY}
    cp.async.cg.shared.global [%r2], [%rd1], 16;
    cp.async.commit_group;
    st.global.u32 [%rd1], 9;
    cp.async.wait_all;
    {LOAD_STORE}"""
    launch(kernel(body, PARAMS, variables=SMEM), "k", 1, 32, [a, out], dynamic_smem=512)
    assert out[0] == 9


@pytest.mark.parametrize("wait", ["", "cp.async.wait_group 1;", "bar.sync 0;"])
def test_reading_before_the_wait_faults(wait: str) -> None:
    body = f"{COPY}\n cp.async.cg.shared.global [%r2], [%rd1], 16;\n cp.async.commit_group;\n {wait}\n{LOAD_STORE}"
    source = kernel(body, PARAMS, variables=SMEM)
    found = fault(source, [np.zeros(128, np.uint32), np.zeros(128, np.uint32)])
    copy_line = source.split("\n").index(" cp.async.cg.shared.global [%r2], [%rd1], 16;") + 1
    assert found.kind == "unarrived-read"
    assert f"before cp.async of PTX line {copy_line} was waited for" in found.message
    assert found.text.startswith("ld.shared")


def test_groups_complete_oldest_first() -> None:
    a = np.arange(256, dtype=np.uint32)
    out = np.zeros(128, np.uint32)
    body = f"""{COPY}
    cp.async.cg.shared.global [%r2], [%rd1], 16;
    cp.async.commit_group;
    cp.async.cg.shared.global [%r2+512], [%rd1+512], 16;
    cp.async.commit_group;
    cp.async.wait_group 1;
    {LOAD_STORE}"""
    source = kernel(body, PARAMS, variables=SMEM)
    launch(source, "k", 1, 32, [a, out], dynamic_smem=1024)
    np.testing.assert_array_equal(out, a[:128])
    late = source.replace("[%r2];", "[%r2+512];")
    assert fault(late, [a, out]).kind == "unarrived-read"


def test_overwriting_a_destination_in_flight_faults() -> None:
    body = f"{COPY}\n cp.async.cg.shared.global [%r2], [%rd1], 16;\n st.shared.u32 [%r2], 1;"
    found = fault(kernel(body, PARAMS, variables=SMEM), [np.zeros(128, np.uint32), None])
    assert found.kind == "unarrived-write"


def test_cp_async_arrives_on_an_mbarrier() -> None:
    a = np.arange(128, dtype=np.uint32)
    out = np.zeros(128, np.uint32)
    body = f"""{COPY}
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [bar], 32;
    bar.sync 0;
    cp.async.cg.shared.global [%r2], [%rd1], 16;
    cp.async.mbarrier.arrive.noinc.shared.b64 [bar];
wait:
    mbarrier.test_wait.parity.shared.b64 %p2, [bar], 0;
    @!%p2 bra wait;
    {LOAD_STORE}"""
    launch(kernel(body, PARAMS, variables=SMEM), "k", 1, 32, [a, out], dynamic_smem=512)
    np.testing.assert_array_equal(out, a)


# -- mbarrier ----------------------------------------------------------------------------------------------------------


def test_mbarrier_phases() -> None:
    out = np.zeros(3, np.uint32)
    body = """
    ld.param.u64 %rd1, [out];
    mbarrier.init.shared::cta.b64 [bar], 1;
    // A fresh barrier is in phase 0: the one before it is complete.
    mbarrier.test_wait.parity.shared::cta.b64 %p1, [bar], 1;
    selp.u32 %r1, 1, 0, %p1;
    st.global.u32 [%rd1], %r1;
    mbarrier.test_wait.parity.shared::cta.b64 %p1, [bar], 0;
    selp.u32 %r1, 1, 0, %p1;
    st.global.u32 [%rd1+4], %r1;
    mbarrier.arrive.shared::cta.b64 %rd2, [bar];
    mbarrier.test_wait.shared::cta.b64 %p1, [bar], %rd2;
    selp.u32 %r1, 1, 0, %p1;
    st.global.u32 [%rd1+8], %r1;
    mbarrier.inval.shared::cta.b64 [bar];
    """
    launch(kernel(body, variables=SMEM), "k", 1, 1, [out])
    assert out.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("mbarrier.init.shared.b64 [bar], 1; mbarrier.arrive.shared.b64 _, [bar], 2;", "barrier-overflow"),
        (
            "mbarrier.init.shared.b64 [bar], 1; mbarrier.arrive.expect_tx.shared.b64 _, [bar], 16; "
            "mbarrier.arrive.shared.b64 _, [bar];",
            "barrier-overflow",
        ),
        ("mbarrier.arrive.shared.b64 _, [bar];", "bad-barrier"),
        ("mbarrier.init.shared.b64 [bar], 0;", "bad-barrier"),
        ("mbarrier.init.shared.b64 [bar], 1; mbarrier.arrive.shared.b64 _, [bar], 0;", "bad-barrier"),
        ("mbarrier.init.shared.b64 [bar+4], 1;", "misaligned"),
    ],
)
def test_mbarrier_misuse(text: str, kind: str) -> None:
    assert fault(kernel(text, variables=SMEM), [None], block=1).kind == kind


# -- TMA ---------------------------------------------------------------------------------------------------------------

TMA_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
TMA_PARAMS = ".param .align 64 .b8 map[128], .param .u64 out, .param .u32 c0, .param .u32 c1"


def tma_load(size: int, extra: str = "", wait: bool = True, dst: int = 0) -> str:
    """One thread loads a 2d box; then everyone copies `size` bytes of shared memory out."""
    waiting = "wait: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0; @!%p2 bra wait;" if wait else ""
    body = f"""
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra ready;
    mbarrier.init.shared::cta.b64 [bar], 1;
    fence.mbarrier_init.release.cluster;
    mov.u64 %rd1, map;
    cvta.param.u64 %rd1, %rd1;
    ld.param.u32 %r3, [c0];
    ld.param.u32 %r4, [c1];
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {size};
    {TMA_LOAD} [%r2+{dst}], [%rd1, {{%r3, %r4}}], [bar];
    {extra}
ready:
    bar.sync 0;
    {waiting}
    ld.param.u64 %rd2, [out];
    mad.wide.u32 %rd2, %r1, 16, %rd2;
    mad.lo.u32 %r2, %r1, 16, %r2;
    add.u32 %r2, %r2, {dst};
    mov.u32 %r9, 0;
copy:
    ld.shared.v4.b32 {{%r3, %r4, %r5, %r6}}, [%r2];
    st.global.v4.b32 [%rd2], {{%r3, %r4, %r5, %r6}};
    add.u32 %r2, %r2, 512;
    add.s64 %rd2, %rd2, 512;
    add.u32 %r9, %r9, 512;
    setp.lt.u32 %p1, %r9, {size};
    @%p1 bra copy;
    """
    return kernel(body, TMA_PARAMS, variables=SMEM)


def swizzle(address: int, width: int) -> int:
    """Bits 6:4 (5:4, 4) of the address, xor bits 9:7 (8:7, 7)."""
    mask = {0: 0, 32: 1, 64: 3, 128: 7}[width]
    return address ^ ((address >> 7 & mask) << 4)


@pytest.mark.parametrize(("width", "columns"), [(0, 64), (32, 16), (64, 32), (128, 64), (128, 32)])
@pytest.mark.parametrize("origin", [(0, 0), (16, 8), (-8, -5), (88, 40), (200, 0)])
def test_tma_load(width: int, columns: int, origin: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    tensor = generator.integers(1, 65535, (48, 104), dtype=np.uint16)
    rows = 32
    out = np.zeros(rows * columns, np.uint16)
    arguments = [TensorMap(tensor, (rows, columns), width, "bfloat16"), out, *origin]
    dst = 1024
    launch(tma_load(out.nbytes, dst=dst), "k", 1, 32, arguments, dynamic_smem=dst + out.nbytes)
    image = out.tobytes()
    for row in range(rows):
        for column in range(columns):
            y, x = origin[1] + row, origin[0] + column
            expected = int(tensor[y, x]) if 0 <= y < 48 and 0 <= x < 104 else 0
            # The destination is a multiple of 1024, so offsets swizzle as addresses do.
            at = swizzle((row * columns + column) * 2, width)
            assert int.from_bytes(image[at : at + 2], "little") == expected


@pytest.mark.parametrize(("dtype", "column"), [(np.uint16, 1), (np.uint16, -4), (np.uint8, 8), (np.float64, 1)])
def test_a_box_begins_at_a_multiple_of_16_bytes(dtype: Any, column: int) -> None:
    """The reproducer: column 1 of float16 is an illegal instruction on an H200."""
    tensor = np.zeros((8, 64), dtype)
    arguments = [TensorMap(tensor, (8, 16)), np.zeros(512, np.uint16), column, 0]
    found = fault(tma_load(8 * 16 * tensor.itemsize), arguments)
    assert found.kind == "misaligned"
    assert f"element {column} of a row, elements of {tensor.itemsize} bytes" in found.message


def test_swizzle_follows_the_address_and_not_the_tile() -> None:
    tensor = np.arange(8 * 64, dtype=np.uint16).reshape(8, 64)
    out = np.zeros((8, 64), np.uint16)
    arguments = [TensorMap(tensor, (8, 64), 128), out, 0, 0]
    launch(tma_load(1024, dst=256), "k", 1, 32, arguments, dynamic_smem=2048)
    # Row 0 lies at 256 = row 2 of the pattern: its chunk 0 stands at position 2.
    assert out[0, 16:24].tolist() == list(range(8))


def test_tma_strides_come_from_the_view() -> None:
    storage = np.arange(64 * 256, dtype=np.float32).reshape(64, 256)
    view = storage[8:40:2, 64:128]
    out = np.zeros((16, 32), np.float32)
    launch(tma_load(out.nbytes), "k", 1, 32, [TensorMap(view, (16, 32)), out, 32, 0], dynamic_smem=4096)
    np.testing.assert_array_equal(out, view[:, 32:])


def test_tma_fills_with_nan() -> None:
    out = np.zeros((8, 8), np.float32)
    tensor = np.ones((4, 8), np.float32)
    launch(tma_load(256), "k", 1, 16, [TensorMap(tensor, (8, 8), fill="nan"), out, 0, 0], dynamic_smem=512)
    np.testing.assert_array_equal(out[:4], 1)
    assert np.isnan(out[4:]).all()


def test_reading_a_box_before_the_wait_faults() -> None:
    source = tma_load(1024, wait=False)
    tensor = np.zeros((8, 64), np.uint16)
    found = fault(source, [TensorMap(tensor, (8, 64), 128), np.zeros(512, np.uint16), 0, 0])
    line = next(number for number, text in enumerate(source.split("\n"), start=1) if "cp.async.bulk.tensor" in text)
    assert found.kind == "unarrived-read"
    assert f"before the bulk copy of PTX line {line} was waited for" in found.message


def test_too_many_expected_bytes_deadlock() -> None:
    source = tma_load(1024).replace("[bar], 1024;", "[bar], 2048;")
    tensor = np.zeros((8, 64), np.uint16)
    found = fault(source, [TensorMap(tensor, (8, 64), 128), np.zeros(512, np.uint16), 0, 0])
    assert found.kind == "deadlock"
    assert "2048 bytes, 1024 of them in flight" in found.message


def test_issuing_into_a_stage_in_flight_faults() -> None:
    again = f"{TMA_LOAD} [%r2], [%rd1, {{%r3, %r4}}], [bar];"
    tensor = np.zeros((8, 64), np.uint16)
    found = fault(tma_load(1024, again), [TensorMap(tensor, (8, 64), 128), np.zeros(512, np.uint16), 0, 0])
    assert found.kind == "unarrived-write"


def test_ranks_from_1_to_5() -> None:
    for rank in range(1, 6):
        shape = (3, 3, 3, 4, 32)[-rank:]
        box = (1, 2, 2, 3, 16)[-rank:]
        tensor = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
        out = np.zeros(box, np.float32)
        start = ", ".join(["4", *["1"] * (rank - 1)])
        source = tma_load(out.nbytes).replace("tensor.2d", f"tensor.{rank}d").replace("{%r3, %r4}]", f"{{{start}}}]")
        source = source.replace("ld.shared.v4", "@!%p3 ld.shared.v4").replace("st.global.v4", "@!%p3 st.global.v4")
        guard = f"mad.lo.u32 %r10, %r1, 16, %r9; setp.ge.u32 %p3, %r10, {out.nbytes};\n@!%p3 ld.shared"
        source = source.replace("@!%p3 ld.shared", guard)
        launch(source, "k", 1, 32, [TensorMap(tensor, box), out, 0, 0], dynamic_smem=out.nbytes)
        padded = np.pad(tensor, [(0, 4)] * rank)
        inside = padded[(*(slice(1, 1 + extent) for extent in box[:-1]), slice(4, 4 + box[-1]))]
        np.testing.assert_array_equal(out, inside)


def test_tensor_map_limits() -> None:
    tensor = np.zeros((16, 512), np.uint16)
    cases: list[tuple[Array, tuple[int, ...], int, str]] = [
        (tensor, (8, 128), 128, "more than its swizzle"),
        (tensor, (8, 4), 0, "multiple of 16"),
        (tensor, (8, 512), 0, "1 to 256"),
        (tensor, (8,), 0, "box of rank 1"),
        (tensor[:, ::2], (8, 64), 128, "must be contiguous"),
        (tensor.reshape(-1)[: 16 * 100].reshape(16, 100)[:, :60].copy()[:, :60], (8, 60), 0, "multiples of 16"),
    ]
    for array, box, width, message in cases:
        with pytest.raises(ValueError, match=message):
            encode_map(TensorMap(array, box, width), 0x1000)
    with pytest.raises(ValueError, match="filled with NaN"):
        encode_map(TensorMap(tensor, (8, 64), fill="nan"), 0x1000)
    layout = decode_map(encode_map(TensorMap(tensor, (8, 64), 128, "bfloat16"), 0x1000))
    assert (layout.sizes, layout.strides, layout.box, layout.element) == ((512, 16), (2, 1024), (64, 8), "bfloat16")


# -- stores ------------------------------------------------------------------------------------------------------------


def tma_store(instruction: str, fence: str = "fence.proxy.async.shared::cta;", wait: str = "") -> str:
    body = f"""
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    mad.lo.u32 %r3, %r1, 16, %r2;
    add.u32 %r4, %r1, 1;
    cvt.rn.f32.u32 %f1, %r4;
    st.shared.v4.f32 [%r3], {{%f1, %f1, %f1, %f1}};
    {fence}
    bar.sync 0;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra finish;
    mov.u64 %rd1, map;
    cvta.param.u64 %rd1, %rd1;
    ld.param.u64 %rd2, [out];
    ld.param.u32 %r5, [c0];
    ld.param.u32 %r6, [c1];
    {instruction}
    cp.async.bulk.commit_group;
    {wait or "cp.async.bulk.wait_group.read 0;"}
finish:
    """
    return kernel(body, TMA_PARAMS, variables=SMEM)


STORE = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r5, %r6}], [%r2];"
REDUCE = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd1, {%r5, %r6}], [%r2];"


@pytest.mark.parametrize("wait", ["cp.async.bulk.wait_group.read 0;", "cp.async.bulk.wait_group 0;"])
@pytest.mark.parametrize("instruction", [STORE, REDUCE])
def test_tma_store_clips(instruction: str, wait: str) -> None:
    tensor = np.full((8, 16), 0.5, np.float32)
    box = np.repeat(np.arange(1, 33), 4).reshape(8, 16).astype(np.float32)
    source = tma_store(instruction, wait=wait)
    launch(source, "k", 1, 32, [TensorMap(tensor, (8, 16)), None, 4, 3], dynamic_smem=512)
    expected = np.full((8, 16), 0.5, np.float32)
    expected[3:, 4:] = box[:5, :12] + (0.5 if instruction == REDUCE else 0)
    np.testing.assert_array_equal(tensor, expected)


@pytest.mark.parametrize("instruction", [STORE, REDUCE])
@pytest.mark.parametrize(
    ("start", "kind", "message"),
    [
        ((2, 0), "misaligned", "element 2 of a row, elements of 4 bytes"),
        ((-4, 3), "out-of-bounds", "no coordinate may be negative"),
        ((0, -1), "out-of-bounds", "no coordinate may be negative"),
    ],
)
def test_where_stores_may_not_begin(instruction: str, start: tuple[int, int], kind: str, message: str) -> None:
    found = fault(tma_store(instruction), [TensorMap(np.zeros((8, 16), np.float32), (8, 16)), None, *start])
    assert found.kind == kind
    assert message in found.message


IM2COL_STORE = (
    "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%rd1, {%r5, %r6, %r6, %r6}], [%r2];"
)


def test_im2col_stores() -> None:
    """Eight pixels of four channels, from the second one of the second row of the second image on."""
    image = np.zeros((2, 3, 4, 4), np.float32)
    columns = TensorMap(image, (), im2col=Columns((0, 0), (0, -1), 4, 8))
    launch(tma_store(IM2COL_STORE), "k", 1, 32, [columns, None, 0, 1], dynamic_smem=512)
    where = [(1, 1, 1), (1, 1, 2), (1, 2, 0), (1, 2, 1), (1, 2, 2)]
    expected = np.zeros_like(image)
    for number, place in enumerate(where, 1):
        expected[place] = number
    np.testing.assert_array_equal(image, expected)


@pytest.mark.parametrize("corners", [((-1, 0), (0, 0)), ((0, -1), (0, -1)), ((0, 0), (1, 0)), ((1, 1), (0, 1))])
def test_corners_of_im2col_stores_lie_in_the_tensor(corners: tuple[tuple[int, int], tuple[int, int]]) -> None:
    columns = TensorMap(np.zeros((2, 3, 4, 4), np.float32), (), im2col=Columns(*corners, 4, 8))
    found = fault(tma_store(IM2COL_STORE), [columns, None, 0, 1])
    assert found.kind == "out-of-bounds"
    assert "lower ones may not be negative, upper ones not positive" in found.message


def test_what_reductions_combine() -> None:
    for dtype, operation in ((np.int64, "add"), (np.float32, "min"), (np.int32, "inc"), (np.float16, "or")):
        tensor = np.zeros((8, 256 // np.dtype(dtype).itemsize // 4), dtype)
        source = tma_store(REDUCE.replace("add", operation))
        found = fault(source, [TensorMap(tensor, tensor.shape), None, 0, 0])
        assert (found.kind, f".{operation} is not defined for tensors of {np.dtype(dtype).name}" in found.message) == (
            "bad-descriptor",
            True,
        )


def test_swizzled_store_undoes_the_swizzle() -> None:
    tensor = np.zeros((8, 16), np.float32)
    launch(tma_store(STORE), "k", 1, 32, [TensorMap(tensor, (8, 16), 64), None, 0, 0], dynamic_smem=512)
    for row in range(8):
        for chunk in range(4):
            address = swizzle(row * 64 + chunk * 16, 64)
            assert tensor[row, 4 * chunk] == address // 16 + 1


def test_missing_proxy_fence() -> None:
    found = fault(tma_store(STORE, fence=""), [TensorMap(np.zeros((8, 16), np.float32), (8, 16)), None, 0, 0])
    assert found.kind == "missing-proxy-fence"
    assert found.text.startswith("cp.async.bulk.tensor")


def test_a_fence_on_the_readers_side_counts() -> None:
    tensor = np.zeros((8, 16), np.float32)
    source = tma_store("fence.proxy.async;\n" + STORE, fence="")
    launch(source, "k", 1, 32, [TensorMap(tensor, (8, 16)), None, 0, 0], dynamic_smem=512)
    assert tensor[0, 0] == 1


def test_a_block_must_not_end_before_its_stores_have_read() -> None:
    source = tma_store(STORE, wait="cp.async.bulk.wait_group.read 1;")
    found = fault(source, [TensorMap(np.zeros((8, 16), np.float32), (8, 16)), None, 0, 0])
    assert found.kind == "exit-before-read"


@pytest.mark.parametrize(
    ("committed", "left", "due"), [(0, 1, 0), (1, 2, 0), (2, 3, 0), (2, 2, 0), (3, 1, 2), (3, 0, 3)]
)
def test_a_wait_leaves_the_latest_groups_in_flight(committed: int, left: int, due: int) -> None:
    pending = PendingGroups[int]()
    for number in range(committed):
        pending.open.append(number)
        pending.commit()
    assert pending.list_due(left) == [[number] for number in range(due)]


def test_overwriting_a_source_before_it_is_read_faults() -> None:
    wait = "st.shared.u32 [%r2], 1;\n cp.async.bulk.wait_group.read 0;"
    found = fault(tma_store(STORE, wait=wait), [TensorMap(np.zeros((8, 16), np.float32), (8, 16)), None, 0, 0])
    assert found.kind == "early-reuse"


def test_plain_bulk_store_and_reduction() -> None:
    source = tma_store("cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2], 512;")
    reduce = source.replace(
        "cp.async.bulk.global.shared::cta.bulk_group", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"
    )
    out = np.full(128, 2.0, np.float32)
    launch(source, "k", 1, 32, [bytes(128), out, 0, 0], dynamic_smem=512)
    np.testing.assert_array_equal(out, np.repeat(np.arange(1, 33), 4))
    launch(reduce, "k", 1, 32, [bytes(128), out, 0, 0], dynamic_smem=512)
    np.testing.assert_array_equal(out, 2 * np.repeat(np.arange(1, 33), 4))


def test_plain_bulk_load() -> None:
    data = np.arange(256, dtype=np.uint32)
    out = np.zeros(256, np.uint32)
    load = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 1024, [bar];"
    source = tma_load(1024).replace("mov.u64 %rd1, map;\n    cvta.param.u64 %rd1, %rd1;", "ld.param.u64 %rd1, [map];")
    lines = [load if "cp.async.bulk.tensor" in line else line for line in source.split("\n")]
    launch(
        "\n".join(lines).replace(".align 64 .b8 map[128]", ".u64 map"), "k", 1, 32, [data, out, 0, 0], dynamic_smem=1024
    )
    np.testing.assert_array_equal(out, data)


def test_multicast_reaches_every_block_of_the_mask() -> None:
    tensor = np.arange(8 * 64, dtype=np.uint16).reshape(8, 64)
    out = np.zeros((2, 512), np.uint16)
    body = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    mov.u32 %r7, %cluster_ctarank;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared::cta.b64 [bar], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 1024;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    setp.eq.and.u32 %p1, %r7, 1, %p1;
    mov.u64 %rd1, map;
    cvta.param.u64 %rd1, %rd1;
    mov.u16 %h1, 3;
    @%p1 LOAD.multicast::cluster [%r2], [%rd1, {0, 0}], [bar], %h1;
wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0;
    @!%p2 bra wait;
    ld.param.u64 %rd2, [out];
    mad.lo.u32 %r8, %r7, 64, %r1;
    mad.wide.u32 %rd2, %r8, 16, %rd2;
    mad.lo.u32 %r2, %r1, 16, %r2;
    ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];
    st.global.v4.b32 [%rd2], {%r3, %r4, %r5, %r6};
    """.replace("LOAD", TMA_LOAD)
    launch(
        kernel(body, TMA_PARAMS, variables=SMEM),
        "k",
        2,
        64,
        [TensorMap(tensor, (8, 64)), out, 0, 0],
        cluster=2,
        dynamic_smem=1024,
    )
    np.testing.assert_array_equal(out[0], tensor.reshape(-1))
    np.testing.assert_array_equal(out[1], tensor.reshape(-1))
    for mask in (0, 4):
        source = kernel(body.replace("%h1, 3", f"%h1, {mask}"), TMA_PARAMS, variables=SMEM)
        with pytest.raises(Fault, match="of a cluster of 2"):
            launch(source, "k", 2, 64, [TensorMap(tensor, (8, 64)), out, 0, 0], cluster=2, dynamic_smem=1024)
