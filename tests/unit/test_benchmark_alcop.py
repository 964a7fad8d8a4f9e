"""benchmarks/alcop.py: each way to pipeline can do what the one before it can, and more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import alcop

from tilec.target.table import load_target

AMPERE = load_target("sm_80")
ROW = {"sample": "matmul", "M": 512, "N": 768, "K": 3072}
TILE = {"block_M": 128, "block_N": 64, "block_K": 64, "threads": 128}


def test_a_shape_is_read_off_its_kernel() -> None:
    one = alcop.shape(ROW, TILE, AMPERE)
    assert (one.ctas, one.threads, one.sums) == (4 * 12, 128, 128 * 64 // 128)
    assert one.tile_bytes == (128 + 64) * 64 * 2
    assert one.l2_bytes == one.ctas * 48 * one.tile_bytes
    assert one.dram_bytes == 2 * (512 * 3072 + 3072 * 768 + 512 * 768)
    shared, registers = one.nest.levels
    assert (shared.trip_count, registers.trip_count) == (48, 4)


def test_more_stages_and_levels_are_never_slower_until_they_do_not_fit() -> None:
    one = alcop.shape(ROW, TILE, AMPERE)
    taken = [alcop.cycles(one, stages, False, AMPERE) for stages in (1, 2, 3)]
    assert None not in taken and taken == sorted(taken, key=lambda cycles: -(cycles or 0))
    assert alcop.cycles(one, 7, False, AMPERE) is None  # 7 × 24 KiB are more than 163 KiB
    carried = alcop.cycles(one, 3, True, AMPERE)
    assert carried is not None and taken[-1] is not None and carried < taken[-1]


def test_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(alcop.SPACE, "matmul", {name: (value,) for name, value in TILE.items()})
    row = alcop.predicted("MM_BERT_FC2", ROW, AMPERE)
    assert list(row.cycles) == list(alcop.WAYS) and row.tile == TILE
    none, double, multi, registers = (row.cycles[way] for way in alcop.WAYS[:4])
    assert none > double >= multi >= registers
    assert row.cycles["solved"] >= registers and row.speedup("none") == 1
    *_, means, best, note = alcop.table([row], AMPERE)
    assert means.startswith("geomean") and best.startswith("max") and "nothing measured" in note
