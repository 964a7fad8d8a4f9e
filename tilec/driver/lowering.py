"""The passes from verified schedules to a cubin: warp program, PTX, assembly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.driver.work import File, Work
from tilec.support.diagnostics import InternalError

if TYPE_CHECKING:
    from tilec.driver.observer import Observer


def expand_loops(work: Work, observer: Observer) -> Work:
    """Expand schedules into roles, rings, and each role's prologue, steady state and epilogue."""
    from tilec.passes.loop.build_problem import ScheduledLoop
    from tilec.passes.lower.expand import expand_schedules

    scheduled = [ScheduledLoop(p.loop, p.solution.schedule) for p in work.loops]
    return replace(work, warp_program=expand_schedules(work.assignment, scheduled, work.target, work.options.arrivals))


def allocate_shared(work: Work, observer: Observer) -> Work:
    """Assign each tile an offset in shared memory."""
    from tilec.passes.lower.allocate_shared import allocate_shared

    program = allocate_shared(work.program, work.target, unlimited=work.options.switches.unlimited_smem)
    return replace(work, warp_program=program)


def insert_sync(work: Work, observer: Observer) -> Work:
    """Insert waits, fences and barriers."""
    from tilec.passes.lower.insert_sync import insert_sync

    return replace(work, warp_program=insert_sync(work.program))


def split_loops(work: Work, observer: Observer) -> Work:
    """Split steady states where a condition on the loop's variable is known in each part."""
    from tilec.passes.lower.split_loops import split_loops

    return replace(work, warp_program=split_loops(work.program))


def programmatic_launch(work: Work, observer: Observer) -> Work:
    """Start the kernel while the kernel before it ends, unless the kernel itself says what it waits for."""
    from tilec.passes.lower.programmatic_launch import insert_programmatic_launch

    return replace(work, warp_program=insert_programmatic_launch(work.program))


def emit_ptx(work: Work, observer: Observer) -> Work:
    """Emit PTX, unless it is too large for the assembler."""
    from tilec.codegen.emit import emit_module
    from tilec.passes.analysis.usage import find_tensor_directions
    from tilec.passes.layout.register_limits import check_assembler_work

    kernel = work.source_kernel
    module = emit_module(
        work.program,
        work.target,
        Path(work.source.path).name,  # without its folder, which must not change the output
        find_tensor_directions(kernel),
        imported=tuple(work.source.imported),
        outputs=kernel.outputs,
        fast_math="fast-math" in kernel.asks,
        fma=work.options.fma,
    )
    check_assembler_work(work.assignment, sum(len(entry.body) for entry in module.entries))
    return replace(work, ptx_module=module)


def join_modules(file: File, observer: Observer) -> File:
    """Join all kernels' entries into one module, with shared declarations once."""
    from tilec.ptx.names import separate_parameters
    from tilec.ptx.verify_names import find_name_clashes

    modules = [work.module for work in file.kernels]
    variables = dict.fromkeys(v for module in modules for v in module.variables)
    entries = tuple(entry for module in modules for entry in module.entries)
    functions = dict.fromkeys(f for module in modules for f in module.functions)
    joined = replace(modules[0], variables=tuple(variables), entries=entries, functions=tuple(functions))
    separated = separate_parameters(joined)
    if clashes := list(find_name_clashes(separated)):
        raise InternalError("; ".join(clashes))
    return replace(file, ptx_module=separated)


def print_ptx(file: File, observer: Observer) -> File:
    """Print the module as text."""
    from tilec.ptx.text import print_module

    return replace(file, ptx=print_module(file.module))


def assemble_cubin(file: File, observer: Observer) -> File:
    """Assemble the cubin; the assembler's remarks become warnings."""
    from tilec.driver.lints import lint_assembler
    from tilec.ptx.assembled_cache import assemble_cached
    from tilec.ptx.assembler_level import choose_assembler_level

    options = file.options
    level = choose_assembler_level(file.ptx, options.opt_level, options.assembler_level)
    folder = Path(options.cache_dir) if options.cache_dir is not None else None
    assembled = assemble_cached(file.ptx, file.module.target, folder, opt_level=level, afresh=options.solve_afresh)
    file = replace(file, assembled=assembled)
    lint_assembler(file, observer)
    return file
