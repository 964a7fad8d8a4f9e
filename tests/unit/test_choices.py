"""How the compiler decides, whatever it is about: what is priced, what is not even made, and what is recorded."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from tilec.passes.choices.question import (
    RULES,
    Candidate,
    Question,
    QuestionGenerator,
    answer_question,
    answer_questions,
    ask_question,
    make_ruled_question,
)
from tilec.sched.decision import Alternative
from tilec.support.diagnostics import InternalError


def question(
    *prices: int | None, least: dict[int, int] | None = None, **more: object
) -> tuple[Question[int], list[int]]:
    """Candidates a, b, c … with these prices (None: not to be had), and which of them are made, as they are."""
    made: list[int] = []

    def maker(number: int) -> Callable[[], int | None]:
        def make() -> int | None:
            made.append(number)
            return None if prices[number] is None else number

        return make

    candidates = tuple(
        Candidate(
            "abcdef"[number],
            maker(number),
            f"--is {number}",
            ((lambda bound=bound: bound),) if (bound := (least or {}).get(number)) is not None else (),
        )
        for number in range(len(prices))
    )
    asked = Question(
        "what",
        candidates,
        price=lambda number: prices[number],
        explain=lambda o: f"{o.chosen} {dict(o.prices)}",
        **more,
    )
    return asked, made


@pytest.mark.parametrize(
    ("prices", "gain", "chosen"),
    [
        ((10,), Fraction(0), 0),
        ((10, 10), Fraction(0), 0),  # the default wins a tie
        ((10, 9), Fraction(0), 1),
        ((10, 9, 9, 8), Fraction(0), 3),
        ((10, 8, 8), Fraction(0), 1),
        ((100, 96), Fraction(1, 20), 0),
        ((100, 95), Fraction(1, 20), 1),
        ((10, None, 7), Fraction(0), 2),
    ],
)
def test_the_cheapest_is_taken(prices: tuple[int | None, ...], gain: Fraction, chosen: int) -> None:
    asked, made = question(*prices, least_gain=gain)
    answer = answer_question(asked)
    assert (answer.value, answer.decision.chosen) == (chosen, "abcdef"[chosen])
    assert made == list(range(len(prices)))
    assert [each.price for each in answer.decision.alternatives] == list(prices)
    assert [each.option for each in answer.decision.alternatives] == [f"--is {n}" for n in range(len(prices))]
    assert (answer.decision.what, answer.decision.by) == ("what", "the compiler")


def test_what_a_bound_rules_out_is_not_made() -> None:
    asked, made = question(10, 8, 7, 5, least={1: 10, 2: 7, 3: 7})
    answer = answer_question(asked)
    assert (answer.value, made) == (2, [0, 2])  # 3 could not be below 7
    assert answer.decision.why == "c {'a': 10, 'c': 7}"
    assert answer.decision.alternatives[3] == Alternative("d", None, None, "--is 3")


@pytest.mark.parametrize(("prices", "chosen", "by"), [((5, 9, 7), 2, "the kernel"), ((5, None), 0, "the compiler")])
def test_what_a_person_asks_for_is_taken_where_it_can_be_had(
    prices: tuple[int | None, ...], chosen: int, by: str
) -> None:
    asked, _ = question(*prices, last_resort=True, by="the kernel")
    answer = answer_question(asked)
    assert (answer.value, answer.decision.by) == (chosen, by)


def test_a_ruling_prices_nothing() -> None:
    made: list[str] = []
    first = Candidate("yes", lambda: made.append("yes") or 1, "--so")
    other = Candidate("no", lambda: made.append("no") or 2, "--no-so")
    answer = answer_question(make_ruled_question("mask at line 3", "the compiler", "since", first, other))
    assert (answer.value, made) == (1, ["yes"])
    assert answer.decision.alternatives == (
        Alternative("yes", None, None, "--so"),
        Alternative("no", None, None, "--no-so"),
    )
    assert (
        answer_question(make_ruled_question("what", "the kernel", "it says so", first, other)).decision.alternatives
        == ()
    )
    assert answer_question(make_ruled_question("what", "the compiler", "since", first)).decision.alternatives == ()


def test_no_rule_decides_that_is_not_known() -> None:
    """Among answers that are possible. Where a person says it, or there is one alone, no rule is needed."""
    first, other = (Candidate(answer, lambda: 1) for answer in ("yes", "no"))
    with pytest.raises(InternalError, match="what: no rule is known that decides it without a price"):
        answer_question(make_ruled_question("what", "the compiler", "since", first, other))


@pytest.mark.parametrize("what", RULES)
def test_each_rule_is_documented(what: str) -> None:
    page = (Path(__file__).parents[2] / "docs/blocks.md").read_text(encoding="utf-8")
    assert f"| {what} | {RULES[what]} |" in page


def test_questions_follow_one_another() -> None:
    def asking() -> QuestionGenerator[int]:
        first = yield from ask_question(make_ruled_question("one", "the compiler", "", Candidate("x", lambda: 3)))
        second = yield from ask_question(
            make_ruled_question("two", "the compiler", "", Candidate("y", lambda: first.value + 1))
        )
        return second.value * 10

    value, decisions = answer_questions(asking())
    assert (value, [decision.what for decision in decisions]) == (40, ["one", "two"])


def test_what_there_is_anyhow_can_be_had() -> None:
    with pytest.raises(InternalError, match="what: a is what there is anyhow, and cannot be had"):
        answer_question(question(None)[0])
    with pytest.raises(InternalError, match="neither prices nor a rule"):
        answer_question(Question("what", (Candidate("a", lambda: 1),)))
