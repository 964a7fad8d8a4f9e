"""Whole kernels, written by hand as the compiler would write them, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_source import gemm_sm80, gemm_sm90

from tilec.emu import TensorMap, launch
from tilec.emu.numbers import bf16_to_f32, f32_to_bf16


@pytest.mark.parametrize(("k_tiles", "stages"), [(1, 3), (2, 3), (5, 3), (4, 2)])
@pytest.mark.parametrize("adversary", [None, 7])
def test_sm80_multistage(k_tiles: int, stages: int, adversary: int | None) -> None:
    generator = np.random.default_rng(k_tiles)
    a = generator.standard_normal((128, 32 * k_tiles)).astype(np.float16)
    b = generator.standard_normal((64, 32 * k_tiles)).astype(np.float16)
    c = np.zeros((128, 64), np.float32)
    arguments = [a, b, c, 32 * k_tiles, 64]
    source = gemm_sm80(k_tiles, stages)
    report = launch(source, "gemm", (1, 2), 128, arguments, dynamic_smem=stages * 10240, adversary=adversary)
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32).T, rtol=1e-5, atol=1e-4)
    assert report.blocks == 2
    assert report.counts["mma.sync"] == 2 * 4 * 16 * k_tiles


@pytest.mark.parametrize(("k_tiles", "stages"), [(1, 2), (2, 2), (5, 3)])
@pytest.mark.parametrize("adversary", [None, 3])
def test_sm90_warp_specialised(k_tiles: int, stages: int, adversary: int | None) -> None:
    generator = np.random.default_rng(k_tiles)
    a = f32_to_bf16(generator.standard_normal((256, 64 * k_tiles)).astype(np.float32))
    b = f32_to_bf16(generator.standard_normal((128, 64 * k_tiles)).astype(np.float32))
    c = np.zeros((256, 128), np.float32)
    maps = [TensorMap(matrix, (128, 64), 128, "bfloat16") for matrix in (a, b)]
    source = gemm_sm90(k_tiles, stages)
    done: list[tuple[int, int]] = []
    launch(
        source,
        "gemm",
        (1, 2),
        384,
        [*maps, c, 128],
        dynamic_smem=stages * 32768,
        adversary=adversary,
        progress=lambda blocks, total: done.append((blocks, total)),
    )
    np.testing.assert_allclose(c, bf16_to_f32(a) @ bf16_to_f32(b).T, rtol=1e-5, atol=1e-3)
    assert done == [(1, 2), (2, 2)]
