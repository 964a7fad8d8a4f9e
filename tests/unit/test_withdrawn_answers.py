"""An answer that a later pass finds impossible: the kernel goes back to the row that gave it, for another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilec.driver.build import Observer, Plan, plan_kernel
from tilec.passes.scheduling import apply_launch_grid
from tilec.passes.state import ChoiceWithdrawn, Explorer, KernelState
from tilec.support.files import read_source
from tilec.support.options import CompileOptions

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
    carry_out, runs = apply_launch_grid.apply_launch_grid, []

    def refuse_persistence(state: KernelState, explore: Explorer) -> KernelState:
        runs.append(state.is_persistent)
        if state.is_persistent:
            raise ChoiceWithdrawn("choose-persistent-grid", "it cannot be carried out")
        return carry_out(state, explore)

    monkeypatch.setattr(apply_launch_grid, "apply_launch_grid", refuse_persistence)
    found = planned()
    assert runs == [True, False]
    answer, by, why = persistence(found)
    assert (answer, by) == (persistence(expected)[0], "the compiler") and "it cannot be carried out" in why
    assert found.assignment.kernel.body == expected.assignment.kernel.body
    assert [p.solution.schedule for p in found.loops] == [p.solution.schedule for p in expected.loops]
