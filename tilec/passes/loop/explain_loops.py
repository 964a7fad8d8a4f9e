"""Explanations of the decisions about a kernel's loops, for its author."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilec.ir import tile
from tilec.passes.loop.build_problem import LoopProblem, PlannedLoop
from tilec.sched.budget import Budget
from tilec.sched.decision import Decision
from tilec.support.options import CompileOptions


def explain_loops(
    loops: Sequence[PlannedLoop], options: CompileOptions, decisions: Sequence[Decision], budget: Budget
) -> Iterator[Decision]:
    """Report as decisions whether warpgroups copy transposed operands, and whether the search used its whole budget."""
    yield from _explain_operand_transposes([planned.loop for planned in loops], options, decisions)
    if budget.is_spent:
        is_default = options.search_budget == CompileOptions().search_budget
        why = (
            f"the search used all of its {options.search_budget} units; "
            "a larger --search-budget may find a better schedule"
        )
        yield Decision("search", "budget spent", "the compiler" if is_default else "the command line", why)


def _explain_operand_transposes(
    loops: Sequence[LoopProblem], options: CompileOptions, decided: Sequence[Decision]
) -> Iterator[Decision]:
    """Yield, for each loop with transposed operands, the decision whether each warpgroup has its own copy, and why.
    `decided` are the decisions about the warpgroups."""
    reasons = {decision.what: decision.why for decision in decided}
    for loop in loops:
        names = ", ".join(sorted(loop.own_tiles))
        if not names:
            continue
        what, chosen = f"copies of {names}", "one for all warpgroups"
        if loop.groups > 1:
            chosen = f"a copy for each of {loop.groups} warpgroups"
            yield Decision(what, chosen, "the compiler", "no warpgroup waits for another one's transpose")
        elif not options.ping_pong:
            yield Decision(what, chosen, "the command line", "--no-ping-pong")
        else:
            why = reasons.get(name_ping_pong_decision(loop.loop, [each.loop for each in loops]))
            why = why or "other statements of the loop keep the warpgroups together"
            yield Decision(what, chosen, "the compiler", why)


def is_ping_pong_decision(decision: Decision) -> bool:
    """Return whether a decision is about the turns of a loop's warpgroups."""
    return decision.what.startswith("ping-pong")


def name_ping_pong_decision(loop: tile.For, loops: Sequence[tile.For]) -> str:
    """Return the name of the ping-pong decision of a loop, one of `loops`."""
    return "ping-pong" if len(loops) == 1 else f"ping-pong at line {loop.span.line}"
