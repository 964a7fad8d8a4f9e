"""What a choice of the compiler is, whatever it is about: a question with the candidates for an answer, of which the
cheapest by the cost model is taken; and the record of that, which is alike for all of them.

A question whose answer needs no price, since somebody has given it, only one is possible, or a rule of `RULES` says
which is best, is `ruled`. The candidates are recorded all the same, each with the option that asks for it: these are
what a search for better ones tries (`tilec tune`).
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
    "CTA pairs": "in a given cluster they load less, and do nothing more",
    "cluster": "where blocks keep one pace they load less; the price of waiting where they do not is not known",
    "loop": "its stages are priced, one of them among others",
    "mask": "fewer iterations test it, and none does more",
    "multicast": "in a given cluster blocks load less, and do nothing more",
    "overlap": "every schedule without it is one of those with it",
    "persistent grid": "priced but where the blocks, or what they do, are known only at launch",
    "programmatic dependent launch": "what kernel is launched before, and how it ends, is not known",
    "roles": "the estimate of a loop takes its loads to cost the other warps nothing in either form",
    "tile scheduler": "priced but where the blocks, or what they do, are known only at launch",
}
"""What is decided by a rule though other answers are possible, and why no price tells them apart."""

Bound = Callable[[], int | None]
"""No more than a price is, or None where it turns out that there is none."""


@dataclass(frozen=True, slots=True)
class Candidate(Generic[T]):
    """An answer, as decisions spell it, and the `option` by which a person gets it. `make` gives what there is with it,
    or None where that cannot be had after all. `bounds` are asked in their order before it is made; what they leave no
    hope for is never made."""

    answer: str
    make: Callable[[], T | None]
    option: str | None = None
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was `chosen`, and the prices of the candidates that were priced, by their answers."""

    chosen: str
    prices: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Ruling:
    """Who gives the first candidate for an answer without a price, and why."""

    by: Decider
    why: str


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """What is decided, and the candidates: the first is what is done unless another one costs less, by `least_gain` of
    its price at least. Where the first is only the `last_resort`, the cheapest of the others is taken that can be had,
    which `by` asks for. `explain` says why the outcome is as it is. With a `ruling` nothing is priced."""

    what: str
    candidates: tuple[Candidate[T], ...]
    ruling: Ruling | None = None
    price: Callable[[T], int | None] | None = None
    unit: Unit = "cycles"
    explain: Callable[[Outcome], str] | None = None
    least_gain: Fraction = Fraction(0)
    last_resort: bool = False
    by: Decider = "the compiler"


def ruled(what: str, by: Decider, why: str, first: Candidate[T], *others: Candidate[T]) -> Question[T]:
    """A question whose answer is the first candidate."""
    return Question(what, (first, *others), Ruling(by, why))


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What there is with the answer to a question, and the record of it."""

    value: T
    decision: Decision


Asking = Generator[Question[Any], Any, T]
"""Asks questions one after the other, each knowing the answers before, and gives what all of them make."""


def ask(question: Question[T]) -> Asking[Answer[T]]:
    """As in `answer = yield from ask(question)`."""
    answer: Answer[T] = yield question
    return answer


def answered(asking: Asking[T]) -> tuple[T, tuple[Decision, ...]]:
    """What comes of the questions, and the records of their answers."""
    decisions: list[Decision] = []
    answer: Answer[Any] | None = None
    while True:
        try:
            question = asking.send(answer)
        except StopIteration as end:
            made: T = end.value
            return made, tuple(decisions)
        answer = decided(question)
        decisions.append(answer.decision)


def decided(question: Question[T]) -> Answer[T]:
    """The answer: what the ruling says, or the candidate that costs least."""
    first, *others = question.candidates
    kept = first.make()
    if kept is None:
        raise InternalError(f"{question.what}: {first.answer} is what there is anyhow, and cannot be had")
    if question.ruling is not None:
        said = question.ruling
        is_open = others and said.by == "the compiler"  # nobody looks for better than what a person asks for
        if is_open and question.what.partition(" at line ")[0] not in RULES:
            raise InternalError(f"{question.what}: no rule is known that decides it without a price")
        weighed = [_alternative(each, None, question.unit) for each in question.candidates] if is_open else []
        record = Decision(question.what, first.answer, said.by, said.why, tuple(weighed))
        return Answer(kept, record)
    if question.price is None or question.explain is None:
        raise InternalError(f"{question.what}: candidates have neither prices nor a rule")
    price = question.price(kept)
    best, chosen = kept, first
    weighed = [_alternative(first, price, question.unit)]
    # What a candidate may cost at most: enough less than the first, and less than any other.
    limit = None if question.last_resort or price is None else price - _gain(price, question.least_gain)
    for number, candidate in enumerate(others, 2):
        progress.report_detail(f"{question.what}: candidate {number} of {len(question.candidates)}")
        if limit is not None and not _may_cost(candidate, limit):
            weighed.append(_alternative(candidate, None, question.unit))
            continue
        made = candidate.make()
        cost = None if made is None else question.price(made)
        weighed.append(_alternative(candidate, cost, question.unit))
        if made is not None and cost is not None and (limit is None or cost <= limit):
            best, chosen, limit = made, candidate, cost - 1
    prices = {each.answer: each.price for each in weighed if each.price is not None}
    by = question.by if chosen is not first or not question.last_resort else "the compiler"
    why = question.explain(Outcome(chosen.answer, prices))
    return Answer(best, Decision(question.what, chosen.answer, by, why, tuple(weighed)))


def _gain(price: int, least: Fraction) -> int:
    """So many cycles less a candidate has to cost: one at least."""
    return max(-(-price * least.numerator // least.denominator), 1)


def _may_cost(candidate: Candidate[T], limit: int) -> bool:
    """Whether no bound rules out that it costs no more than the limit."""
    return all((least := bound()) is not None and least <= limit for bound in candidate.bounds)


def _alternative(candidate: Candidate[T], price: int | None, unit: Unit) -> Alternative:
    return Alternative(candidate.answer, price, None if price is None else unit, candidate.option)
