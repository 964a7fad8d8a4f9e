"""Questions that the compiler decides: candidates for an answer, of which the cost model's cheapest is taken, and the
record of the decision.

A question is ruled if its answer needs no price: it was given, only one is possible, or a rule of `RULES` says which is
best. Its candidates are recorded all the same, each with its option: a search for better ones tries these (`tilec
tune`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from fractions import Fraction
from typing import Any, Generic, TypeVar

from tilec.sched.decision import Alternative, Decider, Decision, Unit
from tilec.support import progress
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass

T = TypeVar("T")

RULES: Mapping[str, str] = {
    "CTA pairs": "pairs load less in a given cluster, and cost nothing",
    "cluster": "priced, where a producer warp loads tiles that the blocks of a pair share",
    "loop": "the number of its stages is priced, and one is a candidate",
    "mask": "fewer iterations test the mask, and none does more work",
    "multicast": "blocks load less in a given cluster, and it costs nothing",
    "overlap": "with overlap the solver can still choose every schedule without it",
    "persistent grid": "priced, unless the grid or the work of its blocks is known only at launch",
    "programmatic dependent launch": "priced if threads load tensors in a loop; else it depends on the previous kernel",
    "roles": "priced, unless the grid is known only at launch, or a product has too few iterations",
    "tile scheduler": "priced, unless the grid or the work of its blocks is known only at launch",
}
"""Decisions by a rule though other answers are possible, and why no price distinguishes these."""

Bound = Callable[[], int | None]
"""Returns a lower bound of a price, or None if there is no price after all."""


@dataclass(frozen=True, slots=True)
class Candidate(Generic[T]):
    """An answer, as decisions spell it, and the `option` that requests it. `make` builds its value, or None if that is
    impossible after all. `bounds` are evaluated first, in order: a candidate that they rule out is never made."""

    answer: str
    make: Callable[[], T | None]
    option: str | None = None
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The `chosen` answer, and the prices of the priced candidates, by answer."""

    chosen: str
    prices: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decider that takes the first candidate without a price, and the reason."""

    by: Decider
    why: str


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A question and its candidates. The first is taken unless another one costs less, by the fraction `least_gain` of
    its price at least. If the first is only the `last_resort`, the cheapest possible one of the others is taken, which
    `by` requested. `explain` gives the reason for an outcome. With a `ruling` nothing is priced."""

    what: str
    candidates: tuple[Candidate[T], ...]
    ruling: Ruling | None = None
    price: Callable[[T], int | None] | None = None
    unit: Unit = "cycles"
    explain: Callable[[Outcome], str] | None = None
    least_gain: Fraction = Fraction(0)
    last_resort: bool = False
    by: Decider = "the compiler"


def make_ruled_question(what: str, by: Decider, why: str, first: Candidate[T], *others: Candidate[T]) -> Question[T]:
    """Return a question whose answer is the first candidate."""
    return Question(what, (first, *others), Ruling(by, why))


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The value of the answer to a question, and the decision record."""

    value: T
    decision: Decision


QuestionGenerator = Generator[Question[Any], Any, T]
"""A generator that yields questions one after the other, receives the answers, and returns the result of all."""


def ask_question(question: Question[T]) -> QuestionGenerator[Answer[T]]:
    """Ask a question inside a generator: `answer = yield from ask_question(question)`."""
    answer: Answer[T] = yield question
    return answer


def answer_questions(asking: QuestionGenerator[T]) -> tuple[T, tuple[Decision, ...]]:
    """Return the result of a generator of questions, and the decision records."""
    decisions: list[Decision] = []
    answer: Answer[Any] | None = None
    while True:
        try:
            question = asking.send(answer)
        except StopIteration as end:
            made: T = end.value
            return made, tuple(decisions)
        answer = answer_question(question)
        decisions.append(answer.decision)


def answer_question(question: Question[T]) -> Answer[T]:
    """Answer a question: by its ruling, or by the cheapest candidate."""
    first, *others = question.candidates
    first_value = first.make()
    if first_value is None:
        raise InternalError(f"{question.what}: {first.answer} is what there is anyhow, and cannot be had")
    if question.ruling is not None:
        ruling = question.ruling
        is_open = others and ruling.by == "the compiler"  # no search tries alternatives to a requested answer
        if is_open and question.what.partition(" at line ")[0] not in RULES:
            raise InternalError(f"{question.what}: no rule is known that decides it without a price")
        weighed = [_record_alternative(each, None, question.unit) for each in question.candidates] if is_open else []
        record = Decision(question.what, first.answer, ruling.by, ruling.why, tuple(weighed))
        return Answer(first_value, record)
    if question.price is None or question.explain is None:
        raise InternalError(f"{question.what}: candidates have neither prices nor a rule")
    price = question.price(first_value)
    best, chosen = first_value, first
    weighed = [_record_alternative(first, price, question.unit)]
    # The most that a candidate may cost: enough less than the first, and less than the best so far.
    limit = None if question.last_resort or price is None else price - _required_saving(price, question.least_gain)
    for number, candidate in enumerate(others, 2):
        progress.report_detail(f"{question.what}: candidate {number} of {len(question.candidates)}")
        if limit is not None and not _can_cost(candidate, limit):
            weighed.append(_record_alternative(candidate, None, question.unit))
            continue
        made = candidate.make()
        cost = None if made is None else question.price(made)
        weighed.append(_record_alternative(candidate, cost, question.unit))
        if made is not None and cost is not None and (limit is None or cost <= limit):
            best, chosen, limit = made, candidate, cost - 1
    prices = {each.answer: each.price for each in weighed if each.price is not None}
    by = question.by if chosen is not first or not question.last_resort else "the compiler"
    why = question.explain(Outcome(chosen.answer, prices))
    return Answer(best, Decision(question.what, chosen.answer, by, why, tuple(weighed)))


def _required_saving(price: int, least: Fraction) -> int:
    """Return the cycles by which a candidate has to be cheaper: at least one."""
    return max(-(-price * least.numerator // least.denominator), 1)


def _can_cost(candidate: Candidate[T], limit: int) -> bool:
    """Return whether the bounds of a candidate allow a price up to the limit."""
    return all((least := bound()) is not None and least <= limit for bound in candidate.bounds)


def _record_alternative(candidate: Candidate[T], price: int | None, unit: Unit) -> Alternative:
    return Alternative(candidate.answer, price, None if price is None else unit, candidate.option)
