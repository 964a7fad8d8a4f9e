"""Sees what every pass of a compilation makes: dumps, verifies, keeps and times it, and collects warnings."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.support import files, progress
from tilec.support.diagnostics import CompileError, Diagnostic, InternalError
from tilec.support.options import CompileOptions, Stage
from tilec.support.records import dataclass
from tilec.support.source import Span

if TYPE_CHECKING:
    from tilec.ops.values import Value


class Stopped(Exception):
    """The pass or stage that was asked for has been reached. Not an error."""


@dataclass(slots=True)
class Observer:
    """Is shown what each pass makes before anything trusts it.

    Writes the dump first, so that a value that does not verify leaves its evidence; then verifies, keeps the text of
    the stages that are wanted, and stops the pipeline where it is told to. `bound` is told what the names of the text
    are given. Who listens hears which pass `of` what is done.
    """

    keep: Collection[str] = ()
    dump_dir: str | None = None
    stop_after: str | None = None
    texts: dict[str, bytes] = dataclasses.field(default_factory=dict)
    seconds: list[tuple[str, float]] = dataclasses.field(default_factory=list)
    warnings: list[Diagnostic] = dataclasses.field(default_factory=list)
    bound: Callable[[Span, Value], None] | None = None
    of: str = ""
    _dumped: dict[str, bytes] = dataclasses.field(default_factory=dict)
    _exploring: float = 0.0
    _since: float = dataclasses.field(default_factory=time.perf_counter)

    def warn(self, warning: Diagnostic, options: CompileOptions) -> None:
        """Keep a warning for whoever shows it; -W options silence it, or make it an error."""
        if warning.code in options.silenced or "all" in options.silenced:
            return
        if options.warnings_are_errors or warning.code in options.errors:
            raise CompileError(dataclasses.replace(warning, severity="error"))
        self.warnings.append(warning)

    def of_kernel(self, name: str) -> Observer:
        """For one kernel of several: its dumps have a folder of their own; its texts are nobody's."""
        folder = None if self.dump_dir is None else Path(self.dump_dir) / name
        if folder is not None:
            files.make_folder(str(folder))
        return Observer(
            dump_dir=None if folder is None else str(folder), seconds=self.seconds, warnings=self.warnings, of=self.of
        )

    def wants(self, stage: Stage | None, name: str) -> bool:
        """Whether a pass is to run that nothing else needs."""
        asked = (*self.keep, self.stop_after)
        return self.dump_dir is not None or name in asked or (stage is not None and stage in asked)

    def begins(self, name: str) -> None:
        """The pass of this name is next: who listens hears it."""
        if self.of:
            progress.report_activity(f"pass {name} of {self.of}")

    def explored(self, seconds: float) -> None:
        """The choice under way has spent so long on passes over what it considers: that is no time of its own."""
        self._exploring += seconds

    def saw(
        self,
        number: int,
        name: str,
        gives: Stage | None,
        suffix: str | None,
        write: Callable[[], str | bytes],
        violations: Iterable[str] = (),
    ) -> None:
        """The pass of this number and name is done, and the stage complete that it gives. `write` makes the text that
        is dumped under `suffix`, if it has one; where a pass has changed nothing of it, the dump says so."""
        is_dumped = self.dump_dir is not None and suffix is not None
        kept = [word for word in (gives, name) if word is not None and word in self.keep]
        if is_dumped or kept:
            text = write()
            data = text.encode() if isinstance(text, str) else text
            if self.dump_dir is not None and suffix is not None:
                is_new = self._dumped.get(suffix) != data
                self._dumped[suffix] = data
                path = Path(self.dump_dir) / f"{number:02}-{name}{suffix}"
                files.write_all({str(path): data if is_new else b"unchanged\n"})
            self.texts |= dict.fromkeys(kept, data)
        if broken := list(violations):
            raise InternalError("\n  ".join([f"what {name} makes does not verify:", *broken]))
        now = time.perf_counter()
        if self._exploring:
            self.seconds.append((f"exploring: {name}", self._exploring))
        self.seconds.append((name, now - self._since - self._exploring))
        self._since, self._exploring = now, 0.0
        if self.stop_after is not None and self.stop_after in (name, gives):
            raise Stopped
