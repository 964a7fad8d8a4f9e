"""wgmma with a sparse A, of bits, and of every pair of types that may meet."""

from __future__ import annotations

import numpy as np
import pytest
from test_matrix import random_bits, to_f32
from test_sparse import held_by_lanes, thinned
from test_wgmma import SMEM_BYTES, Layout, a_fragment, check, fragment, k_major, mn_major, place, wgmma_source

from tilec.emu import launch
from tilec.emu.numbers import Array

B_AT = 16 * 1024


@pytest.mark.parametrize(
    ("kind", "result", "k", "selectors"),
    [("f16", "f32", 32, (0, 1)), ("tf32", "f32", 16, (1,)), ("s8", "s32", 64, (0,)), ("e4m3", "f32", 64, (0,))],
)
@pytest.mark.parametrize("a_registers", [False, True])
def test_sparse(kind: str, result: str, k: int, selectors: tuple[int, ...], a_registers: bool) -> None:
    n = 16
    a, b = random_bits(kind, (64, k // 2), 1), random_bits(kind, (n, k), 2)
    dense, metadata = thinned(to_f32(a, kind).astype(np.float64), kind, k, 3)
    a_layout, b_layout = k_major(32, 64), k_major(64, n)
    image = np.zeros(SMEM_BYTES, np.uint8)
    place(image, a, a_layout, 0)
    place(image, b, b_layout, B_AT)
    for selector in selectors:
        held = np.concatenate([held_by_lanes(metadata[w : w + 16], kind, k, selector) for w in range(0, 64, 16)])
        d_type = np.int32 if result == "s32" else np.float32
        start = np.random.default_rng(4).integers(-9, 9, (64, n)).astype(d_type)
        d = fragment(start)
        tail = "" if kind == "s8" else ", 1, -1" + (", 0" * (1 if a_registers else 2) if kind == "f16" else "")
        source = wgmma_source(n, k, result, (kind, kind), tail, a_registers=a_registers)
        source = source.replace("wgmma.mma_async.sync", "wgmma.mma_async.sp.sync").replace(
            "%rd2, %p2", f"%rd2, %r20, {selector}, %p2"
        )
        load = "ld.param.u64 %rd8, [meta]; mad.wide.u32 %rd8, %r1, 4, %rd8; ld.global.b32 %r20, [%rd8];\n// begin"
        source = source.replace("// begin", "").replace("wgmma.fence", f"{load}\n wgmma.fence")
        source = source.replace(".param .u32 keep", ".param .u32 keep, .param .u64 meta")
        arguments = [image, a_layout.bits(), b_layout.bits() + (B_AT >> 4), a_fragment(a), d, 1, held]
        launch(source, "k", 1, 128, arguments, dynamic_smem=SMEM_BYTES)
        product = dense @ to_f32(b, kind).astype(np.float64).T
        expected = fragment(start + (product if kind == "s8" else -product))
        np.testing.assert_allclose(d, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("a_registers", [False, True])
def test_bits(a_registers: bool) -> None:
    n, generator = 24, np.random.default_rng(1)
    a, b = (generator.integers(0, 256, (rows, 32)).astype(np.uint8) for rows in (64, n))
    a_layout, b_layout = k_major(0, 64), k_major(128, n)
    image = np.zeros(SMEM_BYTES, np.uint8)
    place(image, a, a_layout, 0)
    place(image, b, b_layout, B_AT)
    start = generator.integers(-100, 100, (64, n)).astype(np.int32)
    d = fragment(start)
    source = wgmma_source(n, 256, "s32", ("b1", "b1.and.popc"), "", a_registers=a_registers)
    arguments = [image, a_layout.bits(), b_layout.bits() + (B_AT >> 4), a_fragment(a), d, 1]
    launch(source, "k", 1, 128, arguments, dynamic_smem=SMEM_BYTES)
    ones = [np.unpackbits(x, axis=1).astype(np.int64) for x in (a, b)]
    np.testing.assert_array_equal(d, fragment((start + ones[0] @ ones[1].T).astype(np.int32)))


PAIRS = [
    *((result, "f16", "f16") for result in ("f16", "f32")),
    ("f32", "bf16", "bf16"),
    ("f32", "tf32", "tf32"),
    *((result, a, b) for result in ("f16", "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *(("s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")),
]


@pytest.mark.parametrize(("result", "a", "b"), PAIRS)
def test_every_pair_of_types(result: str, a: str, b: str) -> None:
    check(40 if result != "s32" else 32, result, (a, b), k_major(64, 64), k_major(0, 40 if result != "s32" else 32))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_transposed_halves(kind: str, swizzle: int) -> None:
    layouts: list[Layout] = [mn_major(swizzle, 64, 2), mn_major(swizzle, 128, 2)]
    check(128, "f32", (kind, kind), *layouts, sign=-1)


@pytest.mark.parametrize("rows", [1, 2, 4, 7])
def test_a_pattern_that_starts_elsewhere(rows: int) -> None:
    """A base offset says that the swizzle's pattern began so many rows of 128 bytes ago."""
    layout = k_major(128, 64)
    shift = 128 * rows

    def moved(matrix: Array, at: int) -> None:
        # The pattern is that of an address without the shift.
        for row in range(matrix.shape[0]):
            for k in range(matrix.shape[1]):
                to = layout.address(at, row, k, 2) + shift
                image[to : to + 2] = matrix[row, k : k + 1].view(np.uint8)

    image = np.zeros(SMEM_BYTES, np.uint8)
    a, b = random_bits("f16", (64, 16), 1), random_bits("f16", (64, 16), 2)
    moved(a, 0)
    moved(b, B_AT)
    d = np.zeros((128, 32), np.float32)
    bits = layout.bits() | rows << 49
    source = wgmma_source(64, 16, "f32", ("f16", "f16"), ", 1, 1, 0, 0")
    arguments = [image, bits + (shift >> 4), bits + (B_AT + shift >> 4), np.zeros((128, 4), np.uint32), d, 0]
    launch(source, "k", 1, 128, arguments, dynamic_smem=SMEM_BYTES)
    product = to_f32(a, "f16") @ to_f32(b, "f16").T
    np.testing.assert_allclose(d, fragment(product), rtol=1e-4, atol=1e-4)
