"""The control word of an instruction: the assembler's stall count, scoreboards and waits.

It is the upper 21 of the 125 used bits of an instruction of Volta and later machines, as public assemblers and
disassemblers document them (CuAssembler, TuringAs). `nvdisasm` does not print it.
"""

from __future__ import annotations

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
    """Decode the control word of an instruction from the upper 64 of its 128 bits."""
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
    return None if field & 7 == _NO_SCOREBOARD else field & 7
