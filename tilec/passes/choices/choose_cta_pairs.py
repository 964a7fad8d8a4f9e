"""Decision: the products that the tensor cores of two blocks compute together (`grid.cta_pair_products`). It is a rule:
in a given cluster they load less, and do nothing more."""

from __future__ import annotations

from dataclasses import replace

from tilec.passes.choices.question import Candidate, QuestionGenerator, ask_question, make_ruled_question
from tilec.passes.grid.cta_pair_products import can_pair, pair_products
from tilec.passes.state import KernelState


def choose_cta_pairs(state: KernelState) -> QuestionGenerator[KernelState]:
    """Decide which products the tensor cores of two blocks compute together."""
    if not can_pair(state.assignment, state.target):
        return state
    single = Candidate("none", lambda: state, "--no-cta-pairs")
    if not state.options.cta_pairs:
        return (
            yield from ask_question(make_ruled_question("CTA pairs", "the command line", "--no-cta-pairs", single))
        ).value
    paired, answer = pair_products(state.assignment, state.target)
    if paired is None:
        return (yield from ask_question(make_ruled_question("CTA pairs", "the compiler", answer, single))).value
    both = Candidate(answer, lambda: replace(state, layouts=paired), "--cta-pairs")
    why = "they need the same columns, which their tensor cores can read from each other"
    return (yield from ask_question(make_ruled_question("CTA pairs", "the compiler", why, both, single))).value
