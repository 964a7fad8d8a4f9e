"""A schedule by hand is carried out as it stands, and is right, or it is refused with a reason: lists drawn at random,
for loops drawn at random."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, note, seed, settings, strategies as st
from pipelines import Loop, loops
from scheduled import PIPELINE, by_hand, compiled, differences, tile_ir, with_lists

from tilec.analysis.scalar_definitions import find_scheduled_statements
from tilec.ir.tile import For, walk_statements
from tilec.support.diagnostics import CompileError
from tilec.support.options import Strategy

REFUSALS = {
    "manual-schedule": "lists that are not for these statements",
    "wrong-argument": "lists of something else than integers",
    "bind-stage": "a value with no storage in two stages",
    "schedule-order": "a dependence that the order breaks",
    "schedule-depth": "too few versions",
    "shared-memory-overflow": "too many",
}
FORMS: list[tuple[str, Strategy, int, int, bool]] = [
    ("sm_80", "auto", 16, 32, False),
    ("sm_90a", "auto", 64, 128, True),
    ("sm_90a", "unspecialize", 32, 64, False),
]


def statements(loop: Loop) -> int:
    """How many statements of the pipeline take an entry."""
    line = next(at for at, text in enumerate(loop.text.splitlines(), 1) if PIPELINE in text)
    body = tile_ir(loop, folded=False).body
    return len(
        find_scheduled_statements(next(s for s in walk_statements(body) if isinstance(s, For) and s.span.line == line))
    )


@st.composite
def annotated(draw: st.DrawFn, size: int, threads: int, fed: bool) -> Loop:
    loop = draw(loops(size, threads, fed))
    return with_lists(loop, draw(by_hand(statements(loop))))


@pytest.mark.parametrize(("target", "strategy", "size", "threads", "fed"), FORMS, ids=str)
def test_lists_are_carried_out_or_refused(target: str, strategy: Strategy, size: int, threads: int, fed: bool) -> None:
    seen: Counter[str] = Counter()

    @seed(FORMS.index((target, strategy, size, threads, fed)))
    @settings(suppress_health_check=list(HealthCheck), max_examples=2 * settings().max_examples)
    @given(annotated(size, threads, fed), st.none() | st.integers(0, 3))
    def check(loop: Loop, adversary: int | None) -> None:
        note(loop.text)
        try:
            kernel = tile_ir(loop)
            ptx, scheduled = compiled(kernel, target, strategy, None, 0)
        except CompileError as error:
            note(f"refused: {error}")
            codes = {diagnostic.code for diagnostic in error.diagnostics}
            assert codes <= {*REFUSALS}, codes
            seen.update(codes)
            return
        note(f"{[s.schedule for s in scheduled]}")
        by_hand = {s.schedule.status for s in scheduled} >= {"given"}
        assert by_hand or loop.n == 0, "the lists are dropped"  # a loop without iterations may be gone
        seen["carried out" if by_hand else "gone"] += 1
        assert differences(loop, kernel, ptx, adversary) == []

    check()
    drawn = seen.total()
    assert seen["carried out"] >= 0.2 * drawn, seen
    assert seen["schedule-order"] >= 0.1 * drawn, seen
