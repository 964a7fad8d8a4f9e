"""Decision: the iterations in which a mask is tested (`loop.eliminate_masks`). It is a rule: see `choices.question`."""

from __future__ import annotations

from dataclasses import replace

from tilec.passes.choices.question import Candidate, QuestionGenerator, ask_question, make_ruled_question
from tilec.passes.loop.eliminate_masks import describe_masked_iterations, eliminate_masks
from tilec.passes.state import KernelState


def choose_masked_iterations(state: KernelState) -> QuestionGenerator[KernelState]:
    """Test conditions that hold in most iterations only in the others."""
    written = state
    kernel, masks = eliminate_masks(written.kernel, written.target)
    for mask in masks:
        fewer = Candidate(describe_masked_iterations(mask), lambda: replace(written, kernel=kernel))
        every = Candidate("in every iteration", lambda: written, "--no-split-loops")
        what = f"mask at line {mask.nest.span.line}"
        if not written.options.split_loops:
            question = make_ruled_question(what, "the command line", "--no-split-loops", every)
        else:
            rest = "its condition" if mask.holds is None else "in the others it"
            question = make_ruled_question(what, "the compiler", f"{rest} holds for every element", fewer, every)
        state = (yield from ask_question(question)).value
    return state
