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


ROWS = {
    "GEMM bf16 4096³": ("bfloat16 4096×4096×4096", "gemm_bf16_4096"),
    "GEMM bf16 8192³": ("bfloat16 8192×8192×8192", "gemm_bf16_8192"),
    "GEMM fp8 8192³": ("float8_e4m3fn 8192×8192×8192", "gemm_fp8_8192"),
    "GEMM bf16 512×3072×768": ("bfloat16 512×3072×768", ""),
    "GEMM bf16 16×8192×8192": ("bfloat16 16×8192×8192", ""),
    "attention fp16, head 128, 16k, full": ("attention 128 full 16384", "attention_b1h16s16384_full"),
    "attention fp16, head 128, 16k, causal": ("attention 128 causal 16384", "attention_b1h16s16384_causal"),
    "attention fp16, head 64, 8k, causal": ("attention 64 causal 8192", ""),
    "attention backward, head 128, 8k, causal": ("attention backward 128 causal 8192", ""),
}
"""Of the table of speeds: the case of `gpu.py`, and TileLang's workload."""


def test_speeds() -> None:
    results = ROOT / "benchmarks" / "results"
    libraries = json.loads((results / "h200-2026-11-27-419b0286" / "libraries.json").read_text())
    cases = {case["name"]: case for case in libraries["cases"]}
    tilelang = json.loads((results / "h200-2026-11-26" / "tilelang.json").read_text())
    timed = {one["name"]: one for one in tilelang["results"]}

    def rate(case: Any, name: str) -> str:
        time = case["milliseconds"].get(name)
        if time is None:
            return "–"
        value = case["work"] / time["median"] / 1e9
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"

    expected = set()
    for label, (name, theirs) in ROWS.items():
        case = cases[name]
        library = "cuBLAS" if "cuBLAS" in case["milliseconds"] else "cuDNN"
        best = timed[tilelang["best"][theirs]["name"]] if theirs else None
        beside = "–" if best is None else f"{best['tflops']:.0f} ({best['library_tflops']:.0f})"
        expected.add((label, *(rate(case, one) for one in ("tilec", "Triton", library)), beside))
    assert rows("On a GPU") == expected
