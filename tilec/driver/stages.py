"""The text of each stage of the pipeline, and its verification."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tilec.passes.state import FileState, KernelState
from tilec.support.options import STAGES, CompileOptions, Stage, describe_changes

if TYPE_CHECKING:
    from tilec.ir.tile import Kernel
    from tilec.passes.layout.assign_layouts import LayoutAssignment
    from tilec.passes.loop.build_problem import LoopProblem
    from tilec.target.table import Target

SUFFIX: dict[Stage, str] = {
    **{stage: f".{stage}" for stage in STAGES},
    "problem": ".problem.json",
    "schedule": ".trace.json",
}
"""The file suffix of each stage's text."""


def format_stage(stage: Stage, value: FileState | KernelState) -> str | bytes:
    """Return the text (cubin: the bytes) of a file, or of one of its kernels, in the form of this stage."""
    if isinstance(value, FileState):
        return _format_file(stage, value)
    match stage:
        case "alias":
            from tilec.analysis.analyse_aliases import print_alias_analysis

            assert value.aliases is not None
            return print_alias_analysis(value.aliases)
        case "layout":
            return _format_assignment(value.assignment, value.target)
        case "problem":
            return _format_problems(value.problems)
        case "schedule":
            return format_trace(value)
        case "expand" | "warp":
            from tilec.ir.warp_text import show_program

            return show_program(value.program)
        case _:
            from tilec.ir.text import print_kernel

            return print_kernel(value.kernel)


def _format_problems(loops: tuple[LoopProblem, ...]) -> str:
    """Return the loops' scheduling problems as the JSON that `tilec schedule --problem` reads."""
    from tilec.sched.text import problem_to_json

    return json.dumps([problem_to_json(loop.problem) for loop in loops], indent=1, ensure_ascii=False) + "\n"


def format_trace(state: KernelState) -> str:
    """Return the schedule trace as JSON text: each loop's schedule and reasons, all decisions, inputs and roles."""
    from tilec.driver.layout_costs import record_layout_costs
    from tilec.passes.explicit_roles.role_listing import list_roles_and_pipelines
    from tilec.passes.memory.split_staged_stores import find_staged_stores
    from tilec.sched.trace import build_trace, dump_trace

    assignment, target, kernel = state.assignment, state.target, state.source_kernel
    stores = [asdict(store) for one in assignment.kernels for store in find_staged_stores(one)]
    solved = [(p.loop.problem, p.solution) for p in state.loops]
    also = {
        **_record_inputs(kernel, state.options),
        "layouts": record_layout_costs(state),
        **list_roles_and_pipelines(kernel, assignment),
    }
    return dump_trace(build_trace(solved, kernel.name, target.name, target.calibration, state.decisions, stores, also))


def _record_inputs(kernel: Kernel, options: CompileOptions) -> dict[str, Any]:
    """Return what schedules depend on, for the trace: constants, changed options, threads and tiles."""
    return {
        "constants": {name: str(value) for name, value in options.defines},
        "options": describe_changes(options),
        "threads": kernel.threads,
        "tiles": [
            {"name": b.name, "scope": b.scope, "shape": [*map(str, b.extents)], "dtype": b.dtype.name}
            for b in kernel.buffers
        ],
    }


def _format_file(stage: Stage, file: FileState) -> str | bytes:
    """Return a whole file at this stage: cubin, PTX, else its syntax tree as source, or its text without one."""
    if stage == "cubin":
        return file.cubin.cubin
    if stage == "ptx":
        return file.ptx
    if file.tree is None:
        return file.source.text
    from tilec.frontend.syntax.unparse import unparse_module

    return unparse_module(file.tree)


_STAGE_VALUES: dict[Stage, str] = {
    "layout": "assignment", "problem": "problems", "schedule": "loops", "expand": "program", "warp": "program",
}  # fmt: skip
"""The attribute of a kernel's state that passes rewrite at a stage; before those it is the kernel."""


def get_stage_value(stage: Stage, work: KernelState) -> object:
    """Return the field of the kernel's state that passes rewrite at this stage: kernel, layouts, loops or program."""
    return getattr(work, _STAGE_VALUES.get(stage, "kernel"))


def find_violations(stage: Stage, work: KernelState, *, is_complete: bool, everything: bool) -> Iterable[str]:
    """Return what is wrong with a kernel's value of this stage, quickly unless `everything`; nothing after mistakes.

    `is_complete`: the stage is completed, or passes are on the way to it.
    """
    from tilec.driver.verifiers import find_rewritten_violations, find_stage_violations

    if work.mistakes.met:
        return ()
    if stage == "tile" and not is_complete:  # passes have rewritten it
        return find_rewritten_violations(work.kernel)
    return find_stage_violations(stage, get_stage_value(stage, work), everything=everything)


def _format_assignment(assignment: LayoutAssignment, target: Target) -> str:
    """Return the kernel's text with each tile's layout, and with the scores of the swizzles of shared tiles."""
    from tilec.ir.text import print_kernel
    from tilec.ir.warp_text import show_fragment, show_shared
    from tilec.passes.layout.shared.atoms import find_shared_accesses, score_layouts

    lines = [print_kernel(assignment.kernel)]
    for name, fragment in assignment.fragments.items():
        lines.append(f"fragment {name}: {show_fragment(fragment)}")
    reached = list(find_shared_accesses(assignment.kernel, assignment.fragments, assignment.nest_layout))
    buffers = {buffer.name: buffer for buffer in assignment.kernel.buffers}
    for name, shared in assignment.shared.items():
        where = f"{shared.panels} panels of {shared.panel}, swizzle {shared.swizzle}"
        lines.append(f"shared {name}: {where if shared.placement is None else show_shared(shared)}")
        if name not in buffers or shared.placement is not None:
            continue
        patterns = [access.pattern for access in reached if access.tile == name]
        for swizzle, (cost, score) in score_layouts(buffers[name], patterns, target.weights).items():
            cost_text = f"{cost.smem_transactions} transactions, {cost.live_registers} registers"
            lines.append(f"  swizzle {swizzle}: score {score:g} ({cost_text})")
    return "\n".join(lines) + "\n"
