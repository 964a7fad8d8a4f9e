"""From PTX to a cubin, by ptxas."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from tilec.driver.lints import lint_assembler
from tilec.driver.observer import Observer
from tilec.passes.layout.check_registers import refuse_fragments
from tilec.passes.state import FileState
from tilec.ptx.assemble import AssemblerResult
from tilec.ptx.assembled_cache import assemble_cached
from tilec.ptx.assembler_level import choose_assembler_level
from tilec.support.diagnostics import InternalError
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass

OUT_OF_REGISTERS = re.compile(r"\(C760[02]\)")
"""What ptxas says where the operands of one wgmma do not fit the registers of a thread: it cannot spill them."""


def assemble_cubin(file: FileState, observer: Observer) -> FileState:
    """Assemble the file's PTX to a cubin, unless an earlier pass has; the assembler's remarks become warnings."""
    if file.assembled is None:
        try:
            file = replace(file, assembled=assemble_ptx(file.options, file.module.target, file.ptx))
        except InternalError as error:
            if not OUT_OF_REGISTERS.search(str(error)):
                raise
            refuse_fragments([kernel.assignment for kernel in file.kernels])
    lint_assembler(file, observer)
    return file


def assemble_ptx(options: CompileOptions, target: str, ptx: str) -> AssemblerResult:
    """Assemble PTX for a target of ptxas by these options, or take the machine code from the cache."""
    level = choose_assembler_level(ptx, options.opt_level, options.assembler_level)
    folder = Path(options.cache_dir) if options.cache_dir is not None else None
    return _assemble_once(_Request(ptx, target, folder, level, options.solve_afresh))


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to `assemble_cached`."""

    ptx: str
    target: str
    folder: Path | None
    level: int
    is_afresh: bool


@lru_cache(maxsize=1)
def _assemble_once(asked: _Request) -> AssemblerResult:
    """Return the assembled module; a file with one kernel is what the kernel alone was before."""
    return assemble_cached(asked.ptx, asked.target, asked.folder, opt_level=asked.level, afresh=asked.is_afresh)
