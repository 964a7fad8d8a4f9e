"""The passes over tile IR: what is rewritten, where tiles lie, and what is decided about the blocks and warps of a
kernel before its loops are scheduled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tilec.driver.front import strategy_of
from tilec.driver.work import Withdrawn, Work

if TYPE_CHECKING:
    from tilec.driver.observer import Observer
    from tilec.ir.tile import Kernel
    from tilec.passes.layout.assign_layouts import LayoutAssignment
    from tilec.sched.decision import Decision


def sums_in_fragments(work: Work, observer: Observer) -> Work:
    """Sums that a kernel puts in tensor memory, and leaves to the compiler to order, are fragments."""
    from tilec.passes.explicit_roles.tensor_sums import with_sums_as_fragments

    kernel = work.kernel
    with work.mistakes.caught():
        kernel = with_sums_as_fragments(kernel)
    return replace(work, kernel=kernel)


def subtile_as_asked(work: Work, observer: Observer) -> Work:
    """Tiles in the parts that the kernel asks for."""
    from tilec.passes.choices.subtile import as_asked

    kernel = work.kernel
    decisions: tuple[Decision, ...] = ()
    with work.mistakes.caught():
        kernel, decisions = as_asked(kernel, work.options)
    return with_decisions(replace(work, kernel=kernel), *decisions)


def layouts_of(kernel: Kernel, work: Work) -> LayoutAssignment:
    """A kernel with a mechanism for each copy and product, and a layout for each tile."""
    from tilec.passes.explicit_roles.role_layouts import with_layouts

    strategy, switches = strategy_of(kernel, work.options), work.options.switches
    given = (work.target, strategy, switches, work.mistakes)
    return with_layouts(kernel, *given, tma_loads=work.options.tma_loads, versions=work.versions)


def legalise_types(work: Work, observer: Observer) -> Work:
    """Types that the machine does not know are computed with as others, and kept as bytes."""
    from tilec.passes.analysis.unique_names import make_names_unique
    from tilec.passes.layout.legalise_types import legalise_types

    return replace(work, kernel=make_names_unique(legalise_types(work.kernel, work.mistakes)))


def assign_layouts(work: Work, observer: Observer) -> Work:
    """A mechanism for each copy and product, and a layout for each tile."""
    from tilec.passes.layout.generator_copies import check_generator_copies

    layouts = layouts_of(work.kernel, work)
    check_generator_copies(layouts, work.mistakes)
    return replace(work, layouts=layouts, unassigned=work)


def check_registers(work: Work, observer: Observer) -> Work:
    """Whether the assembler can be asked to keep the fragments of a kernel at all."""
    from tilec.passes.layout.register_limits import check_registers

    check_registers(work.assignment, work.mistakes)
    return work


def launch_grid(work: Work, observer: Observer) -> Work:
    """The kernel with the grid, the clusters and the order that were decided, and layouts again where it changed."""
    from tilec.passes.choices.launch_grid import LOSES_ROLES
    from tilec.passes.explicit_roles.split_roles import split
    from tilec.passes.grid.rasterise import ordered

    launched, assignment = work.kernel if work.walks else ordered(work.kernel), work.assignment
    if launched is not work.ungrouped:
        launched = split(launched)  # each role works out for itself where its block is
        assignment = layouts_of(launched, work)
    if work.walks and assignment.form != work.assignment.form:
        raise Withdrawn("persistent-grid", LOSES_ROLES)
    return replace(work, kernel=launched, layouts=assignment)


def explain_warps(work: Work, observer: Observer) -> Work:
    """What was decided about the warps of the kernel, while mechanisms and layouts were chosen."""
    from tilec.passes.loop.decisions import about_consumers, about_loads, about_products

    assignment, options = work.assignment, work.options
    return with_decisions(
        work,
        *about_consumers(assignment, options),
        *about_loads(assignment, options),
        *about_products(assignment, work.target),
    )


def with_decisions(work: Work, *decisions: Decision) -> Work:
    return replace(work, decisions=(*work.decisions, *decisions)) if decisions else work
