"""The decisions made for a kernel besides the schedules of its loops, as a trace records them."""

from __future__ import annotations

from typing import Literal

from tilec.support.records import dataclass

Decider = Literal["the kernel", "the command line", "the compiler"]
Unit = Literal["cycles", "cycles an iteration"]
"""Of an alternative's price: cycles of the whole kernel, or per iteration of the loop that the decision is about."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A possible answer, the chosen one included. `price` is the model's estimate in `unit`; None where a rule decided,
    a bound sufficed, or the answer is impossible. `option` is the command-line option that requests the answer, if
    there is one."""

    answer: str
    price: int | None
    unit: Unit | None
    option: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A question, its chosen answer, who decided and why (in words for the kernel's author), and the alternatives."""

    what: str
    chosen: str
    by: Decider
    why: str
    alternatives: tuple[Alternative, ...] = ()
