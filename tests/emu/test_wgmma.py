"""wgmma: descriptors against the canonical layouts of the manual, fragments as loops, and what must be waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from ptx_source import kernel
from test_matrix import random_bits, to_f32

from tilec.emu import Fault, launch
from tilec.emu.numbers import Array
from tilec.emu.wgmma.wgmma import find_descriptor_rows

SMEM_BYTES = 48 * 1024
SMEM = ".extern .shared .align 1024 .b8 smem[];"
BITS = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
SWIZZLE_CODE = {0: 0, 128: 1, 64: 2, 32: 3}


@dataclass(frozen=True)
class Layout:
    """One operand in shared memory: major ("K" or "MN"), swizzle, and its two offsets in bytes."""

    major: str
    swizzle: int
    leading: int
    stride: int

    def offset(self, row: int, k: int, size: int) -> int:
        """The canonical layout of the manual, coordinate by coordinate, before the swizzle; in bytes."""
        per_chunk = 16 // size  # the manual's T
        units = self.swizzle // 16
        if self.major == "K":
            if not units:
                # ((8,m),(T,2)) : ((T,SBO),(1,LBO))
                return row % 8 * 16 + row // 8 * self.stride + k % per_chunk * size + k // per_chunk * self.leading
            # ((8,m),(T,2)) : ((units·T,SBO),(1,T))
            return row % 8 * units * 16 + row // 8 * self.stride + k * size
        if not units:
            # ((T,1,m),(8,k)) : ((1,T,SBO),(T,LBO))
            return row % per_chunk * size + row // per_chunk * self.stride + k % 8 * 16 + k // 8 * self.leading
        # ((T,units,m),(8,k)) : ((1,T,LBO),(units·T,SBO))
        group = units * per_chunk
        return row % group * size + row // group * self.leading + k % 8 * units * 16 + k // 8 * self.stride

    def address(self, base: int, row: int, k: int, size: int) -> int:
        address = base + self.offset(row, k, size)
        mask = {0: 0, 32: 1, 64: 3, 128: 7}[self.swizzle]
        return address ^ ((address >> 7 & mask) << 4)

    def bits(self) -> int:
        """The descriptor without its start address."""
        return self.leading >> 4 << 16 | self.stride >> 4 << 32 | SWIZZLE_CODE[self.swizzle] << 62


def k_major(swizzle: int, rows: int) -> Layout:
    if not swizzle:
        return Layout("K", 0, leading=rows * 16, stride=128)
    return Layout("K", swizzle, leading=16, stride=8 * swizzle)


def mn_major(swizzle: int, rows: int, size: int) -> Layout:
    if not swizzle:
        # Eight k by T rows are 128 bytes; then all of MN, then the next eight k.
        return Layout("MN", 0, leading=rows * size * 8, stride=128)
    return Layout("MN", swizzle, leading=2 * 8 * swizzle, stride=8 * swizzle)


def place(image: Array, matrix: Array, layout: Layout, base: int) -> None:
    size = matrix.dtype.itemsize
    for row in range(matrix.shape[0]):
        for k in range(matrix.shape[1]):
            address = layout.address(base, row, k, size)
            image[address : address + size] = np.frombuffer(matrix[row, k].tobytes(), np.uint8)


def wgmma_source(n: int, k: int, result: str, kinds: tuple[str, str], tail: str, *, a_registers: bool = False) -> str:
    count = n // (4 if result == "f16" else 2)
    accumulators = ", ".join(f"%d{index}" for index in range(count))
    a = "{%a0, %a1, %a2, %a3}" if a_registers else "%rd1"
    loads = "\n".join(f"    ld.global.b32 %d{index}, [%rd5+{4 * index}];" for index in range(count))
    stores = "\n".join(f"    st.global.b32 [%rd5+{4 * index}], %d{index};" for index in range(count))
    body = f"""
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    ld.param.u64 %rd6, [image];
    cvt.u64.u32 %rd7, %r1;
    mad.wide.u32 %rd6, %r1, 16, %rd6;
    mad.lo.u32 %r3, %r1, 16, %r2;
    mov.u32 %r4, 0;
