"""Diagnostics as values: an error or warning, its place, and a remedy. `render` draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, NoReturn

from tilec.support.records import dataclass
from tilec.support.source import Span

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Label:
    """A range of source text and a message about it."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """An edit that an editor may offer: `right` in place of `wrong`, which occurs in the primary label's text."""

    wrong: str
    right: str


def suggest_replacement(wrong: str, right: str | None) -> Fix | None:
    """Return the fix that writes `right` for `wrong`; None if no replacement is known."""
    return None if right is None else Fix(wrong, right)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """`code` is a stable kebab-case id; `title` is one lower-case line without a full stop."""

    code: str
    title: str
    primary: Label | None = None
    secondary: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None
    severity: Severity = "error"
    fix: Fix | None = None


Warn = Callable[[Diagnostic], None]
"""Receives the warnings of a pass."""


def ignore_warning(_: Diagnostic) -> None:
    """Ignore a warning."""


class CompileError(Exception):
    """The kernel is wrong. `diagnostics` has one or several; the command exits with 1. An error without any follows
    from one that is reported already, and never leaves the front end.

    Its text is `shown`, with file, line and caret, where the source was available to draw them, as in `tilec.compile`.
    """

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__(*diagnostics)
        self.diagnostics = diagnostics
        self.shown: str | None = None

    @property
    def file(self) -> str | None:
        """Return the file of the first place that the diagnostics name, None without or if it is unnamed."""
        return self._place.file or None if self._place is not None else None

    @property
    def line(self) -> int | None:
        """Return the line, from 1, of the first place that the diagnostics name; None if they name none."""
        return None if self._place is None else self._place.line

    @property
    def _place(self) -> Span | None:
        return next((d.primary.span for d in self.diagnostics if d.primary is not None), None)

    def __str__(self) -> str:
        return self.shown or "; ".join(dict.fromkeys(map(_format_in_one_line, self.diagnostics)))

    def called_from(self, span: Span) -> CompileError:
        """Return the error with the place of a call added to each diagnostic, unless one from that file is there."""
        return CompileError(*(_add_call(d, Label(span, "called here")) for d in self.diagnostics))

    def in_file(self, path: str) -> CompileError:
        """Return the error with all its places moved to an imported file."""
        return CompileError(*(_move_to_file(d, path) for d in self.diagnostics))

    def with_main_path(self, path: str) -> CompileError:
        """Return the error with this path in the places of the compiled file, which are unnamed."""
        return CompileError(*(_move_to_file(d, path, only_unnamed=True) for d in self.diagnostics))


CompileError.__module__ = "tilec"  # the name that programs import, and that tracebacks show


def _format_in_one_line(diagnostic: Diagnostic) -> str:
    """Return a diagnostic's code, title and line number on one line, for readers without the source."""
    line = "" if diagnostic.primary is None else f" (line {diagnostic.primary.span.line})"
    return f"[{diagnostic.code}] {diagnostic.title}{line}"


def _add_call(diagnostic: Diagnostic, call: Label) -> Diagnostic:
    """Return the diagnostic with the call as a label, unless a call in that file is there already."""
    primary, calls = diagnostic.primary, [label.span.file for label in diagnostic.secondary if label.text == call.text]
    if primary is None or (calls and call.span.file in (primary.span.file, *calls)):
        return diagnostic
    return replace(diagnostic, secondary=(*diagnostic.secondary, call))


def _move_to_file(diagnostic: Diagnostic, path: str, only_unnamed: bool = False) -> Diagnostic:
    """Return the diagnostic with its labels in this file; with `only_unnamed`, those without a file only."""

    def move_label(label: Label) -> Label:
        """Return the label in this file, or itself if it keeps its own."""
        if only_unnamed and label.span.file:
            return label
        return Label(replace(label.span, file=path), label.text)

    primary = None if diagnostic.primary is None else move_label(diagnostic.primary)
    return replace(diagnostic, primary=primary, secondary=tuple(map(move_label, diagnostic.secondary)))


class ErrorCollector:
    """The errors found in a file so far: reading continues after an error, so that one run shows several."""

    MOST = 20

    def __init__(self) -> None:
        self.found: dict[tuple[str, Span | None], Diagnostic] = {}
        self.met = 0

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Collect a `CompileError` raised in the block, and go on after the block."""
        try:
            yield
        except CompileError as error:
            self.add(error)

    def add(self, error: CompileError) -> None:
        """Add the error's diagnostics, once for each code and place; count the error in `met` in any case.

        A macro may be read twice.
        """
        self.met += 1
        for diagnostic in error.diagnostics:
            where = diagnostic.primary.span if diagnostic.primary else None
            self.found.setdefault((diagnostic.code, where), diagnostic)

    def has(self, *codes: str) -> bool:
        """Return whether an error with one of these codes has been added."""
        return any(code in codes for code, _ in self.found)

    def join(self, others: ErrorCollector) -> None:
        """Add the errors of another collector, if it has any."""
        if others.met:
            self.add(CompileError(*others.found.values()))

    def end(self) -> None:
        """Raise a `CompileError` with all errors in the order of the text, at most 20; do nothing if there are none."""
        if not self.met:
            return
        diagnostics = sorted(self.found.values(), key=_sort_key)
        if (more := len(diagnostics) - self.MOST) > 0:
            last = diagnostics[self.MOST - 1]
            diagnostics[self.MOST - 1 :] = [replace(last, notes=(*last.notes, f"{more} more errors are not shown"))]
        raise CompileError(*diagnostics)


class _RaiseFirst(ErrorCollector):
    """Raises the first error instead of collecting it."""

    def add(self, error: CompileError) -> None:
        raise error


RAISE_FIRST: ErrorCollector = _RaiseFirst()
"""The collector for callers that need a result or an error: it raises the first error."""


def _sort_key(diagnostic: Diagnostic) -> tuple[str, int, int]:
    """Return file, line and column of a diagnostic's place, to sort by; those without a place come first."""
    span = diagnostic.primary.span if diagnostic.primary else None
    return ("", 0, 0) if span is None else (span.file, span.line, span.column)


class InternalError(Exception):
    """tilec itself is wrong. The command exits with 3 and asks for a report."""


def raise_error(
    code: str,
    title: str,
    span: Span | None = None,
    label: str = "",
    *,
    secondary: tuple[Label, ...] = (),
    notes: tuple[str, ...] = (),
    help: str | None = None,
    fix: Fix | None = None,
) -> NoReturn:
    """Raise a `CompileError` with one diagnostic made of these parts."""
    primary = None if span is None else Label(span, label)
    raise CompileError(Diagnostic(code, title, primary, secondary, notes, help, fix=fix))


def make_warning(
    code: str,
    title: str,
    span: Span,
    label: str = "",
    *,
    secondary: tuple[Label, ...] = (),
    notes: tuple[str, ...] = (),
    help: str | None = None,
) -> Diagnostic:
    """Return a warning diagnostic made of these parts, which does not stop the compilation."""
    return Diagnostic(code, title, Label(span, label), secondary, notes, help, "warning")
