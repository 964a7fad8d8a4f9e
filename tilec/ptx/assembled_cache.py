"""Assembles PTX, with a cache of machine code in a folder, by a hash of its input.

The same PTX gives the same machine code, which takes a third of a build's time. Damaged entries are made again and
overwritten; the oldest are deleted once there are too many.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from tilec.ptx import assemble as assembler
from tilec.ptx.assembler_level import choose_assembler_level
from tilec.support.installed import installed_versions
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass
from tilec.support.staging import read_entry, write_entry

MOST_ENTRIES = 1000
"""One entry is 10 to 300 KB."""
_FORMAT = 2  # of entries, and of the assembler options that `assembler` derives from its arguments
_LENGTH = 8  # bytes of the length of the log


def assemble_ptx(options: CompileOptions, target: str, ptx: str) -> assembler.AssemblerResult:
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
def _assemble_once(asked: _Request) -> assembler.AssemblerResult:
    """Return the assembled module: forms of a kernel that choices compared, and a file with one kernel, which is what
    the kernel alone was before."""
    return assemble_cached(asked.ptx, asked.target, asked.folder, opt_level=asked.level, afresh=asked.is_afresh)


def assemble_cached(
    ptx: str, target: str, folder: Path | None, *, opt_level: int = 3, afresh: bool = False
) -> assembler.AssemblerResult:
    """Return the assembled module, from the cache in `folder` unless `afresh`, or assembled and added; None: no
    cache."""
    if folder is None:
        return assembler.assemble_module(ptx, target, opt_level=opt_level)
    path = folder / "assembled" / cache_key(ptx, target, opt_level)
    if not afresh and (known := _read_result(path, ptx)) is not None:
        return known
    made = assembler.assemble_module(ptx, target, opt_level=opt_level)
    log = made.info.encode()
    write_entry(path, path.name, len(log).to_bytes(_LENGTH, "little") + log + made.cubin)
    _delete_oldest(path.parent)
    return made


def cache_key(ptx: str, target: str, opt_level: int) -> str:
    """Return a hash of everything that machine code depends on: PTX, target, level, assembler version and format."""
    version = installed_versions().get("nvidia-nvjitlink", "")
    return sha256(repr((_FORMAT, version, target, opt_level, ptx)).encode()).hexdigest()


def _read_result(path: Path, ptx: str) -> assembler.AssemblerResult | None:
    """Return the assembled module in a file of the cache and mark it as used; None if missing, damaged or of other
    PTX."""
    try:
        data = read_entry(path, path.name)
        length = int.from_bytes(data[:_LENGTH], "little")
        found = assembler.parse_result(data[_LENGTH + length :], data[_LENGTH : _LENGTH + length].decode())
        os.utime(path, follow_symlinks=False)  # a used entry counts as new
    except (OSError, ValueError):
        return None
    return found if _is_machine_code_of(ptx, found) else None


def _is_machine_code_of(ptx: str, found: assembler.AssemblerResult) -> bool:
    """Return whether a cubin has code and a report for each entry of the PTX, and for no other."""
    entries = set(re.findall(r"^[^/\n]*\.entry\s+([\w$]+)", ptx, re.MULTILINE))
    has_code = all(f"\0.text.{name}\0".encode() in found.cubin for name in entries)
    return found.cubin.startswith(b"\x7fELF") and has_code and {entry.name for entry in found.entries} == entries


def _delete_oldest(folder: Path) -> None:
    """Delete the least recently used entries, down to half of the limit, if there are more; file errors are ignored.
    Other processes may do the same at the same time."""
    with suppress(OSError):
        found = [entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
        entries = [(entry.stat().st_mtime_ns, entry.path) for entry in found]
        if len(entries) > MOST_ENTRIES:
            for _, path in sorted(entries)[: -(MOST_ENTRIES // 2)]:
                Path(path).unlink(missing_ok=True)
