"""ALCOP's 22 kernels are built at their full sizes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

FOLDER = Path(__file__).parents[2] / "samples" / "alcop"
KERNELS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "kernels.toml").read_text(encoding="utf-8"))


def test_there_are_22_and_every_sample_has_some() -> None:
    assert len(KERNELS) == 22
    assert {row["sample"] for row in KERNELS.values()} == {path.stem for path in FOLDER.glob("*.tl")}


@pytest.mark.some(8)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", KERNELS)
def test_builds_at_full_size(name: str, target: str) -> None:
    row = dict(KERNELS[name])
    path = FOLDER / f"{row.pop('sample')}.tl"
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    made = build_kernel(source, CompileOptions(target=target, defines=tuple(row.items())), Observer())
    (entry,) = made.entries
    assert (entry.stack_bytes, entry.spill_store_bytes) == (0, 0)
    assert [w.title for w in made.warnings if w.code != "bank-conflict"] == []
    if made.work.assignment.form == "serial":  # a loop of few iterations, without which more blocks fit
        assert [each.chosen for each in made.work.decisions if each.what == "iterations"] == ["one after the other"]
        return
    (schedule,) = made.schedules  # its loop is pipelined
    assert schedule.status == "optimal"
