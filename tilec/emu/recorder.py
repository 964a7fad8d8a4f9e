"""What an observer of a launch is told: every step that a group of threads is about to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tilec.emu.decode import Program
    from tilec.emu.machine import Cta, Group, Threads


class Recorder(Protocol):
    """Listens to the blocks of a launch."""

    def note(self, cta: Cta, group: Group, pc: int, threads: Threads | None) -> None:
        """Before step `pc`: the threads of the group whose predicate is true, None for nobody. A step at which the
        group has to wait is told of again when it goes on. May raise `Enough`."""


Observe = Callable[["Program"], Recorder]
"""Makes the recorder of a launch, once the kernel is decoded and before any block is made: it may ask the program for
further slots (`Program.form`) and replace what steps do."""


class Enough(Exception):
    """A recorder has seen all it wants of the running cluster."""
