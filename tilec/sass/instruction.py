"""An instruction of 128 bits, and the fields of it that its schedule depends on.

Where the fields lie was found by comparing instructions with what `nvdisasm` prints for them; tests compare again.
"""

from __future__ import annotations

from tilec.sass.control import Control, control
from tilec.sass.opcodes import Kind, kind_of, name_of
from tilec.support.records import dataclass

SIZE = 16
"""Bytes of an instruction."""

_ALWAYS = 7
"""The predicate that is true."""

_BYTES = (1, 1, 2, 2, 4, 8, 16, 16)
"""Of a thread's access, by its size field."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """`address`: bytes from the start of its function; `low` and `high`: its two halves. `line` is the place in the
    source, `ptx_line` the line of the PTX, that the cubin says it comes from; None where it says nothing."""

    address: int
    low: int
    high: int
    has_short_offsets: bool = False
    """Whether the machine keeps the low byte of a branch's offset apart: sm_90 and later."""
    line: tuple[int, int] | None = None
    """File, counted from 1 as `.file` lines are, and line."""
    ptx_line: int | None = None

    @property
    def opcode(self) -> int:
        """What it does and where its operands come from, 12 bits."""
        return self.low & 0xFFF

    @property
    def name(self) -> str:
        return name_of(self.opcode, self.high >> 8 & 3)

    @property
    def kind(self) -> Kind:
        return kind_of(self.opcode)

    @property
    def control(self) -> Control:
        return control(self.high)

    @property
    def guard(self) -> str:
        """The predicate under which it is run: `@!P0`; empty where it always is. Whether it is one of the warp (`UP0`)
        is not said."""
        number = self.low >> 12 & 7
        mark = "@!" if self.low >> 15 & 1 else "@"
        return f"{mark}P{number}" if number != _ALWAYS else "" if mark == "@" else "@!PT"

    @property
    def target(self) -> int | None:
        """Where a branch goes, in bytes from the start of the function; None for what is no branch."""
        if self.kind != "branch":
            return None
        field = self.low >> 34 | (self.high & 0x3FFFF) << 30  # 48 bits, in units of four bytes
        if field >> 47:
            field -= 1 << 48
        words = field << 8 | self.low >> 16 & 0xFF if self.has_short_offsets else field
        return self.address + SIZE + 4 * words

    @property
    def bytes(self) -> int:
        """Of memory that a thread gets to by it, of ldmatrix and stmatrix a lane's share; 0 for what does not."""
        if self.name in ("LDSM", "STSM"):
            return 4 << min(self.high >> 8 & 3, 2)
        if self.kind in ("load", "store", "copy", "shared.load", "shared.store", "atomic"):
            return _BYTES[self.high >> 9 & 7]
        return 0

    @property
    def columns(self) -> int:
        """n of a product of a warpgroup."""
        if self.name == "IGMMA":  # which has fewer shapes: 8, 16, 24, 32, and from there in steps of 16
            number = (self.low >> 53 & 63) // 3
            return (number + 1) * 8 if number < 4 else (number - 1) * 16
        return ((self.low >> 53 & 31) + 1) * 8

    @property
    def is_from_registers(self) -> bool:
        """Whether a product of a warpgroup takes A from registers."""
        return bool(self.opcode & 0x400)

    @property
    def ends_group(self) -> bool:
        """Whether a product of a warpgroup is the last of a group that a `WARPGROUP.DEPBAR` counts."""
        return self.high >> 20 & 7 != _ALWAYS

    @property
    def waits_for_groups(self) -> int | None:
        """How many groups of products may be under way behind a `WARPGROUP.DEPBAR`; None for what is none."""
        return self.high >> 8 & 7 if self.name == "WARPGROUP" and self.high >> 16 & 1 else None

    @property
    def waits_for_scoreboard(self) -> tuple[int, int] | None:
        """Of a `DEPBAR`: the scoreboard, and the count down to which it waits; None for what is none."""
        return (self.low >> 44 & 7, self.low >> 38 & 63) if self.name == "DEPBAR" and self.low >> 47 & 1 else None

    @property
    def only_arrives(self) -> bool:
        """Whether a barrier is told, and not waited for."""
        return self.name == "BAR" and bool(self.high >> 13 & 1)

    def __str__(self) -> str:
        words = (self.guard, self.name)
        return " ".join(word for word in words if word)
