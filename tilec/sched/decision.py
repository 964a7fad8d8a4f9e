"""What was decided for a kernel beside the schedules of its loops."""

from __future__ import annotations

from typing import Literal

from tilec.support.records import dataclass

Decider = Literal["the kernel", "the command line", "the compiler"]


@dataclass(frozen=True, slots=True)
class Alternative:
    """An answer that was weighed, the one taken included, and its `price` by the model, in `unit`."""

    answer: str
    price: int
    unit: Literal["cycles", "cycles an iteration", "bytes a wave"]


@dataclass(frozen=True, slots=True)
class Decision:
    """One question, its answer, who gave it, and why, in words for the person who wrote the kernel; and what else was
    weighed, where answers were priced."""

    what: str
    chosen: str
    by: Decider
    why: str
    alternatives: tuple[Alternative, ...] = ()
