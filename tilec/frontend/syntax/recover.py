"""Recovery from syntax errors: a statement that cannot be parsed is replaced by a stand-in, to find further errors.

This needs a certain end of the statement. An error that does not lie behind the previous one would be a consequence of
the replacement, and ends the search.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from tilec.frontend.syntax.foreign import find_logical_lines
from tilec.support.diagnostics import CompileError, Diagnostic, ErrorCollector
from tilec.support.records import dataclass

T = TypeVar("T")

# Stand-ins for headers by their first word, so that the block below is parsed.
_STAND_IN_HEADERS = {"elif": "elif 1:", "else": "else:", "while": "while 1:", "for": "while 1:", "def": "def _():"}
_MAX_CHARACTERS = 500_000
"""The most characters to parse in all attempts, a few seconds. A long file gets its first error only."""
_FIRST_WORD = re.compile(r"[ \t]*(\w+|@)")
_TRY_CLAUSES = {"except", "finally"}
"""Clauses of a `try`, which has been reported already."""


def find_mistakes(text: str, last_line: int, read: Callable[[str], object]) -> tuple[Diagnostic, ...]:
    """Return the syntax errors up to `last_line`, found by replacing each wrong statement and reading again. `read`
    raises them; the rest of the text is context. A long text gets its first error only.
    """
    found: list[Diagnostic] = []
    last_error_line = 0
    budget = _MAX_CHARACTERS
    while len(found) < ErrorCollector.MOST and (budget > 0 or not found):
        budget -= len(text)
        try:
            read(text)
            break
        except CompileError as error:
            (diagnostic,) = error.diagnostics
        line = diagnostic.primary.span.line if diagnostic.primary else 0
        if not last_error_line < line or (found and line > last_line):
            break
        last_error_line = line
        lines = text.split("\n")
        word = _FIRST_WORD.match(lines[line - 1])
        if not (found and word and word[1] in _TRY_CLAUSES):
            found.append(diagnostic)
        column = diagnostic.primary.span.column if diagnostic.primary else 1
        without = _replace_statement(lines, line, column)
        if without is None:
            break
        text = without
    return tuple(found)


@dataclass(slots=True)
class RepairBudget:
    """The number of statements of a file that may still be left out. Each takes as long as one parse."""

    left: int = 50


def parse_with_repairs(text: str, read: Callable[[str], T], repairs: RepairBudget) -> T:
    """Return what `read` parses of a text without the statements that it cannot parse, each counted off from `repairs`.
    If nothing can be parsed, that is the result for the empty text.
    """
    while repairs.left > 0:
        try:
            return read(text)
        except CompileError as error:
            primary = error.diagnostics[0].primary
        repairs.left -= 1
        lines = text.split("\n")
        line, column = (primary.span.line, primary.span.column) if primary else (1, 1)
        attempts = (
            _replace_statement(lines, line, column),
            _replace_first_line(lines, line),
            "\n".join([*lines[: line - 1], "", *lines[line:]]),
            "\n".join(lines[: line - 1]),
        )
        text = next((one for one in attempts if one not in (None, text)), None) or ""
    return read("")


def _replace_statement(lines: list[str], line: int, column: int) -> str | None:
    """Return the text with the statement around a place replaced by a stand-in, or None if its end is uncertain."""
    for start, end, is_whole in _number_logical_lines("\n".join(lines)):
        if not start <= line <= end:
            continue
        if not is_whole or end == len(lines):
            # A bracket stays open. An error at the start of a line means that a new statement begins there; an error at
            # the final colon of a line, that one begins on the next line.
            if lines[line - 1][column - 1 :].split("#")[0].strip() == ":":
                end = line
            elif line > start and not lines[line - 1][: column - 1].strip():
                end = line - 1
            else:
                return None
        return "\n".join([*lines[: start - 1], _make_stand_in(lines, start, end), *[""] * (end - start), *lines[end:]])
    return None


def _replace_first_line(lines: list[str], line: int) -> str | None:
    """Return the text with only the first line of a line's statement replaced by a stand-in, or None if there is none.
    There a bracket is most often left open.
    """
    start = next((start for start, end, _ in _number_logical_lines("\n".join(lines)) if start <= line <= end), None)
    return (
        None if start is None else "\n".join([*lines[: start - 1], _make_stand_in(lines, start, start), *lines[start:]])
    )


def _make_stand_in(lines: list[str], start: int, end: int) -> str:
    """Return a line to parse in place of a statement: a header if a deeper block follows, a decorator, else `pass`."""
    first = lines[start - 1]
    indent = first[: len(first) - len(first.lstrip())]
    word = _FIRST_WORD.match(first)
    keyword = word[1] if word else ""
    if keyword == "@":
        return f"{indent}@_"
    following = next((line for line in lines[end:] if line.strip() and not line.lstrip().startswith("#")), "")
    opens = len(following) - len(following.lstrip()) > len(indent)
    return indent + (_STAND_IN_HEADERS.get(keyword, "if 1:") if opens else "pass")


def _number_logical_lines(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield the first and last line number of each non-empty logical line, and whether all its brackets are closed."""
    first = 1
    for start, end, is_whole in find_logical_lines(text):
        last = first + text.count("\n", start, end)
        if text[start:end].strip():
            yield first, last, is_whole
        first = last + 1
