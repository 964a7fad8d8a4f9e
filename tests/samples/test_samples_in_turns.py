"""Samples on a machine that runs few blocks at once: blocks then take turns, in pairs and in panels where the compiler
chooses so, and the results are those of numpy."""

from __future__ import annotations

from typing import Any

import pytest
from references import SAMPLES, Sample
from test_every_sample import test_equals_numpy as equals_numpy

AT_ONCE = 4
TURNS = [
    "attention/causal", "attention/gqa", "attention/decode_split", "gemm", "gemm_bias_relu", "gemm/batched",
    "gemm/bias_gelu", "gemm/cluster", "gemm/dynamic", "gemm/fp8_block_scaled", "gemm/fp8_row_scaled", "gemm/int8",
    "gemm/split_k", "gemm/stream_k", "gemm/swiglu", "gemm/tf32", "gemm/transposed", "models/conv2d_im2col",
    "models/mamba_chunk_scan",
]  # fmt: skip


def test_the_names_are_of_samples() -> None:
    assert sorted(set(TURNS) - {known.path for known in SAMPLES}) == []


@pytest.mark.some(4)
@pytest.mark.parametrize("known", [k for k in SAMPLES if k.path in TURNS], ids=lambda known: known.path)
def test_turns(known: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(_: object, cluster: int) -> int:
        return AT_ONCE // cluster * cluster

    for name in ("choose_persistent_grid", "choose_tile_scheduler", "choose_rasterisation"):
        monkeypatch.setattr(f"tilec.passes.choices.{name}.blocks_at_once", at_once)
    monkeypatch.setattr("tilec.passes.choices.choose_persistent_grid.estimate_residency", lambda *_: 1)
    monkeypatch.setattr("tilec.passes.choices.choose_rasterisation.fits_in_cache", lambda kernel, target: False)
    constants: dict[str, Any] = dict(known.constants)
    equals_numpy(known, constants, "sm_90a")
