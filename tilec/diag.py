"""Diagnostics are values: what is wrong, where, and what to do about it. `render` draws them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NoReturn

from tilec.records import dataclass
from tilec.source import Span

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Label:
    """A piece of source text and what to say about it."""

    span: Span
    text: str = ""


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


Warn = Callable[[Diagnostic], None]
"""Where a pass sends what does not stop it."""


def unheard(_: Diagnostic) -> None:
    """Of no interest to the caller."""


class CompileError(Exception):
    """The kernel is wrong. Carries one diagnostic or several; the command exits with 1."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__("; ".join(f"[{d.code}] {d.title}" for d in diagnostics))
        self.diagnostics = diagnostics


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
) -> NoReturn:
    """Raise a `CompileError` with one diagnostic."""
    primary = None if span is None else Label(span, label)
    raise CompileError(Diagnostic(code, title, primary, secondary, notes, help))


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
    """A diagnostic that does not stop the compilation."""
    return Diagnostic(code, title, Label(span, label), secondary, notes, help, "warning")
