"""Reads the functions of a cubin, a little-endian ELF64 file (`man 5 elf` for the offsets), with their instructions."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property

from tilec.sass.instruction import INSTRUCTION_BYTES, Instruction
from tilec.sass.line_table import LineRow, group_rows_by_function
from tilec.support.records import dataclass

_TEXT_PREFIX = ".text."
_RELOCATIONS = {4: 24, 9: 16}  # section type: size of an entry, with and without an addend
_NO_BITS = 8
_HOPPER = 90


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a cubin, an entry or a callee, without the padding behind its end."""

    name: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    type: int
    data: bytes
    link: int


def read_functions(cubin: bytes) -> tuple[Function, ...]:
    """Return a cubin's functions, for sm_70 or later, in file order; raise `ValueError` for a truncated file, or no
    ELF64."""
    try:
        return tuple(_CubinFile(cubin).functions())
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"this is not a cubin: {error}") from error


class _CubinFile:
    def __init__(self, elf: bytes) -> None:
        if elf[:6] != b"\x7fELF\x02\x01":
            raise ValueError("it does not start like a 64-bit ELF file")
        self.elf = elf

    @cached_property
    def machine(self) -> int:
        """Return the compute capability in the ELF header, 90 for 9.0. From ABI 8 on (CUDA 13) it is stored one byte
        higher."""
        (flags,) = struct.unpack_from("<I", self.elf, 0x30)
        return int(flags >> 8 & 0xFF if self.elf[8] >= 8 else flags & 0xFF)

    @cached_property
    def sections(self) -> list[_Section]:
        """Return the sections of the ELF file with their names, types and data; they are read once."""
        (table,) = struct.unpack_from("<Q", self.elf, 0x28)
        entry_size, count, names_at = struct.unpack_from("<HHH", self.elf, 0x3A)
        # Per section: name, type, flags, address, offset, size, link, info, alignment, size of an entry.
        headers = [struct.unpack_from("<IIQQQQIIQQ", self.elf, table + i * entry_size) for i in range(count)]
        names = headers[names_at][4]
        found = []
        for name, type_, _, _, offset, size, link, *_ in headers:
            data = b"" if type_ == _NO_BITS else self.elf[offset : offset + size]
            text = self.elf[names + name : self.elf.index(b"\0", names + name)].decode(errors="replace")
            found.append(_Section(text, type_, data, link))
        return found

    def functions(self) -> Iterator[Function]:
        """Yield the functions in the order of the file, with source and PTX lines for their instructions."""
        source, ptx = self._read_line_table(".debug_line"), self._read_line_table(".nv_debug_line_sass")
        for section in self.sections:
            if section.name.startswith(_TEXT_PREFIX):
                lines, ptx_lines = source.get(section.name, []), ptx.get(section.name, [])
                code = tuple(self._decode_instructions(section.data, lines, ptx_lines))
                yield Function(section.name.removeprefix(_TEXT_PREFIX), code)

    def _decode_instructions(
        self, code: bytes, lines: list[LineRow], ptx_lines: list[LineRow]
    ) -> Iterator[Instruction]:
        """Yield the instructions of a function's code with their lines, without the NOPs that pad its end."""
        has_short_offsets = self.machine >= _HOPPER
        words = list(struct.iter_unpack("<QQ", code[: len(code) // INSTRUCTION_BYTES * INSTRUCTION_BYTES]))
        while words and words[-1][0] & 0xFFF == 0x918:  # NOP
            words.pop()
        for number, (low, high) in enumerate(words):
            address = number * INSTRUCTION_BYTES
            row, ptx_row = _find_row(lines, address), _find_row(ptx_lines, address)
            line, ptx_line = None if row is None else (row.file, row.line), None if ptx_row is None else ptx_row.line
            yield Instruction(address, low, high, has_short_offsets, line, ptx_line)

    def _read_line_table(self, name: str) -> dict[str, list[LineRow]]:
        """Return the rows of the line table in section `name`, by the code section they describe; empty if there is no
        table."""
        number = next((i for i, section in enumerate(self.sections) if section.name == name), None)
        if number is None:
            return {}
        section_at: dict[int, str] = {}
        for section in self.sections:
            if section.type in _RELOCATIONS and section.name in (f".rel{name}", f".rela{name}"):
                symbols = self.sections[section.link].data
                for at in range(0, len(section.data), _RELOCATIONS[section.type]):
                    offset, info = struct.unpack_from("<QQ", section.data, at)
                    _, _, _, section_number = struct.unpack_from("<IBBH", symbols, (info >> 32) * 24)
                    section_at[offset] = self.sections[section_number].name
        return group_rows_by_function(self.sections[number].data, section_at)


def _find_row(rows: list[LineRow], address: int) -> LineRow | None:
    """Return the last row at or before an address, of rows sorted by address; None if there is none."""
    behind = bisect_right(rows, address, key=lambda row: row.address)
    return rows[behind - 1] if behind else None
