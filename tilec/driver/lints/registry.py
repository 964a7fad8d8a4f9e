"""The registry of lints: the stages that they inspect, and the decorators that register one.

The lints of a stage are in the files of the folder of its name. They are loaded when the compilation reaches the stage.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Generic, TypeAlias, TypeVar

from tilec.passes.state import FileState, KernelState
from tilec.support.diagnostics import Diagnostic, InternalError

Seen = TypeVar("Seen")
LintFunction: TypeAlias = Callable[[Seen], Iterator[Diagnostic]]
"""Inspects the value of a stage, and yields a warning for each flaw."""


class LintStage(Generic[Seen]):
    """A point of the pipeline where lints inspect a value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._folder = f"{__package__}.{name}"
        self._lints: list[LintFunction[Seen]] = []
        self._is_loaded = False

    def add(self, look: LintFunction[Seen]) -> LintFunction[Seen]:
        """Register a lint function of this stage, and return it; an internal error if its file is in another stage's
        folder.
        """
        if look.__module__.rpartition(".")[0] != self._folder:
            raise InternalError(f"{look.__module__} looks at stage {self.name}, and is no file of its folder")
        self._lints.append(look)
        return look

    def load_lints(self) -> tuple[LintFunction[Seen], ...]:
        """Import the stage's folder once, and return its lints in the order of file names and of lines."""
        if not self._is_loaded:
            self._is_loaded = True
            folder = importlib.import_module(self._folder)
            for name in sorted(module.name for module in pkgutil.iter_modules(folder.__path__)):
                importlib.import_module(f"{self._folder}.{name}")
        return tuple(self._lints)


TILE: LintStage[KernelState] = LintStage("tile")
"""The state of the kernel as written, `source_kernel`."""

LAYOUT: LintStage[KernelState] = LintStage("layout")
"""The same with final layouts and grid, `assignment`, for `target`."""

SCHEDULE: LintStage[KernelState] = LintStage("schedule")
"""The same with its scheduled `loops`."""

WARP: LintStage[KernelState] = LintStage("warp")
"""The same with its warp program with waits and barriers, `program`."""

ASSEMBLER: LintStage[FileState] = LintStage("assembler")
"""The file with all its kernels, its `ptx`, and the assembler's remarks, `cubin.remarks`."""

_lint_codes: set[str] = set()


def register_lint(stage: LintStage[Seen], *codes: str) -> Callable[[LintFunction[Seen]], LintFunction[Seen]]:
    """Return a decorator that registers a function as a lint of a stage; --lint affects its warnings of these codes."""
    _lint_codes.update(codes)
    return register_warning(stage)


def register_warning(stage: LintStage[Seen]) -> Callable[[LintFunction[Seen]], LintFunction[Seen]]:
    """Return a decorator that registers a function of a stage whose warnings --lint does not affect."""
    return stage.add


def is_lint(code: str) -> bool:
    """Return whether --lint applies to warnings of this code. Its lint must be loaded, as it is once it has warned."""
    return code in _lint_codes
