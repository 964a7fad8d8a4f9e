"""What pipelining is predicted to be worth for whole networks: the sum of their operators' times, each way.

    python benchmarks/networks.py [--only PATTERN] [--target NAME] [--json FILE]

Each network is a table of networks/: its products and convolutions, which `alcop.py` predicts each way with the best of
a few tiles; and what is bound by device memory, which takes its bytes over the target's bandwidth, pipelined or not.
Operators run one after the other, and launches cost nothing. Nothing here is measured.
"""

from __future__ import annotations

import fnmatch
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from alcop import WAYS, arguments, predicted, write

from tilec.target.table import Target, load_target

FOLDER = Path(__file__).parent / "networks"

PAPER = {"bert": 1.15, "bert_large": 1.18, "gpt2": 1.15, "resnet18": 1.02, "resnet50": 1.06, "vgg16": 1.10}
"""Speed-ups over TVM without pipelining, end to end, on an A100 (seed 004: the paper's own slides)."""


@dataclass(frozen=True)
class Network:
    """Predicted cycles of all products and convolutions, each way, and of what is bound by memory."""

    name: str
    cycles: dict[str, int]
    memory: int

    def total(self, way: str) -> int:
        return self.cycles[way] + self.memory

    def speedup(self, way: str) -> float:
        return self.total("none") / self.total(way)


def summed(name: str, table: Mapping[str, Any], target: Target) -> Network:
    operators = {what: dict(row) for what, row in table.items() if what != "memory"}
    cycles = dict.fromkeys(WAYS, 0)
    for row in operators.values():
        times = row.pop("times")
        for way, taken in _operator(tuple(row.items()), target).items():
            cycles[way] += times * taken
    moved = sum(row["times"] * row["bytes"] for row in table["memory"].values())
    return Network(name, cycles, moved // target.limit("dram_bytes_per_cycle"))


@cache
def _operator(row: tuple[tuple[str, Any], ...], target: Target) -> dict[str, int]:
    """Networks have some in common."""
    return predicted("", dict(row), target).cycles


def tables(pattern: str = "*") -> dict[str, dict[str, Any]]:
    found = (path for path in sorted(FOLDER.glob("*.toml")) if fnmatch.fnmatch(path.stem, pattern))
    return {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in found}


def shown(networks: Sequence[Network], target: Target) -> list[str]:
    ways = " ".join(f"{way:>7}" for way in ("double", "multi", "+ regs", "solved", "paper"))
    lines = [f"{'network':12} {'none, us':>10} {'memory':>7} {ways}"]
    for network in networks:
        micro = network.total("none") / target.limit("clock_mhz")
        ratios = " ".join(f"{network.speedup(way):6.2f}x" for way in WAYS[1:])
        share = network.memory / network.total("none")
        lines.append(f"{network.name:12} {micro:10,.1f} {share:7.1%} {ratios} {PAPER[network.name]:6.2f}x")
    return [*lines, "all predicted by the model, nothing measured, but for the paper's, on an A100"]


def main() -> None:
    given = arguments(__doc__)
    target = load_target(given.target)
    networks = [summed(name, table, target) for name, table in tables(given.only).items()]
    write(given.json, networks)
    print("\n".join(shown(networks, target)))


if __name__ == "__main__":
    main()
