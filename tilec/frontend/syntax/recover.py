"""Recovery from syntax errors: a statement that cannot be parsed is replaced by a stand-in, to find further errors.

This needs a certain end of the statement. An error that does not lie behind the previous one would be a consequence of
the replacement, and ends the search.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from tilec.frontend.syntax.foreign import TOKEN
from tilec.support.diagnostics import CompileError, Diagnostic, Mistakes
from tilec.support.records import dataclass

T = TypeVar("T")

# Stand-ins for headers by their first word, so that the block below is parsed.
_HEADERS = {"elif": "elif 1:", "else": "else:", "while": "while 1:", "for": "while 1:", "def": "def _():"}
_LONGEST = 500_000
"""The most characters to parse in all attempts, a few seconds. A long file gets its first error only."""
_WORD = re.compile(r"[ \t]*(\w+|@)")
_BLOCKS = {"except", "finally"}
"""Clauses of a `try`, which has been reported already."""


def mistakes(text: str, last_line: int, read: Callable[[str], object]) -> tuple[Diagnostic, ...]:
    """Return the errors that `read` raises up to `last_line`, with the rest of the text as context."""
    found: list[Diagnostic] = []
    last_error_line = 0
    budget = _LONGEST
    while len(found) < Mistakes.MOST and (budget > 0 or not found):
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
        word = _WORD.match(lines[line - 1])
        if not (found and word and word[1] in _BLOCKS):
            found.append(diagnostic)
        column = diagnostic.primary.span.column if diagnostic.primary else 1
        without = _without(lines, line, column)
        if without is None:
            break
        text = without
    return tuple(found)


@dataclass(slots=True)
class Repairs:
    """The number of statements of a file that may still be left out. Each takes as long as one parse."""

    left: int = 50


def mended(text: str, read: Callable[[str], T], repairs: Repairs) -> T:
    """Parse the text without the statements that `read` cannot parse, left out alone or with all that follow.

    If nothing can be parsed, return the result for the empty text."""
    while repairs.left > 0:
        try:
            return read(text)
        except CompileError as error:
            primary = error.diagnostics[0].primary
        repairs.left -= 1
        lines = text.split("\n")
        line, column = (primary.span.line, primary.span.column) if primary else (1, 1)
        attempts = (
            _without(lines, line, column),
            _without_first_line(lines, line),
            "\n".join([*lines[: line - 1], "", *lines[line:]]),
            "\n".join(lines[: line - 1]),
        )
        text = next((one for one in attempts if one not in (None, text)), None) or ""
    return read("")


def _without(lines: list[str], line: int, column: int) -> str | None:
    """Replace the statement around this place by a stand-in. Return None if the end of the statement is uncertain."""
    for start, end, is_whole in _statements("\n".join(lines)):
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
        return "\n".join([*lines[: start - 1], _stand_in(lines, start, end), *[""] * (end - start), *lines[end:]])
    return None


def _without_first_line(lines: list[str], line: int) -> str | None:
    """Replace only the first line of the statement, where a bracket is most often left open."""
    start = next((start for start, end, _ in _statements("\n".join(lines)) if start <= line <= end), None)
    return None if start is None else "\n".join([*lines[: start - 1], _stand_in(lines, start, start), *lines[start:]])


def _stand_in(lines: list[str], start: int, end: int) -> str:
    first = lines[start - 1]
    indent = first[: len(first) - len(first.lstrip())]
    word = _WORD.match(first)
    keyword = word[1] if word else ""
    if keyword == "@":
        return f"{indent}@_"
    following = next((line for line in lines[end:] if line.strip() and not line.lstrip().startswith("#")), "")
    opens = len(following) - len(following.lstrip()) > len(indent)
    return indent + (_HEADERS.get(keyword, "if 1:") if opens else "pass")


def _statements(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield first and last line number of each non-empty logical line, and whether all its brackets are closed."""
    opened, line, start, begins = 0, 1, 1, 0
    for token in TOKEN.finditer(text):
        match token.lastgroup:
            case "open":
                opened += 1
            case "close":
                opened = max(opened - 1, 0)
            case "line":
                line += 1
                if not opened:
                    if text[begins : token.start()].strip():
                        yield start, line - 1, True
                    start, begins = line, token.end()
            case _:
                line += token[0].count("\n")
    if text[begins:].strip():
        yield start, line, not opened
