"""mma.sync and wmma beyond the usual shapes, against the fragment tables of the manual written out as loops."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel

from tilec.emu import launch
from tilec.emu.numbers import Array

LANES = [(lane // 4, lane % 4) for lane in range(32)]
SIZES = {"f64": 64, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1}


def elements(kind: str, shape: tuple[int, int], seed: int) -> Array:
    generator = np.random.default_rng(seed)
    if kind == "f64":
        return generator.standard_normal(shape)
    low = -(1 << (SIZES[kind] - 1)) if kind[0] == "s" else 0
    return generator.integers(low, low + (1 << SIZES[kind]), shape)


def words(values: Array, kind: str) -> list[int]:
    """The elements of one lane, packed into its registers."""
    if kind == "f64":
        return values.view(np.uint64).tolist()
    size = SIZES[kind]
    packed = sum((int(value) & ((1 << size) - 1)) << size * index for index, value in enumerate(values))
    return [packed >> 32 * index & 0xFFFFFFFF for index in range(len(values) * size // 32)]


def run(opcode: str, a: Array, b: Array, c: Array, halves: int, result: str) -> Array:
    """One warp; each row of the arrays holds the registers of a lane."""
    width = 64 if result == "f64" else 32
    source = 64 if a.dtype == np.uint64 else 32
    counts = [array.shape[1] for array in (a, b, c)]
    names = [[f"%{letter}{index}" for index in range(count)] for letter, count in zip("abc", counts, strict=True)]
    out = np.zeros_like(c)
    loads = []
    for index, (group, size) in enumerate(zip(names, (source, source, width), strict=True)):
        loads.append(f"ld.param.u64 %rd1, [p{index}]; mad.wide.u32 %rd1, %r1, {size // 8 * len(group)}, %rd1;")
        loads += [f"ld.global.b{size} {name}, [%rd1+{size // 8 * place}];" for place, name in enumerate(group)]
    vectors = ["{" + ", ".join(group) + "}" for group in (names[2], *names)]
    stores = [f"st.global.b{width} [%rd1+{width // 8 * place}], {name};" for place, name in enumerate(names[2])]
    body = "\n".join(["mov.u32 %r1, %tid.x;", *loads, f"{opcode} {', '.join(vectors)};"])
    body += f"\nld.param.u64 %rd1, [p3]; mad.wide.u32 %rd1, %r1, {width // 8 * counts[2]}, %rd1;\n" + "\n".join(stores)
    registers = f".reg .b{source} %a<8>, %b<8>; .reg .b{width} %c<8>;"
    params = ", ".join(f".param .u64 p{index}" for index in range(4))
    launch(kernel(body, params, registers=registers), "k", 1, 32, [a, b, c, out])
    return out


SHAPES = [
    ("m8n8k4", "f64", "f64", "f64", ""),
    ("m16n8k4", "f64", "f64", "f64", ""),
    ("m16n8k8", "f64", "f64", "f64", ""),
    ("m16n8k16", "f64", "f64", "f64", ""),
    ("m8n8k16", "s32", "s8", "u8", ""),
    ("m8n8k32", "s32", "s4", "u4", ""),
    ("m16n8k32", "s32", "u4", "s4", ""),
    ("m16n8k64", "s32", "s4", "s4", ""),
    ("m8n8k128", "s32", "b1", "b1", ".xor.popc"),
    ("m16n8k128", "s32", "b1", "b1", ".and.popc"),
    ("m16n8k256", "s32", "b1", "b1", ".xor.popc"),
]


@pytest.mark.parametrize(("shape", "result", "a_kind", "b_kind", "suffix"), SHAPES)
def test_mma(shape: str, result: str, a_kind: str, b_kind: str, suffix: str) -> None:
    m, k = int(shape[1 : shape.index("n")]), int(shape.rpartition("k")[2])
    a, b = elements(a_kind, (m, k), 1), elements(b_kind, (k, 8), 2)
    c = elements(result, (m, 8), 3) if result == "f64" else np.random.default_rng(3).integers(-1000, 1000, (m, 8))
    per = max(32 // SIZES[a_kind], 1)
    halves, columns = m // 8, k // (4 * per)
    lanes_a, lanes_b, lanes_c = [], [], []
    for g, t in LANES:
        steps = [per * t + 4 * per * column + np.arange(per) for column in range(columns)]
        lanes_a.append(words(np.concatenate([a[g + 8 * h, step] for step in steps for h in range(halves)]), a_kind))
        lanes_b.append(words(np.concatenate([b[step, g] for step in steps]), b_kind))
        lanes_c.append([c[g + 8 * h, 2 * t + e] for h in range(halves) for e in range(2)])
    word = np.uint64 if a_kind == "f64" else np.uint32
    fragment_c = np.array(lanes_c, np.float64 if result == "f64" else np.int32)
    opcode = f"mma.sync.aligned.{shape}.row.col.{result}.{a_kind}.{b_kind}.{result}{suffix}"
    found = run(opcode, np.array(lanes_a, word), np.array(lanes_b, word), fragment_c, halves, result)
    if a_kind == "b1":
        pairs = a[:, :, None] & b[None] if "and" in suffix else a[:, :, None] ^ b[None]
        exact = pairs.sum(1) + c
    else:
        exact = a @ b + c
    for lane, (g, t) in enumerate(LANES):
        expected = [exact[g + 8 * h, 2 * t + e] for h in range(halves) for e in range(2)]
        np.testing.assert_allclose(found[lane], expected, rtol=1e-12)


WMMA = [
    # shape, kinds of A and C, layouts, registers of A, B and C
    ("m16n16k16", "f16", "f32", "row", "col", 8, 8, 8),
    ("m32n8k16", "f16", "f32", "col", "row", 8, 8, 8),
    ("m8n32k16", "f16", "f16", "row", "row", 8, 8, 4),
    ("m16n16k16", "bf16", "f32", "row", "col", 4, 4, 8),
    ("m8n32k16", "bf16", "f32", "col", "col", 2, 8, 8),
    ("m32n8k16", "s8", "s32", "row", "col", 4, 1, 8),
    ("m8n8k32", "u4", "s32", "row", "col", 1, 1, 2),
    ("m8n8k128", "b1", "s32", "row", "col", 1, 1, 2),
]


@pytest.mark.parametrize(("shape", "kind", "result", "a_layout", "b_layout", "a_count", "b_count", "c_count"), WMMA)
@pytest.mark.parametrize("space", ["", ".shared"])
def test_wmma(
    shape: str,
    kind: str,
    result: str,
    a_layout: str,
    b_layout: str,
    a_count: int,
    b_count: int,
    c_count: int,
    space: str,
) -> None:
    m, n, k = (int(part) for part in shape[1:].replace("n", " ").replace("k", " ").split())
    generator = np.random.default_rng(1)
    if kind in ("f16", "bf16"):
        # Small integers are exact in both.
        a, b = generator.integers(-8, 9, (m, k)), generator.integers(-8, 9, (k, n))
        halves = [
            x.astype(np.float16) if kind == "f16" else (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            for x in (a, b)
        ]
        stored = [halves[0] if a_layout == "row" else halves[0].T, halves[1] if b_layout == "row" else halves[1].T]
    elif kind == "s8":
        a, b = elements("s8", (m, k), 1), elements("s8", (k, n), 2)
        stored = [a.astype(np.int8), b.T.astype(np.int8)]
    else:
        size = SIZES[kind]
        a, b = elements(kind, (m, k), 1), elements(kind, (k, n), 2)
        stored = [
            np.array(
                [
                    [sum(int(v) << size * i for i, v in enumerate(byte)) for byte in row.reshape(-1, 8 // size)]
                    for row in x
                ],
                np.uint8,
            )
            for x in (a, b.T)
        ]
    a_bytes, b_bytes = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in stored)
    memory = np.zeros(4096, np.uint8)
    memory[: len(a_bytes)], memory[2048 : 2048 + len(b_bytes)] = a_bytes, b_bytes
    c_type = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[result]
    c, out = np.full((m, n), 3, c_type), np.zeros((m, n), c_type)
    strides = [k if a_layout == "row" else m, n if b_layout == "row" else k]

    def registers(letter: str, count: int) -> str:
        return "{" + ", ".join(f"%{letter}{index}" for index in range(count)) + "}"

    sa, sb, sc, sd = (
        registers(letter, count) for letter, count in zip("xyzw", (a_count, b_count, c_count, c_count), strict=True)
    )
    kinds = f"{result}.{result}" if kind == "f16" else f"{result}.{kind}.{kind}.{result}"
    operation = ".xor.popc" if kind == "b1" else ""
    pointer = "%rd5" if space else "%rd1"
    body = f"""
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd1, [memory]; ld.param.u64 %rd2, [c]; ld.param.u64 %rd3, [out];
    mov.u64 %rd5, smem;
    mad.wide.u32 %rd6, %r1, 128, %rd1;
    mad.wide.u32 %rd7, %r1, 128, %rd5;
    mov.u32 %r2, 0;
