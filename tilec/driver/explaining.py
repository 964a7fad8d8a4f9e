"""Explanations of a kernel after its loops are scheduled: decisions, and the schedule trace."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tilec.driver.scheduling import about_budget
from tilec.driver.work import Work
from tilec.support.options import CompileOptions, changed

if TYPE_CHECKING:
    from tilec.driver.observer import Observer
    from tilec.ir.tile import Kernel


def explain_loops(work: Work, observer: Observer) -> Work:
    """Record the decisions that were made while the kernel's loops were scheduled."""
    from tilec.passes.loop.decisions import about_operand_transposes

    decided = (
        *about_operand_transposes([p.loop for p in work.loops], work.options, work.decisions),
        *about_budget(work.budget, work.options),
    )
    return replace(work, decisions=(*work.decisions, *decided))


def trace_of(work: Work) -> str:
    """Return the schedule trace: why each loop is scheduled as it is, and all decisions."""
    from tilec.passes.explicit_roles.role_listing import listing
    from tilec.passes.memory.staged_stores import stagings
    from tilec.sched.trace import dump, trace

    assignment, target, kernel = work.assignment, work.target, work.source_kernel
    stores = [asdict(store) for one in assignment.kernels for store in stagings(one)]
    solved = [(p.loop.problem, p.solution) for p in work.loops]
    also = {**_asked(kernel, work.options), **listing(kernel, assignment)}
    return dump(trace(solved, kernel.name, target.name, target.calibration, work.decisions, stores, also))


def _asked(kernel: Kernel, options: CompileOptions) -> dict[str, Any]:
    """Return the inputs of the kernel and the options on which schedules depend."""
    return {
        "constants": {name: str(value) for name, value in options.defines},
        "options": changed(options),
        "threads": kernel.threads,
        "tiles": [
            {"name": b.name, "scope": b.scope, "shape": [*map(str, b.extents)], "dtype": b.dtype.name}
            for b in kernel.buffers
        ],
    }
