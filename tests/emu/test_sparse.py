"""Sparse, block-scaled and sm_70 products, and matrices of bytes, against the figures of the manual as loops."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import kernel
from test_mma_shapes import LANES

from tilec.emu import launch
from tilec.emu.fault import Fault
from tilec.emu.numbers import Array

BITS = {"f16": 16, "tf32": 32, "s8": 8, "s4": 4, "e4m3": 8, "e2m1": 4, "byte e2m1": 8, "byte e3m2": 8}


def small_value(code: int, exponent_bits: int, mantissa_bits: int, bias: int) -> float:
    """A small float by its definition: sign, exponent, mantissa."""
    mantissa = code & ((1 << mantissa_bits) - 1)
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) & 1 else 1.0
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)


FLOATS = {"e4m3": (4, 3, 7), "e2m1": (2, 1, 1), "e3m2": (3, 2, 3)}


def elements(kind: str, shape: tuple[int, int], seed: int) -> tuple[Array, Array]:
    """Codes, and the numbers that they stand for."""
    generator = np.random.default_rng(seed)
    if kind in ("f16", "tf32"):
        values = generator.integers(-9, 9, shape)
        word = np.uint16 if kind == "f16" else np.uint32
        return values.astype(np.float16 if kind == "f16" else np.float32).view(word).astype(np.uint64), values
    if kind[0] == "s":
        size = BITS[kind]
        values = generator.integers(-(1 << (size - 1)), 1 << (size - 1), shape)
        return (values & ((1 << size) - 1)).astype(np.uint64), values
    exponent, mantissa, bias = FLOATS[kind.removeprefix("byte ")]
    codes = generator.integers(0, 1 << (1 + exponent + mantissa), shape)
    # Neither of the NaNs of e4m3.
    codes = np.where(codes & 0x7F == 0x7F, 0, codes) if kind == "e4m3" else codes
    values = np.vectorize(lambda code: small_value(int(code), exponent, mantissa, bias))(codes)
    # In a byte, four bits lie in the middle of it.
    return (codes << 2 if kind == "byte e2m1" else codes).astype(np.uint64), values


def words(codes: Array, kind: str) -> list[int]:
    size = BITS[kind]
    packed = sum(int(code) << size * index for index, code in enumerate(codes))
    return [packed >> 32 * index & 0xFFFFFFFF for index in range(len(codes) * size // 32)]


def warp(opcode: str, parts: list[Array], result: type, count: int, tail: str, target: str = "sm_90a") -> Array:
    """Run `opcode d, a, b, c tail` in one warp. Parts are registers [lane, n]; the last is C, what follows it `%m`."""
    names = [[f"%{letter}{i}" for i in range(array.shape[1])] for letter, array in zip("abc", parts[:3], strict=True)]
    loads = []
    for index, array in enumerate(parts):
        letter = "abcmn"[index]
        loads.append(f"ld.param.u64 %rd1, [p{index}]; mad.wide.u32 %rd1, %r1, {4 * array.shape[1]}, %rd1;")
        loads += [f"ld.global.b32 %{letter}{i}, [%rd1+{4 * i}];" for i in range(array.shape[1])]
    d = [f"%d{i}" for i in range(count)]
    vectors = ["{" + ", ".join(group) + "}" for group in (d, *names)]
    body = ["mov.u32 %r1, %tid.x;", *loads, f"{opcode} {', '.join(vectors)}{tail};"]
    body.append(f"ld.param.u64 %rd1, [p{len(parts)}]; mad.wide.u32 %rd1, %r1, {4 * count}, %rd1;")
    body += [f"st.global.b32 [%rd1+{4 * i}], {name};" for i, name in enumerate(d)]
    registers = ".reg .b32 %a<8>, %b<8>, %c<8>, %d<8>, %m<2>, %n<2>;"
    params = ", ".join(f".param .u64 p{index}" for index in range(len(parts) + 1))
    source = kernel("\n".join(body), params, registers=registers, target=target, version="8.8")
    out = np.zeros((32, count), result)
    launch(source, "k", 1, 32, [*parts, out])
    return out


def fragments_ab(a: Array, b: Array, kind: str, b_kind: str = "") -> tuple[Array, Array]:
    """Registers of A [16, stored] and B [k, 8]; a register takes consecutive elements along k."""
    per = 32 // BITS[kind]
    of_a, of_b = [], []
    for g, t in LANES:
        steps_a, steps_b = (per * t + np.arange(0, k, 4 * per)[:, None] + np.arange(per) for k in (a.shape[1], len(b)))
        of_a.append([word for s in steps_a for half in range(2) for word in words(a[g + 8 * half, s], kind)])
        of_b.append([word for s in steps_b for word in words(b[s, g], b_kind or kind)])
    return np.array(of_a, np.uint32), np.array(of_b, np.uint32)


def rows_of_c(product: Array, c: int) -> Array:
    return np.array([[product[g + 8 * h, 2 * t + e] + c for h in range(2) for e in range(2)] for g, t in LANES])


SPARSE = [
    # opcode's shape, types of D, A, B, C, the kind, k, and the selectors
    ("m16n8k16", "f32.f16.f16.f32", "f16", 16, (0, 1, 2, 3)),
    ("m16n8k32", "f32.f16.f16.f32", "f16", 32, (0, 1)),
    ("m16n8k8", "f32.tf32.tf32.f32", "tf32", 8, (0, 3)),
    ("m16n8k16", "f32.tf32.tf32.f32", "tf32", 16, (0, 1)),
    ("m16n8k32", "s32.s8.s8.s32", "s8", 32, (0, 1)),
    ("m16n8k64", "s32.s8.s8.s32", "s8", 64, (0,)),
    ("m16n8k64", "s32.s4.s4.s32", "s4", 64, (0, 1)),
    ("m16n8k128", "s32.s4.s4.s32", "s4", 128, (0,)),
    ("m16n8k64", "f32.e4m3.e4m3.f32", "e4m3", 64, (0,)),
]


def thinned(values: Array, kind: str, k: int, seed: int) -> tuple[Array, list[int]]:
    """The dense rows that compressed ones [rows, k/2] stand for, and the metadata of each row as a number."""
    generator = np.random.default_rng(seed)
    # The metadata has four bits to a chunk, lowest first.
    chunk, together, options = {"tf32": (2, 1, 1), "s4": (8, 2, 2)}.get(kind, (4, 1, 2))
    dense, metadata = np.zeros((len(values), k), values.dtype), [0] * len(values)
    for row in range(len(values)):
        for index in range(k // chunk):
            places = sorted(generator.choice(chunk // together, options, replace=False).tolist())
            field = (0b1110 if places[0] else 0b0100) if kind == "tf32" else places[0] | places[1] << 2
            metadata[row] |= field << 4 * index
            for position, place in enumerate(places):
                at, source = index * chunk + place * together, (index * options + position) * together
                dense[row, at : at + together] = values[row, source : source + together]
    return dense, metadata


def held_by_lanes(metadata: list[int], kind: str, k: int, selector: int) -> Array:
    """The registers of a warp with the metadata of its 16 rows; lanes that are not selected hold rubbish."""
    held = np.random.default_rng(selector).integers(0, 2**32, 32, np.uint32)
    bits = 4 * k // {"tf32": 2, "s4": 8}.get(kind, 4)
    for g in range(8):
        top, bottom = metadata[g], metadata[g + 8]
        lane = 4 * g
        if bits == 16:
            held[lane + selector] = top | bottom << 16
        elif bits == 32 and kind in ("f16", "tf32"):
            held[lane + 2 * selector] = (top & 0xFFFF) | (bottom & 0xFFFF) << 16
            held[lane + 2 * selector + 1] = top >> 16 | bottom >> 16 << 16
        elif bits == 32:
            held[lane + 2 * selector : lane + 2 * selector + 2] = top, bottom
        else:
            held[lane : lane + 4] = top & 0xFFFFFFFF, bottom & 0xFFFFFFFF, top >> 32, bottom >> 32
    return held


@pytest.mark.parametrize(("shape", "types", "kind", "k", "selectors"), SPARSE)
def test_sparse_products(shape: str, types: str, kind: str, k: int, selectors: tuple[int, ...]) -> None:
    codes, values = elements(kind, (16, k // 2), 1)
    b_codes, b_values = elements(kind, (k, 8), 2)
    dense, metadata = thinned(values, kind, k, 5)
    for selector in selectors:
        held = held_by_lanes(metadata, kind, k, selector)
        a, b = fragments_ab(codes, b_codes, kind)
        result = np.int32 if types[0] == "s" else np.float32
        c = np.full((32, 4), 3, result)
        opcode = f"mma.sp::ordered_metadata.sync.aligned.{shape}.row.col.{types}"
        found = warp(opcode, [a, b, c, held[:, None]], result, 4, f", %m0, {selector}")
        np.testing.assert_allclose(found, rows_of_c(dense @ b_values, 3), rtol=1e-6, atol=1e-4)


def test_metadata_that_names_a_place_twice() -> None:
    words_of = [np.zeros((32, count), np.uint32) for count in (2, 2, 4, 1)]
    with pytest.raises(Fault, match="two elements the same position"):
        warp("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", words_of, np.float32, 4, ", %m0, 0")


@pytest.mark.parametrize(("a_kind", "b_kind"), [("e4m3", "e2m1"), ("e3m2", "e4m3"), ("e2m1", "e3m2")])
@pytest.mark.parametrize("is_scaled", [False, True])
def test_small_floats_in_bytes(a_kind: str, b_kind: str, is_scaled: bool) -> None:
    containers = [kind if kind == "e4m3" else f"byte {kind}" for kind in (a_kind, b_kind)]
    (a_codes, a), (b_codes, b) = elements(containers[0], (16, 32), 1), elements(containers[1], (32, 8), 2)
    registers = [*fragments_ab(a_codes, b_codes, containers[0], containers[1]), np.full((32, 4), 2, np.float32)]
    kind, tail, expected = "kind::f8f6f4", "", a @ b
    suffix = ""
    if is_scaled:
        generator = np.random.default_rng(3)
        factors = [generator.integers(0, 256, (32, 4)).astype(np.uint8) for _ in range(2)]
        exponents = [generator.integers(120, 134, count) for count in (16, 8)]
        for g in range(8):
            # Byte 2 of lanes 2 and 3 of a quad for A, byte 1 of lane 3 for B.
            factors[0][4 * g + 2, 2], factors[0][4 * g + 3, 2] = exponents[0][g], exponents[0][g + 8]
            factors[1][4 * g + 3, 1] = exponents[1][g]
        registers += [factor.view(np.uint32) for factor in factors]
        kind, suffix, tail = "kind::mxf8f6f4.block_scale.scale_vec::1X", ".ue8m0", ", %m0, {2, 1}, %n0, {1, 3}"
        expected = a * 2.0 ** (exponents[0][:, None] - 127) @ (b * 2.0 ** (exponents[1] - 127))
    opcode = f"mma.sync.aligned.m16n8k32.row.col.{kind}.f32.{a_kind}.{b_kind}.f32{suffix}"
    found = warp(opcode, registers, np.float32, 4, tail, "sm_120a")
    np.testing.assert_allclose(found, rows_of_c(expected, 2), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("kind", "vector", "element"), [("mxf4", 2, "ue8m0"), ("mxf4nvf4", 4, "ue4m3")])
def test_packed_fp4_with_scales(kind: str, vector: int, element: str) -> None:
    (a_codes, a), (b_codes, b) = elements("e2m1", (16, 64), 1), elements("e2m1", (64, 8), 2)
    generator = np.random.default_rng(3)
    low, high = (120, 134) if element == "ue8m0" else (0, 0x7F)
    codes = [generator.integers(low, high, (count, vector)) for count in (16, 8)]

    def value(code: int) -> float:
        return 2.0 ** (code - 127) if element == "ue8m0" else small_value(code, 4, 3, 7)

    factors = [np.vectorize(value)(part).repeat(64 // vector, axis=1) for part in codes]
    held = [generator.integers(0, 256, (32, 4)).astype(np.uint8) for _ in range(2)]
    first = 2 if vector == 2 else 0
    for g in range(8):
        held[0][4 * g, first : first + vector], held[0][4 * g + 1, first : first + vector] = (
            codes[0][g],
            codes[0][g + 8],
        )
        held[1][4 * g + 2, first : first + vector] = codes[1][g]
    parts = [
        *fragments_ab(a_codes, b_codes, "e2m1"),
        np.full((32, 4), 2, np.float32),
        *(h.view(np.uint32) for h in held),
    ]
    opcode = (
        f"mma.sync.aligned.m16n8k64.row.col.kind::{kind}.block_scale.scale_vec::{vector}X.f32.e2m1.e2m1.f32.{element}"
    )
    found = warp(opcode, parts, np.float32, 4, f", %m0, {{{first}, 0}}, %n0, {{{first}, 2}}", "sm_120a")
    np.testing.assert_allclose(found, rows_of_c(a * factors[0] @ (b * factors[1].T), 2), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("result", ["f16", "f32"])
@pytest.mark.parametrize("a_layout", ["row", "col"])
@pytest.mark.parametrize("b_layout", ["row", "col"])
def test_products_by_pairs_of_quads(result: str, a_layout: str, b_layout: str) -> None:
    generator = np.random.default_rng(1)
    a, b = generator.integers(-8, 9, (4, 8, 4)), generator.integers(-8, 9, (4, 4, 8))
    of_a, of_b = [], []
    for lane in range(32):
        # Product p belongs to the lanes 4p to 4p + 3 and those 16 further on.
        p, thread = lane % 16 // 4, lane % 4 + 4 * (lane >= 16)
        column, four = thread % 4, 4 * (thread // 4)
        of_a.append(a[p, thread] if a_layout == "row" else a[p, four : four + 4, column])
        of_b.append(b[p, :, thread] if b_layout == "col" else b[p, column, four : four + 4])
    parts = [np.array(part, np.float16).view(np.uint32) for part in (of_a, of_b)]
    count = 4 if result == "f16" else 8
    c = np.full((32, 8), 3, np.float16 if result == "f16" else np.float32)
    opcode = f"mma.sync.aligned.m8n8k4.{a_layout}.{b_layout}.{result}.f16.f16.{result}"
    found = warp(opcode, [*parts, c.view(np.uint32)], np.uint32, count, "").view(c.dtype)
    exact = a @ b + 3
    for lane in range(32):
        p, high = lane % 16 // 4, lane >= 16
        for i in range(8):
            if result == "f16":
                row, column = lane % 4 + 4 * high, i
            else:
                row, column = (lane & 1) + (i & 2) + 4 * high, (i & 4) + (lane & 2) + (i & 1)
            assert found[lane, i] == exact[p, row, column]


# -- matrices of bytes -------------------------------------------------------------------------------------------------

SMEM = ".shared .align 16 .b8 smem[1024];"
FILL = """
    mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [source]; ld.param.u64 %rd2, [out]; mov.u32 %r2, smem;
    mad.wide.u32 %rd3, %r1, 16, %rd1; mad.lo.u32 %r3, %r1, 16, %r2;
    ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd3]; st.shared.v4.b32 [%r3], {%r4, %r5, %r6, %r7};
    bar.sync 0;
