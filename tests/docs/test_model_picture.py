"""The picture and the table of predicted against measured times are those of the recorded figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fenced import ROOT

RECORD = ROOT / "benchmarks" / "results" / "h200-2026-11-28" / "predicted.json"


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.syspath_prepend(ROOT / "docs")
    import model_picture

    return list(model_picture.read_points(json.loads(RECORD.read_text(encoding="utf-8"))["workloads"]))


def test_the_picture_is_that_of_the_record(points: list[object]) -> None:
    import model_picture

    drawn = Path(ROOT / "docs" / "pictures" / "model.svg").read_text(encoding="utf-8")
    assert model_picture.draw_points(points) == drawn
    assert f"time of {len(points)} workloads" in (ROOT / "docs" / "cost-model.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_the_record(points: list[object]) -> None:
    import model_picture

    text = (ROOT / "docs" / "cost-model.md").read_text(encoding="utf-8")
    for name, count, signed, size, worst in model_picture.count_errors(points):
        assert f"| {name} | {count} | {size:.0%} | {signed:+.0%} | {worst.name}: {worst.error:+.0%} |" in text


def test_points_on_the_diagonal_are_predicted_exactly(points: list[object]) -> None:
    import model_picture

    svg = model_picture.draw_points([model_picture.Point(str(n), 0, 10.0**n, 10.0**n) for n in range(4)])
    circles = [part.split('"') for part in svg.splitlines() if part.startswith("<circle") and "<title>" in part]
    assert len(circles) == 4
    for circle in circles:
        x, y = float(circle[3]) - model_picture.LEFT, float(circle[5]) - model_picture.TOP
        assert x + y == pytest.approx(model_picture.SIZE, abs=0.11)
