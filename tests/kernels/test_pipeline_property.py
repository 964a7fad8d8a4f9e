"""The property that matters: for any verified schedule, solved or drawn at random, the emitted PTX leaves the same
tensors as the unpipelined loop, and the emulator finds no race, no hang and no misuse of an instruction in it.
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
@pytest.mark.parametrize("shard", range(2))
def test_any_verified_schedule_keeps_the_loops_meaning(
    target: str, strategy: Strategy, size: int, threads: int, shard: int
) -> None:
    refused: Counter[str] = Counter()

    fed = strategy == "warp-specialize" or shard == 0

    @seed(100 * shard + FORMS.index((target, strategy, size, threads)))
    @settings(suppress_health_check=list(HealthCheck))
    @given(loops(size, threads, fed), st.none() | moves | moves, st.integers(0, 1), st.none() | st.integers(0, 3))
    def check(loop: Loop, steps: Moves | None, deeper: int, adversary: int | None) -> None:
        note(loop.text)
        refused["drawn"] += 1
        kernel = tile_ir(loop)
        try:
            ptx, schedules = compiled(kernel, target, strategy, steps, deeper)
        except CompileError as error:
            refused[error.diagnostics[0].code] += 1
            return
        note(f"{schedules}")
        refused["loops"] += len(schedules)
        refused["stages %d" % max([max(s.stage) for s in schedules], default=-1)] += 1
        refused["depth %d" % max([max(s.depth, default=0) for s in schedules], default=-1)] += 1
        refused["roles %d" % ptx.count("setmaxnreg")] += 1
        assert differences(loop, kernel, ptx, adversary) == []

    check()
    print("REFUSED", target, strategy, dict(refused))
