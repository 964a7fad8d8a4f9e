"""The control word of an instruction: when the assembler lets a warp issue what follows it, and what it waits for.

The upper 21 of the 125 bits that are used of an instruction of Volta and later machines, as public assemblers and
disassemblers for these document them (CuAssembler, TuringAs). `nvdisasm` does not print them.
"""

from __future__ import annotations

from tilec.support.records import dataclass

_FIRST = 105 - 64
"""Bit of the upper half of an instruction at which its control word begins."""

_NO_SCOREBOARD = 7

SCOREBOARDS = 6
"""Counters of a warp: up when an instruction is issued that uses one, down when that is done."""


@dataclass(frozen=True, slots=True)
class Control:
    """`stall`: cycles until the warp may issue its next instruction, 0 to 15. `may_yield`: whether another warp's turn
    is preferred after it. `writes` is the scoreboard that says when its result is there, `reads` the one that says when
    its operands have been read; both None where the stall count suffices. `waits` are the scoreboards that must be at 0
    before it is issued. `reuse` are the operands, as bits, that are kept for the next instruction."""

    stall: int
    may_yield: bool
    writes: int | None
    reads: int | None
    waits: tuple[int, ...]
    reuse: int

    def __str__(self) -> str:
        """As assemblers for these machines write it: `B0-----:R-:W1:Y:S04`, waits first."""
        waits = "".join(str(index) if index in self.waits else "-" for index in range(SCOREBOARDS))
        reads, writes = ("-" if index is None else index for index in (self.reads, self.writes))
        return f"B{waits}:R{reads}:W{writes}:{'Y' if self.may_yield else '-'}:S{self.stall:02}"


def control(high: int) -> Control:
    """Of an instruction, by the upper 64 of its 128 bits."""
    word = high >> _FIRST
    mask = word >> 11
    return Control(
        stall=word & 15,
        may_yield=not word >> 4 & 1,
        writes=_scoreboard(word >> 5),
        reads=_scoreboard(word >> 8),
        waits=tuple(index for index in range(SCOREBOARDS) if mask >> index & 1),
        reuse=word >> 17 & 15,
    )


def _scoreboard(field: int) -> int | None:
    return None if field & 7 == _NO_SCOREBOARD else field & 7
