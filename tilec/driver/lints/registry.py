"""What lints are made of: the stages whose values they look at, and the decorators that add one.

The lints of a stage are the files of the folder of its name. They are loaded when the compilation gets there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Generic, TypeAlias, TypeVar

from tilec.driver.work import File, Work
from tilec.support.diagnostics import Diagnostic, InternalError

Seen = TypeVar("Seen")
Look: TypeAlias = Callable[[Seen], Iterator[Diagnostic]]
"""What looks at the value of a stage, and yields a warning for each flaw."""


class Stage(Generic[Seen]):
    """A place of the pipeline where lints look at what is known by then, a `Seen`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._folder = f"{__package__}.{name}"
        self._looks: list[Look[Seen]] = []
        self._is_loaded = False

    def add(self, look: Look[Seen]) -> None:
        if look.__module__.rpartition(".")[0] != self._folder:
            raise InternalError(f"{look.__module__} looks at stage {self.name}, and is no file of its folder")
        self._looks.append(look)

    def looks(self) -> tuple[Look[Seen], ...]:
        """All lints of the stage, in the order of their files' names and of their lines."""
        if not self._is_loaded:
            self._is_loaded = True
            folder = importlib.import_module(self._folder)
            for name in sorted(module.name for module in pkgutil.iter_modules(folder.__path__)):
                importlib.import_module(f"{self._folder}.{name}")
        return tuple(self._looks)


TILE: Stage[Work] = Stage("tile")
"""The kernel as its text says, `source_kernel`."""

LAYOUT: Stage[Work] = Stage("layout")
"""And with the layouts and the grid that it keeps, `assignment`, for `target`."""

SCHEDULE: Stage[Work] = Stage("schedule")
"""And its `loops` with their schedules."""

WARP: Stage[Work] = Stage("warp")
"""And its warp program with waits and barriers, `program`."""

ASSEMBLER: Stage[File] = Stage("assembler")
"""The file with all its kernels, its `ptx`, and what the assembler said, `cubin.remarks`."""

# ---- to add one ------------------------------------------------------------------------------------------------------

_codes: set[str] = set()


def lint(stage: Stage[Seen], *codes: str) -> Callable[[Look[Seen]], Look[Seen]]:
    """A function that looks at the value of a stage for what makes a correct kernel slower than it looks. --lint is
    about the warnings of these codes."""
    _codes.update(codes)
    return warns(stage)


def warns(stage: Stage[Seen]) -> Callable[[Look[Seen]], Look[Seen]]:
    """A function that looks for what --lint is not about."""

    def added(look: Look[Seen]) -> Look[Seen]:
        stage.add(look)
        return look

    return added


def is_lint(code: str) -> bool:
    """Whether --lint is about it; of what has been found, so that its lint is loaded."""
    return code in _codes
