"""tcgen05 without the matrix product: shapes of loads and stores, copies, shifts and allocation."""

from __future__ import annotations

import numpy as np
import pytest
from tensor_source import (
    AFTER,
    BEFORE,
    COMMIT,
    SMEM_BYTES,
    dump,
    epilogue,
    fill,
    prologue,
    run,
    smem_start,
    tensor_kernel,
    wait,
)

from tilec.emu import Fault
from tilec.emu.numbers import Array

ADVERSARIES = [None, 1, 2]
REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
WIDTH = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}
"""Columns of one repeat."""


def cell(shape: str, lane: int, register: int, split: int) -> tuple[int, int]:
    """Row and column of a register, case by case as the figures of the manual draw them."""
    group, inside = divmod(lane, 4)
    if shape == "32x32b":
        return lane, register
    if shape == "16x32bx2":
        return (lane, register) if lane < 16 else (lane - 16, split + register)
    if shape == "16x64b":
        # Figure: T0 and T2 hold row 0, T1 and T3 row 8.
        return {0: group, 1: group + 8, 2: group, 3: group + 8}[inside], 2 * register + (1 if inside >= 2 else 0)
    if shape == "16x128b":
        repeat, half = divmod(register, 2)
        return group + 8 * half, 4 * repeat + inside
    repeat, place = divmod(register, 4)
    return group + (8 if place >= 2 else 0), 8 * repeat + 2 * inside + place % 2


CASES = [
    (shape, repeat)
    for shape, per_repeat in REGISTERS.items()
    for repeat in (1, 2, 4, 8, 16, 32, 64, 128)
    if repeat * per_repeat <= 128
]


def image() -> Array:
    return np.zeros(SMEM_BYTES, np.uint8)


