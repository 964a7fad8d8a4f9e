"""Barriers as the checks run them: what completes a phase, who waits for ever, what is known behind a wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tilec
from tilec.ir.warp_verify.barrier_machine import Barrier, PhaseClocks, join_clocks, run_together


@pytest.mark.parametrize(
    ("steps", "phase", "arrived"),
    [
        ([(1, 0), (1, 0)], 0, 2),
        ([(1, 0), (2, 0)], 1, 0),
        ([(4, 0)], 1, 1),  # one of the next phase
        ([(7, 0)], 2, 1),
        ([(0, 64), (3, 0)], 0, 3),  # the bytes are missing
        ([(0, 64), (3, 0), (0, -64)], 1, 0),
        ([(0, -64), (3, 0), (0, 64)], 1, 0),  # they have come before they are announced
    ],
)
def test_what_completes_a_phase(steps: list[tuple[int, int]], phase: int, arrived: int) -> None:
    barrier = Barrier(3)
    completed = [barrier.arrive(*step) for step in steps]
    assert (barrier.phase, barrier.arrived) == (phase, arrived)
    assert completed[-1] == any(completed) == (phase > 0)
    assert barrier.has_completed(0) == (phase % 2 == 1) and barrier.has_completed(1) == (phase % 2 == 0)


def test_bytes_alone_are_missing() -> None:
    barrier = Barrier(1)
    barrier.arrive(0, 32)
    assert not barrier.misses_only_bytes
    barrier.arrive(1)
    assert barrier.misses_only_bytes
    barrier.fill()
    assert barrier == Barrier(1, phase=1)


@dataclass
class Waiting:
    """A role that yields what it waits for."""

    steps: Iterator[tuple[Barrier, int]]
    left: int = 100
    at: tuple[Barrier, int] | None = None
    done: bool = False

    def advance(self) -> bool:
        before = self.left
        while not self.done:
            self.at = self.at or next(self.steps, None)
            if self.at is None or not self.left:
                self.done = True
                return True
            barrier, phase = self.at
            if barrier.phase <= phase:
                break
            self.at, self.left = None, self.left - 1
        return self.left < before


def hand_over(full: Barrier, empty: Barrier, times: int, is_first: bool) -> Iterator[tuple[Barrier, int]]:
    for time in range(times):
        if is_first:
            full.arrive(1)
            yield empty, time
        else:
            yield full, time
            empty.arrive(1)


@pytest.mark.parametrize(
    ("times", "left", "how"),
    [
        ((5, 5), 100, "done"),
        ((5, 4), 100, "stuck"),
        ((4, 5), 100, "stuck"),
        ((50, 50), 20, "cut"),
        ((50, 9), 20, "stuck"),
    ],
)
def test_who_waits_for_ever(times: tuple[int, int], left: int, how: str) -> None:
    full, empty = Barrier(1), Barrier(1)
    roles = [Waiting(hand_over(full, empty, count, not at), left) for at, count in enumerate(times)]
    assert run_together(roles, Waiting.advance, lambda r: r.done, lambda r: not r.left) == how


def test_a_wait_tells_what_was_known_in_its_phase_and_before() -> None:
    handed_on: PhaseClocks[str, str] = PhaseClocks()
    handed_on.arrive("full", 0, {"producer": 1})
    handed_on.arrive("full", 0, {"copies": 3})
    handed_on.arrive("full", 1, {"producer": 2})
    known: dict[str, int] = {"copies": 5}
    handed_on.wait("full", 0, known)
    assert known == {"copies": 5}
    handed_on.wait("full", 1, known)
    assert known == {"copies": 5, "producer": 1}
    handed_on.wait("full", 2, known)
    assert known == {"copies": 5, "producer": 2}
    handed_on.wait("empty", 2, known)
    join_clocks(known, {"producer": 1, "consumer": 1})
    assert known == {"copies": 5, "producer": 2, "consumer": 1}


def test_nothing_that_is_checked_by_it_knows_of_it() -> None:
    """What places waits, what writes them and the emulator have none of this."""
    package = Path(tilec.__file__).parent
    for folder in ("passes/lower", "codegen", "emu"):
        for path in (package / folder).rglob("*.py"):
            assert "barrier_machine" not in path.read_text(encoding="utf-8"), path
