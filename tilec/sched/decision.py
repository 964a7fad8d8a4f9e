"""What was decided for a kernel beside the schedules of its loops."""

from __future__ import annotations

from typing import Literal

from tilec.support.records import dataclass

Decider = Literal["the kernel", "the command line", "the compiler"]
Unit = Literal["cycles", "cycles an iteration"]
"""Of the whole kernel, or of the loop that a choice is about."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """An answer that there was, the one taken included. Its `price` by the model, in `unit`, is None where a rule gave
    the answer, where this one cannot be had, or where a bound said enough; `option` is what asks for it on the command
    line, if anything does."""

    answer: str
    price: int | None
    unit: Unit | None
    option: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """One question, its answer, who gave it, and why, in words for the person who wrote the kernel; and what else the
    answer could have been."""

    what: str
    chosen: str
    by: Decider
    why: str
    alternatives: tuple[Alternative, ...] = ()
