"""What a person says about waiting changes no result: loops drawn at random, with explicit synchronisation anywhere in
them, or waits of any statement for any earlier one, under any verified schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, note, seed, settings, strategies as st
from hypothesis.strategies import DrawFn
from pipelines import Loop, loops
from scheduled import Moves, compiled, differences, moves, tile_ir
from test_pipeline_property import holds

from tilec.analysis.scalar_definitions import find_scheduled_statements
from tilec.analysis.usage import find_writes
from tilec.ir.tile import For, If, Kernel, SchedulingHints, Stmt, While
from tilec.support.diagnostics import CompileError
from tilec.support.options import Strategy

FORMS: list[tuple[str, Strategy, int, int, bool]] = [  # target, strategy, side of the tiles, threads, can be fed
    ("sm_80", "auto", 32, 64, False),
    ("sm_80", "auto", 16, 32, True),
    ("sm_90a", "auto", 64, 128, True),
    ("sm_90a", "unspecialize", 64, 128, True),
    ("sm_90a", "unspecialize", 32, 64, False),
]
forms = pytest.mark.parametrize(("target", "strategy", "size", "threads", "fed"), FORMS, ids=str)

EXPLICIT = (
    *("T.ptx_wait_group(0)", "T.ptx_wait_group(0)", "T.ptx_wait_group(1)", "T.ptx_wait_group(2)"),
    *("T.ptx_commit_group()", "T.sync_threads()", "T.sync_threads()", "T.fence_proxy_async()"),
)


@st.composite
def explicit(draw: DrawFn, size: int, threads: int, fed: bool) -> Loop:
    """A loop with explicit statements between its own, some of its copies T.async_copy."""
    loop = draw(loops(size, threads, fed))
    lines: list[str] = []
    indent: int | None = None  # of the loop's statements
    for line in loop.text.split("\n"):
        depth = len(line) - len(line.lstrip())
        if indent is not None and depth < indent:
            indent = None
        if depth == indent and line.strip() != "else:":
            for statement in draw(st.lists(st.sampled_from(EXPLICIT), max_size=2)):
                lines.append(" " * depth + statement)
            if line.lstrip().startswith(("T.copy(A[", "T.copy(B[")) and draw(st.booleans()):
                line = line.replace("T.copy", "T.async_copy", 1)
        elif line.lstrip().startswith("for k in T.Pipelined"):
            indent = depth + 4
        lines.append(line)
    return replace(loop, text="\n".join(lines))


@forms
def test_explicit_statements_change_no_result(
    target: str, strategy: Strategy, size: int, threads: int, fed: bool
) -> None:
    at = 200 + FORMS.index((target, strategy, size, threads, fed))
    seen = holds(explicit(size, threads, fed), target, strategy, at, settings().max_examples)
    assert seen["pipelined"] >= 0.5 * seen["drawn"]


@forms
def test_waits_for_others_change_no_result(target: str, strategy: Strategy, size: int, threads: int, fed: bool) -> None:
    drawn = {"pipelined": 0}

    @seed(300 + FORMS.index((target, strategy, size, threads, fed)))
    @settings(suppress_health_check=list(HealthCheck))
    @given(loops(size, threads, fed), moves, st.none() | st.integers(0, 3), st.data())
    def check(loop: Loop, steps: Moves, adversary: int | None, data: st.DataObject) -> None:
        note(loop.text)
        kernel = waiting(tile_ir(loop), data)
        try:
            ptx, schedules = compiled(kernel, target, strategy, steps, 0)
        except CompileError as error:
            note(f"refused: {error}")
            return
        drawn["pipelined"] += bool(schedules)
        assert differences(loop, kernel, ptx, adversary) == []

    check()
    assert drawn["pipelined"] >= 0.5 * settings().max_examples


def waiting(kernel: Kernel, data: st.DataObject) -> Kernel:
    """The kernel with a `sync` list for its pipelined loop. The schedule beside it is only there to have one."""

    def with_waits(stmt: Stmt) -> Stmt:
        match stmt:
            case For(kind="pipelined"):
                statements = find_scheduled_statements(stmt)
                lists = []
                for number in range(len(statements)):
                    able = [i for i in range(number) if find_writes(statements[i])]
                    lists.append(tuple(data.draw(st.lists(st.sampled_from(able), unique=True))) if able else ())
                note(f"sync={lists}")
                places = tuple(range(len(statements)))
                scheduling_hints = SchedulingHints(None, None, tuple(lists), stmt.span)
                return replace(stmt, stage=(0,) * len(places), order=places, scheduling_hints=scheduling_hints)
            case For() | While():
                return replace(stmt, body=tuple(map(with_waits, stmt.body)))
            case If(then=then, orelse=orelse):
                return replace(stmt, then=tuple(map(with_waits, then)), orelse=tuple(map(with_waits, orelse)))
            case _:
                return stmt

    return replace(kernel, body=tuple(map(with_waits, kernel.body)))
