"""Diagnostics are values: what is wrong, where, and what to do about it. `render` draws them."""

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
    """A piece of source text and what to say about it."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """What an editor may do about it: write `right` in place of `wrong`, which stands in the primary label's text."""

    wrong: str
    right: str


def instead(wrong: str, right: str | None) -> Fix | None:
    """Return the fix that writes `right`, where something is known that was probably meant."""
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
"""Where a pass sends what does not stop it."""


def unheard(_: Diagnostic) -> None:
    """Of no interest to the caller."""


class CompileError(Exception):
    """The kernel is wrong. `diagnostics` has one or several; the command exits with 1. One without any is what follows
    from a mistake that is known already: it never leaves the front end.

    Its text is `shown`, with file, line and caret, where somebody has had the source to draw them: `tilec.compile` has.
    """

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__(*diagnostics)
        self.diagnostics = diagnostics
        self.shown: str | None = None

    @property
    def file(self) -> str | None:
        """The file of the first mistake, where that is in a file."""
        return self._place.file or None if self._place is not None else None

    @property
    def line(self) -> int | None:
        """The line of the first mistake, from 1."""
        return None if self._place is None else self._place.line

    @property
    def _place(self) -> Span | None:
        return next((d.primary.span for d in self.diagnostics if d.primary is not None), None)

    def __str__(self) -> str:
        return self.shown or "; ".join(dict.fromkeys(map(_in_one_line, self.diagnostics)))

    def called_from(self, span: Span) -> CompileError:
        """Return the same, with the place of the call: the innermost, and the others by which it came from another
        file."""
        return CompileError(*(_called(d, Label(span, "called here")) for d in self.diagnostics))

    def in_file(self, path: str) -> CompileError:
        """Return the same, pointing into an imported file."""
        return CompileError(*(_moved(d, path) for d in self.diagnostics))

    def located_in(self, path: str) -> CompileError:
        """Return the same, where places in the file that is compiled have its path too."""
        return CompileError(*(_moved(d, path, only_unnamed=True) for d in self.diagnostics))


CompileError.__module__ = "tilec"  # where programs know it from, and what a traceback calls it


def _in_one_line(diagnostic: Diagnostic) -> str:
    """Return code, title and place, for who has not the source to draw it."""
    line = "" if diagnostic.primary is None else f" (line {diagnostic.primary.span.line})"
    return f"[{diagnostic.code}] {diagnostic.title}{line}"


def _called(diagnostic: Diagnostic, call: Label) -> Diagnostic:
    primary, calls = diagnostic.primary, [label.span.file for label in diagnostic.secondary if label.text == call.text]
    if primary is None or (calls and call.span.file in (primary.span.file, *calls)):
        return diagnostic
    return replace(diagnostic, secondary=(*diagnostic.secondary, call))


def _moved(diagnostic: Diagnostic, path: str, only_unnamed: bool = False) -> Diagnostic:
    def moved(label: Label) -> Label:
        if only_unnamed and label.span.file:
            return label
        return Label(replace(label.span, file=path), label.text)

    primary = None if diagnostic.primary is None else moved(diagnostic.primary)
    return replace(diagnostic, primary=primary, secondary=tuple(map(moved, diagnostic.secondary)))


class Mistakes:
    """What is wrong with a file so far: reading goes on behind a mistake, so that one run shows several."""

    MOST = 20

    def __init__(self) -> None:
        self.found: dict[tuple[str, Span | None], Diagnostic] = {}
        self.met = 0

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Inside, a mistake is kept, and ends only what is inside."""
        try:
            yield
        except CompileError as error:
            self.add(error)

    def add(self, error: CompileError) -> None:
        """One mistake of a kind a place: what is read twice, as a macro, is wrong once. `met` counts them all."""
        self.met += 1
        for diagnostic in error.diagnostics:
            where = diagnostic.primary.span if diagnostic.primary else None
            self.found.setdefault((diagnostic.code, where), diagnostic)

    def has(self, *codes: str) -> bool:
        """Return whether a mistake of one of these kinds has been met."""
        return any(code in codes for code, _ in self.found)

    def join(self, others: Mistakes) -> None:
        if others.met:
            self.add(CompileError(*others.found.values()))

    def end(self) -> None:
        """Nothing is made of a file with mistakes: here they are, in the order of the text."""
        if not self.met:
            return
        listed = sorted(self.found.values(), key=_place)
        if (more := len(listed) - self.MOST) > 0:
            last = listed[self.MOST - 1]
            listed[self.MOST - 1 :] = [replace(last, notes=(*last.notes, f"{more} mistakes more are not shown"))]
        raise CompileError(*listed)


class _AtOnce(Mistakes):
    """The first one ends everything."""

    def add(self, error: CompileError) -> None:
        raise error


AT_ONCE: Mistakes = _AtOnce()
"""For who wants the result or nothing: no mistake is gone on behind."""


def _place(diagnostic: Diagnostic) -> tuple[str, int, int]:
    span = diagnostic.primary.span if diagnostic.primary else None
    return ("", 0, 0) if span is None else (span.file, span.line, span.column)


class InternalError(Exception):
    """tilec itself is wrong. The command exits with 3 and asks for a report."""


def fail(
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
    """Raise a `CompileError` with one diagnostic."""
    primary = None if span is None else Label(span, label)
    raise CompileError(Diagnostic(code, title, primary, secondary, notes, help, fix=fix))


def warning(
    code: str,
    title: str,
    span: Span,
    label: str = "",
    *,
    secondary: tuple[Label, ...] = (),
    notes: tuple[str, ...] = (),
    help: str | None = None,
) -> Diagnostic:
    """Return a diagnostic that does not stop the compilation."""
    return Diagnostic(code, title, Label(span, label), secondary, notes, help, "warning")
