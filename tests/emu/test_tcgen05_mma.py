"""tcgen05.mma against numpy: every kind, shape, layout and source, and what must be waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from tensor_source import (
    AFTER,
    COMMIT,
    SMEM_BYTES,
    codes,
    dump,
    epilogue,
    fill,
    prologue,
    run,
    smem_start,
    tensor_kernel,
    values_of,
    wait,
)

from tilec.emu.numbers import Array

ADVERSARIES = [None, 1, 2]
SWIZZLE_CODE = {0: 0, 32: 6, 64: 4, 128: 2, 160: 1}
"""160 stands for 128 bytes in atoms of 32."""
K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
SIZE = {"f16": 2, "bf16": 2, "tf32": 4}
CODE = {
    "f16": {"f16": 0, "bf16": 1}, "tf32": {"tf32": 2}, "i8": {"u8": 0, "s8": 1},
    "f8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}, "mxf4": {"e2m1": 1}, "mxf4nvf4": {"e2m1": 1},
}  # fmt: skip
CODE["mxf8f6f4"] = CODE["f8f6f4"]
RESULT = {"f16": 0, "f32": 1, "s32": 2}
A_AT, B_AT = 0, 32 * 1024


@dataclass(frozen=True)
class Layout:
    """An operand in shared memory, as the canonical layouts of the manual place it; offsets in bytes."""

    major: str
    swizzle: int
    rows: int

    @property
    def leading(self) -> int:
        if self.major == "K":
            return 16 if self.swizzle else self.rows * 16
        if self.swizzle == 160:
            return 2048
        return 32 * self.swizzle if self.swizzle else 128

    @property
    def stride(self) -> int:
        if self.major == "K":
            return 8 * self.swizzle if self.swizzle else 128
        if self.swizzle == 160:
            return 512
        return 8 * self.swizzle if self.swizzle else 512

    def address(self, base: int, row: int, chunk_byte: int, k: int) -> int:
        """K-major: `chunk_byte` runs along k and `k` is not used. MN-major: it runs along the row."""
        width = 128 if self.swizzle == 160 else self.swizzle
        if self.major == "K":
            chunk, byte = divmod(chunk_byte, 16)
            if not self.swizzle:
                offset = row % 8 * 16 + row // 8 * self.stride + chunk * self.leading + byte
            else:
                offset = row % 8 * width + row // 8 * self.stride + chunk_byte
        elif not self.swizzle:
            # Roles swapped: the stride steps over MN, the leading offset over 8 k.
            chunk, byte = divmod(chunk_byte, 16)
            offset = byte + chunk * self.stride + k % 8 * 16 + k // 8 * self.leading
        else:
            group, byte = divmod(chunk_byte, width)
            depth = 4 if self.swizzle == 160 else 8
            offset = byte + group * self.leading + k % depth * width + k // depth * self.stride
        at = base + offset
        if self.swizzle == 160:
            return at ^ (at >> 7 & 3) << 5
        return at ^ (at >> 7 & {0: 0, 32: 1, 64: 3, 128: 7}[self.swizzle]) << 4

    def bits(self, address: int) -> int:
        fields = address >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32 | 1 << 46
        return fields | SWIZZLE_CODE[self.swizzle] << 61


def packed(line: Array, kind: str, is_dense_four: bool) -> bytes:
    """One row (or column) of codes as shared memory holds it."""
    if kind in SIZE or kind in ("s8", "u8", "e4m3", "e5m2"):
        return line.tobytes()
    bits = {"e2m1": 4, "e2m3": 6, "e3m2": 6}[kind]
    number = sum(int(code) << bits * index for index, code in enumerate(line[:16].tolist()))
    if is_dense_four:
        return bytes(int(line[2 * i]) | int(line[2 * i + 1]) << 4 for i in range(len(line) // 2))
    head = number.to_bytes(16, "little")
    return head + (packed(line[16:], kind, False) if len(line) > 16 else b"")


def place(memory: Array, matrix: Array, kind: str, layout: Layout, base: int, is_dense_four: bool = False) -> None:
    lines = matrix if layout.major == "K" else matrix.T
    start = smem_start()
    for index, line in enumerate(lines):
        data = np.frombuffer(packed(line, kind, is_dense_four), np.uint8)
        for byte in range(0, len(data), 16):
            row, k = (index, 0) if layout.major == "K" else (0, index)
            at = layout.address(start + base, row, byte, k) - start
            memory[at : at + 16] = data[byte : byte + 16]


def idesc(kind: str, m: int, n: int, a: str, b: str, result: str = "f32", **more: int) -> int:
    bits = n >> 3 << 17 | CODE[kind][a] << 7 | CODE[kind][b] << 10
    if kind.startswith("mx"):
        bits |= m >> 7 << 27 | more.get("scale_type", 1) << 23
        bits |= more.get("sfa", 0) << 29 | more.get("sfb", 0) << 4
    else:
        bits |= m >> 4 << 24 | RESULT[result] << 4 | more.get("saturate", 0) << 3
    return bits | more.get("na", 0) << 13 | more.get("nb", 0) << 14 | more.get("ta", 0) << 15 | more.get("tb", 0) << 16


def test_check_values_of_the_descriptors() -> None:
    """Against constants that CUTLASS and hand-written kernels use."""
    assert idesc("f16", 128, 256, "bf16", "bf16") == 0x08400490
    assert idesc("f16", 128, 128, "f16", "f16") == 0x08200010
    assert idesc("tf32", 128, 128, "tf32", "tf32") == 0x08200910
    assert Layout("K", 128, 128).bits(0) == 0x4000404000010000


def expected_lanes(
    d: Array, m: int, n: int, is_stationary: bool, base: int, columns: int
) -> dict[tuple[int, int], float]:
    """Lane and column of every element of D: the layouts of one block, element by element."""
    cells = {}
    for row in range(m):
        for column in range(n):
            if m == 128:
                at = row, column
            elif m == 64 and not is_stationary:
                at = row % 16 + 32 * (row // 16) + base, column
            elif m == 64:
                at = row + (64 if column >= n // 2 else 0), column % (n // 2)
            else:
                at = row + 32 * (column // (n // 4)), column % (n // 4)
            cells[at] = d[row, column]
    assert max(column for _, column in cells) < columns
    return cells


def mma(kind: str, *, stationary: bool = False, a: str = "%da", tail: str = "%p2", words: str = "") -> str:
    name = "tcgen05.mma.ws" if stationary else "tcgen05.mma"
    return f"@%p1 {name}.cta_group::1.kind::{kind}{words} [%d0], {a}, %db, %idesc, {tail};"


def set_up(a_bits: int, b_bits: int, instruction: int, d: str = "0", keeps: bool = False) -> str:
    return f"""
    mov.b64 %da, {a_bits};
    mov.b64 %db, {b_bits};
    mov.b32 %idesc, {instruction};
    .reg .b32 %d0;
    add.u32 %d0, %taddr, {d};
    setp.eq.u32 %p2, 0, {0 if keeps else 1};
    """


def dump_halves(first: int, columns: int) -> str:
    """out[thread] = the registers of 16x256b.x2 loads, 16 columns each: of every warp's lanes the lower 16."""
    lines = [f"mul.lo.u32 %r10, %r0, {4 * columns};", "cvt.u64.u32 %rd3, %r10;", "add.u64 %rd3, %rd3, %rd0;"]
    names = ", ".join(f"%v{index}" for index in range(8))
    for part in range(columns // 16):
        lines.append(f"tcgen05.ld.sync.aligned.16x256b.x2.b32 {{{names}}}, [%mine+{first + 16 * part}];")
        lines.append("tcgen05.wait::ld.sync.aligned;")
        lines += [f"st.global.b32 [%rd3+{4 * (8 * part + index)}], %v{index};" for index in range(8)]
    return "\n    ".join(lines)


FINISH = f"{COMMIT} {wait()} {AFTER}"


def whole(*parts: str) -> str:
    return tensor_kernel("\n".join([prologue(), *parts, epilogue()]))


def image() -> Array:
    return np.zeros(SMEM_BYTES, np.uint8)


def bits_as(words: Array, result: str) -> Array:
    if result == "f32":
        return words.view(np.float32)
    return words.view(np.int32) if result == "s32" else (words & 0xFFFF).astype(np.uint16).view(np.float16)


def check(out: Array, cells: dict[tuple[int, int], float], result: str) -> None:
    found = bits_as(out, result)
    lanes = np.array(list(cells))
    wanted = np.array(list(cells.values()))
    if result == "s32":
        np.testing.assert_array_equal(found[lanes[:, 0], lanes[:, 1]], wanted.astype(np.int64).astype(np.int32))
        return
    with np.errstate(over="ignore"):
        wanted = wanted.astype(np.float16 if result == "f16" else np.float32).astype(np.float64)
    finite = np.abs(wanted[np.isfinite(wanted)]).max()
    tolerance = 2e-3 if result == "f16" else 1e-5
    actual = found[lanes[:, 0], lanes[:, 1]].astype(np.float64)
    np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance / 4 * finite)


