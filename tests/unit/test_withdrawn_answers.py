"""An answer that a later pass finds impossible: the kernel goes back to the row that gave it, for another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tilec.driver import engine
from tilec.driver.build import Observer, Plan, plan_kernel
from tilec.driver.engine import KernelPass
from tilec.driver.pipeline import Pass
from tilec.driver.work import ChoiceWithdrawn, Work
from tilec.support.files import read_source
from tilec.support.options import CompileOptions, Stage

GEMM = Path(__file__).parents[2] / "samples" / "gemm.tl"


def planned(persistent: bool | None = None) -> Plan:
    large = (("M", 4096), ("N", 4096), ("K", 4096))
    options = CompileOptions(target="sm_90a", defines=large)
    return plan_kernel(
        read_source(str(GEMM)), options if persistent is None else replace(options, persistent=persistent), Observer()
    )


def persistence(found: Plan) -> tuple[str, str, str]:
    (decision,) = (d for d in found.decisions if d.what == "persistent grid")
    return decision.chosen, decision.by, decision.why


def test_the_row_takes_another_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = planned(persistent=False)
    chosen, *_ = persistence(planned())
    assert chosen != persistence(expected)[0]
    rows, runs = list(engine._list_kernel_passes()), []

    def launch_grid(work: Work, observer: Observer) -> Work:
        runs.append(work.walks)
        if work.walks:
            raise ChoiceWithdrawn("persistent-grid", "it cannot be carried out")
        return made(work, observer)

    (made,) = (row.run for _, row, _ in rows if isinstance(row, Pass) and row.name == "launch-grid")

    def passes() -> Iterator[tuple[int, KernelPass, Stage]]:
        for number, row, form in rows:
            is_it = isinstance(row, Pass) and row.name == "launch-grid"
            yield number, replace(row, run=launch_grid) if is_it else row, form

    monkeypatch.setattr(engine, "_list_kernel_passes", passes)
    found = planned()
    assert runs == [True, False]
    answer, by, why = persistence(found)
    assert (answer, by) == (persistence(expected)[0], "the compiler") and "it cannot be carried out" in why
    assert found.assignment.kernel.body == expected.assignment.kernel.body
    assert [p.solution.schedule for p in found.loops] == [p.solution.schedule for p in expected.loops]
