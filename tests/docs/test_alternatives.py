"""Every number that docs/alternatives.md has of a compiler is in a file of benchmarks/results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "alternatives.md").read_text(encoding="utf-8")


def rows(heading: str) -> set[tuple[str, ...]]:
    table = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    return {tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines}


def results(name: str) -> Any:
    assert f"(../benchmarks/results/{name})" in PAGE
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))


def test_times_to_compile() -> None:
    runs = results("2026-11-21.json")["results"]
    median = {(f"{r['compiler']} {r['version']}", r["state"]): f"{r['median']:.2f}" for r in runs}
    compilers = {name for name, _ in median}
    assert rows("Time to compile") == {(name, median[name, "cold"], median[name, "warm"]) for name in compilers}


def test_machine_code() -> None:
    counted = results("static-2026-11-22.json")["rows"]
    assert rows("Machine code, counted") == {
        (
            f"{r['compiler']} {r['version']}",
            f"128×{r['width']}×64",
            str(r["registers"]),
            str(r["spills"]),
            f"{r['loop']:.2f}",
            str(r["code"]),
        )
        for r in counted
    }


def test_every_source_is_used_and_every_use_has_a_source() -> None:
    text, sources = PAGE.split("## Sources\n")
    used = {int(number) for number in re.findall(r"\[(\d)\](?!\()", text)}
    assert used == {int(number) for number in re.findall(r"^(\d)\. ", sources, re.MULTILINE)}


def test_no_speed_is_claimed() -> None:
    assert re.findall(r"TFLOP|GB/s|times (?:as fast|faster)|[\d.]+x", PAGE) == []
