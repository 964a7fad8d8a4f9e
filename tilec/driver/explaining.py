"""What is said of a kernel once its loops are scheduled: decisions, warnings, and the schedule trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tilec.driver.scheduling import about_budget, not_proven
from tilec.driver.work import Work
from tilec.support.diagnostics import Diagnostic, warning
from tilec.support.options import CompileOptions, changed

if TYPE_CHECKING:
    from tilec.driver.observer import Observer
    from tilec.ir.tile import Kernel
    from tilec.passes.layout.assign_layouts import Laid


def explain_loops(work: Work, observer: Observer) -> Work:
    """What was decided about the loops of the kernel while they were scheduled."""
    from tilec.passes.loop.decisions import about_turned

    decided = about_turned(work.laid, [p.loop for p in work.loops], work.options)
    return replace(work, decisions=(*work.decisions, *decided, *about_budget(work.budget, work.options)))


def warn_uninitialised(work: Work, observer: Observer) -> Work:
    """Tiles that are read and never given a value."""
    from tilec.passes.analysis.uninitialised import unset

    if not work.mistakes.met:  # what is wrong may be what was to write them
        for found in unset(work.source_kernel):
            observer.warn(found, work.options)
    return work


def lint_schedule(work: Work, observer: Observer) -> Work:
    """What makes a correct kernel slower than it looks, as far as layouts and schedules tell."""
    from tilec.driver import lints

    laid, target, planned = work.laid, work.target, work.loops
    for found in (
        *_unused(work.source_kernel, laid),
        *(w for p in planned if (w := not_proven(p)) is not None),
        *lints.conversions(laid),
        *(
            w
            for one in laid.kernels
            for w in lints.bank_conflicts(one, ((p.loop, p.solution.schedule) for p in planned))
        ),
        *(lint for p in planned for lint in lints.addresses(p.loop, laid, target)),
        *(w for one in laid.kernels for w in (*lints.copies(one), *lints.widths(one))),
        *lints.tensor_memory(laid, target),
        *lints.products(laid, target, work.options),
    ):
        observer.warn(found, work.options)
    observer.warnings[:] = lints.judge(observer.warnings, work.options.lint)
    return work


def _unused(kernel: Kernel, laid: Laid) -> Iterator[Diagnostic]:
    """Schedules that a person gave to loops that are to run serially."""
    from tilec.ir.tile import For, walk

    for loop in walk(kernel.body) if laid.form == "serial" else ():
        if isinstance(loop, For) and loop.stage is not None:
            yield warning(
                "schedule-not-used",
                "stage= and order= change nothing here",
                loop.span,
                "loops run serially at this optimisation level or with this strategy",
                help="compile with -O2 or -O3, and without --pipeline-strategy none",
            )


def write_trace(work: Work, observer: Observer) -> Work:
    """The schedule trace: why each loop is scheduled as it is, and what was decided beside."""
    from tilec.passes.explicit_roles.role_listing import listing
    from tilec.passes.memory.staged_stores import stagings
    from tilec.sched.trace import dump, trace

    laid, target, kernel = work.laid, work.target, work.source_kernel
    stores = [asdict(store) for one in laid.kernels for store in stagings(one)]
    solved = [(p.loop.problem, p.solution) for p in work.loops]
    also = {**_asked(kernel, work.options), **listing(kernel, laid)}
    made = trace(solved, kernel.name, target.name, target.calibration, work.decisions, stores, also)
    return replace(work, trace=dump(made))


def _asked(kernel: Kernel, options: CompileOptions) -> dict[str, Any]:
    """What the kernel and the options say, as far as schedules depend on it."""
    return {
        "constants": {name: str(value) for name, value in options.defines},
        "options": changed(options),
        "threads": kernel.threads,
        "tiles": [
            {"name": b.name, "scope": b.scope, "shape": [*map(str, b.extents)], "dtype": b.dtype.name}
            for b in kernel.buffers
        ],
    }
