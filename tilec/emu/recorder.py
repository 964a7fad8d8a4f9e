"""The interface of an observer of a launch, which is called before every step that a group of threads runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tilec.emu.decode import Program
    from tilec.emu.machine import Cta, Group, Threads


class Recorder(Protocol):
    """Observes the blocks of a launch."""

    def note(self, cta: Cta, group: Group, pc: int, threads: Threads | None) -> None:
        """Record step `pc`, which is about to run. `threads` are those of the group whose predicate is true, None for
        none. A step at which the group waits is recorded again when the group goes on. May raise `StopCluster`."""


RecorderFactory = Callable[["Program"], Recorder]
"""Makes the recorder of a launch, after the kernel is decoded and before blocks exist: it may add slots
(`Program.build_form`) and replace the functions of steps."""


class StopCluster(Exception):
    """Raised by a recorder that needs no more of the running cluster."""