TYPES = [
    ("f16", "f16", "f16", "f32"), ("f16", "bf16", "bf16", "f32"), ("f16", "f16", "f16", "f16"),
    ("f16", "f16", "bf16", "f32"), ("tf32", "tf32", "tf32", "f32"),
    ("i8", "s8", "s8", "s32"), ("i8", "u8", "s8", "s32"),
    ("f8f6f4", "e4m3", "e5m2", "f32"), ("f8f6f4", "e2m3", "e3m2", "f32"), ("f8f6f4", "e2m1", "e4m3", "f32"),
    ("f8f6f4", "e5m2", "e2m1", "f16"),
]  # fmt: skip
SHAPES = [(128, 8), (128, 64), (128, 256), (64, 8), (64, 48), (64, 128)]


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_kinds_and_shapes(types: tuple[str, str, str, str], m: int, n: int) -> None:
    """Each product is added to what is there, from K-major operands with the widest swizzle that packs them."""
    kind, a_kind, b_kind, result = types
    generator = np.random.default_rng(m + n)
    a, b = codes(generator, a_kind, (m, K[kind])), codes(generator, b_kind, (n, K[kind]))
    memory = image()
    la, lb = Layout("K", 32, m), Layout("K", 32, n)
    place(memory, a, a_kind, la, A_AT)
    place(memory, b, b_kind, lb, B_AT)
    start = smem_start()
    base = 16 if m == 64 and n == 48 else 0
    columns = max(n, 8)
    body = set_up(la.bits(start + A_AT), lb.bits(start + B_AT), idesc(kind, m, n, a_kind, b_kind, result),
                  str(base << 16), keeps=True)  # fmt: skip
    old = codes(generator, "f16", (128, columns)).astype(np.uint32) if result == "f16" else None
    if old is None:
        numbers = generator.integers(-100, 100, (128, columns)).astype(np.int32)
        old = numbers.view(np.uint32) if result == "s32" else numbers.astype(np.float32).view(np.uint32)
    out = np.zeros((128, columns), np.uint32)
    run(whole(fill(0, columns), body, mma(kind), FINISH, dump(0, columns)), out, memory, old)
    product = values_of(a, a_kind) @ values_of(b, b_kind).T
    before = bits_as(old, result).astype(np.float64)
    cells = expected_lanes(product, m, n, False, base, columns)
    check(out, {at: value + before[at] for at, value in cells.items()}, result)
    untouched = np.ones(out.shape, np.bool_)
    untouched[tuple(np.array(list(cells)).T)] = False
    np.testing.assert_array_equal(out[untouched], old[untouched])


