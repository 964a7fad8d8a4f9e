"""From PTX to a cubin, by ptxas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tilec.driver.lints import lint_assembler
from tilec.driver.observer import Observer
from tilec.passes.state import FileState
from tilec.ptx.assembled_cache import assemble_cached
from tilec.ptx.assembler_level import choose_assembler_level


def assemble_cubin(file: FileState, observer: Observer) -> FileState:
    """Assemble the file's PTX to a cubin, or take it from the cache; the assembler's remarks become warnings."""
    options = file.options
    level = choose_assembler_level(file.ptx, options.opt_level, options.assembler_level)
    folder = Path(options.cache_dir) if options.cache_dir is not None else None
    assembled = assemble_cached(file.ptx, file.module.target, folder, opt_level=level, afresh=options.solve_afresh)
    file = replace(file, assembled=assembled)
    lint_assembler(file, observer)
    return file
