"""From PTX to machine code, by a compilation's options."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tilec.ptx.assemble import AssemblerResult
from tilec.ptx.assembled_cache import assemble_cached
from tilec.ptx.assembler_level import choose_assembler_level
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass


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


@lru_cache(maxsize=8)
def _assemble_once(asked: _Request) -> AssemblerResult:
    """Return the assembled module: forms of a kernel that choices compared, and a file with one kernel, which is what
    the kernel alone was before."""
    return assemble_cached(asked.ptx, asked.target, asked.folder, opt_level=asked.level, afresh=asked.is_afresh)
