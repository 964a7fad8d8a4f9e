"""What an instruction is once it is decoded: a step of the threads that run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emu import functions
from tilec.emu.fault import SourceLocation
from tilec.ptx.module import Instruction
from tilec.ptx.text import print_instruction
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.emu.machine import Cta, Group, Threads

Run = Callable[["Cta", "Threads"], None]
"""An ordinary step: does its work for some threads, all of which go on to the next step."""
Control = Callable[["Cta", "Group", "Threads"], bool]
"""A step that moves threads: sets `group.pc` and returns True, or disposes of the group and returns False."""
Place = functions.Place
CLASSES: dict[str, np.dtype[Any]] = {
    "pred": np.dtype(np.bool_),
    "16": np.dtype(np.uint16),
    "32": np.dtype(np.uint32),
    "64": np.dtype(np.uint64),
}

TIMERS = ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")


@dataclass(slots=True)
class Step:
    """One decoded instruction; exactly one of `run` and `control` is set."""

    instruction: Instruction
    stem: str
    location: SourceLocation | None
    run: Run | None = None
    control: Control | None = None
    guard: int = -1
    negated: bool = False
    gather: int = 0
    """How many neighbours must come together first: a warp or a warpgroup."""
    mask: int = -1
    """Of a warp, only the lanes that this slot names need to."""
    exchanged: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """What a warp-wide step that lanes may meet at from several places reads and writes, as slots in order."""
    flips: bool = False
    """It takes the opposite of the predicate that it reads."""
    registers: frozenset[Place] = frozenset()
    written: frozenset[Place] = frozenset()
    is_matrix: bool = False
    """A wgmma: its registers are the matrix unit's until they are waited for."""
    stains: frozenset[Place] = frozenset()
    """Registers of some wgmma that this ordinary step writes."""

    target: int | None = None
    """Of a branch: the step that it goes to."""
    cost: int = 1
    """What it takes of a group's quantum."""
    polled: Callable[[Cta, Threads], Any] | None = None
    """Where a load or an atomic operation looks: for the report of a deadlock."""

    @property
    def text(self) -> str:
        return print_instruction(self.instruction)

    @property
    def place(self) -> str:
        """The step as another one's fault names it."""
        line = f"PTX line {self.instruction.line} ({self.text})"
        return line if self.location is None else f"{line} from {self.location.file}:{self.location.line}"
