"""Python at the top of a kernel file that is no kernel language: its tests, references and benchmarks.

Files that people have carry them below the kernel. They are never executed here; a definition that the grammar cannot
read is set aside whole, and is a mistake only if a kernel uses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tilec.support.records import dataclass

# What a definition of the kernel language has somewhere: a mistake in it is a mistake.
_KERNEL = re.compile(r"\bprim_func\b|\bmacro\b|\bT\s*\.\s*Kernel\b|^[ \t]*@.*\bjit\b", re.MULTILINE)
_DEFINITION = re.compile(r"(?:async\s+def|def|class)\s+([A-Za-z_]\w*)")
_RUN_AS_PROGRAM = re.compile(r"if\s*\(?\s*__name__\b")
TOKEN = re.compile(
    r"""(?P<string>[A-Za-z]{0,2}(?:\"\"\"(?:[^\\]|\\[\s\S])*?\"\"\"|'''(?:[^\\]|\\[\s\S])*?'''"""
    r"""|"(?:[^"\\\n]|\\[\s\S])*"|'(?:[^'\\\n]|\\[\s\S])*'))"""
    r"""|(?P<comment>\#[^\n]*)|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<line>\n)|(?P<join>\\\r?\n)"""
)


@dataclass(frozen=True, slots=True)
class Piece:
    """The lines of one statement at the top of the file; `line` is the first one's number."""

    line: int
    text: str


def top_level(text: str) -> Iterator[Piece]:
    """The statements at the top of a file. Decorators stand with what they decorate, an `else` with its `if`."""
    starts = [0]
    opened = 0
    for token in TOKEN.finditer(text):
        match token.lastgroup:
            case "open":
                opened += 1
            case "close":
                opened = max(opened - 1, 0)
            case "line" if not opened and _begins(text, token.end()):
                starts.append(token.end())
            case _:
                pass
    line = 1
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        piece = text[start:end]
        if piece.strip():
            yield Piece(line, piece)
        line += piece.count("\n")


def _begins(text: str, at: int) -> bool:
    """Whether a statement begins on the line that starts here."""
    if text[at : at + 1] in ("", " ", "\t", "\r", "\n", "#", ")", "]", "}"):
        return False
    if re.compile(r"(?:elif|else|except|finally)\b").match(text, at):
        return False
    end = at
    while end > 0 and text[end - 1].isspace():
        end -= 1
    return not text.startswith("@", text.rfind("\n", 0, end) + 1)


def foreign_name(piece: Piece) -> str | None:
    """What a piece defines that the grammar cannot read ("" for what only runs as a program); None if it must be
    read."""
    if _KERNEL.search(piece.text):
        return None
    lines = [line for line in piece.text.split("\n") if not line.startswith(("@", "#"))]
    found = _DEFINITION.match("\n".join(lines).lstrip("\n"))
    if found:
        return found[1]
    return "" if _RUN_AS_PROGRAM.match(piece.text) else None