copy:
    ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd6];
    st.shared.v4.b32 [%rd7], {{%r4, %r5, %r6, %r7}};
    add.s64 %rd6, %rd6, 16; add.s64 %rd7, %rd7, 16; add.u32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, 8;
    @%p1 bra copy;
    bar.sync 0;
    wmma.load.a.sync.aligned.{a_layout}.{shape}{space}.{kind} {sa}, [{pointer}], {strides[0]};
    wmma.load.b.sync.aligned.{b_layout}.{shape}{space}.{kind} {sb}, [{pointer}+2048], {strides[1]};
    wmma.load.c.sync.aligned.row.{shape}.global.{result} {sc}, [%rd2];
    wmma.mma{operation}.sync.aligned.{a_layout}.{b_layout}.{shape}.{kinds} {sd}, {sa}, {sb}, {sc};
    wmma.store.d.sync.aligned.row.{shape}.global.{result} [%rd3], {sd}, {n};
    """
    source = kernel(
        body,
        ".param .u64 memory, .param .u64 c, .param .u64 out",
        registers=".reg .b32 %x<8>, %y<8>, %z<8>, %w<8>;",
        variables=".shared .align 16 .b8 smem[4096];",
    )
    launch(source, "k", 1, 32, [memory, c, out])
    exact = (a[:, :, None] ^ b[None]).sum(1) + 3 if kind == "b1" else a @ b + 3
    np.testing.assert_array_equal(out, exact.astype(c_type))