MAJORS = [
    ("f16", "f16", "K", "K"), ("f16", "bf16", "MN", "K"), ("f16", "f16", "K", "MN"), ("f16", "f16", "MN", "MN"),
    ("tf32", "tf32", "K", "K"), ("tf32", "tf32", "MN", "MN"), ("f8f6f4", "e4m3", "MN", "MN"), ("i8", "s8", "MN", "K"),
    ("f8f6f4", "e2m1", "MN", "MN"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "element", "a_major", "b_major"), MAJORS)
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("adversary", [None, 3])
def test_majors_and_swizzles(
    kind: str, element: str, a_major: str, b_major: str, swizzle: int, adversary: int | None
) -> None:
    compare_layouts(kind, element, a_major, b_major, swizzle, adversary)


def test_the_swizzle_with_atoms_of_32_bytes() -> None:
    compare_layouts("tf32", "tf32", "MN", "MN", 160, None)


def compare_layouts(kind: str, element: str, a_major: str, b_major: str, swizzle: int, adversary: int | None) -> None:
    m, n = 128, 128
    generator = np.random.default_rng(swizzle)
    a, b = codes(generator, element, (m, K[kind])), codes(generator, element, (n, K[kind]))
    memory = image()
    la, lb = Layout(a_major, swizzle, m), Layout(b_major, swizzle, n)
    place(memory, a, element, la, A_AT)
    place(memory, b, element, lb, B_AT)
    start = smem_start()
    result = "s32" if kind == "i8" else "f32"
    bits = idesc(kind, m, n, element, element, result, ta=a_major == "MN", tb=b_major == "MN")
    body = set_up(la.bits(start + A_AT), lb.bits(start + B_AT), bits)
    out = np.zeros((128, n), np.uint32)
    run(whole(body, mma(kind), FINISH, dump(0, n)), out, memory, adversary=adversary)
    product = values_of(a, element) @ values_of(b, element).T
    check(out, expected_lanes(product, m, n, False, 0, n), result)


