"""The scheduling problem of each pipelined loop of a kernel. Inner loops are scheduled first: an outer loop's problem
is known only then."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.tile import Kernel
from tilec.passes.loop.build_problem import LoopProblem, PlannedLoop, build_ready_problems, loops_to_schedule
from tilec.passes.scheduling.schedule_loop import read_given_schedules, schedule_loop
from tilec.passes.state import KernelState
from tilec.support.diagnostics import raise_error
from tilec.support.options import CompileOptions


def build_problems(state: KernelState) -> KernelState:
    """Build the scheduling problem of each pipelined loop; only record errors if the kernel is only checked."""
    if state.is_checked_only:
        from tilec.passes.scheduling.legality import check_loops

        check_loops(state.assignment, state.target, state.options.switches, state.mistakes)
        return state
    if (explored := state.search.explored) is not None:
        return replace(state, problems=tuple(p.loop for p in explored), loops=explored)
    if state.options.schedule is not None:
        _check_trace_tiles(state.options.schedule, state.source_kernel, state.options)
    if state.assignment.roles:
        from tilec.passes.loop.role_loops import build_role_problems

        # A role's loop is one in which it acquires pipeline stages.
        scheduled = state.strategy != "none"
        problems = build_role_problems(state.assignment, state.target) if scheduled else ()
        return replace(state, problems=problems, loops=())
    problems, loops = _build_all_problems(state)
    return replace(state, problems=problems, loops=loops)


def _build_all_problems(state: KernelState) -> tuple[tuple[LoopProblem, ...], tuple[PlannedLoop, ...]]:
    """Return the problem of each loop in program order, and the inner loops that had to be scheduled on the way."""
    assignment, target, options = state.assignment, state.target, state.options
    loops = loops_to_schedule(assignment)
    given = dict(zip((loop.var for loop in loops), read_given_schedules(options, len(loops)), strict=True))
    place = {var: k for k, var in enumerate(given)}
    decided = list(state.loops)
    found = [p.loop for p in decided]
    while True:
        ready = build_ready_problems(
            assignment,
            target,
            [p.scheduled for p in decided],
            unlimited_smem=options.switches.unlimited_smem,
            overlap=options.overlap,
            store_role=options.epilogue_warp,
            divided=state.search.divided,
        )
        if target.ceilings:
            from tilec.passes.scheduling.legality import check_ceilings

            for loop in ready:
                check_ceilings(loop, target)
        found += ready
        if len(found) == len(loops):
            return tuple(sorted(found, key=lambda loop: place[loop.loop.var])), tuple(decided)
        decided += [schedule_loop(loop, given[loop.loop.var], options, state.search.budget) for loop in ready]


def _check_trace_tiles(trace: str, kernel: Kernel, options: CompileOptions) -> None:
    """Refuse a schedule file that cannot be read or was written for other tile shapes or another number of threads."""
    from tilec.sched.trace import TraceError, read_kernel_request

    try:
        traced = read_kernel_request(trace)
    except TraceError as error:
        raise_error("bad-schedule", f"the schedule file cannot be used: {error}")
    found = []
    if traced.tiles is not None:
        shapes = {tile.name: tile.shape for tile in traced.tiles}
        for buffer in kernel.buffers:
            shape = tuple(map(str, buffer.extents))
            if (before := shapes.get(buffer.name, shape)) != shape:
                found.append(
                    f"`{buffer.name}` is {' × '.join(before)} in the schedule file and {' × '.join(shape)} here"
                )
    if traced.threads not in (None, kernel.threads):
        found.append(f"a block has {traced.threads} threads in the schedule file and {kernel.threads} here")
    if not found:
        return
    defined = {name: str(value) for name, value in options.defines}
    for name in dict.fromkeys([*traced.constants, *defined]):
        then, now = (values.get(name, "the kernel's own") for values in (traced.constants, defined))
        if then != now:
            found.append(f"constant {name} is {then} in the schedule file and {now} here")
    again = " ".join(f"-D {name}={value}" for name, value in traced.constants.items())
    raise_error(
        "bad-schedule",
        "the schedule file was written for other constants of this kernel",
        notes=tuple(found),
        help=f"compile with {again or 'no -D'}, as the schedule file was, or write a new one with "
        "--schedule-trace-file",
    )
