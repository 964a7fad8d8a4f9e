"""From PTX to a cubin, by ptxas."""

from __future__ import annotations

import re
from dataclasses import replace

from tilec.driver.lints import lint_assembler
from tilec.driver.observer import Observer
from tilec.passes.layout.check_registers import refuse_fragments
from tilec.passes.state import FileState
from tilec.ptx.assembled_cache import assemble_ptx
from tilec.support.diagnostics import InternalError

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
