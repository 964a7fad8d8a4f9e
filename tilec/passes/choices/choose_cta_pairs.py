"""Decision: the products that the tensor cores of two blocks compute together (`grid.cta_pair_products`). It is a rule:
in a given cluster they load less, and do nothing more."""

from __future__ import annotations

from tilec.passes.choices.question import Candidate, Question, make_ruled_question
from tilec.passes.grid.cta_pair_products import can_pair, pair_products
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.support.options import CompileOptions
from tilec.target.table import Target


def choose_cta_pairs(
    assignment: LayoutAssignment, target: Target, options: CompileOptions
) -> Question[LayoutAssignment] | None:
    """Decide which products the tensor cores of two blocks compute together."""
    if not can_pair(assignment, target):
        return None
    single = Candidate("none", lambda: assignment, "--no-cta-pairs")
    if not options.cta_pairs:
        return make_ruled_question("CTA pairs", "the command line", "--no-cta-pairs", single)
    paired, answer = pair_products(assignment, target)
    if paired is None:
        return make_ruled_question("CTA pairs", "the compiler", answer, single)
    both = Candidate(answer, lambda: paired, "--cta-pairs")
    why = "both blocks need the same columns, and each can read half of them from the other"
    return make_ruled_question("CTA pairs", "the compiler", why, both, single)
