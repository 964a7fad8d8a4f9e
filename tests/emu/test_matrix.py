"""ldmatrix, stmatrix and mma.sync, against the fragment tables of the manual written out as loops."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import Fault, launch
from tilec.emu.numbers import Array, bf16_to_f32, f32_to_bf16, small_to_f32, tf32_to_f32

SMEM = ".shared .align 16 .b8 smem[1024];"
LANES = [(lane // 4, lane % 4) for lane in range(32)]

FILL = """
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd1, [a];
    mad.wide.u32 %rd1, %r1, 16, %rd1;
    ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd1];
    ld.param.u64 %rd2, [out];
    mad.wide.u32 %rd2, %r1, 16, %rd2;
    mov.u32 %r2, smem;
    mad.lo.u32 %r2, %r1, 16, %r2;
"""


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count: int, trans: str) -> None:
    # Row l of the source goes to row 31 - l, so that addresses are not in order.
    a = np.arange(32 * 8, dtype=np.uint16).reshape(32, 8)
    out = np.zeros((32, 8), np.uint16)
    registers = ", ".join(f"%r{20 + index}" for index in range(count))
    body = f"""{FILL}
    st.shared.v4.b32 [%r2], {{%r4, %r5, %r6, %r7}};
    bar.sync 0;
    sub.u32 %r8, 31, %r1;
    mov.u32 %r9, smem;
    mad.lo.u32 %r8, %r8, 16, %r9;
    mov.b32 %r21, 0; mov.b32 %r22, 0; mov.b32 %r23, 0;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%r8];
    st.global.v4.b32 [%rd2], {{%r20, %r21, %r22, %r23}};
    """
    launch(kernel(body, ".param .u64 a, .param .u64 out", variables=SMEM), "k", 1, 32, [a, out])
    for matrix in range(count):
        rows = np.array([a[31 - (8 * matrix + row)] for row in range(8)])
        for lane, (g, t) in enumerate(LANES):
            for element in range(2):
                expected = rows[2 * t + element, g] if trans else rows[g, 2 * t + element]
                assert out[lane, 2 * matrix + element] == expected


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(count: int, trans: str) -> None:
    a = np.arange(32 * 8, dtype=np.uint16).reshape(32, 8)
    out = np.zeros((32, 8), np.uint16)
    registers = ", ".join(f"%r{4 + index}" for index in range(count))
    body = f"""{FILL}
    st.shared.v4.b32 [%r2], {{0, 0, 0, 0}};
    bar.sync 0;
    stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r2], {{{registers}}};
    bar.sync 0;
    ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r2];
    st.global.v4.b32 [%rd2], {{%r20, %r21, %r22, %r23}};
    """
    launch(kernel(body, ".param .u64 a, .param .u64 out", variables=SMEM), "k", 1, 32, [a, out])
    expected = np.zeros((32, 8), np.uint16)
    for matrix in range(count):
        for lane, (g, t) in enumerate(LANES):
            for element in range(2):
                row, column = (2 * t + element, g) if trans else (g, 2 * t + element)
                expected[8 * matrix + row, column] = a[lane, 2 * matrix + element]
    np.testing.assert_array_equal(out, expected)


def to_f32(bits: Array, kind: str) -> Array:
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    if kind == "bf16":
        return bf16_to_f32(bits)
    if kind == "tf32":
        return tf32_to_f32(bits)
    if kind in ("e4m3", "e5m2"):
        return small_to_f32(bits, kind)
    return bits.view(np.int8 if kind == "s8" else np.uint8).astype(np.float32)


def random_bits(kind: str, shape: tuple[int, ...], seed: int) -> Array:
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(shape).astype(np.float32)
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    if kind == "bf16":
        return f32_to_bf16(values)
    if kind == "tf32":
        return values.view(np.uint32)
    bits = generator.integers(0, 256, shape, dtype=np.uint8)
    if kind == "e4m3":
        return np.where(bits & 0x7F == 0x7F, 0, bits).astype(np.uint8)
    return np.where(bits & 0x7C == 0x7C, 0, bits).astype(np.uint8) if kind == "e5m2" else bits


MMA = [
    ("m16n8k16", "f32", "f16", "f16"),
    ("m16n8k8", "f32", "f16", "f16"),
    ("m16n8k16", "f32", "bf16", "bf16"),
    ("m16n8k8", "f32", "bf16", "bf16"),
    ("m16n8k16", "f16", "f16", "f16"),
    ("m16n8k8", "f32", "tf32", "tf32"),
    ("m16n8k4", "f32", "tf32", "tf32"),
    ("m16n8k32", "s32", "s8", "s8"),
    ("m16n8k16", "s32", "u8", "s8"),
    ("m16n8k32", "f32", "e4m3", "e5m2"),
]


@pytest.mark.parametrize(("shape", "result", "a_kind", "b_kind"), MMA)
def test_mma_sync(shape: str, result: str, a_kind: str, b_kind: str) -> None:
    k = int(shape.rpartition("k")[2])
    warps = 2
    a = random_bits(a_kind, (warps, 16, k), 1)
    b = random_bits(b_kind, (warps, k, 8), 2)
    c_type = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[result]
    c = (np.random.default_rng(3).standard_normal((warps, 16, 8)) * 8).astype(c_type)
    size = a.dtype.itemsize
    per_register = 4 // size
    a_registers, b_registers = k // (2 * per_register), k // (4 * per_register)
    a_fragments = np.zeros((warps, 32, a_registers, per_register), a.dtype)
    b_fragments = np.zeros((warps, 32, b_registers, per_register), b.dtype)
    c_fragments = np.zeros((warps, 32, 2, 2), c.dtype)
    for lane, (g, t) in enumerate(LANES):
        for register in range(a_registers):
            for element in range(per_register):
                column = per_register * t + element + 4 * per_register * (register // 2)
                a_fragments[:, lane, register, element] = a[:, g + 8 * (register % 2), column]
        for register in range(b_registers):
            for element in range(per_register):
                row = per_register * t + element + 4 * per_register * register
                b_fragments[:, lane, register, element] = b[:, row, g]
        for half in range(2):
            for element in range(2):
                c_fragments[:, lane, half, element] = c[:, g + 8 * half, 2 * t + element]
    c_registers = 2 if result == "f16" else 4
    words = [array.reshape(64, -1).view(np.uint32) for array in (a_fragments, b_fragments, c_fragments)]
    packed = np.ascontiguousarray(np.concatenate(words, axis=1))
    width = packed.shape[1]
    names = [f"%r{10 + index}" for index in range(width)]
    a_names, b_names = names[:a_registers], names[a_registers : a_registers + b_registers]
    c_names = names[-c_registers:]
    d_names = [f"%r{40 + index}" for index in range(c_registers)]
    loads = "\n".join(f"ld.global.b32 {name}, [%rd1+{4 * index}];" for index, name in enumerate(names))
    stores = "\n".join(f"st.global.b32 [%rd2+{4 * index}], {name};" for index, name in enumerate(d_names))
    vectors = ["{" + ", ".join(group) + "}" for group in (d_names, a_names, b_names, c_names)]
    body = f"""
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd1, [a];
    mad.wide.u32 %rd1, %r1, {4 * width}, %rd1;
    ld.param.u64 %rd2, [out];
    mad.wide.u32 %rd2, %r1, {4 * c_registers}, %rd2;
    {loads}
    mma.sync.aligned.{shape}.row.col.{result}.{a_kind}.{b_kind}.{result} {", ".join(vectors)};
    {stores}
    """
    out = np.zeros_like(c_fragments)
    launch(kernel(body, ".param .u64 a, .param .u64 out"), "k", 1, 64, [packed, out])
    exact = np.matmul(to_f32(a, a_kind).astype(np.float64), to_f32(b, b_kind).astype(np.float64)) + c
    expected = np.zeros((warps, 32, 2, 2))
    for lane, (g, t) in enumerate(LANES):
        for half in range(2):
            for element in range(2):
                expected[:, lane, half, element] = exact[:, g + 8 * half, 2 * t + element]
    tolerance = {"f32": 1e-4, "f16": 2e-2, "s32": 0}[result]
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)


def test_misaligned_matrix_row() -> None:
    body = "mov.u32 %r1, smem; st.shared.u32 [%r1], 0; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1+8];"
    with pytest.raises(Fault) as caught:
        launch(kernel(body, variables=SMEM), "k", 1, 32, [None])
    assert caught.value.kind == "misaligned"
