"""Decision: ping-pong, that is whether the consumer warpgroups of a loop run independently, and alternate at the tensor
cores (`loop.assign_roles`).

Then one computes while another one multiplies; but each has issue slots and tiles of its own, more instructions are
issued, and it takes time to alternate (`PING_PONG_CYCLES`). The lower bound of the interval decides without a schedule.
If both bounds are equal, as where products fill the interval, the longest dependence cycle beside products decides: it
says how easily the bound is reached.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from tilec.ops.copies.transpose import Transpose
from tilec.passes.choices.question import (
    Candidate,
    Outcome,
    Question,
    QuestionGenerator,
    ask_question,
    make_ruled_question,
)
from tilec.passes.cost.model import PING_PONG_CYCLES
from tilec.passes.loop.build_problem import LoopProblem, PingPongVariants, find_ping_pong_loops, loops_to_schedule
from tilec.passes.loop.explain_loops import name_ping_pong_decision
from tilec.passes.loop.ping_pong import CONTENDED_SLOT
from tilec.passes.scheduling.schedule_loop import read_given_schedules
from tilec.passes.state import KernelState
from tilec.sched.lower_bounds.bounds import Bound, Bounds, Unschedulable, compute_bounds
from tilec.sched.problem import Problem
from tilec.sched.schedule import Schedule

UNORDERED_CYCLES = 800
"""Cycles that ping-pong takes beyond the bound where another unit than the tensor cores binds: turns do not order that
one, and warpgroups without turns drift apart by themselves. On an H200 attention with heads of 64 columns, bound by
exponentials, takes 2,230 cycles an iteration with turns, 1,400 being the bound, and 2,070 without, where two groups in
step would take 2,412 (benchmarks/results/h200-2026-11-27)."""
LEAST_GAIN = Fraction(3, 20)
"""The fraction of the interval that ping-pong has to save: the lower bounds that are compared are not reached alike. On
an H200 causal attention by tiles of 64 keys, for which they promise a seventh, is 8 % slower with it, and attention by
tiles of 128 keys, for which they promise a sixth, 8 to 16 % faster."""


def choose_ping_pong(state: KernelState) -> QuestionGenerator[KernelState]:
    """Decide whether warpgroups of a loop run independently and alternate at the unit that they contend for."""
    if state.search.explored is not None or state.assignment.roles:
        return state
    options, loops, divided_loops = state.options, loops_to_schedule(state.assignment), []
    given = {"overlap": options.overlap, "store_role": options.epilogue_warp}
    withdrawn = dict(state.search.withdrawn_choices).get("choose-ping-pong")
    schedules = dict(zip((loop.var for loop in loops), read_given_schedules(options, len(loops)), strict=True))
    for loop, _, divided in find_ping_pong_loops(
        state.assignment, state.target, unlimited_smem=options.switches.unlimited_smem, **given
    ):
        what = name_ping_pong_decision(loop, loops)
        if not options.ping_pong:
            yield from ask_question(
                make_ruled_question(what, "the command line", "--no-ping-pong", Candidate("no", lambda: state))
            )
            continue
        division = divided()
        against = withdrawn or _find_reason_of_schedule(division, schedules[loop.var])
        if (question := _ask_for_ping_pong(what, division, options.max_scheduled_ii, against)) is not None:
            divided_loops.append((yield from ask_question(question)).value)
    return replace(state, search=replace(state.search, divided=tuple(divided_loops)))


def _find_reason_of_schedule(division: PingPongVariants, given: Schedule | None) -> str | None:
    """Return why a schedule given by a trace allows no turns: it has each statement once; None if it does not say."""
    if given is None or division.ping_ponging is None:
        return None
    together, divided = len(division.together.problem.ops), len(division.ping_ponging.problem.ops)
    return "the given schedule has each statement once" if len(given.start) == together < divided else None


def _ask_for_ping_pong(
    what: str, division: PingPongVariants, max_interval: int | None, against: str | None
) -> Question[LoopProblem] | None:
    """Ask whether warpgroups run independently; None where the loop has no schedule, which the solver reports. A loop
    whose interval must exceed `max_interval` is not scheduled, and its warpgroups stay together, as where a later pass
    has found a reason `against` turns."""
    together, per_group = division.together, division.ping_ponging
    stay = Candidate("no", lambda: together, "--no-ping-pong")
    if per_group is None:
        return make_ruled_question(what, "the compiler", "shared memory has no room for tiles per warpgroup", stay)
    if against is not None:
        return make_ruled_question(what, "the compiler", against, stay)
    try:
        of_one, of_more = compute_bounds(together.problem), compute_bounds(per_group.problem)
    except Unschedulable:
        return None
    ping_ponging = Candidate(f"{division.groups} warpgroups", lambda: per_group, "--ping-pong")
    least, possible = of_one.mii, of_more.mii
    cycles = _find_longest_recurrence(together.problem, of_one), _find_longest_recurrence(per_group.problem, of_more)
    # All threads of the block transpose operands together.
    is_transposed = any(isinstance(stmt, Transpose) for stmt in together.statements)
    are_alike = least == possible and cycles[0] > cycles[1] and not is_transposed
    if are_alike:
        least, possible = cycles
    is_tensor_bound = any(bound.name == CONTENDED_SLOT for bound in of_more.binding)
    added_cycles = PING_PONG_CYCLES if is_tensor_bound else UNORDERED_CYCLES
    possible += added_cycles

    def explain_outcome(outcome: Outcome) -> str:
        """Return why warpgroups alternate or stay together, in words."""
        if outcome.chosen != "no" and are_alike:
            room = f"the dependences between iterations take {cycles[1]} cycles instead of {cycles[0]}"
            return (
                f"one warpgroup computes while another multiplies: no interval is below {of_one.mii} cycles, and {room}"
            )
        if outcome.chosen == "no":
            added = f", and ping-pong takes {added_cycles} more" if of_more.mii < of_one.mii else ""
            return f"no interval is below {of_more.mii} cycles with ping-pong, or below {of_one.mii} without{added}"
        return "one warpgroup computes while another multiplies"

    if max_interval is not None and of_one.mii > max_interval:
        return make_ruled_question(what, "the command line", f"--max-scheduled-ii {max_interval}", stay)
    return Question(
        what,
        (stay, ping_ponging),
        price=lambda loop: possible if loop is per_group else least,
        unit="cycles an iteration",
        explain=explain_outcome,
        least_gain=LEAST_GAIN,
    )


def _find_longest_recurrence(problem: Problem, found: Bounds) -> int:
    """Return the longest recurrence that spends at least an eighth of its cycles outside the slots that fill the
    interval."""
    full = {bound.name for bound in found.binding if bound.kind == "slot"}

    def count_other_cycles(bound: Bound) -> int:
        uses = (use for op in {*bound.ops} for use in problem.ops[op].uses)
        return bound.ii - sum(use.cycles for use in uses if problem.slots[use.slot].name in full)

    cycles = (bound for bound in found.each if bound.kind == "recurrence" and 8 * count_other_cycles(bound) >= bound.ii)
    return max((bound.ii for bound in cycles), default=0)
