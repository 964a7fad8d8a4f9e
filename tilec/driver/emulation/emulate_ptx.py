"""Run PTX of any origin in the emulator, with arguments from the command line.

An argument is one of

    FILE.npz:NAME           an array, written in place; several arguments may name one array
    zeros:TYPE:SHAPE        a new array of zeros, as in zeros:float32:1024x1024
    TYPE:VALUE              a number: f16, f32, f64, s8 to s64, u8 to u64
    null                    a null pointer
    bytes:HEX               bytes as they are, for a parameter that is a struct
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilec.driver.emulation.array_files import ArrayFile
from tilec.driver.emulation.emulate import RunOptions
from tilec.driver.emulation.fault_elements import name_global_element
from tilec.emu import Fault, Report, launch
from tilec.emu.memory.places import replace_addresses
from tilec.ir.elements import Array
from tilec.ptx.parse import PtxSyntaxError, parse_module
from tilec.support import files
from tilec.support.diagnostics import CompileError, Diagnostic, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import SourceFile


@dataclass(frozen=True, slots=True)
class LaunchGeometry:
    """The launch configuration of a kernel."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem: int


@dataclass(frozen=True, slots=True)
class PtxArguments:
    """The kernel's parameters in order, and its arrays by the name that they are saved under."""

    values: tuple[object, ...]
    arrays: dict[str, Array]


def parse_extents(text: str) -> tuple[int, int, int]:
    """Return `4`, `4,2` or `4,2,1` as three extents, 1 where missing; raise `bad-argument` for other text."""
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise_error("bad-argument", f"'{text}' is not one to three positive numbers", help="write them as 8,4,1")
    x, y, z = [*(int(part) for part in parts), 1, 1][:3]
    return x, y, z


def parse_arguments(texts: Sequence[str]) -> PtxArguments:
    """Return the parameters that --arg texts describe; raise an error for a bad text or an array that is missing.

    Equal file and array names give one shared array. An array of zeros is saved as arg0, arg1, … by its position.
    """
    opened: dict[str, ArrayFile] = {}
    read: dict[tuple[str, str], Array] = {}
    values: list[object] = []
    arrays: dict[str, Array] = {}
    for position, text in enumerate(texts):
        kind, _, rest = text.partition(":")
        if text == "null":
            values.append(None)
        elif kind == "bytes":
            values.append(_parse_hexadecimal(text, rest))
        elif kind == "zeros":
            scratch = arrays[f"arg{position}"] = _make_zeros(text, rest)
            values.append(scratch)
        elif _parse_number_type(kind) is not None:
            values.append(_parse_number(text, kind, rest))
        else:
            path, _, name = text.rpartition(":")
            if (path, name) not in read:
                read[path, name] = _read_array(text, path, name, opened)
            values.append(read[path, name])
            arrays[name] = read[path, name]
    return PtxArguments(tuple(values), arrays)


def _parse_number_type(kind: str) -> Any:
    """Return numpy's type of a number type such as `f16` or `s32`; None for any other word."""
    match = re.fullmatch(r"([fsu])(8|16|32|64)", kind)
    if match is None or kind == "f8":
        return None
    return np.dtype(f"{'i' if match[1] == 's' else match[1]}{int(match[2]) // 8}").type


def _parse_number(text: str, kind: str, value: str) -> object:
    """Return the number of an argument `TYPE:VALUE` in numpy's type; raise `bad-argument` if it is none."""
    convert = _parse_number_type(kind)
    try:
        number = float(value) if kind[0] == "f" else int(value, 0)
        return convert(number)
    except (ValueError, OverflowError) as error:
        raise_error("bad-argument", f"'{text}' is not a number of type {kind}: {error}")


def _parse_hexadecimal(text: str, digits: str) -> bytes:
    """Return the bytes of an argument `bytes:HEX`; raise `bad-argument` for other digits."""
    try:
        return bytes.fromhex(digits)
    except ValueError:
        help_text = "write two digits for each byte, as bytes:00ff"
        raise_error("bad-argument", f"'{text}' is not bytes in hexadecimal", help=help_text)