"""


def load_matrices(opcode: str, memory: Array, count: int) -> Array:
    registers = ", ".join(f"%r{10 + i}" for i in range(count))
    stores = "".join(f"st.global.b32 [%rd4+{4 * i}], %r{10 + i};" for i in range(count))
    body = f"{FILL} {opcode} {{{registers}}}, [%r3]; mad.wide.u32 %rd4, %r1, {4 * count}, %rd2; {stores}"
    out = np.zeros((32, count), np.uint32)
    source = kernel(body, ".param .u64 source, .param .u64 out", variables=SMEM, target="sm_100a", version="8.8")
    launch(source, "k", 1, 32, [memory, out])
    return out.view(np.uint8).reshape(32, count, 4)


def packed(values: Array, bits: int) -> Array:
    """Rows of 16 elements as rows of 16 bytes, with padding behind the packed elements."""
    rows = [sum(int(v) << bits * i for i, v in enumerate(row)).to_bytes(16, "little") for row in values]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 16).copy()


@pytest.mark.parametrize(("form", "bits"), [("b8", 8), ("b8x16.b6x16_p32", 6), ("b8x16.b4x16_p64", 4)])
def test_tall_matrices(form: str, bits: int) -> None:
    values = np.random.default_rng(1).integers(0, 1 << bits, (32, 16)).astype(np.uint8)
    found = load_matrices(f"ldmatrix.sync.aligned.m16n16.x2.trans.shared.{form}", packed(values, bits), 4)
    for lane, (g, t) in enumerate(LANES):
        for matrix in range(2):
            for half in range(2):
                first = 16 * matrix + 4 * t + 2 * half
                expected = [values[first + low, g + 8 * right] for right in range(2) for low in range(2)]
                assert found[lane, 2 * matrix + half].tolist() == expected


@pytest.mark.parametrize(("form", "bits"), [("b6x16_p32", 6), ("b4x16_p64", 4)])
def test_rows_of_packed_elements(form: str, bits: int) -> None:
    values = np.random.default_rng(1).integers(0, 1 << bits, (32, 16)).astype(np.uint8)
    found = load_matrices(f"ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.{form}", packed(values, bits), 4)
    for lane, (g, t) in enumerate(LANES):
        for matrix in range(4):
            assert found[lane, matrix].tolist() == values[8 * matrix + g, 4 * t : 4 * t + 4].tolist()


def test_stores_of_bytes() -> None:
    held = np.random.default_rng(1).integers(0, 256, (32, 16)).astype(np.uint8)
    out = np.zeros((16, 16), np.uint8)
    body = f"""
    {FILL.replace("st.shared.v4", "mov.b32 %r8, %r4; //")}
    stmatrix.sync.aligned.m16n8.x2.trans.shared.b8 [%r3], {{%r4, %r5}};
    bar.sync 0;
    setp.lt.u32 %p1, %r1, 16;
    mad.wide.u32 %rd4, %r1, 16, %rd2;
    @%p1 ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r3];
    @%p1 st.global.v4.b32 [%rd4], {{%r4, %r5, %r6, %r7}};
    """
    source = kernel(body, ".param .u64 source, .param .u64 out", variables=SMEM, target="sm_100a", version="8.8")
    launch(source, "k", 1, 32, [held, out])
    for lane, (g, t) in enumerate(LANES):
        for byte in range(8):
            matrix, low, right = byte // 4, byte % 2, byte // 2 % 2
            assert out[8 * matrix + 2 * t + low, g + 8 * right] == held[lane, byte]
