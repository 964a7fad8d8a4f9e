"""Whether the consumers' warpgroups of a loop run apart and take turns at the tensor cores (`loop.assign_roles`).

Then one computes while another one multiplies; but each has issue slots and tiles of its own, and more instructions are
issued. The bound on the interval says which pays, without a schedule.
"""

from __future__ import annotations

from tilec.passes.choices.question import Candidate, Outcome, Question, ruled
from tilec.passes.loop.build_problem import Division, LoopProblem
from tilec.sched.bounds import Unschedulable, bounds


def question(what: str, division: Division, most: int | None) -> Question[LoopProblem] | None:
    """None where the loop has no schedule, which whoever solves it explains. One whose interval must be larger than
    `most` is not scheduled, and its warpgroups stay together."""
    together, per_group = division.together, division.ping_ponging
    stay = Candidate("no", lambda: together, "--no-ping-pong")
    if per_group is None:
        return ruled(what, "the compiler", "there is no room for more of them in shared memory", stay)
    try:
        least, possible = bounds(together.problem).mii, bounds(per_group.problem).mii
    except Unschedulable:
        return None
    ping_ponging = Candidate(f"{division.groups} warpgroups", lambda: per_group, "--ping-pong")

    def explain(outcome: Outcome) -> str:
        if outcome.chosen == "no":
            return f"no interval below {possible} cycles with more, nor below {least} with one"
        return "one computes while another one multiplies"

    if most is not None and least > most:
        return ruled(what, "the command line", f"--max-scheduled-ii {most}", stay)
    return Question(
        what,
        (stay, ping_ponging),
        price=lambda loop: possible if loop is per_group else least,
        unit="cycles an iteration",
        explain=explain,
    )
