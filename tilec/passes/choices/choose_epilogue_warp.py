"""Decision: the warps that issue copies to global memory, a warp of its own or those that compute.

A loop's problem says which copies are open, and its schedule decides: `sched.model.roles` compares the roles by rule
with all others.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.passes.choices.question import Candidate, Outcome, Question, QuestionGenerator, ask_question
from tilec.passes.loop.build_problem import LoopProblem, ScheduledLoop
from tilec.passes.scheduling.solve_loops import solve_problems
from tilec.passes.state import KernelState
from tilec.sched.solution import Solution


def choose_epilogue_warp(state: KernelState) -> QuestionGenerator[KernelState]:
    """Decide whether a separate warp starts copies to global memory, by the schedule of each loop where it could."""
    if state.search.explored is not None:
        return state
    state = replace(state, loops=solve_problems(state, where=_has_open_roles))
    for planned in state.loops:
        question = _ask_for_epilogue_warp(planned.scheduled, planned.solution)
        if question is not None:
            yield from ask_question(question)
    return state


def _has_open_roles(loop: LoopProblem) -> bool:
    """Return whether the loop's schedule chooses the role of some statements."""
    return any(len(op.roles) > 1 for op in loop.problem.ops)


def _ask_for_epilogue_warp(scheduled_loop: ScheduledLoop, solution: Solution) -> Question[int] | None:
    """Ask which role issues the copies of a loop, answered by its solution; None where that was not left open. The
    value of an answer is the interval."""
    by_rule, ii = solution.ii_by_rule, solution.schedule.ii
    if by_rule is None:
        return None
    others = sorted(
        {role for role, rule in zip(scheduled_loop.roles, scheduled_loop.loop.roles, strict=True) if role != rule}
    )
    names = ", ".join(others)

    def explain_outcome(outcome: Outcome) -> str:
        """Return why the warp was chosen or not, in words."""
        if others:
            return f"an interval of {ii} cycles; with the roles by rule {by_rule}"
        return f"no other assignment of roles has an interval below {by_rule} cycles"

    chosen = (Candidate(names, lambda: ii, "--epilogue-warp"),) if others else ()
    return Question(
        "epilogue warp",
        (Candidate("no", lambda: by_rule, "--no-epilogue-warp"), *chosen),
        price=lambda interval: interval,
        unit="cycles an iteration",
        explain=explain_outcome,
    )
