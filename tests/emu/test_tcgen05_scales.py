"""Block-scaled tcgen05.mma: where scales lie in tensor memory, and what they multiply."""

from __future__ import annotations

import numpy as np
import pytest
from tensor_source import COMMIT, SMEM_BYTES, codes, dump, fill, run, smem_start, values_of
from test_tcgen05_mma import A_AT, B_AT, FINISH, K, Layout, check, expected_lanes, idesc, place, set_up, whole

from tilec.emu import Fault
from tilec.emu.numbers import Array

VECTORS = {"scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4, "block16": 4}
CASES = [
    ("mxf8f6f4", "", "e4m3", "e5m2", "ue8m0"), ("mxf8f6f4", "scale_vec::1X", "e2m1", "e3m2", "ue8m0"),
    ("mxf8f6f4", "block32", "e2m3", "e2m1", "ue8m0"), ("mxf4", "", "e2m1", "e2m1", "ue8m0"),
    ("mxf4", "scale_vec::2X", "e2m1", "e2m1", "ue8m0"), ("mxf4nvf4", "scale_vec::2X", "e2m1", "e2m1", "ue8m0"),
    ("mxf4nvf4", "block16", "e2m1", "e2m1", "ue8m0"), ("mxf4nvf4", "scale_vec::4X", "e2m1", "e2m1", "ue4m3"),
]  # fmt: skip
SFA, SFB, D = 0, 8, 16


def scale_image(scales: Array, place_at: int, generator: np.random.Generator) -> Array:
    """32 lanes by ceil(rows / 32) words: row r lies in lane r % 32 of column r // 32, from byte `place_at` on."""
    rows, vector = scales.shape
    found = generator.integers(1, 100, (32, -(-rows // 32), 4), np.uint8)
    for row in range(rows):
        found[row % 32, row // 32, place_at : place_at + vector] = scales[row]
    return found.view(np.uint32)[..., 0]


def random_scales(generator: np.random.Generator, kind: str, shape: tuple[int, int]) -> Array:
    if kind == "ue8m0":
        return generator.integers(120, 134, shape).astype(np.uint8)
    return generator.integers(1, 0x7F, shape).astype(np.uint8)


@pytest.mark.parametrize(("kind", "word", "a_kind", "b_kind", "scale_kind"), CASES)
@pytest.mark.parametrize("n", [8, 64, 72, 256])
@pytest.mark.parametrize("a_in_tensor_memory", [False, True])
def test_scales(
    kind: str, word: str, a_kind: str, b_kind: str, scale_kind: str, n: int, a_in_tensor_memory: bool
) -> None:
    m, k = 128, K[kind]
    vector = VECTORS.get(word, 1 if kind == "mxf8f6f4" else 2)
    sfa_id, sfb_id = {1: (3, 1), 2: (2, 0), 4: (0, 0)}[vector]
    generator = np.random.default_rng(n)
    a, b = codes(generator, a_kind, (m, k)), codes(generator, b_kind, (n, k))
    sa, sb = random_scales(generator, scale_kind, (m, vector)), random_scales(generator, scale_kind, (n, vector))
    memory = np.zeros(SMEM_BYTES, np.uint8)
    la, lb = Layout("K", 32, m), Layout("K", 32, n)
    is_dense_four = kind != "mxf8f6f4"
    place(memory, a, a_kind, la, A_AT, is_dense_four)
    place(memory, b, b_kind, lb, B_AT, is_dense_four)
    start = smem_start()
    data = generator.integers(0, 2**32, (128, 24), np.uint32)
    wide = -(-n // 32)
    data[:, SFA : SFA + 4] = np.tile(scale_image(sa, sfa_id, generator), (4, 1))
    data[:, SFB : SFB + wide] = np.tile(scale_image(sb, sfb_id, generator), (4, 1))
    if a_in_tensor_memory:
        container = a << 2 if a_kind == "e2m1" and not is_dense_four else a
        if is_dense_four:
            container = (a[:, 0::2] | a[:, 1::2] << 4).astype(np.uint8)
        data[:, 16:24] = np.ascontiguousarray(container).view(np.uint32)
    bits = idesc(kind, m, n, a_kind, b_kind, scale_type=scale_kind == "ue8m0", sfa=sfa_id, sfb=sfb_id)
    body = set_up(la.bits(start + A_AT), lb.bits(start + B_AT), bits, "24")
    words = ".block_scale" + (f".{word}" if word else "")
    source = "[%taddr+16]" if a_in_tensor_memory else "%da"
    issue = (
        f"@%p1 tcgen05.mma.cta_group::1.kind::{kind}{words} [%d0], {source}, %db, %idesc, [%taddr], [%taddr+8], %p2;"
    )
    out = np.zeros((128, n), np.uint32)
    run(whole(fill(0, 24), body, issue, FINISH, dump(24, n)), out, memory, data)
    a_scaled = values_of(a, a_kind) * values_of(sa, scale_kind).repeat(k // vector, axis=1)
    b_scaled = values_of(b, b_kind) * values_of(sb, scale_kind).repeat(k // vector, axis=1)
    check(out, expected_lanes(a_scaled @ b_scaled.T, m, n, False, 0, n), "f32")


@pytest.mark.parametrize("adversary", [None, 1, 2])
def test_scales_copied_from_shared_memory_step_by_step(adversary: int | None) -> None:
    """cp, mma, cp over the same scales, mma: the matrix unit keeps them in order."""
    m = n = 128
    generator = np.random.default_rng(7)
    a, b = codes(generator, "e4m3", (m, 64)), codes(generator, "e4m3", (n, 64))
    memory = np.zeros(SMEM_BYTES, np.uint8)
    la, lb = Layout("K", 32, m), Layout("K", 32, n)
    start, expected = smem_start(), np.zeros((m, n))
    body, sources = "", (48 * 1024, 49 * 1024)
    body += set_up(la.bits(start), lb.bits(start + B_AT), idesc("mxf8f6f4", m, n, "e4m3", "e4m3"), "16")
    for step in range(2):
        part = slice(32 * step, 32 * step + 32)
        place(memory, a[:, part], "e4m3", la, A_AT + 4096 * step)
        place(memory, b[:, part], "e4m3", lb, B_AT + 4096 * step)
        scaled = []
        for position, matrix in enumerate((a, b)):
            scales = random_scales(generator, "ue8m0", (128, 1))
            block = scale_image(scales, 0, generator).view(np.uint8).reshape(512)
            memory[sources[step] + 512 * position :][:512] = block
            scaled.append(values_of(matrix[:, part], "e4m3") * values_of(scales, "ue8m0"))
            bits = (start + sources[step] + 512 * position) >> 4 | 1 << 46 | 8 << 32
            body += f"mov.b64 %dz, {bits};\n"
            body += f"@%p1 tcgen05.cp.cta_group::1.32x128b.warpx4 [%taddr+{8 * position}], %dz;\n"
        expected += scaled[0] @ scaled[1].T
        words = "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32"
        body += f"@%p1 {words} [%d0], %da, %db, %idesc, [%taddr], [%taddr+8], {step};\n"
        body += "add.u64 %da, %da, 256; add.u64 %db, %db, 256;\n"
    out = np.zeros((128, n), np.uint32)
    run(whole(body, FINISH, dump(16, n)), out, memory, adversary=adversary)
    check(out, expected_lanes(expected, m, n, False, 0, n), "f32")


def test_scales_must_be_in_all_four_quarters() -> None:
    body = f"""
    {fill(0, 8).replace("tcgen05.st", "@%p4 tcgen05.st")}
    {
        set_up(
            Layout("K", 32, 128).bits(smem_start()),
            Layout("K", 32, 8).bits(smem_start()),
            idesc("mxf8f6f4", 128, 8, "e4m3", "e4m3"),
            "16",
        )
    }
    @%p1 tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%d0], %da, %db, %idesc, [%taddr], [%taddr+4], %p2;
    {COMMIT}
    """
    with pytest.raises(Fault, match=r"the scale of A of .* reads lane 32") as fault:
        run(whole(body), np.zeros(4, np.uint32), np.zeros(SMEM_BYTES, np.uint8), np.zeros((128, 8), np.uint32))
    assert fault.value.kind == "unwritten-read"


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ("kind::mxf8f6f4.block_scale.scale_vec::2X", "scale_vec::2X"),
        ("kind::mxf4.block_scale.block16", "block16"),
        ("kind::mxf4nvf4.block_scale", "no size of the vector"),
        ("kind::mxf4", "no .block_scale"),
        ("kind::f16.block_scale", "scales"),
    ],
)
def test_wrong_words(instruction: str, message: str) -> None:
    body = f"tcgen05.mma.cta_group::1.{instruction} [%taddr], %da, %db, %idesc, [%taddr], [%taddr+4], %p2;"
    with pytest.raises(Fault, match=message) as fault:
        run(whole(body), np.zeros(4, np.uint32), np.zeros(SMEM_BYTES, np.uint8))
    assert fault.value.kind == "unsupported"