@pytest.mark.parametrize("kind", ["f16", "tf32", "i8", "f8f6f4"])
@pytest.mark.parametrize(("m", "n"), [(32, 64), (32, 128), (64, 64), (64, 128), (128, 64)])
@pytest.mark.parametrize("has_mask", [False, True])
def test_weight_stationary(kind: str, m: int, n: int, has_mask: bool) -> None:
    element = {"f16": "f16", "tf32": "tf32", "i8": "s8", "f8f6f4": "e4m3"}[kind]
    generator = np.random.default_rng(m + n)
    a, b = codes(generator, element, (m, K[kind])), codes(generator, element, (n, K[kind]))
    memory = image()
    la, lb = Layout("K", 32, m), Layout("K", 32, n)
    place(memory, a, element, la, A_AT)
    place(memory, b, element, lb, B_AT)
    start = smem_start()
    result = "s32" if kind == "i8" else "f32"
    body = set_up(la.bits(start + A_AT), lb.bits(start + B_AT), idesc(kind, m, n, element, element, result))
    zero = np.zeros(n, np.bool_)
    tail = "%p2"
    if has_mask:
        # The fourth example of the manual: start counts 1, 2, 1, 0; first spans 0, 0, 1, 1; skip 2, use 3.
        mask = 0x01020100 | 0b0011 << 32 | 1 << 39 | 2 << 40 | 3 << 48
        body += f"mov.b64 %dz, {mask};"
        tail = "%p2, %dz"
        runs = ["1110000", "1100001", "0011100", "0001110"]
        width = n // (128 // m)
        for part in range(128 // m):
            zero[part * width : (part + 1) * width] = [runs[part][place % 7] == "1" for place in range(width)]
    width = n // (128 // m)
    out = np.zeros((128, width), np.uint32)
    issue = mma(kind, stationary=True, tail=tail, words=".collector::b1::fill")
    run(whole(body, issue, FINISH, dump(0, width)), out, memory)
    weights = np.where(zero[:, None], 0, values_of(b, element))
    check(out, expected_lanes(values_of(a, element) @ weights.T, m, n, True, 0, n), result)


def test_modifiers_of_the_accumulator() -> None:
    """D = -A·B + D/8, except in the lanes that are masked out."""
    m, n = 128, 16
    generator = np.random.default_rng(1)
    a, b = codes(generator, "f16", (m, 16)), codes(generator, "f16", (n, 16))
    memory = image()
    la, lb = Layout("K", 32, m), Layout("K", 32, n)
    place(memory, a, "f16", la, A_AT)
    place(memory, b, "f16", lb, B_AT)
    start = smem_start()
    body = set_up(la.bits(start), lb.bits(start + B_AT), idesc("f16", m, n, "f16", "f16", na=1), keeps=True)
    masks = [0x80000001, 0, 0xFF, 0xF0F0F0F0]
    body += "".join(f"mov.b32 %m{index}, {word};" for index, word in enumerate(masks))
    old = generator.standard_normal((128, n)).astype(np.float32)
    out = np.zeros((128, n), np.uint32)
    tail = "{%m0, %m1, %m2, %m3}, %p2, 3"
    run(whole(fill(0, n), body, mma("f16", tail=tail), FINISH, dump(0, n)), out, memory, old.view(np.uint32))
    expected = -(values_of(a, "f16") @ values_of(b, "f16").T) + old / 8
    for lane in range(128):
        if masks[lane // 32] >> lane % 32 & 1:
            expected[lane] = old[lane]
    np.testing.assert_allclose(out.view(np.float32), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("saturate", [0, 1])
def test_integers_saturate_or_wrap(saturate: int) -> None:
    memory = image()
    layout = Layout("K", 32, 128)
    place(memory, np.full((128, 32), 255, np.uint8), "u8", layout, A_AT)
    place(memory, np.full((8, 32), 255, np.uint8), "u8", Layout("K", 32, 8), B_AT)
    start = smem_start()
    bits = idesc("i8", 128, 8, "u8", "u8", "s32", saturate=saturate)
    body = set_up(layout.bits(start), Layout("K", 32, 8).bits(start + B_AT), bits, keeps=True)
    old = np.full((128, 8), 2**31 - 10, np.uint32)
    out = np.zeros((128, 8), np.uint32)
    run(whole(fill(0, 8), body, mma("i8"), FINISH, dump(0, 8)), out, memory, old)
    total = 2**31 - 10 + 32 * 255 * 255
    assert (out.view(np.int32) == (2**31 - 1 if saturate else total - 2**32)).all()


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("m", [64, 128])
def test_a_in_tensor_memory(types: tuple[str, str, str, str], m: int) -> None:
    kind, a_kind, b_kind, result = types
    n = 32
    generator = np.random.default_rng(5)
    a, b = codes(generator, a_kind, (m, K[kind])), codes(generator, b_kind, (n, K[kind]))
    memory = image()
    lb = Layout("K", 32, n)
    place(memory, b, b_kind, lb, B_AT)
    # Containers: 4-bit floats in bits 5:2, 6-bit ones in bits 5:0, everything else as it is.
    lines = (a << 2 if a_kind == "e2m1" else a).view(np.uint8).reshape(m, 32)
    data = generator.integers(0, 2**32, (128, 8), np.uint32)
    for row in range(m):
        lane = row if m == 128 else row % 16 + 32 * (row // 16)
        data[lane] = np.frombuffer(lines[row].tobytes(), np.uint32)
    body = set_up(0, lb.bits(smem_start() + B_AT), idesc(kind, m, n, a_kind, b_kind, result), "8")
    out = np.zeros((128, n), np.uint32)
    # Of 64 rows there is nobody's half in the lanes, so those are loaded 16 at a time.
    dumped = dump(8, n) if m == 128 else dump_halves(8, n)
    run(whole(fill(0, 8), body, mma(kind, a="[%taddr]"), FINISH, dumped), out, memory, data)
    product = values_of(a, a_kind) @ values_of(b, b_kind).T
    if m == 128:
        check(out, expected_lanes(product, m, n, False, 0, n), result)
        return
    cells = {}
    for thread in range(128):
        for register in range(n // 2):
            part, inside = divmod(register, 8)
            row = thread % 32 // 4 + (8 if inside % 4 >= 2 else 0) + 16 * (thread // 32)
            column = 16 * part + 8 * (inside // 4) + 2 * (thread % 4) + inside % 2
            cells[thread, register] = product[row, column]
    check(out, cells, result)


@pytest.mark.parametrize(
    ("kind", "element", "specials"),
    [
        ("f16", "f16", [0x7C00, 0xFC00, 0x7E00, 0x8000, 0x0001, 0x7BFF]),
        ("f16", "bf16", [0x7F80, 0xFF80, 0x7FC0, 0x8000, 0x0001, 0x7B7F]),
        ("tf32", "tf32", [0x7F800000, 0xFF800000, 0x7FC00000, 0x80000000, 0x00002000, 0x3F801FFF]),
        ("f8f6f4", "e5m2", [0x7C, 0xFC, 0x7F, 0x80, 0x01, 0x7B]),
        ("f8f6f4", "e4m3", [0x7E, 0xFE, 0x7F, 0x80, 0x01, 0x08]),
    ],
)
def test_specials(kind: str, element: str, specials: list[int]) -> None:
    """Infinities, NaN, zeros with a sign, subnormal numbers, and the low bits of tf32 that do not count."""
    m, n = 128, 16
    generator = np.random.default_rng(9)
    a, b = codes(generator, element, (m, K[kind])), codes(generator, element, (n, K[kind]))
    for matrix in (a, b):
        for row in range(0, len(matrix), 3):
            matrix[row, row % K[kind]] = specials[row // 3 % len(specials)]
    memory = image()
    la, lb = Layout("K", 32, m), Layout("K", 32, n)
    place(memory, a, element, la, A_AT)
    place(memory, b, element, lb, B_AT)
    start = smem_start()
    body = set_up(la.bits(start + A_AT), lb.bits(start + B_AT), idesc(kind, m, n, element, element))
    out = np.zeros((128, n), np.uint32)
    run(whole(body, mma(kind), FINISH, dump(0, n)), out, memory)
    with np.errstate(all="ignore"):
        exact = (values_of(a, element)[:, None, :] * values_of(b, element)[None, :, :]).sum(-1)
        largest = np.abs(exact[np.isfinite(exact)]).max()
        found = out.view(np.float32).astype(np.float64)
        bound = np.abs(exact) > np.finfo(np.float32).max
        np.testing.assert_allclose(found[~bound], exact[~bound], rtol=1e-5, atol=1e-6 * min(largest, 1e30))
    assert not np.isfinite(found[bound]).any()
    assert np.isnan(found).any()
