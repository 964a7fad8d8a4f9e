"""What is said of a kernel once its loops are scheduled: decisions, and the schedule trace."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tilec.driver.scheduling import about_budget
from tilec.driver.work import Work
from tilec.support.options import CompileOptions, describe_changes

if TYPE_CHECKING:
    from tilec.driver.observer import Observer
    from tilec.ir.tile import Kernel


def explain_loops(work: Work, observer: Observer) -> Work:
    """What was decided about the loops of the kernel while they were scheduled."""
    from tilec.passes.loop.decisions import about_operand_transposes

    decided = (
        *about_operand_transposes([p.loop for p in work.loops], work.options, work.decisions),
        *about_budget(work.budget, work.options),
    )
    return replace(work, decisions=(*work.decisions, *decided))


def trace_of(work: Work) -> str:
    """The schedule trace: why each loop is scheduled as it is, and what was decided beside. Why there is no better
    schedule is looked for here: nobody else waits for that."""
    from tilec.passes.explicit_roles.role_listing import listing
    from tilec.passes.memory.staged_stores import stagings
    from tilec.sched.trace import build_trace, dump_trace

    assignment, target, kernel = work.assignment, work.target, work.source_kernel
    stores = [asdict(store) for one in assignment.kernels for store in stagings(one)]
    solved = [(p.loop.problem, p.solution) for p in work.loops]
    also = {**_asked(kernel, work.options), **listing(kernel, assignment)}
    return dump_trace(build_trace(solved, kernel.name, target.name, target.calibration, work.decisions, stores, also))


def _asked(kernel: Kernel, options: CompileOptions) -> dict[str, Any]:
    """What the kernel and the options say, as far as schedules depend on it."""
    return {
        "constants": {name: str(value) for name, value in options.defines},
        "options": describe_changes(options),
        "threads": kernel.threads,
        "tiles": [
            {"name": b.name, "scope": b.scope, "shape": [*map(str, b.extents)], "dtype": b.dtype.name}
            for b in kernel.buffers
        ],
    }
