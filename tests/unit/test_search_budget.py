"""How much a kernel's schedules are searched for: all that is solved for it is paid from one budget, and where that
ends, heuristics answer, which is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilec.driver.build import Plan, build_kernel, plan_kernel
from tilec.driver.observer import Observer
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

SAMPLES = Path(__file__).parents[2] / "samples"
CAUSAL = SourceFile("causal.tl", (SAMPLES / "attention" / "causal.tl").read_text(encoding="utf-8"))


def planned(budget: int | None, folder: Path | None = None) -> tuple[Plan, Observer]:
    narrow = CompileOptions(cache_dir=None if folder is None else str(folder), defines=(("block_N", 64),))
    options = narrow if budget is None else replace(narrow, search_budget=budget)
    observer = Observer()
    return plan_kernel(CAUSAL, options, observer), observer


def said(found: Plan) -> str:
    return next((decision.why for decision in found.decisions if decision.what == "search"), "")


def test_usually_there_is_enough() -> None:
    found, observer = planned(None)
    assert found.loops[0].solution.schedule.status == "optimal"
    assert not said(found) and not [w for w in observer.warnings if w.code == "schedule-not-proven"]


@pytest.mark.parametrize("budget", [0, 1])
def test_heuristics_answer_where_it_ends_and_that_is_said(budget: int) -> None:
    found, observer = planned(budget)
    assert found.loops[0].solution.schedule.status == "feasible"
    assert (
        said(found) == f"the search used all of its {budget} units; a larger --search-budget may find a better schedule"
    )
    (warning,) = (w for w in observer.warnings if w.code == "schedule-not-proven")
    assert "its budget" in warning.title and warning.help == "search longer, with a larger --search-budget"
    assert '"search-budget"' in found.trace and said(found) in found.trace


@pytest.mark.weekly
@pytest.mark.parametrize("budget", [20, 200])
def test_no_cache_changes_what_comes_out(budget: int, tmp_path: Path) -> None:
    alone = planned(budget)[0].trace
    assert planned(budget, tmp_path)[0].trace == alone
    assert planned(budget, tmp_path)[0].trace == alone
    enough = planned(None, tmp_path)[0].trace
    assert planned(budget, tmp_path)[0].trace == alone
    assert planned(None, tmp_path)[0].trace == enough == planned(None)[0].trace


def test_what_is_found_in_a_hurry_is_built() -> None:
    made = build_kernel(CAUSAL, CompileOptions(search_budget=0), Observer())
    assert made.cubin
