"""A 128-bit instruction, and the fields that its schedule depends on.

The positions of the fields were found by comparing instructions with the output of `nvdisasm`; tests compare again.

The control word of an instruction: the assembler's stall count, scoreboards and waits.

It is the upper 21 of the 125 used bits of an instruction of Volta and later machines, as public assemblers and
disassemblers document them (CuAssembler, TuringAs). `nvdisasm` does not print it.
"""

from __future__ import annotations

from tilec.sass.opcodes import OpcodeKind, find_opcode_kind, find_opcode_name
from tilec.support.records import dataclass

_CONTROL_BIT = 105 - 64
"""First bit of the control word in the upper half of an instruction."""
_NO_SCOREBOARD = 7

SCOREBOARDS = 6
"""Scoreboards of a warp: counters that an instruction increments when issued and decrements when done."""


@dataclass(frozen=True, slots=True)
class Control:
    """A decoded control word. `stall`: cycles until the warp may issue its next instruction, 0 to 15. `may_yield`: the
    scheduler then prefers another warp. `writes` is the scoreboard released when the result is ready, `reads` the one
    released when the operands have been read; None where the stall count suffices. `waits` are the scoreboards that
    must be 0 before issue. `reuse` marks the operands, as bits, that are kept for the next instruction."""

    stall: int
    may_yield: bool
    writes: int | None
    reads: int | None
    waits: tuple[int, ...]
    reuse: int

    def __str__(self) -> str:
        """Return the notation of assemblers for these machines: `B0-----:R-:W1:Y:S04`, waits first."""
        waits = "".join(str(index) if index in self.waits else "-" for index in range(SCOREBOARDS))
        reads, writes = ("-" if index is None else index for index in (self.reads, self.writes))
        return f"B{waits}:R{reads}:W{writes}:{'Y' if self.may_yield else '-'}:S{self.stall:02}"


def decode_control(high: int) -> Control:
    """Return the control word of an instruction from the upper 64 of its 128 bits."""
    word = high >> _CONTROL_BIT
    mask = word >> 11
    return Control(
        stall=word & 15,
        may_yield=not word >> 4 & 1,
        writes=_decode_scoreboard(word >> 5),
        reads=_decode_scoreboard(word >> 8),
        waits=tuple(index for index in range(SCOREBOARDS) if mask >> index & 1),
        reuse=word >> 17 & 15,
    )


def _decode_scoreboard(field: int) -> int | None:
    """Return the number of a scoreboard from its 3-bit field, None if the field names none."""
    return None if field & 7 == _NO_SCOREBOARD else field & 7


INSTRUCTION_BYTES = 16
"""Bytes of an instruction."""
_TRUE_PREDICATE = 7
"""The predicate that is always true."""
_ACCESS_BYTES = (1, 1, 2, 2, 4, 8, 16, 16)
"""Bytes of a thread's access, by the size field."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `address`: bytes from the start of its function; `low` and `high`: its two halves. `line` and
    `ptx_line` are the places in the source and the PTX that the cubin records for it, if any."""

    address: int
    low: int
    high: int
    has_short_offsets: bool = False
    """True if the low byte of a branch offset has a field of its own: sm_90 and later."""
    line: tuple[int, int] | None = None
    """File number, counted from 1 as in `.file`, and line."""
    ptx_line: int | None = None

    @property
    def opcode(self) -> int:
        """Return the 12 bits that give the operation and the sources of its operands."""
        return self.low & 0xFFF

    @property
    def name(self) -> str:
        """Return the mnemonic of the operation, or its number as text if unknown."""
        return find_opcode_name(self.opcode, self.high >> 8 & 3)

    @property
    def kind(self) -> OpcodeKind:
        """Return the kind of operation, by which the schedule treats it, `arithmetic` if unknown."""
        return find_opcode_kind(self.opcode)

    @property
    def control(self) -> Control:
        """Return the decoded control word."""
        return decode_control(self.high)

    @property
    def guard(self) -> str:
        """Return the predicate that guards the instruction, as `@!P0`; "" if it always runs. `UP0` looks like `P0`."""
        number = self.low >> 12 & 7
        mark = "@!" if self.low >> 15 & 1 else "@"
        return f"{mark}P{number}" if number != _TRUE_PREDICATE else "" if mark == "@" else "@!PT"

    @property
    def target(self) -> int | None:
        """Return the target of a branch in bytes from the start of the function; None for other instructions."""
        if self.kind != "branch":
            return None
        field = self.low >> 34 | (self.high & 0x3FFFF) << 30  # 48 bits, in units of four bytes
        if field >> 47:
            field -= 1 << 48
        words = field << 8 | self.low >> 16 & 0xFF if self.has_short_offsets else field
        return self.address + INSTRUCTION_BYTES + 4 * words

    @property
    def bytes(self) -> int:
        """Return the bytes that a thread accesses in memory, 0 if none; for ldmatrix and stmatrix a lane's share."""
        if self.name in ("LDSM", "STSM"):
            return 4 << min(self.high >> 8 & 3, 2)
        if self.kind in ("load", "store", "copy", "shared.load", "shared.store", "atomic"):
            return _ACCESS_BYTES[self.high >> 9 & 7]
        return 0

    @property
    def columns(self) -> int:
        """Return n, the columns of a warpgroup's product; the result means nothing for other instructions."""
        if self.name == "IGMMA":  # it has fewer shapes: 8, 16, 24, 32, then steps of 16
            number = (self.low >> 53 & 63) // 3
            return (number + 1) * 8 if number < 4 else (number - 1) * 16
        return ((self.low >> 53 & 31) + 1) * 8

    @property
    def is_from_registers(self) -> bool:
        """Return whether a warpgroup's product takes A from registers."""
        return bool(self.opcode & 0x400)

    @property
    def ends_group(self) -> bool:
        """Return whether a warpgroup's product is the last of a group that `WARPGROUP.DEPBAR` counts."""
        return self.high >> 20 & 7 != _TRUE_PREDICATE

    @property
    def max_pending_groups(self) -> int | None:
        """Return how many groups of products a `WARPGROUP.DEPBAR` leaves in flight; None for other instructions."""
        return self.high >> 8 & 7 if self.name == "WARPGROUP" and self.high >> 16 & 1 else None

    @property
    def awaited_scoreboard(self) -> tuple[int, int] | None:
        """Return the scoreboard of a `DEPBAR` and the count down to which it waits; None for other instructions."""
        return (self.low >> 44 & 7, self.low >> 38 & 63) if self.name == "DEPBAR" and self.low >> 47 & 1 else None

    @property
    def only_arrives(self) -> bool:
        """Return whether a barrier instruction arrives without waiting."""
        return self.name == "BAR" and bool(self.high >> 13 & 1)

    def __str__(self) -> str:
        words = (self.guard, self.name)
        return " ".join(word for word in words if word)
