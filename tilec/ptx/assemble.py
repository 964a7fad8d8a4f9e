"""Assembles PTX text to a cubin by nvJitLink, without GPU, driver or toolkit. The only module that imports it.

The assembler's log is part of the result: registers and spills of each entry, and as `Remark`s the changes to the code
that nobody asked for (waits injected, wgmma serialised, setmaxnreg ignored).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from tilec.support.diagnostics import InternalError
from tilec.support.processes import Crash, IsolatedFunction
from tilec.support.records import dataclass

RemarkKind = Literal["register-spill", "wgmma-serialised", "inserted-wait", "setmaxnreg-ignored", "assembler-warning"]


@dataclass(frozen=True, slots=True)
class EntryReport:
    """One kernel's resources by the assembler; bytes are per thread, but `smem_bytes` static and per CTA."""

    name: str
    registers: int
    barriers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    smem_bytes: int


@dataclass(frozen=True, slots=True)
class Remark:
    """`code` is the assembler's own number (`C7518`), or `spill` or `warning` where it gives none."""

    kind: RemarkKind
    code: str
    text: str
    entry: str | None = None
    ptx_line: int | None = None


@dataclass(frozen=True, slots=True)
class AssemblerResult:
    cubin: bytes
    info: str
    entries: tuple[EntryReport, ...]
    remarks: tuple[Remark, ...]


def assemble_module(ptx: str, target: str, *, opt_level: int = 3, line_info: bool = False) -> AssemblerResult:
    """Assemble and link one PTX module for `target` in a process of its own; raise `InternalError` if that fails. That
    is a bug in tilec, not in the kernel. With `line_info` the cubin maps each instruction to its line of the kernel;
    the instructions are the same."""
    options = [f"-arch={target}", "-verbose", *_LEVELS[opt_level], *(["-lineinfo"] if line_info else [])]
    if "setmaxnreg" in ptx:
        # nvJitLink compiles PTX relocatable (-c), and relocatable code may not move registers between warps: setmaxnreg
        # is ignored (C7504). `-ewp`, extensible whole program, is the mode nvcc uses for the same purpose, but -c wins
        # over it. Options for ptxas stand directly before that -c, so a last `-o` takes "-c" as its file name, which is
        # not used: the result comes back in memory. Checked with 13.0.88 and 13.5.37: .text is what ptxas itself makes.
        # Must stay last. If a release parses differently, C7504 or the missing-entry check below says so.
        options += ["-Xptxas=-ewp", "-Xptxas=-o"]
    try:
        made = parse_result(*LINKER(ptx, options))
    except Crash as crash:
        raise InternalError(f"the assembler (nvJitLink) crashed with {crash.signal_name}") from None
    if not made.entries and ".entry" in ptx:
        raise InternalError(f"the assembler made no kernel from the PTX\n{made.info}")
    return made


@cache
def find_assembler_error(ptx: str, target: str) -> str | None:
    """Return the assembler's first error in PTX that a user wrote, or general words; None if it accepts the PTX."""
    try:
        assemble_module(ptx, target, opt_level=0)
    except InternalError as error:
        found = re.search(r"error\s*:\s*(.*)", str(error))
        return found[1].strip() if found else "the assembler rejects it"
    return None


def parse_result(cubin: bytes, info: str) -> AssemblerResult:
    """Return a cubin together with the entries and remarks parsed from the assembler's log."""
    entries = parse_entries(info)
    return AssemblerResult(cubin, info, entries, parse_remarks(info, entries))


# nvJitLink itself knows -O0 and -O3 only, and must be given neither with an option for the assembler.
_LEVELS = {0: ("-O0",), 1: ("-Xptxas=-O1",), 2: ("-Xptxas=-O2",), 3: ("-O3",)}


def _link_module(ptx: str, options: list[str]) -> tuple[bytes, str]:
    """Return the cubin and the log of a PTX module, linked in this process; raise `InternalError` if nvJitLink refuses
    it."""
    nvjitlink = _load_library()
    data = ptx.encode()
    try:
        handle = nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError as error:
        raise InternalError(f"nvJitLink does not take {' '.join(options)}: {error}") from error
    try:
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "kernel.ptx")
            nvjitlink.complete(handle)
        except nvjitlink.nvJitLinkError as error:
            log = _read_log(nvjitlink.get_error_log_size(handle), handle, nvjitlink.get_error_log)
            raise InternalError(_refusal_message(ptx, log or str(error))) from error
        info = _read_log(nvjitlink.get_info_log_size(handle), handle, nvjitlink.get_info_log)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin), info


