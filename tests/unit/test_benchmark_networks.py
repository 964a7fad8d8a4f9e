"""benchmarks/networks.py: the layer tables are the networks that they say, and their times add up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import networks

from tilec.target.table import load_target

AMPERE = load_target("sm_80")


def multiplications(row: dict[str, Any]) -> int:
    """Multiply-adds of an operator, from its sample's constants."""
    if row["sample"] == "conv2d":
        side = row["H"] // row.get("stride", 1)
        return int(row["batch"] * side * side * row["C"] * row["F"] * 9)
    return int(row.get("batch", 1) * row["M"] * row["N"] * row["K"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # As published for one image of 224 × 224, times 64; the first layers' channels are padded.
        ("resnet18", 64 * 1.814e9),
        ("resnet50", 64 * 4.09e9),
        ("vgg16", 64 * 15.47e9),
        # 12 h² of a layer's weights for each of its tokens, and two products of all pairs of them.
        ("bert", 12 * (12 * 768**2 * 512 + 2 * 512**2 * 768)),
        ("bert_large", 24 * (12 * 1024**2 * 512 + 2 * 512**2 * 1024)),
        ("gpt2", 12 * (12 * 768**2 * 1024 + 2 * 1024**2 * 768) + 1024 * 768 * 50257),
    ],
)
def test_a_table_has_the_work_of_its_network(name: str, expected: float) -> None:
    table = networks.tables()[name]
    counted = sum(row["times"] * multiplications(row) for what, row in table.items() if what != "memory")
    assert counted == pytest.approx(expected, rel=0.02)


def test_every_table_has_the_papers_number() -> None:
    assert networks.tables().keys() == networks.PAPER.keys()


def test_times_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def operator(row: tuple[tuple[str, Any], ...], target: object) -> dict[str, int]:
        size = dict(row)["M"]
        return {way: size // (at + 1) for at, way in enumerate(networks.WAYS)}

    monkeypatch.setattr(networks, "_operator", operator)
    table = {
        "one": {"times": 2, "sample": "matmul", "M": 600},
        "other": {"times": 3, "sample": "matmul", "M": 60},
        "memory": {"softmax": {"times": 5, "bytes": 2_000_000}},
    }
    network = networks.summed("bert", table, AMPERE)
    assert network.cycles == {way: 1380 // (at + 1) for at, way in enumerate(networks.WAYS)}
    assert network.memory == 10_000_000 // AMPERE.limit("dram_bytes_per_cycle")
    assert network.speedup("double") == (1380 + network.memory) / (690 + network.memory)
    head, row, note = networks.shown([network], AMPERE)
    assert "paper" in head and row.startswith("bert ") and "nothing measured" in note
