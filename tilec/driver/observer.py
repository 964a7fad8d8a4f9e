"""The observer of a compilation: dumps, verifies, keeps and times every pass's result, and collects warnings."""

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
    from tilec.ops.language.values import Value


class PipelineStopped(Exception):
    """Raised when the pass or stage to stop after is done. Not an error."""


@dataclass(slots=True)
class Observer:
    """Sees the result of each pass before the next pass uses it.

    It writes the dump first, so that a value with violations leaves its evidence; then it raises for violations, keeps
    the text of wanted stages, and stops the pipeline where it is told to. `bound` is called with the values of the
    source's names. `of` names the file and target in progress messages.
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
        """Record a warning, unless -W options silence it; raise it as an error if they ask for that."""
        if warning.code in options.silenced or "all" in options.silenced:
            return
        if options.warnings_are_errors or warning.code in options.errors:
            raise CompileError(dataclasses.replace(warning, severity="error"))
        self.warnings.append(warning)

    def of_kernel(self, name: str) -> Observer:
        """Return an observer for one kernel of several: warnings and times are shared, dumps apart, texts not kept."""
        folder = None if self.dump_dir is None else Path(self.dump_dir) / name
        if folder is not None:
            files.make_folder(str(folder))
        return Observer(
            dump_dir=None if folder is None else str(folder), seconds=self.seconds, warnings=self.warnings, of=self.of
        )

    def is_wanted(self, stage: Stage | None, name: str) -> bool:
        """Return whether to run a pass only to show its result: it is dumped, kept or the one to stop after."""
        wanted = (*self.keep, self.stop_after)
        return self.dump_dir is not None or name in wanted or (stage is not None and stage in wanted)

    def begins(self, name: str) -> None:
        """Report the pass of this name as the current activity, if the observer has a name for its file."""
        if self.of:
            progress.report_activity(f"pass {name} of {self.of}")

    def explored(self, seconds: float) -> None:
        """Count seconds that the running choice spent on its candidates apart from the choice's own time."""
        self._exploring += seconds

    def observe_pass(
        self,
        number: int,
        name: str,
        gives: Stage | None,
        suffix: str | None,
        write: Callable[[], str | bytes],
        violations: Iterable[str] = (),
    ) -> None:
        """Dump and keep a pass result if asked, raise for violations, note the time; raise PipelineStopped at the last.

        `gives` is the stage that the pass completes. `write` makes the text that is dumped under `suffix`, if there is
        one; where the text is unchanged, the dump says so.
        """
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
            raise PipelineStopped
