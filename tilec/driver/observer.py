"""Sees the value of every stage of a compilation: dumps, verifies, keeps and times them, and collects warnings."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tilec.driver.verifiers import verified
from tilec.support import files, progress
from tilec.support.diagnostics import CompileError, Diagnostic, InternalError
from tilec.support.options import STAGES, CompileOptions, Stage, verifies_everything
from tilec.support.source import Span

if TYPE_CHECKING:
    from tilec.ops.values import Value

T = TypeVar("T")

SUFFIX: dict[Stage, str] = {
    "ast": ".ast",
    "tile": ".tile",
    "alias": ".alias",
    "layout": ".layout",
    "problem": ".problem.json",
    "schedule": ".trace.json",
    "expand": ".expand",
    "warp": ".warp",
    "ptx": ".ptx",
    "cubin": ".cubin",
}
"""How each stage's text is named."""


class Verify(Protocol):
    """What a stage's value breaks of its promises: all that is found, or what is quick to see."""

    def __call__(self, stage: Stage, value: Any, *, everything: bool) -> Iterable[str]: ...


class Stopped(Exception):
    """The stage that was asked for has been reached. Not an error."""


@dataclasses.dataclass
class Observer:
    """Is shown each stage's value before anything trusts it.

    Writes the dump first, so that a value that does not verify leaves its evidence; then verifies, keeps the text where
    it is wanted, and stops the pipeline where it is told to. `bound` is told what the names of the text are given. Who
    listens hears which stage `of` what comes next. With `everything` values are verified as in tests, whatever that
    costs.
    """

    keep: Collection[Stage] = ()
    dump_dir: str | None = None
    stop_after: Stage | None = None
    texts: dict[Stage, bytes] = dataclasses.field(default_factory=dict)
    seconds: list[tuple[Stage, float]] = dataclasses.field(default_factory=list)
    warnings: list[Diagnostic] = dataclasses.field(default_factory=list)
    bound: Callable[[Span, Value], None] | None = None
    of: str = ""
    everything: bool = dataclasses.field(default_factory=verifies_everything)
    verify: Verify = verified
    _since: float = dataclasses.field(default_factory=time.perf_counter)

    def warn(self, warning: Diagnostic, options: CompileOptions) -> None:
        """Keep a warning for whoever shows it; -W options silence it, or make it an error."""
        if warning.code in options.silenced or "all" in options.silenced:
            return
        if options.warnings_are_errors:
            raise CompileError(dataclasses.replace(warning, severity="error"))
        self.warnings.append(warning)

    def of_kernel(self, name: str) -> Observer:
        """For one kernel of several: its dumps have a folder of their own; its texts are nobody's."""
        folder = None if self.dump_dir is None else Path(self.dump_dir) / name
        if folder is not None:
            files.make_folder(str(folder))
        return Observer(
            dump_dir=None if folder is None else str(folder),
            seconds=self.seconds,
            warnings=self.warnings,
            of=self.of,
            everything=self.everything,
            verify=self.verify,
        )

    def wants(self, stage: Stage) -> bool:
        """Whether a stage that nothing else needs is to be made."""
        return self.dump_dir is not None or stage in self.keep or stage == self.stop_after

    def saw(self, stage: Stage, value: T, write: Callable[[T], str | bytes]) -> T:
        if self.dump_dir is not None or stage in self.keep:
            text = write(value)
            data = text.encode() if isinstance(text, str) else text
            if self.dump_dir is not None:
                name = f"{STAGES.index(stage) + 1:02}-{stage}{SUFFIX[stage]}"
                files.write_all({str(Path(self.dump_dir) / name): data})
            if stage in self.keep:
                self.texts[stage] = data
        if broken := list(self.verify(stage, value, everything=self.everything)):
            raise InternalError("\n  ".join([f"the {stage} does not verify:", *broken]))
        now = time.perf_counter()
        self.seconds.append((stage, now - self._since))
        self._since = now
        if stage == self.stop_after:
            raise Stopped
        if self.of and stage != STAGES[-1]:
            progress.say(f"stage {STAGES[STAGES.index(stage) + 1]} of {self.of}")
        return value
