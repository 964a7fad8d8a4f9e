"""Tiles that are computed in each iteration: what their versions look like, that they are right, and what they gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from harness import agrees, built

from tilec.driver.build import Observer, PipelineStopped, build_kernel, plan_kernel
from tilec.ir import warp
from tilec.sched.solve import solve_problem
from tilec.support.options import CompileOptions, Strategy
from tilec.support.source import SourceFile

Golden = Callable[[str, str, str], None]

KERNEL = Path(__file__).parent / "made_anew.tl"
SOURCE = SourceFile(KERNEL.name, KERNEL.read_text(encoding="utf-8"))
HOW = {"filled": 0, "dequantised": 1, "copied": 2, "in_part": 3, "guarded": 4, "in_place": 5}


@pytest.mark.parametrize("name", HOW)
def test_expansion(golden: Golden, name: str) -> None:
    """By a schedule that is given: all that makes the tile works on a version, the product on an older one."""
    options = CompileOptions(target="sm_80", defines=(("how", HOW[name]), ("manual", True), ("K", 192)))
    observer = Observer(keep={"expand"}, stop_after="expand")
    with pytest.raises(PipelineStopped):
        build_kernel(SOURCE, options, observer)
    golden("expand", f"made_anew_{name}", observer.texts["expand"].decode())


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("name", HOW)
@pytest.mark.parametrize(
    ("target", "strategy"),
    [("sm_80", "auto"), ("sm_80", "none"), ("sm_90a", "auto"), ("sm_90a", "unspecialize"), ("sm_90a", "none")],
)
def test_the_result(target: str, strategy: Strategy, name: str, manual: bool) -> None:
    made = agrees(KERNEL, target, strategy, how=HOW[name], manual=manual)
    assert manual is False or {d for s in made.schedules for d in s.depth} in (set(), {2}, {3})


def test_consumers_may_change_what_they_are_given() -> None:
    """They tell the proxy that fills the next version of it, and need no further barrier for that."""
    _, made = built(KERNEL, "sm_90a", how=5)
    assert [role.name for role in made.program.roles] == ["consumer", "producer"]
    loops = [
        op
        for op in warp.walk_operations(made.program.roles[0].body)
        if isinstance(op, warp.Loop) and op.part == "steady"
    ]
    names = [type(op).__name__ for op in loops[0].body]
    assert names.count("ProxyFence") == names.count("BarSync") == 1


@pytest.mark.parametrize(
    ("target", "name"),
    [
        *(("sm_90a", name) for name in HOW if name != "in_place"),
        ("sm_80", "filled"),
        ("sm_80", "in_part"),
        ("sm_80", "guarded"),
    ],
)
def test_versions_make_the_interval_smaller(target: str, name: str) -> None:
    """Than it is with one version: then the product ends before the next tile is begun."""
    (planned,) = plan_kernel(SOURCE, CompileOptions(target=target, defines=(("how", HOW[name]),)), Observer()).loops
    problem, schedule = planned.loop.problem, planned.solution.schedule
    one = tuple(replace(ring, max_depth=1) if "B_s" in ring.name else ring for ring in problem.rings)
    assert schedule.status == "optimal"
    assert schedule.ii < solve_problem(replace(problem, rings=one)).schedule.ii
