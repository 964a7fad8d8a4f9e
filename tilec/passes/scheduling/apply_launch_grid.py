"""The grid that was decided, carried out."""

from __future__ import annotations

from dataclasses import replace

from tilec.passes.explicit_roles.split_roles import split_roles
from tilec.passes.grid.rasterise import rasterise_blocks
from tilec.passes.state import LAYOUTS_ROW, ChoiceWithdrawn, Explorer, KernelState

LOSES_ROLES = "a persistent grid would cost the kernel its producer warp"


def apply_launch_grid(state: KernelState, explore: Explorer) -> KernelState:
    """Build the grid, cluster and block order that were decided, and assign layouts again if the kernel changed."""
    launched, assignment = state.kernel if state.is_persistent else rasterise_blocks(state.kernel), state.assignment
    if launched is not state.search.kernel_before_grid:
        launched = split_roles(launched)  # each role computes its own block index
        assignment = explore(replace(state, kernel=launched, layouts=None), LAYOUTS_ROW).assignment
    if state.is_persistent and assignment.form != state.assignment.form:
        raise ChoiceWithdrawn("choose-persistent-grid", LOSES_ROLES)
    return replace(state, kernel=launched, layouts=assignment)
