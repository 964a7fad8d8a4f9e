"""A 128-bit instruction, and the fields that its schedule depends on.

The positions of the fields were found by comparing instructions with the output of `nvdisasm`; tests compare again.
"""

from __future__ import annotations

from tilec.sass.control import Control, decode_control
from tilec.sass.opcodes import OpcodeKind, find_opcode_kind, find_opcode_name
from tilec.support.records import dataclass

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
        return find_opcode_name(self.opcode, self.high >> 8 & 3)

    @property
    def kind(self) -> OpcodeKind:
        return find_opcode_kind(self.opcode)

    @property
    def control(self) -> Control:
        return decode_control(self.high)

    @property
    def guard(self) -> str:
        """Return the predicate of the instruction, as `@!P0`; empty if it always runs. Warp-wide predicates (`UP0`)
        look alike."""
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
        """Return the bytes that a thread accesses in memory, for ldmatrix and stmatrix a lane's share; 0 if none."""
        if self.name in ("LDSM", "STSM"):
            return 4 << min(self.high >> 8 & 3, 2)
        if self.kind in ("load", "store", "copy", "shared.load", "shared.store", "atomic"):
            return _ACCESS_BYTES[self.high >> 9 & 7]
        return 0

    @property
    def columns(self) -> int:
        """Return n of a warpgroup's product."""
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
