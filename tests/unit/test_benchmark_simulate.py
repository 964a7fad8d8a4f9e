"""`benchmarks/simulate_error.py`: simulated times beside measured ones."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import simulate_error


def line(name: str, kernel: str, measured: float, simulated: float) -> dict[str, Any]:
    found = {"name": name, "kernel": kernel, "held_out": simulate_error.is_held_out(kernel)}
    return {**found, "measured": measured, "simulated": simulated, "busy": {"tensor cores": 0.9}}


def test_errors_are_counted_by_class() -> None:
    left_out = {"name": "b", "kernel": "samples/softmax.tl", "held_out": True, "left_out": "it takes too long"}
    lines = [
        line("a", "samples/gemm/batched.tl", 100.0, 110.0), line("c", "samples/gemm.tl", 100.0, 80.0), left_out,
        line("d", "samples/attention/gqa.tl", 10.0, 10.0),
    ]  # fmt: skip
    told = list(simulate_error.list_errors(lines))
    assert [row.split()[0] for row in told[1:4]] == ["c", "a", "d"]
    assert "products: 2 workloads, mean error 15.0%, of which too high -5.0%" in told
    assert "attention: 1 workloads, mean error 0.0%, of which too high +0.0%" in told
    assert "all: 3 workloads, mean error 10.0%, of which too high -3.3%" in told
    assert told[-1] == "left out: b: it takes too long"


def test_what_is_there_is_not_simulated_again(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert simulate_error.read_lines(out) == {}
    out.write_text("".join(json.dumps({"name": name}) + "\n" for name in "ab"))
    assert list(simulate_error.read_lines(out)) == ["a", "b"]


def test_numbers_that_decide_what_is_loaded_are_made() -> None:
    case = {"kernel": "samples/elementwise/embedding.tl", "constants": {"tokens": 64, "vocabulary": 1000}}
    tensors = [
        SimpleNamespace(name="ids", role="in", dtype="int32", shape=(64,)),
        SimpleNamespace(name="table", role="in", dtype="float16", shape=(1000, 8)),
    ]
    built: Any = SimpleNamespace(manifest=SimpleNamespace(tensors=tensors))
    made = simulate_error.make_contents(case, built)
    assert list(made) == ["ids"]
    ids = made["ids"]
    assert isinstance(ids, tuple) and len(ids) == 64 and len({*ids}) > 50 and 0 <= min(ids) <= max(ids) < 1000
