"""Decision: the warps that issue copies to global memory, a warp of its own or those that compute.

A loop's problem says which copies are open, and its schedule decides: `sched.roles` compares the roles by rule with all
others.
"""

from __future__ import annotations

from tilec.passes.choices.question import Candidate, Outcome, Question
from tilec.passes.loop.build_problem import ScheduledLoop
from tilec.sched.solution import Solution


def choose_epilogue_warp(scheduled_loop: ScheduledLoop, solution: Solution) -> Question[int] | None:
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
