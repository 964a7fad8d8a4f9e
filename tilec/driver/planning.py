"""Passes over tile IR before loops are scheduled: rewrites, layouts, and decisions about blocks and warps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tilec.driver.front import get_strategy
from tilec.driver.work import ChoiceWithdrawn, Work

if TYPE_CHECKING:
    from tilec.driver.observer import Observer
    from tilec.ir.tile import Kernel
    from tilec.passes.layout.assign_layouts import LayoutAssignment
    from tilec.sched.decision import Decision


def sums_in_fragments(work: Work, observer: Observer) -> Work:
    """Turn sums in tensor memory into fragments where the kernel leaves their order to the compiler."""
    from tilec.passes.explicit_roles.tensor_sums import convert_sums_to_fragments

    kernel = work.kernel
    with work.mistakes.caught():
        kernel = convert_sums_to_fragments(kernel)
    return replace(work, kernel=kernel)


def subtile_as_asked(work: Work, observer: Observer) -> Work:
    """Split tiles into the parts that the kernel asks for."""
    from tilec.passes.choices.subtile import apply_requested_subtiles

    kernel = work.kernel
    decisions: tuple[Decision, ...] = ()
    with work.mistakes.caught():
        kernel, decisions = apply_requested_subtiles(kernel, work.options)
    return add_decisions(replace(work, kernel=kernel), *decisions)


def compute_layouts(kernel: Kernel, work: Work) -> LayoutAssignment:
    """Choose a mechanism for each copy and product of a kernel, and a layout for each tile."""
    from tilec.passes.explicit_roles.role_layouts import assign_all_layouts

    strategy, switches = get_strategy(kernel, work.options), work.options.switches
    given = (work.target, strategy, switches, work.mistakes)
    return assign_all_layouts(kernel, *given, tma_loads=work.options.tma_loads, versions=work.versions)


def legalise_types(work: Work, observer: Observer) -> Work:
    """Compute with other types in place of those that the machine lacks, which are stored as bytes."""
    from tilec.passes.analysis.unique_names import make_names_unique
    from tilec.passes.layout.legalise_types import legalise_types

    return replace(work, kernel=make_names_unique(legalise_types(work.kernel, work.mistakes)))


def assign_layouts(work: Work, observer: Observer) -> Work:
    """Choose a mechanism for each copy and product, and a layout for each tile."""
    from tilec.passes.layout.generator_copies import check_generator_copies

    layouts = compute_layouts(work.kernel, work)
    check_generator_copies(layouts, work.mistakes)
    return replace(work, layouts=layouts, unassigned=work)


def check_registers(work: Work, observer: Observer) -> Work:
    """Check that the kernel's fragments fit in the registers that the assembler may use."""
    from tilec.passes.layout.register_limits import check_registers

    check_registers(work.assignment, work.mistakes)
    return work


def launch_grid(work: Work, observer: Observer) -> Work:
    """Build the grid, cluster and block order that were decided, and assign layouts again if the kernel changed."""
    from tilec.passes.choices.launch_grid import LOSES_ROLES
    from tilec.passes.explicit_roles.split_roles import split_roles
    from tilec.passes.grid.rasterise import rasterise_blocks

    launched, assignment = work.kernel if work.walks else rasterise_blocks(work.kernel), work.assignment
    if launched is not work.kernel_before_grid:
        launched = split_roles(launched)  # each role computes its own block index
        assignment = compute_layouts(launched, work)
    if work.walks and assignment.form != work.assignment.form:
        raise ChoiceWithdrawn("persistent-grid", LOSES_ROLES)
    return replace(work, kernel=launched, layouts=assignment)


def explain_warps(work: Work, observer: Observer) -> Work:
    """Record the decisions about warps that were made with mechanisms and layouts."""
    from tilec.passes.loop.decisions import explain_consumer_warpgroups, explain_loads, explain_products

    assignment, options = work.assignment, work.options
    return add_decisions(
        work,
        *explain_consumer_warpgroups(assignment, options),
        *explain_loads(assignment, options),
        *explain_products(assignment, work.target),
    )


def add_decisions(work: Work, *decisions: Decision) -> Work:
    return replace(work, decisions=(*work.decisions, *decisions)) if decisions else work
