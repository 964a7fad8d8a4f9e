"""Fewer stages where more blocks then share a multiprocessor: when that is chosen."""

from __future__ import annotations

import pytest
from harness import SAMPLES

from tilec.driver import build as driver
from tilec.driver.build import Observer, Plan
from tilec.sched.decision import Decision
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

GEMM = SAMPLES / "gemm.tl"
LARGE: dict[str, Value] = {"M": 4096, "N": 4096, "K": 4096, "threads": 128}
"""Blocks of 128 threads with 232 registers each, of which two have room."""


def planned(defines: dict[str, Value], target: str = "sm_80", **options: object) -> Plan:
    asked = CompileOptions(target=target, defines=tuple(defines.items()), **options)
    return driver.plan_kernel(SourceFile(GEMM.name, GEMM.read_text(encoding="utf-8")), asked, Observer())


def decided(plan: Plan) -> Decision | None:
    return next((d for d in plan.decisions if d.what == "stages"), None)


def depth(plan: Plan) -> int:
    ((rings),) = [p.solution.schedule.depth for p in plan.loops]
    return max(rings)


def test_blocks_share_a_multiprocessor() -> None:
    """96 KiB in three stages of 32 leave no room for a second block, of the 164 KiB; 64 do."""
    plan = planned(LARGE)
    decision = decided(plan)
    assert depth(plan) == 2 and decision is not None and (decision.chosen, decision.by) == ("2", "the compiler")
    assert decision.why.startswith("2 blocks share a multiprocessor; 3 stages leave room for 1: ")


@pytest.mark.parametrize(
    ("defines", "target", "options"),
    [
        (LARGE, "sm_80", {"stages_by_occupancy": False}),
        (LARGE, "sm_80", {"opt_level": 2}),
        ({**LARGE, "M": 128, "N": 128}, "sm_80", {"register_stages": 1}),  # the only block
        ({**LARGE, "block_K": 32}, "sm_80", {}),  # two blocks have room with every stage
        (LARGE, "sm_90a", {}),  # roles take the multiprocessor whole
    ],
)
def test_otherwise_loops_have_what_a_block_would_use(
    defines: dict[str, Value], target: str, options: dict[str, object]
) -> None:
    plan = planned(defines, target, **options)
    decision = decided(plan)
    assert depth(plan) > 2
    assert decision is None or decision.chosen == decision.alternatives[0].answer


def test_as_many_as_asked_for_at_most() -> None:
    assert depth(planned({**LARGE, "num_stages": 2})) == 2
    assert depth(planned({**LARGE, "num_stages": 1})) == 1
