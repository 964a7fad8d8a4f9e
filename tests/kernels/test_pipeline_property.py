"""The property that matters: for any verified schedule, solved or drawn at random, the emitted PTX leaves the same
tensors as the unpipelined loop, and the emulator finds no race, no hang and no misuse of an instruction in it.

The normal run draws 400 cases, always the same ones; `--hypothesis-profile=thorough` draws 5,000.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st
from pipelines import Loop, Moves, compiled, differences, loops, moves, tile_ir

from tilec.diag import CompileError
from tilec.options import Strategy

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


@pytest.mark.parametrize(("target", "strategy", "size", "threads"), FORMS, ids=str)
@pytest.mark.parametrize("fed", [True, False], ids=["fed", "free"])
def test_any_verified_schedule_keeps_the_loops_meaning(
    target: str, strategy: Strategy, size: int, threads: int, fed: bool
) -> None:
    """A `fed` loop is one that a producer role can feed."""
    fed = fed or strategy == "warp-specialize"
    seen: Counter[str] = Counter()
    walks = st.none() | moves | moves | moves  # none: the solver's schedule

    @seed(2 * FORMS.index((target, strategy, size, threads)) + fed)
    @settings(suppress_health_check=list(HealthCheck))
    @given(loops(size, threads, fed), walks, st.integers(0, 1), st.none() | st.integers(0, 3))
    def check(loop: Loop, steps: Moves | None, deeper: int, adversary: int | None) -> None:
        seen["drawn"] += 1
        note(loop.text)
        kernel = tile_ir(loop)
        try:
            ptx, schedules = compiled(kernel, target, strategy, steps, deeper)
        except CompileError as error:
            note(f"refused: {error}")
            seen["refused"] += 1
            return
        note(f"{schedules}")
        seen["pipelined"] += bool(schedules)
        assert differences(loop, kernel, ptx, adversary) == []

    check()
    assert seen["refused"] <= 0.2 * seen["drawn"], f"{seen}: too much of what is drawn is refused"
    assert strategy == "none" or seen["pipelined"] >= 0.5 * seen["drawn"], f"{seen}: too little of it is pipelined"
