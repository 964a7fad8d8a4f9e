"""Schedules of a candidate's loops, for choices whose price is an interval."""

from __future__ import annotations

from dataclasses import replace

from tilec.passes.state import Exploration, Explorer, KernelState


def plan_loops(state: KernelState, explore: Explorer, exploration: Exploration | None = None) -> KernelState:
    """Schedule the kernel's loops so that later rows do not, or answer only what `exploration` asks about them."""
    scheduled = explore(replace(state, search=replace(state.search, exploration=exploration)), "solve-loops")
    search = replace(scheduled.search, explored=scheduled.loops, exploration=None)
    return replace(scheduled, search=search)