def _load_library() -> Any:
    """Import nvJitLink's bindings, load the library itself, and return them. Late, because a compilation whose machine
    code is known does without."""
    from cuda.bindings import nvjitlink

    nvjitlink.version()  # the first call loads the library
    return nvjitlink


LINKER = IsolatedFunction(_link_module, _load_library)
"""nvJitLink, which a compilation that has to solve schedules starts before it does that."""


def _read_log(size: int, handle: int, read: Callable[[int, bytearray], None]) -> str:
    """Return a log of nvJitLink as text, given its size and the function that reads it."""
    buffer = bytearray(size)
    if size:
        read(handle, buffer)
    return buffer.rstrip(b"\0").decode(errors="replace")


def _refusal_message(ptx: str, log: str) -> str:
    """Return a message with all lines of the assembler's log, each followed by the PTX line that it names."""
    lines = ptx.split("\n")
    message = ["the assembler rejected the PTX"]
    for entry in log.splitlines():
        message.append(entry)
        named = re.search(r"\bline (\d+)", entry)
        if named and 0 < int(named[1]) <= len(lines):
            message.append(f"    {named[1]} | {lines[int(named[1]) - 1].strip()}")
    return "\n".join(message)


_PROPERTIES = re.compile(r"^ptxas info\s*: Function properties for (\S+)$")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"^ptxas info\s*: Used (\d+) registers(?:, used (\d+) barriers)?")
_LINKED = re.compile(r"^info\s*: Function properties for '(.+)':$")
_LINKED_SMEM = re.compile(r"(\d+) bytes smem")
_ADVICE = re.compile(r"^ptxas info\s*: \((C\d+)\) (.*)$")
_WARNING = re.compile(r"^ptxas (?:.*; )?warning\s*:\s*(.*)$")


def parse_entries(info: str) -> tuple[EntryReport, ...]:
    """Return the resources of the kernels that the linker kept, from the assembler's log and in its order.

    The compiler's lines give stack and spills, then registers; the linker's, at the end, the shared memory. Only
    kernels that the linker kept are reported.
    """
    frames: dict[str, tuple[int, int, int]] = {}
    registers: dict[str, tuple[int, int]] = {}
    shared: dict[str, int] = {}
    compiled = linked = ""
    for line in info.splitlines():
        if match := _PROPERTIES.match(line):
            compiled = match[1]
        elif match := _LINKED.match(line):
            linked = match[1]
        elif linked and (match := _LINKED_SMEM.search(line)):
            shared[linked] = int(match[1])
            linked = ""
        elif match := _FRAME.search(line):
            frames[compiled] = (int(match[1]), int(match[2]), int(match[3]))
        elif match := _USED.match(line):
            registers[compiled] = (int(match[1]), int(match[2] or 0))
    return tuple(
        EntryReport(name, *registers.get(name, (0, 0)), *frames.get(name, (0, 0, 0)), smem_bytes)
        for name, smem_bytes in shared.items()
    )


def parse_remarks(info: str, entries: tuple[EntryReport, ...]) -> tuple[Remark, ...]:
    """Return the warnings in a log and the spills of its entries as remarks, with entry and PTX line where known."""
    remarks = []
    for line in info.splitlines():
        if match := _ADVICE.match(line):
            text = match[2].removeprefix("Potential Performance Loss: ")
            entry = re.search(r"function '(\S+)'", text)
            near = re.search(r"\bline (\d+)", text)
            name, at = entry[1] if entry else None, int(near[1]) if near else None
            remarks.append(Remark(_remark_kind(text), match[1], text, name, at))
        elif match := _WARNING.match(line):
            near = re.search(r"\bline (\d+);", line)
            remarks.append(Remark("assembler-warning", "warning", match[1], None, int(near[1]) if near else None))
    for report in entries:
        if report.spill_store_bytes or report.spill_load_bytes:
            bytes_each_way = f"{report.spill_store_bytes} bytes stored, {report.spill_load_bytes} bytes loaded"
            text = f"{bytes_each_way} per thread, at {report.registers} registers"
            remarks.append(Remark("register-spill", "spill", text, report.name))
    return tuple(remarks)


def _remark_kind(text: str) -> RemarkKind:
    """Return the kind of an assembler's remark by its wording, `assembler-warning` for any other wording."""
    # By wording, not by number: each family has a dozen numbers (C7504–C7508, C7509–C7516, C7518, C7520; C7517, C7519).
    if "setmaxnreg" in text:
        return "setmaxnreg-ignored"
    if "injected" in text:
        return "inserted-wait"
    if "serialized" in text:
        return "wgmma-serialised"
    return "assembler-warning"
