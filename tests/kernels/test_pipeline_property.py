"""The property that matters: for any verified schedule, solved or drawn at random, the emitted PTX leaves the same
tensors as the unpipelined loop, and the emulator finds no race, no hang and no misuse of an instruction in it.

The normal run draws 440 cases, always the same ones; `--hypothesis-profile=thorough` draws 5,500.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, note, seed, settings, strategies as st
from pipelines import Loop, loops, nested
from scheduled import Moves, compiled, computed_versions, differences, moves, tile_ir

from tilec.support.diagnostics import CompileError
from tilec.support.options import Strategy

FORMS: list[tuple[str, Strategy, int, int]] = [  # target, strategy, side of the tiles, threads
    ("sm_80", "auto", 16, 32),
    ("sm_80", "auto", 32, 64),
    ("sm_80", "unspecialize", 32, 128),
    ("sm_80", "none", 16, 32),
    ("sm_90a", "auto", 64, 128),
    ("sm_90a", "auto", 32, 128),
    ("sm_90a", "warp-specialize", 64, 128),
    ("sm_90a", "unspecialize", 64, 128),
    ("sm_90a", "unspecialize", 32, 64),
    ("sm_90a", "none", 64, 128),
]
NESTED: list[tuple[str, Strategy, int, int, bool]] = [
    ("sm_80", "auto", 32, 64, False),
    ("sm_90a", "auto", 64, 128, True),
    ("sm_90a", "unspecialize", 32, 64, False),
    ("sm_90a", "unspecialize", 64, 128, True),
]


@pytest.mark.parametrize(("target", "strategy", "size", "threads"), FORMS, ids=str)
@pytest.mark.parametrize("fed", [True, False], ids=["fed", "free"])
def test_any_verified_schedule_keeps_the_loops_meaning(
    target: str, strategy: Strategy, size: int, threads: int, fed: bool
) -> None:
    """A `fed` loop is one that a producer role can feed."""
    fed = fed or strategy == "warp-specialize"
    at = 2 * FORMS.index((target, strategy, size, threads)) + fed
    seen = holds(loops(size, threads, fed), target, strategy, at, settings().max_examples)
    assert strategy == "none" or seen["pipelined"] >= 0.5 * seen["drawn"], f"{seen}: too little of it is pipelined"
    assert strategy == "none" or seen["versions"] >= 0.05 * seen["drawn"], (
        f"{seen}: too few versions of what is computed"
    )


@pytest.mark.parametrize(("target", "strategy", "size", "threads", "fed"), NESTED, ids=str)
def test_any_verified_schedules_of_nested_loops_keep_their_meaning(
    target: str, strategy: Strategy, size: int, threads: int, fed: bool
) -> None:
    at = 100 + NESTED.index((target, strategy, size, threads, fed))
    seen = holds(nested(size, threads, fed), target, strategy, at, settings().max_examples // 2)
    assert seen["nested"] >= 0.3 * seen["drawn"], f"{seen}: too little of it is pipelined at both levels"


def holds(drawn: st.SearchStrategy[Loop], target: str, strategy: Strategy, number: int, examples: int) -> Counter[str]:
    """How many kernels were drawn, refused, and pipelined; `number` decides which."""
    seen: Counter[str] = Counter()
    walks = st.none() | moves | moves | moves  # none: the solver's schedule

    @seed(number)
    @settings(suppress_health_check=list(HealthCheck), max_examples=examples)
    @given(drawn, walks, st.integers(0, 1), st.none() | st.integers(0, 3))
    def check(loop: Loop, steps: Moves | None, deeper: int, adversary: int | None) -> None:
        seen["drawn"] += 1
        note(loop.text)
        kernel = tile_ir(loop)
        try:
            ptx, scheduled = compiled(kernel, target, strategy, steps, deeper)
        except CompileError as error:
            note(f"refused: {error}")
            seen["refused"] += 1
            return
        note(f"{[s.schedule for s in scheduled]}")
        seen["pipelined"] += bool(scheduled)
        seen["nested"] += len(scheduled) > 1
        seen["stored apart"] += any("store" in s.roles for s in scheduled)
        seen["versions"] += any(computed_versions(s) > 1 for s in scheduled)
        assert differences(loop, kernel, ptx, adversary) == []

    check()
    assert seen["refused"] <= 0.2 * seen["drawn"], f"{seen}: too much of what is drawn is refused"
    return seen
