"""Takes back turns of warpgroups whose products the assembler serialises.

Warpgroups that take turns at the tensor cores hold more at a time. Where registers do not suffice, ptxas waits behind
each wgmma, and the kernel takes nearly twice as long: attention backward on an H200 1,423 µs with three stages and
turns, 775 µs without turns. No estimate of registers is as good as what ptxas itself says, so it is asked."""

from __future__ import annotations

from tilec.passes.loop.explain_loops import is_ping_pong_decision
from tilec.passes.state import ChoiceWithdrawn, KernelState
from tilec.ptx.assembled_cache import assemble_ptx
from tilec.ptx.names import separate_parameters
from tilec.ptx.text import print_module
from tilec.sched.decision import Decision
from tilec.support.diagnostics import InternalError
from tilec.support.options import DECIDING_LEVEL

SERIALISED = "wgmma-serialised"


def check_ping_pong(state: KernelState) -> None:
    """Assemble a kernel whose warpgroups take turns by the compiler's choice; withdraw that if products are then
    serialised."""
    if state.options.opt_level < DECIDING_LEVEL or not any(map(_has_chosen_ping_pong, state.decisions)):
        return
    module = separate_parameters(state.module)  # as in a file of this kernel alone, which is then assembled already
    try:
        assembled = assemble_ptx(state.options, module.target, print_module(module))
    except InternalError:
        return  # `assemble-cubin` says so, when the PTX is there as evidence
    if any(remark.kind == SERIALISED for remark in assembled.remarks):
        why = "with turns the assembler serialises the products of a warpgroup"
        raise ChoiceWithdrawn("choose-ping-pong", why, since="choose-subtile")


def _has_chosen_ping_pong(decision: Decision) -> bool:
    """Return whether the compiler has decided that the warpgroups of a loop take turns."""
    return is_ping_pong_decision(decision) and decision.by == "the compiler" and decision.chosen != "no"
