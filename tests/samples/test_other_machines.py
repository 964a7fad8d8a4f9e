"""Machines that are a file of numbers each: every sample runs on one of them, in turns, and builds as it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from references import SAMPLES, Sample
from test_every_sample import EXPECTED_WARNINGS, OTHER_SIZES, equals_numpy, made, warnings

from tilec.target.table import load_target

ALIKE = {"sm_86": "", "sm_87": "sm_80", "sm_89": "", "sm_103a": "sm_100a", "sm_110a": "sm_100a", "sm_120a": ""}
"""These machines, and which one has room for as large tiles. The others have 99 KiB of shared memory for a block."""

TILES: dict[str, dict[str, Any]] = {
    "attention/causal": {"block_N": 64},
    "attention/mla_decode": {"block_M": 32, "block_N": 32},
    "attention/mla_split": {"block_M": 32, "block_N": 32},
    "attention/varlen": {"block_N": 32},
    "models/kda_chunk_backward": {"chunk": 32},
    "gemm/moe_grouped": {"block_N": 128},
    "gemm/pipeline_objects": {"block_N": 128, "stages": 2},
    "gemm/sparse_2_4": {"block_N": 128},
    "models/lightning_indexer": {"block_M": 128, "threads": 256},
    "rows/softmax_held": {"N": 57344, "held": 10},
    "rows/top_p": {"ends_early": False},
}
"""For which there is room, where those of the file have none: samples/README.md."""


def cases(known: list[Sample]) -> list[Any]:
    found = []
    for number, sample in enumerate(known):
        if able := [m for m in ALIKE if sample.feature is None or load_target(m).has(sample.feature)]:
            target = able[number % len(able)]
            found.append(pytest.param(sample, target, id=f"{target}-{sample.path}"))
    return found


def tiles(path: str, target: str) -> dict[str, Any]:
    if (path, target) == ("attention/window_sink", "sm_110a"):  # of 20 multiprocessors each has more of the blocks
        return {"block_N": 64}
    return OTHER_SIZES.get((path, ALIKE[target]), {}) if ALIKE[target] else TILES.get(path, {})


@pytest.mark.some(8)
@pytest.mark.parametrize(("known", "target"), cases(SAMPLES))
def test_equals_numpy_there(known: Sample, target: str) -> None:
    its = tiles(known.path, target) if known.path == "gemm/pipeline_objects" else {}
    equals_numpy(known, {**known.constants, **its}, target)


@pytest.mark.some(2)
@pytest.mark.parametrize(("known", "target"), cases(SAMPLES[1:]))
def test_builds_there(known: Sample, target: str) -> None:
    """Of the size that it has in its file: nothing in local memory, nothing serialised."""
    built = made(known.path, target, tiles(known.path, target))
    assert warnings(built) == EXPECTED_WARNINGS.get(known.path, [])
    (entry,) = built.entries
    assert (entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes) == (0, 0, 0)


def test_what_is_left_out_asks_for_wgmma() -> None:
    run = {case.values[0].path for case in cases(SAMPLES)}
    assert {sample.path for sample in SAMPLES if sample.feature != "wgmma"} == run
