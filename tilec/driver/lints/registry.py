"""What lints are made of: the stages whose values they look at, and the decorators that add one.

The lints of a stage are the files of the folder of its name. They are loaded when the compilation gets there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from tilec.support.diagnostics import Diagnostic, InternalError
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.driver.scheduling import Planned
    from tilec.ir.tile import Kernel
    from tilec.ir.warp import Program
    from tilec.passes.layout.assign_layouts import Laid
    from tilec.ptx.assemble import Remark
    from tilec.support.source import SourceFile
    from tilec.target.table import Target

Seen = TypeVar("Seen")
Look: TypeAlias = Callable[[Seen, CompileOptions], Iterator[Diagnostic]]
"""What looks at the value of a stage, and yields a warning for each flaw."""


class Stage(Generic[Seen]):
    """A place of the pipeline where lints look at what has been made so far, a `Seen`."""

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


# ---- what there is to see --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AfterLayout:
    """The kernel as it was written, and with its layouts and the grid that is launched."""

    kernel: Kernel
    laid: Laid
    target: Target


@dataclass(frozen=True, slots=True)
class AfterSchedule:
    """The kernel with its layouts, and its loops with their schedules."""

    laid: Laid
    loops: tuple[Planned, ...]
    target: Target


@dataclass(frozen=True, slots=True)
class AfterSynchronisation:
    """The warp program with its waits and barriers, and the kernel that it comes from."""

    program: Program
    kernel: Kernel
    target: Target


@dataclass(frozen=True, slots=True)
class AfterAssembly:
    """What the assembler said of the PTX. `kernel` is the first of `source` that is in it."""

    remarks: tuple[Remark, ...]
    ptx: str
    source: SourceFile
    kernel: Kernel


TILE: Stage[Kernel] = Stage("tile")
LAYOUT: Stage[AfterLayout] = Stage("layout")
SCHEDULE: Stage[AfterSchedule] = Stage("schedule")
WARP: Stage[AfterSynchronisation] = Stage("warp")
ASSEMBLER: Stage[AfterAssembly] = Stage("assembler")

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
