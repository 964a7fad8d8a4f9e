"""Reads the line tables of a cubin: the source line and the PTX line of each instruction.

The assembler writes two tables in the format of DWARF 2, one for the source (`.loc` lines) and one for its PTX.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from tilec.support.records import dataclass

_DWARF_VERSIONS = (2, 3)
"""Versions of DWARF with this form of line programs. Programs of other versions are ignored."""


@dataclass(frozen=True, slots=True)
class LineRow:
    """The instructions from `address` on come from line `line` of file `file`, both counted from 1. `function` is the
    offset of the relocated address within the table, which identifies the function."""

    function: int
    address: int
    file: int
    line: int


def read_rows(table: bytes) -> Iterator[LineRow]:
    """Yield the rows of all line programs of a table, in order; raise `ValueError` for a truncated table."""
    at = 0
    try:
        while at < len(table):
            (length,) = struct.unpack_from("<I", table, at)
            yield from _LineProgram(table, at + 4, at + 4 + length).rows()
            at += 4 + length
    except (struct.error, IndexError) as error:
        raise ValueError(f"a line table ends within a line program: {error}") from error


class _LineProgram:
    def __init__(self, table: bytes, start: int, end: int) -> None:
        self.table, self.at, self.end = table, start, end

    def number(self, form: str) -> int:
        """Return the next number of a fixed form, named as in `struct`, and advance past it."""
        (value,) = struct.unpack_from(f"<{form}", self.table, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def unsigned(self) -> int:
        """Return the next unsigned number of variable length (LEB128), and advance past it."""
        value = shift = 0
        while True:
            byte = self.table[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def signed(self) -> int:
        """Return the next signed number of variable length (LEB128), and advance past it."""
        start = self.at
        value, bits = self.unsigned(), 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def rows(self) -> Iterator[LineRow]:
        """Run the line program and yield its rows, none for an unknown DWARF version; opcodes as in DWARF 2, 6.2.5."""
        if self.number("H") not in _DWARF_VERSIONS:
            return
        header = self.number("I")
        program = self.at + header
        unit, _, base, scale, first_special = (self.number(form) for form in ("B", "B", "b", "B", "B"))
        lengths = [0, *(self.number("B") for _ in range(first_special - 1))]
        self.at = program
        function, address, file, line = -1, 0, 1, 1
        while self.at < self.end:
            opcode = self.number("B")
            if opcode >= first_special:
                address += (opcode - first_special) // scale * unit
                line += base + (opcode - first_special) % scale
                yield LineRow(function, address, file, line)
            elif opcode == 0:
                size = self.unsigned()
                end = self.at + size
                extended_opcode = self.number("B")
                if extended_opcode == 1:  # end of a sequence
                    function, address, file, line = -1, 0, 1, 1
                elif extended_opcode == 2:  # set address
                    function, address = self.at, self.number("Q")
                self.at = end
            elif opcode == 1:
                yield LineRow(function, address, file, line)
            elif opcode == 2:
                address += self.unsigned() * unit
            elif opcode == 3:
                line += self.signed()
            elif opcode == 4:
                file = self.unsigned()
            elif opcode == 8:
                address += (255 - first_special) // scale * unit
            elif opcode == 9:
                address += self.number("H")
            else:
                for _ in range(lengths[opcode]):
                    self.unsigned()


def group_rows_by_function(table: bytes, sections: Mapping[int, str]) -> dict[str, list[LineRow]]:
    """Return the rows of a table by the section of their function, sorted by address; rows of no known section are
    dropped. `sections` maps the offset of an address within the table to the section that the linker put there."""
    found: dict[str, list[LineRow]] = {}
    for row in read_rows(table):
        if row.function in sections:
            found.setdefault(sections[row.function], []).append(row)
    return {name: sorted(each, key=lambda row: row.address) for name, each in found.items()}
