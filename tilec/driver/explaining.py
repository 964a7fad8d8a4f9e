"""Explanations of a kernel after its loops are scheduled: decisions, and the schedule trace."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tilec.driver.scheduling import explain_budget
from tilec.driver.work import Work
from tilec.support.options import CompileOptions, describe_changes

if TYPE_CHECKING:
    from tilec.driver.observer import Observer
    from tilec.ir.tile import Kernel


def explain_loops(work: Work, observer: Observer) -> Work:
    """Record the decisions that were made while the kernel's loops were scheduled."""
    from tilec.passes.loop.decisions import explain_operand_transposes

    decided = (
        *explain_operand_transposes([p.loop for p in work.loops], work.options, work.decisions),
        *explain_budget(work.budget, work.options),
    )
    return replace(work, decisions=(*work.decisions, *decided))


def format_trace(work: Work) -> str:
    """Return the schedule trace: why each loop is scheduled as it is, and all decisions."""
    from tilec.passes.explicit_roles.role_listing import list_roles_and_pipelines
    from tilec.passes.memory.staged_stores import find_staged_stores
    from tilec.sched.trace import build_trace, dump_trace

    assignment, target, kernel = work.assignment, work.target, work.source_kernel
    stores = [asdict(store) for one in assignment.kernels for store in find_staged_stores(one)]
    solved = [(p.loop.problem, p.solution) for p in work.loops]
    also = {**_record_inputs(kernel, work.options), **list_roles_and_pipelines(kernel, assignment)}
    return dump_trace(build_trace(solved, kernel.name, target.name, target.calibration, work.decisions, stores, also))


def _record_inputs(kernel: Kernel, options: CompileOptions) -> dict[str, Any]:
    """Return the inputs of the kernel and the options on which schedules depend."""
    return {
        "constants": {name: str(value) for name, value in options.defines},
        "options": describe_changes(options),
        "threads": kernel.threads,
        "tiles": [
            {"name": b.name, "scope": b.scope, "shape": [*map(str, b.extents)], "dtype": b.dtype.name}
            for b in kernel.buffers
        ],
    }