@pytest.mark.parametrize(("shape", "repeat"), CASES)
@pytest.mark.parametrize("is_packed", [False, True])
def test_loads(shape: str, repeat: int, is_packed: bool) -> None:
    count = repeat * REGISTERS[shape]
    split = 24 if repeat <= 8 else 256
    names = ", ".join(f"%v{index}" for index in range(count))
    tail = f", {split}" if shape == "16x32bx2" else ""
    half = 0 if shape == "32x32b" else 16 << 16
    body = f"""
    {prologue(image_bytes=0)}
    {fill(0, 512)}
    add.u32 %r20, %mine, {half};
    tcgen05.ld.sync.aligned.{shape}.x{repeat}{".pack::16b" if is_packed else ""}.b32 {{{names}}}, [%r20]{tail};
    tcgen05.wait::ld.sync.aligned;
    mul.lo.u32 %r10, %r0, {4 * count};
    cvt.u64.u32 %rd3, %r10;
    add.u64 %rd3, %rd3, %rd0;
    """
    body += "\n".join(f"st.global.b32 [%rd3+{4 * index}], %v{index};" for index in range(count))
    data = np.random.default_rng(1).integers(0, 2**32, (128, 512), np.uint32)
    out = np.zeros((128, count), np.uint32)
    run(tensor_kernel(body + epilogue()), out, image(), data)
    for thread in range(128):
        for register in range(count):
            row, column = cell(shape, thread % 32, register, split // 2 if is_packed else split)
            row += thread // 32 * 32 + (half >> 16)
            if is_packed:
                expected = int(data[row, 2 * column] & 0xFFFF) | int(data[row, 2 * column + 1] & 0xFFFF) << 16
            else:
                expected = int(data[row, column])
            assert out[thread, register] == expected, (thread, register)


@pytest.mark.parametrize(
    ("shape", "repeat", "is_packed"),
    [(*case, packed) for case in CASES for packed in (False, True) if case[1] * WIDTH[case[0]] * (1 + packed) <= 64],
)
def test_stores(shape: str, repeat: int, is_packed: bool) -> None:
    count = repeat * REGISTERS[shape]
    split = 64
    names = ", ".join(f"%v{index}" for index in range(count))
    tail = f", {split}" if shape == "16x32bx2" else ""
    loads = "\n".join(f"ld.global.b32 %v{index}, [%rd4+{4 * index}];" for index in range(count))
    body = f"""
    {prologue(image_bytes=0)}
    {fill(0, 128)}
    ld.param.u64 %rd4, [fill];
    mul.lo.u32 %r10, %r0, 512;
    cvt.u64.u32 %rd5, %r10;
    add.u64 %rd4, %rd4, %rd5;
    {loads}
    tcgen05.st.sync.aligned.{shape}.x{repeat}{".unpack::16b" if is_packed else ""}.b32 [%mine]{tail}, {{{names}}};
    tcgen05.wait::st.sync.aligned;
    {dump(0, 128)}
    """
    data = np.random.default_rng(2).integers(0, 2**32, (128, 128), np.uint32)
    out, expected = np.zeros((128, 128), np.uint32), data.copy()
    run(tensor_kernel(body + epilogue()), out, image(), data)
    for thread in range(128):
        for register in range(count):
            row, column = cell(shape, thread % 32, register, split // 2 if is_packed else split)
            row += thread // 32 * 32
            word = int(data[thread, register])
            if is_packed:
                expected[row, 2 * column], expected[row, 2 * column + 1] = word & 0xFFFF, word >> 16
            else:
                expected[row, column] = word
    np.testing.assert_array_equal(out, expected)


# -- copies and shifts -------------------------------------------------------------------------------------------------

SHAPES = {"128x256b": (128, 32), "128x128b": (128, 16), "64x128b": (64, 16), "32x128b": (32, 16), "4x256b": (4, 32)}
COPIES = [
    ("128x256b", ""), ("128x128b", ""), ("4x256b", ""), ("32x128b", "warpx4"),
    ("64x128b", "warpx2::02_13"), ("64x128b", "warpx2::01_23"),
]  # fmt: skip


def descriptor(address: int, leading: int, stride: int, swizzle: int = 0) -> int:
    code = {0: 0, 32: 6, 64: 4, 128: 2, 160: 1}[swizzle]
    return address >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | code << 61


@pytest.mark.parametrize(("shape", "multicast"), COPIES)
@pytest.mark.parametrize("source", ["", "b4x16_p64", "b6x16_p32"])
@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_copies(shape: str, multicast: str, source: str, adversary: int | None) -> None:
    rows, width = SHAPES[shape]
    data = np.random.default_rng(3).integers(0, 256, (rows, width), np.uint8)
    memory = image()
    for row in range(rows):
        for chunk in range(width // 16):
            # K-major without a swizzle: 8 rows of 16 bytes are one core matrix.
            at = row % 8 * 16 + row // 8 * 256 + chunk * 128
            memory[at : at + 16] = data[row, 16 * chunk : 16 * chunk + 16]
    words = [shape] + ([multicast] if multicast else []) + (["b8x16", source] if source else [])
    columns = width // 4
    body = f"""
    {prologue()}
    {fill(0, 8)}
    mov.b64 %da, {descriptor(smem_start(), 128, 256)};
    @%p1 tcgen05.cp.cta_group::1.{".".join(words)} [%taddr{"+0x50000" if shape == "4x256b" else ""}], %da;
    {COMMIT}
    {wait()}
    {AFTER}
    {dump(0, 8)}
    """
    old = np.random.default_rng(4).integers(0, 2**32, (128, 8), np.uint32)
    out = np.zeros((128, 8), np.uint32)
    run(tensor_kernel(body + epilogue()), out, memory, old, adversary=adversary)
    expected = old.copy()
    for lane in range(128):
        if shape == "4x256b":
            if lane % 32 != 5:
                continue
            row = lane // 32
        elif multicast == "warpx4":
            row = lane % 32
        elif multicast == "warpx2::02_13":
            row = lane % 32 + 32 * (lane // 32 % 2)
        elif multicast == "warpx2::01_23":
            row = lane % 32 + 32 * (lane // 64)
        else:
            row = lane
        line = b""
        for chunk in range(width // 16):
            piece = data[row, 16 * chunk : 16 * chunk + 16].tobytes()
            number = int.from_bytes(piece, "little")
            if source == "b4x16_p64":
                piece = bytes((number >> 4 * index & 0xF) << 2 for index in range(16))
            elif source:
                piece = bytes(number >> 6 * index & 0x3F for index in range(16))
            line += piece
        expected[lane, :columns] = np.frombuffer(line, np.uint32)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_shift_down(adversary: int | None) -> None:
    body = f"""
    {prologue(image_bytes=0)}
    {fill(0, 16)}
    @%p1 tcgen05.shift.cta_group::1.down [%taddr+0x200004];
    {COMMIT}
    {wait()}
    {AFTER}
    {dump(0, 16)}
    """
    data = np.random.default_rng(4).integers(0, 2**32, (128, 16), np.uint32)
    out, expected = np.zeros((128, 16), np.uint32), data.copy()
    run(tensor_kernel(body + epilogue()), out, image(), data, adversary=adversary)
    expected[33:64, 4:12] = data[32:63, 4:12]
    np.testing.assert_array_equal(out, expected)


# -- allocation --------------------------------------------------------------------------------------------------------


def allocate(columns: int | str, slot: int = 0) -> str:
    return f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot+{4 * slot}], {columns};"


def release(address: str, columns: int) -> str:
    return f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 {address}, {columns};"


RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
HEAD = "mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; setp.eq.u32 %p4, %r1, 0;"


def run_bare(body: str, *, block: int = 32, out: Array | None = None) -> None:
    run(tensor_kernel(HEAD + body), np.zeros(8, np.uint32) if out is None else out, image(), block=block)


def test_allocations_do_not_overlap_and_come_back() -> None:
    out = np.zeros(8, np.uint32)
    body = f"""
    ld.param.u64 %rd0, [out];
    {allocate(256, 0)} {allocate(128, 1)} {allocate(128, 2)}
    ld.shared.b32 %r10, [slot]; ld.shared.b32 %r11, [slot+4]; ld.shared.b32 %r12, [slot+8];
    {release("%r11", 128)}
    {allocate(64, 3)}
    ld.shared.b32 %r13, [slot+12];
    st.global.v4.b32 [%rd0], {{%r10, %r11, %r12, %r13}};
    {release("%r10", 256)} {release("%r12", 128)} {release("%r13", 64)}
    {RELINQUISH}
    """
    run_bare(body, out=out)
    assert sorted(out[:3].tolist()) == [0, 256, 384]
    assert out[3] == out[1]


def test_an_allocation_waits_for_columns() -> None:
    """Warp 1 wants what warp 0 has, and gets it."""
    body = f"""
    @!%p4 bra SECOND;
    {allocate(512, 0)}
    ld.shared.b32 %r10, [slot];
    bar.sync 0;
    {release("%r10", 512)}
    bra END;
SECOND:
    bar.sync 0;
    {allocate(512, 1)}
    ld.shared.b32 %r10, [slot+4];
    {release("%r10", 512)}
END:
    """
    run_bare(body, block=64)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (allocate(64), "tmem-leak", "64 columns"),
        (allocate(48), "bad-tmem-allocation", "power of two"),
        (allocate(16), "bad-tmem-allocation", "power of two"),
        (allocate(1024), "bad-tmem-allocation", "power of two"),
        (allocate(32) + allocate(64, 1), "bad-tmem-allocation", "must not grow"),
        (RELINQUISH + allocate(32), "bad-tmem-allocation", "after tcgen05.relinquish_alloc_permit"),
        (release("0", 32), "bad-tmem-allocation", "nothing is allocated"),
        (allocate(64) + release("0", 32), "bad-tmem-allocation", "64 columns at 0x0"),
        (allocate(512) + allocate(512, 1), "deadlock", "512 free columns"),
        (
            allocate(32) + release("0", 32).replace("group::1", "group::2"),
            "unsupported",
            "where other instructions of the kernel have .cta_group::1",
        ),
        (allocate(32).replace("group::1", "group::2"), "bad-tmem-allocation", "no peer"),
        ("setp.lt.u32 %p0, %r0, 5; @%p0 " + allocate(32), "divergent-warp", "whole warps"),
    ],
)
def test_wrong_allocations(body: str, kind: str, message: str) -> None:
    with pytest.raises(Fault, match=message) as fault:
        run_bare(body)
    assert fault.value.kind == kind
    assert kind == "deadlock" or fault.value.line > 0


LOAD = "tcgen05.ld.sync.aligned.32x32b.x8.b32 {%v0, %v1, %v2, %v3, %v4, %v5, %v6, %v7}, "
STORE = "tcgen05.st.sync.aligned.32x32b.x8.b32 "
REGS = "{%v0, %v1, %v2, %v3, %v4, %v5, %v6, %v7};"
WAIT_LD, WAIT_ST = "tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;"
FILL = fill(0, 32)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (f"{LOAD}[%mine]; {WAIT_LD}", "unwritten-read", "lane 0, column 0x0"),
        (f"{FILL} {LOAD}[%mine+28]; {WAIT_LD}", "unwritten-read", "column 0x20"),
        (f"{FILL} {LOAD}[%mine+60]; {WAIT_LD}", "out-of-bounds", "columns 0x3c to 0x44"),
        (f"{FILL} {LOAD}[%taddr]; {WAIT_LD}", "foreign-lanes", "threads 32-63"),
        (f"{FILL} {LOAD}[%mine+0x100000]; {WAIT_LD}", "misaligned", "multiple of 32"),
        (f"{FILL} add.u32 %mine, %mine, %r0; {LOAD}[%mine]; {WAIT_LD}", "divergent-warp", "address"),
        (f"{FILL} {LOAD}[%mine]; mov.u32 %v3, 1; {WAIT_LD}", "missing-tcgen05-wait", "overwrites a register"),
        (f"{FILL} {LOAD}[%mine]; {STORE}[%mine], {REGS} {WAIT_LD}{WAIT_ST}", "missing-tcgen05-wait", "ld of .* reads"),
        (f"{FILL} {LOAD}[%mine]; {STORE}[%mine], {REGS.replace('%v', '%r1')} {WAIT_LD}{WAIT_ST}",
         "missing-tcgen05-wait", "which tcgen05.ld of PTX line .* reads"),
        (f"{STORE}[%mine], {REGS} {LOAD}[%mine]; {WAIT_ST} {WAIT_LD}", "missing-tcgen05-wait", "no tcgen05.wait::st"),
        (f"{FILL} {LOAD}[%mine];", "missing-tcgen05-wait", "tcgen05.dealloc writes"),
        (FILL.replace(WAIT_ST, ""), "missing-tcgen05-wait", "tcgen05.dealloc writes"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("races", [True, False])
def test_wrong_accesses(body: str, kind: str, message: str, adversary: int | None, races: bool) -> None:
    source = tensor_kernel(prologue(64, image_bytes=0) + body + epilogue(64))
    with pytest.raises(Fault, match=message) as fault:
        run(source, np.zeros(8, np.uint32), image(), np.zeros((128, 32), np.uint32), adversary=adversary, races=races)
    assert fault.value.kind == kind
    assert fault.value.line > 0


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_a_register_may_be_read_before_the_wait(adversary: int | None) -> None:
    """Triton packs registers before it waits; memory is ordered by the wait alone."""
    body = f"""
    {FILL} {LOAD}[%mine];
    add.u32 %r20, %v3, 1;
    {WAIT_LD}
    mul.wide.u32 %rd3, %r0, 4; add.u64 %rd3, %rd3, %rd0;
    st.global.b32 [%rd3], %r20;
    """
    data, out = np.arange(128 * 32, dtype=np.uint32).reshape(128, 32), np.zeros(128, np.uint32)
    run(tensor_kernel(prologue(64, image_bytes=0) + body + epilogue(64)), out, image(), data, adversary=adversary)
    np.testing.assert_array_equal(out, data[:, 3] + 1)


PASS_ON = """
    @!%p4 bra READER;
    mov.b32 %v0, 7;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%mine], %v0;
    WAIT_ST
    BEFORE
    bar.sync 1, 64;
    bra DONE;
READER:
    setp.ne.u32 %p5, %r1, 4;
    @%p5 bra DONE;
    bar.sync 1, 64;
    AFTER
    tcgen05.ld.sync.aligned.32x32b.x1.b32 %v1, [%taddr];
    tcgen05.wait::ld.sync.aligned;
    sub.u32 %r10, %r0, 128;
    mul.wide.u32 %rd3, %r10, 4;
    add.u64 %rd3, %rd3, %rd0;
    st.global.b32 [%rd3], %v1;
DONE:
"""


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("missing", ["", "WAIT_ST", "BEFORE", "AFTER", "bar.sync 1, 64;"])
def test_passing_on_between_warps(missing: str, adversary: int | None) -> None:
    """Warps 0 and 4 share lanes. Each of the four steps from one to the other is needed."""
    body = PASS_ON.replace(missing, "") if missing else PASS_ON
    body = body.replace("WAIT_ST", WAIT_ST).replace("BEFORE", BEFORE).replace("AFTER", AFTER)
    source = tensor_kernel(prologue(32, image_bytes=0) + body + epilogue(32))
    out = np.zeros(32, np.uint32)
    if not missing:
        run(source, out, image(), block=160, adversary=adversary)
        assert (out == 7).all()
        return
    with pytest.raises(Fault) as fault:
        run(source, out, image(), block=160, adversary=adversary)
    kinds = {
        "WAIT_ST": {"missing-tcgen05-wait"},
        "BEFORE": {"missing-tcgen05-fence"},
        "AFTER": {"missing-tcgen05-fence"},
        "bar.sync 1, 64;": {"data-race", "unwritten-read", "missing-tcgen05-fence", "missing-tcgen05-wait"},
    }[missing]
    assert fault.value.kind in kinds


def test_without_any_fence_barriers_order() -> None:
    """Triton writes no tcgen05.fence at all: then barriers are what a kernel goes by."""
    body = PASS_ON.replace("WAIT_ST", WAIT_ST).replace("BEFORE", "").replace("AFTER", "")
    source = tensor_kernel(prologue(32, image_bytes=0) + body + epilogue(32).replace(BEFORE, ""))
    out = np.zeros(32, np.uint32)
    run(source, out, image(), block=160)
    assert (out == 7).all()
