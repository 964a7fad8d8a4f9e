"""benchmarks/model.py: predictions are those of the compiler's report, and scores follow from made-up measurements."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_cases
import model
import published_rows
import pytest

GEMM = {"M": 1024, "N": 1024, "K": 512, "block_M": 128, "block_N": 128}
TARGET = gpu_cases.TARGET


def matmul(**more: Any) -> gpu_cases.Kernel:
    """Each block on its own, whatever the compiler would decide."""
    options = {"cluster": (1, 1, 1), **more.pop("options", {})}
    return gpu_cases.Kernel(gpu_cases.KERNELS / "matmul.tl", {**GEMM, **more}, options)


@pytest.mark.parametrize("machine", [TARGET, "sm_80"])
def test_the_prediction_is_the_one_of_the_report(machine: str) -> None:
    """On sm_80 the schedule of the loop takes longer than its levels."""
    (report,) = model.reports(matmul(), machine, None)
    one = model.predicted([matmul()], machine, None, None, {})
    assert one.microseconds == pytest.approx(report.at(report.predicted))
    assert one.microseconds == max(one.by_levels, one.by_schedule)
    assert one.by_levels != one.by_schedule
    assert model.predicted([matmul()] * 2, machine, None, None, {}).microseconds == pytest.approx(2 * one.microseconds)


def test_a_gpu_has_its_own_memory() -> None:
    kernel = gpu_cases.Kernel(gpu_cases.FOLDER / "rows" / "layernorm.tl", {"M": 65536, "N": 1024})
    (ours, larger) = (model.predicted([kernel], TARGET, gpu, None, {}) for gpu in ("H100-SXM", "H200"))
    assert larger.microseconds < ours.microseconds


def test_a_clock_that_was_read_takes_the_place_of_the_files() -> None:
    (report,) = model.reports(matmul(K=256), TARGET, None)
    assert report.by_levels.compute > report.by_levels.memory
    half = report.clock_mhz // 2
    assert report.at(report.by_levels, half) == pytest.approx(report.by_levels.compute / half, rel=1e-3)


def test_the_best_tile_counts_and_one_that_does_not_fit_is_passed_over() -> None:
    part = published_rows.Part("benchmarks/kernels/matmul.tl")
    row = published_rows.Row(
        "k", "o", {"M": 1024, "N": 1024, "K": 512}, "float16", "H100-SXM", 1, "us", "s", "w", False
    )
    small, huge = {"block_N": 128}, {"block_M": 256, "block_K": 512, "num_stages": 8}
    found = model.best(published_rows.Ours((part,), "0", "0", (huge, {}, small)), row)
    assert isinstance(found, model.Prediction) and found.tile in ({}, small)
    assert "shared memory" in str(model.best(published_rows.Ours((part,), "0", "0", (huge,)), row))


def judged(name: str, predicted: float, measured: float | None, **more: Any) -> model.Judged:
    return model.Judged("matmul", name, "H200", measured, model.Prediction(predicted, 0, 0, 0, "", {}), **more)


def test_scores_are_of_predicted_to_measured_time() -> None:
    rows = [
        judged("a", 1.0, 2.0),
        judged("b", 3.0, 2.0, is_held_out=True),
        judged("c", 2.0, 1.0, is_held_out=True, differs="split"),
        judged("d", 1.0, None),
    ]
    found = model.scores(rows)["matmul"]
    assert found == model.scores(rows)["all groups"]
    assert found["all"] is not None and found["all"].rows == 3
    assert found["all"].mape == pytest.approx((0.5 + 0.5 + 1.0) / 3)
    assert found["held out"] is not None and found["held out"].geometric_mean == pytest.approx(3**0.5)
    alike = found["held out, built as ours"]
    assert alike is not None and (alike.rows, alike.geometric_mean, alike.mape) == (1, pytest.approx(1.5), 0.5)
    lines = model.table(rows)
    assert [line.split()[0] for line in lines[1:5]] == ["a", "b", "c", "d"]
    assert "not measured" in lines[4] and "H~" in lines[3]


MADE_UP = {
    "machine": {"name": "NVIDIA H200"},
    "cases": [
        {"name": "bfloat16 512×3072×768", "fault": "", "sm_mhz": 1000, "milliseconds": {"tilec": {"median": 1.0}}},
        {"name": "wrong", "fault": "C: error 1.0", "milliseconds": {"tilec": {"median": 1.0}}},
    ],
}


def test_our_own_cases_with_what_was_measured_of_them() -> None:
    (one,) = model.cases("bfloat16 512*", MADE_UP)
    (alone,) = model.cases("bfloat16 512*", {})
    assert one.measured == 1000 and alone.measured is None and alone.ratio is None
    assert one.predicted is not None and alone.predicted is not None
    assert one.gpu.startswith("H200") and alone.gpu == "sm_90a"


@pytest.mark.weekly
def test_without_results_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(model.__file__)), "--cases", "--only", "bfloat16 512*"]
    done = subprocess.run([*command, "--json", str(tmp_path / "m.json")], capture_output=True, text=True, check=True)
    assert "bfloat16 512×3072×768" in done.stdout and done.stdout.splitlines()[-1].startswith("not measured: ")
    record = json.loads((tmp_path / "m.json").read_text())
    assert [row["ratio"] for row in record["rows"]] == [None]


def test_nothing_is_fitted_to_rows_that_are_held_out() -> None:
    _, groups = published_rows.read()
    fit = {row.name for group in groups.values() for row in group.rows if row.is_fit}
    assert all(set(rows) <= fit for rows in model.FITTED.values())
