"""Decision: which loops of T.serial are pipelined (`loop.stages.detect_pipelines`). It is a rule: their stages are
priced."""

from __future__ import annotations

from dataclasses import replace

from tilec.passes.choices.question import Candidate, QuestionGenerator, ask_question, make_ruled_question
from tilec.passes.loop.stages.detect_pipelines import (
    detect_pipelines,
    find_detected_loops,
    has_asynchronous_loads,
    why_not_detected,
)
from tilec.passes.state import LAYOUTS_ROW, Explorer, KernelState


def choose_pipelined_loops(state: KernelState, explore: Explorer) -> QuestionGenerator[KernelState]:
    """Pipeline loops that load tiles for products, if asynchronous copies can load them."""
    written = state
    found = detect_pipelines(written.kernel, written.target)
    loops = find_detected_loops(written.kernel, found)
    if not loops:
        return written
    against = why_not_detected(written.strategy, written.options)
    layouts = (
        None if against is not None else explore(replace(written, kernel=found, layouts=None), LAYOUTS_ROW).assignment
    )
    if layouts is not None and not has_asynchronous_loads(layouts, loops):
        layouts, against = None, ("the compiler", "no asynchronous copy can load its tiles")
    for loop in loops:
        what = f"loop at line {loop.span.line}"
        serial = Candidate("as it is written", lambda: written, "--no-auto-pipeline")
        if against is not None:
            question = make_ruled_question(what, *against, serial)
        else:
            pipelined = Candidate("pipelined", lambda: replace(written, kernel=found, layouts=layouts))
            why = "it loads tiles for a product, and nothing prevents pipelining"
            question = make_ruled_question(what, "the compiler", why, pipelined, serial)
        state = (yield from ask_question(question)).value
    return state