fill:
    ld.global.v4.b32 {{%r5, %r6, %r7, %r8}}, [%rd6];
    st.shared.v4.b32 [%r3], {{%r5, %r6, %r7, %r8}};
    add.s64 %rd6, %rd6, 2048;
    add.u32 %r3, %r3, 2048;
    add.u32 %r4, %r4, 2048;
    setp.lt.u32 %p1, %r4, {SMEM_BYTES};
    @%p1 bra fill;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    ld.param.u64 %rd1, [a_desc];
    ld.param.u64 %rd2, [b_desc];
    shr.u32 %r2, %r2, 4;
    cvt.u64.u32 %rd3, %r2;
    add.s64 %rd1, %rd1, %rd3;
    add.s64 %rd2, %rd2, %rd3;
    ld.param.u64 %rd4, [a_frag];
    mad.wide.u32 %rd4, %r1, 16, %rd4;
    ld.global.v4.b32 {{%a0, %a1, %a2, %a3}}, [%rd4];
    ld.param.u64 %rd5, [d];
    mad.wide.u32 %rd5, %r1, {4 * count}, %rd5;
{loads}
    ld.param.u32 %r9, [keep];
    setp.ne.u32 %p2, %r9, 0;
    wgmma.fence.sync.aligned;
    // begin
    wgmma.mma_async.sync.aligned.m64n{n}k{k}.{result}.{kinds[0]}.{kinds[1]} {{{accumulators}}}, {a}, %rd2, %p2{tail};
    wgmma.commit_group.sync.aligned;
    // issued
    wgmma.wait_group.sync.aligned 0;
{stores}
    """
    params = ", ".join(f".param .u64 {name}" for name in ("image", "a_desc", "b_desc", "a_frag", "d"))
    registers = f".reg .b32 %a<4>;\n    .reg .b32 %d<{count}>;"
    return kernel(body, f"{params}, .param .u32 keep", registers=registers, variables=SMEM)


def fragment(matrix: Array) -> Array:
    """D as its threads hold it: [thread, element]."""
    n = matrix.shape[1]
    result = np.zeros((128, n // 2), matrix.dtype)
    for thread in range(128):
        w, g, t = thread // 32, thread % 32 // 4, thread % 4
        for r in range(n // 2):
            result[thread, r] = matrix[16 * w + g + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * t + r % 2]
    return result


def a_fragment(matrix: Array) -> Array:
    """A in registers, from the tables of the manual: [thread, element]."""
    size = matrix.dtype.itemsize
    per_register = 4 // size
    result = np.zeros((128, 4 * per_register), matrix.dtype)
    for thread in range(128):
        w, g, t = thread // 32, thread % 32 // 4, thread % 4
        for r in range(4 * per_register):
            if size == 4:
                row, column = g + 8 * (r % 2), t + 4 * (r // 2)
            elif size == 2:
                row, column = g + 8 * (r // 2 % 2), 2 * t + r % 2 + 8 * (r // 4)
            else:
                row, column = g + 8 * (r // 4 % 2), 4 * t + r % 4 + 16 * (r // 8)
            result[thread, r] = matrix[16 * w + row, column]
    return result


def check(
    n: int,
    result: str,
    kinds: tuple[str, str],
    a_layout: Layout | None,
    b_layout: Layout,
    *,
    sign: int = 1,
    keep: bool = True,
) -> None:
    k = 32 // BITS[kinds[0]]
    a, b = random_bits(kinds[0], (64, k), 1), random_bits(kinds[1], (n, k), 2)
    image = np.zeros(SMEM_BYTES, np.uint8)
    b_at = 16 * 1024
    place(image, b, b_layout, b_at)
    a_bits = 0
    if a_layout is not None:
        place(image, a, a_layout, 0)
        a_bits = a_layout.bits()
    d_type = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[result]
    start = (np.random.default_rng(3).standard_normal((64, n)) * 4).astype(d_type)
    d = fragment(start)
    tail = ""
    if kinds[0] not in ("s8", "u8"):
        tail = f", 1, {sign}"
        if kinds[0] in ("f16", "bf16"):
            tail += "" if a_layout is None else f", {int(a_layout.major == 'MN')}"
            tail += f", {int(b_layout.major == 'MN')}"
    source = wgmma_source(n, k, result, kinds, tail, a_registers=a_layout is None)
    arguments = [image, a_bits, b_layout.bits() + (b_at >> 4), a_fragment(a), d, int(keep)]
    launch(source, "k", 1, 128, arguments, dynamic_smem=SMEM_BYTES)
    product = to_f32(a, kinds[0]).astype(np.float64) @ to_f32(b, kinds[1]).astype(np.float64).T
    expected = fragment(sign * product + (start if keep else 0))
    if result == "f16":
        with np.errstate(over="ignore"):
            expected = expected.astype(np.float16)
    tolerance = {"f32": 1e-4, "f16": 2e-2, "s32": 0}[result]
    if result == "f32" and kinds[0] in ("e4m3", "e5m2"):
        # Each of 33 terms is cut off 13 bits below the largest, and the sum is too: docs/numerics.md.
        largest = np.abs(to_f32(a, kinds[0])[:, None] * to_f32(b, kinds[1])[None]).max(axis=2)
        slack = fragment((34 * 2**-13 * np.maximum(largest, np.abs(start))).astype(np.float32))
        assert np.all(np.abs(d.astype(np.float64) - expected) <= slack)
        return
    np.testing.assert_allclose(d, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("a_major", ["K", "MN"])
@pytest.mark.parametrize("b_major", ["K", "MN"])
def test_every_layout(swizzle: int, a_major: str, b_major: str) -> None:
    n = 128
    a_layout = k_major(swizzle, 64) if a_major == "K" else mn_major(swizzle, 64, 2)
    b_layout = k_major(swizzle, n) if b_major == "K" else mn_major(swizzle, n, 2)
    check(n, "f32", ("bf16", "bf16"), a_layout, b_layout)


@pytest.mark.parametrize(("leading", "stride"), [(1024, 4096), (2048, 1024), (8192, 1024), (2048, 4096)])
def test_sparse_offsets(leading: int, stride: int) -> None:
    check(128, "f32", ("f16", "f16"), k_major(128, 64), Layout("MN", 128, leading, stride))


@pytest.mark.parametrize(
    ("n", "result", "kinds"),
    [
        (8, "f32", ("f16", "f16")),
        (24, "f16", ("f16", "f16")),
        (256, "f32", ("bf16", "bf16")),
        (64, "f32", ("tf32", "tf32")),
        (64, "f32", ("e4m3", "e5m2")),
        (32, "f16", ("e5m2", "e4m3")),
        (48, "s32", ("s8", "u8")),
    ],
)
@pytest.mark.parametrize("a_registers", [False, True])
def test_every_type(n: int, result: str, kinds: tuple[str, str], a_registers: bool) -> None:
    check(n, result, kinds, None if a_registers else k_major(32, 64), k_major(64, n))


def test_negation_and_no_accumulator() -> None:
    check(16, "f32", ("f16", "f16"), k_major(128, 64), k_major(128, 16), sign=-1)
    check(16, "f32", ("f16", "f16"), k_major(128, 64), k_major(128, 16), keep=False)


@pytest.mark.parametrize(
    ("major", "swizzle", "size", "leading", "stride"),
    [
        ("K", 0, 4, 16, 8),
        ("K", 32, 4, 1, 16),
        ("MN", 0, 2, 16, 8),
        ("MN", 32, 2, 16, 32),
        ("MN", 64, 2, 32, 64),
    ],
)
def test_worked_examples_of_the_manual(major: str, swizzle: int, size: int, leading: int, stride: int) -> None:
    """The encoded offsets of the manual address each 16-byte row of a packed operand once, or at least never twice."""
    layout = Layout(major, swizzle, leading * 16, stride * 16)
    extent = 32 if swizzle and major == "MN" else 16
    rows = find_descriptor_rows(layout.bits(), extent, 32 // size, size, major == "MN")
    assert len(np.unique(rows)) == rows.size
    k_step, mn_step = (16 // size, 1) if major == "K" else (1, 16 // size)
    for position in np.ndindex(rows.shape):
        row, k = (position[0], position[1] * k_step) if major == "K" else (position[1] * mn_step, position[0])
        assert rows[position] * 16 == layout.address(0, row, k, size)


# -- what must be waited for, fenced and uniform -----------------------------------------------------------------------


def wrong(old: str, new: str, *, a_registers: bool = False, descriptor: int | None = None) -> Fault:
    layout = k_major(128, 64)
    tail = ", 1, 1, 0" if a_registers else ", 1, 1, 0, 0"
    source = wgmma_source(16, 16, "f32", ("f16", "f16"), tail, a_registers=a_registers).replace(old, new)
    bits = layout.bits() if descriptor is None else descriptor
    image, a_fragments, d = (
        np.zeros(SMEM_BYTES, np.uint8),
        np.zeros((128, 4), np.uint32),
        np.zeros((128, 8), np.float32),
    )
    with pytest.raises(Fault) as caught:
        launch(source, "k", 1, 128, [image, bits, layout.bits(), a_fragments, d, 1], dynamic_smem=SMEM_BYTES)
    fault = caught.value
    fault.args = (source,)
    return fault


def test_reading_an_accumulator_before_the_wait() -> None:
    fault = wrong("// issued", "add.f32 %f0, %d3, %d3;")
    assert fault.kind == "unarrived-read"
    assert fault.text == "add.f32 %f0, %d3, %d3;"
    line = next(i for i, text in enumerate(fault.args[0].split("\n"), start=1) if "wgmma.mma_async" in text)
    assert f"an accumulator of the wgmma of PTX line {line}" in fault.message


@pytest.mark.parametrize(
    ("old", "new", "a_registers", "kind"),
    [
        ("// issued", "mov.b32 %d0, 0;", False, "unarrived-read"),
        ("// issued", "mov.b32 %a1, 0;", True, "unarrived-read"),
        ("wait_group.sync.aligned 0", "wait_group.sync.aligned 1", False, "unarrived-read"),
        ("fence.proxy.async.shared::cta;", "", False, "missing-proxy-fence"),
        ("// issued", "mov.u32 %r2, smem; st.shared.b32 [%r2], 0;", False, "early-reuse"),
        ("// begin", "cvt.u64.u32 %rd3, %r1; add.s64 %rd1, %rd1, %rd3;", False, "bad-descriptor"),
        ("// begin", "or.b64 %rd2, %rd2, 0x8000;", False, "bad-descriptor"),
        ("// begin", "or.b64 %rd2, %rd2, 0x3FFF;", False, "out-of-bounds"),
        ("// begin", "mov.u32 %r2, smem; cp.async.ca.shared.global [%r2], [%rd4], 4;", False, "unarrived-read"),
    ],
)
def test_misuse(old: str, new: str, a_registers: bool, kind: str) -> None:
    assert wrong(old, new, a_registers=a_registers).kind == kind


def test_two_wgmma_on_one_accumulator_need_no_wait() -> None:
    layout = k_major(128, 64)
    source = wgmma_source(16, 16, "f32", ("f16", "f16"), ", 1, 1, 0, 0")
    mma = next(line for line in source.split("\n") if "wgmma.mma_async" in line)
    source = source.replace(mma, f"{mma}\n wgmma.commit_group.sync.aligned;\n{mma}")
    a, b = random_bits("f16", (64, 16), 1), random_bits("f16", (16, 16), 2)
    image = np.zeros(SMEM_BYTES, np.uint8)
    place(image, a, layout, 0)
    place(image, b, layout, 16384)
    d = np.zeros((128, 8), np.float32)
    arguments = [image, layout.bits(), layout.bits() + 1024, np.zeros((128, 4), np.uint32), d, 1]
    launch(source, "k", 1, 128, arguments, dynamic_smem=SMEM_BYTES)
    product = to_f32(a, "f16") @ to_f32(b, "f16").T
    np.testing.assert_allclose(d, fragment(2 * product), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m64n16k16", "m64n20k16"),
        ("m64n16k16", "m64n16k8"),
        (", 1, 1, 0, 0", ", 2, 1, 0, 0"),
        (", 1, 1, 0, 0", ", 1, 1, 0"),
    ],
)
def test_illegal_shapes_are_refused(old: str, new: str) -> None:
    assert wrong(old, new).kind == "unsupported"
