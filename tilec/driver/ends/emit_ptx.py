"""From a warp program to PTX."""

from __future__ import annotations

from pathlib import Path

from tilec.analysis.usage import find_tensor_directions
from tilec.codegen.emit import emit_module
from tilec.ir.tile import Kernel
from tilec.ir.warp import Program
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.check_registers import check_assembler_work
from tilec.ptx.module import Module
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.target.table import Target


def emit_ptx(
    program: Program,
    target: Target,
    source: SourceFile,
    source_kernel: Kernel,
    assignment: LayoutAssignment,
    options: CompileOptions,
) -> Module:
    """Return the PTX module of a warp program; raise an error if it is too large for the assembler."""
    module = emit_module(
        program,
        target,
        Path(source.path).name,  # without its folder, which must not change the output
        find_tensor_directions(source_kernel),
        imported=tuple(source.imported),
        outputs=source_kernel.outputs,
        fast_math="fast-math" in source_kernel.asks,
        fma=options.fma,
        min_blocks=_count_min_blocks(program, source_kernel),
    )
    check_assembler_work(assignment, sum(len(entry.body) for entry in module.entries))
    return module


def _count_min_blocks(program: Program, kernel: Kernel) -> int:
    """Return how many blocks are to fit a multiprocessor: one where roles move registers, which takes all of them."""
    moves_registers = any(role.registers is not None for role in program.roles)
    return 1 if kernel.min_blocks is None or moves_registers else kernel.min_blocks.count
