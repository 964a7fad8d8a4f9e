"""Every code block of TileLang's guide to pipeline annotations, completed to a kernel: what becomes of it, and that it
is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import agrees

from tilec.analysis.scalar_definitions import find_replayed_binds
from tilec.driver.build import Observer, Plan, plan_kernel
from tilec.ir.text import show_expr
from tilec.passes.loop.describe import describe_statement
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

Golden = Callable[[str, str, str], None]

BLOCKS = sorted((Path(__file__).parents[1] / "golden/pipeline").glob("*.tl"))
TARGETS = ("sm_80", "sm_90a")


def outcome(made: Plan) -> Iterator[str]:
    """The statements of each loop with their stage and order, what is replayed, and how many versions tiles have."""
    for planned in made.loops:
        loop, schedule = planned.loop, planned.solution.schedule
        place = {op: k for k, op in enumerate(schedule.order)}
        yield f"for {loop.loop.var.name}, {schedule.status}"
        for i, stmt in enumerate(loop.statements):
            yield f"  line {stmt.span.line}: {describe_statement(stmt):24} stage {schedule.stage[i]}, order {place[i]}"
        for bind in find_replayed_binds(loop.loop):
            yield f"  line {bind.span.line}: {bind.var.name} = {show_expr(bind.value)}, replayed"
        for ring, depth in zip(loop.problem.rings, schedule.depth, strict=True):
            yield f"  {depth} version{'s' * (depth != 1)} of {ring.name}"


def planned(path: Path, target: str) -> tuple[Plan, Observer]:
    source, observer = SourceFile(path.name, path.read_text(encoding="utf-8")), Observer()
    return plan_kernel(source, CompileOptions(target=target), observer), observer


@pytest.mark.parametrize("path", BLOCKS, ids=lambda p: p.stem)
def test_what_becomes_of_it(golden: Golden, path: Path) -> None:
    lines = []
    for target in TARGETS:
        made, observer = planned(path, target)
        lines += [f"{target}, {made.assignment.form}", *outcome(made)]
        lines += [f"  warning[{w.code}]: {w.title}: {w.help}" for w in observer.warnings]
    golden("pipeline", path.stem, "\n".join(lines) + "\n")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path", BLOCKS, ids=lambda p: p.stem)
def test_it_is_right(path: Path, target: str) -> None:
    agrees(path, target, strict="legacy" not in path.stem)


def test_every_block_is_here() -> None:
    assert len(BLOCKS) == 12