def _make_zeros(text: str, rest: str) -> Array:
    """Return the array of zeros that an argument `zeros:TYPE:SHAPE` describes; raise `bad-argument` for another."""
    name, _, shape = rest.partition(":")
    try:
        array = np.zeros([int(extent) for extent in shape.split("x")], np.dtype(name))
    except (TypeError, ValueError):
        raise_error("bad-argument", f"'{text}' is not an array of zeros", help="write zeros:float32:1024x1024")
    if array.dtype.hasobject or not array.dtype.itemsize:
        raise_error("bad-argument", f"'{text}': arrays of {name} have no bytes of their own")
    return array


def _read_array(text: str, path: str, name: str, opened: dict[str, ArrayFile]) -> Array:
    """Return the array of an argument `FILE.npz:NAME`, opening each file once; raise an error if there is none."""
    if not path.endswith(".npz"):
        forms = "write FILE.npz:NAME, zeros:float32:64x64, f32:1.5, s32:7, null or bytes:00ff"
        raise_error("bad-argument", f"'{text}' is not an argument", help=forms)
    if path not in opened:
        opened[path] = ArrayFile(files.read_bytes(path), path)
    if name not in (known := opened[path].headers):
        raise_error("missing-input", f"{path} has no array '{name}'", help=f"it has {', '.join(known) or 'none'}")
    return np.array(opened[path].read(name), order="C")


def emulate_ptx_file(
    source: SourceFile,
    entry: str | None,
    geometry: LaunchGeometry,
    given: PtxArguments,
    progress: Callable[[int, int], None] | None = None,
    options: RunOptions | None = None,
) -> Report:
    """Return the report, with faults, of a PTX file's kernel run on the emulator; raise an error if it cannot start.

    Bad text, a bad launch and unsupported features are errors.
    """
    name = find_entry(source, entry)
    try:
        keywords = (options or RunOptions()).to_launch_keywords() | {"whole_program": True, "progress": progress}
        keywords |= {"cluster": geometry.cluster, "dynamic_smem": geometry.dynamic_smem}
        return launch(source.text, name, geometry.grid, geometry.block, given.values, **keywords)
    except Fault as fault:  # before the first instruction
        raise CompileError(build_ptx_fault_diagnostic(fault, source, given)) from None
    except ValueError as error:
        raise_error("wrong-launch", str(error))


def find_entry(source: SourceFile, entry: str | None) -> str:
    """Return the given name, unchecked, or the file's only kernel's; raise an error for bad PTX or several kernels."""
    try:
        module = parse_module(source.text)
    except PtxSyntaxError as error:
        raise_error("ptx-syntax", error.message, source.whole_line(error.line), "here")
    names = [kernel.name for kernel in module.entries]
    if entry is None and len(names) != 1:
        choice = f"choose with --entry: {', '.join(names)}"
        raise_error("ambiguous-entry", f"{source.path} has {len(names)} kernels", help=choice)
    return entry or names[0]


def build_ptx_fault_diagnostic(fault: Fault, source: SourceFile, given: PtxArguments | None = None) -> Diagnostic:
    """Return the error for a fault: at its line of the PTX file, with array elements for addresses."""
    arrays = given.arrays if given is not None else {}

    def name_address(address: str) -> str | None:
        """Return the array element at a global address, by the array's saved name; None if it is in no array."""
        place = fault.places.get(address)
        if place is None or place.argument is None or given is None:
            return None
        array = given.values[place.argument]
        return next((name_global_element(n, place) for n, known in arrays.items() if known is array), None)

    message, notes = replace_addresses(fault.message, name_address)
    if fault.source is not None:
        notes.append(f"compiled from {fault.source.file}:{fault.source.line}")
    if fault.where:
        notes.append(f"in {fault.where}")
    span = source.whole_line(fault.line)
    label = None if span is None else Label(span, fault.kind)
    return Diagnostic("emulation-fault", f"the kernel faults: {message}", label, (), tuple(notes))


def summarise_report(report: Report) -> str:
    """Return one line with the number of blocks and warp instructions that ran, and the five commonest."""
    total = sum(report.counts.values())
    busiest = sorted(report.counts.items(), key=lambda item: -item[1])[:5]
    parts = ", ".join(f"{stem} {count}" for stem, count in busiest)
    return f"{report.blocks} blocks, {total} warp instructions ({parts})"
