"""Python statements at the top of a kernel file that are not in the kernel language: tests, references, benchmarks.

They are never executed. A statement that the grammar cannot read is set aside whole if it is compound, or if Python can
read it, and the names it would define are mistakes only if a kernel uses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tilec.support.records import dataclass

# Marks of a definition in the kernel language, in which a syntax error is reported.
_KERNEL_MARK = re.compile(
    r"^[ \t]*@.*\b(?:prim_func|macro)\b|\bT\s*\.\s*(?:Kernel|prim_func|macro)\b"
    r"|^[ \t]*@(?!\s*(?:triton|torch|numba|nb|jax)\b).*\bjit\b",
    re.MULTILINE,
)
_DEFINITION_HEAD = re.compile(r"(?:async\s+def|def|class)\b|if\s*\(?\s*__name__\b")
_COMPOUND_HEAD = re.compile(r"(?:async|if|try|with|for|while|del)\b")
_LANGUAGE_NAME = re.compile(r"\bT\s*\.")
_DEFINITION = re.compile(r"([ \t]*)(?:async\s+def|def|class)\s+([A-Za-z_]\w*)")
_IMPORT = re.compile(r"[ \t]*(?:from\s+\S+\s+)?import\s+(.*)", re.DOTALL)
_LANGUAGE_IMPORT = re.compile(r"[ \t]+(?:from|import)\s+tilelang\b")
_BINDING = re.compile(
    r"[ \t]*(?:(?:for\s+(.*?)\s+in\b)|(?:with\b.*\bas\s+(.*?):)|([^=:\[\]().]+?)\s*(?::[^=]+)?=(?!=))", re.DOTALL
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_TOKEN_PATTERN = re.compile(
    r"""(?P<string>[A-Za-z]{0,2}(?:\"\"\"(?:[^\\]|\\[\s\S])*?\"\"\"|'''(?:[^\\]|\\[\s\S])*?'''"""
    r"""|"(?:[^"\\\n]|\\[\s\S])*"|'(?:[^'\\\n]|\\[\s\S])*'))"""
    r"""|(?P<comment>\#[^\n]*)|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<line>\n)|(?P<join>\\\r?\n)"""
)


@dataclass(frozen=True, slots=True)
class TopLevelStatement:
    """The lines of one statement at the top of the file. `line` is the number of the first."""

    line: int
    text: str


def split_top_level(text: str) -> Iterator[TopLevelStatement]:
    """Yield the top-level statements of a text, each whole with its decorators, `else` and block."""
    starts = [0]
    decorates = False
    for start, end, _ in find_logical_lines(text):
        if start and not decorates and _is_statement_start(text, start):
            starts.append(start)
        if not text[start:end].lstrip().startswith("#") and text[start:end].strip():
            decorates = text.startswith("@", start)
    line = 1
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        piece = text[start:end]
        if piece.strip():
            yield TopLevelStatement(line, piece)
        line += piece.count("\n")


def find_logical_lines(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield the start and end offsets of each logical line, without its line feed, and whether it closes its brackets.
    Open brackets span several lines."""
    start = opened = 0
    for token in _TOKEN_PATTERN.finditer(text):
        match token.lastgroup:
            case "open":
                opened += 1
            case "close":
                opened = max(opened - 1, 0)
            case "line" if not opened:
                yield start, token.start(), True
                start = token.end()
            case _:
                pass
    yield start, len(text), not opened


def _is_statement_start(text: str, at: int) -> bool:
    """Return whether a line starts a top-level statement: no indent, comment, closing bracket or clause such as
    `else`.
    """
    if text[at : at + 1] in ("", " ", "\t", "\r", "\n", "#", ")", "]", "}"):
        return False
    return not re.compile(r"(?:elif|else|except|finally)\b").match(text, at)


def find_foreign_names(piece: TopLevelStatement, entry: str | None = None) -> tuple[str, ...] | None:
    """Return the names that a statement in other Python binds, or None if it must be in the kernel language. That is a
    kernel, unless another one, `entry`, is compiled.
    """
    lines = [piece.text[start:end] for start, end, _ in find_logical_lines(piece.text)]
    first = next((line for line in lines if line.strip() and not line.startswith(("@", "#"))), "")
    if _KERNEL_MARK.search(piece.text):
        defined = _DEFINITION.match(first)
        is_other = defined is not None and entry is not None and not f"{entry}_".startswith(f"{defined[2]}_")
        return (defined[2],) if defined is not None and is_other else None
    is_foreign = _DEFINITION_HEAD.match(first) or (
        not _LANGUAGE_NAME.search(piece.text) and (_COMPOUND_HEAD.match(first) or _is_python(piece.text))
    )
    return tuple(dict.fromkeys(_find_bound_names(lines))) if is_foreign else None


def find_language_imports(piece: TopLevelStatement) -> Iterator[TopLevelStatement]:
    """Yield the imports of tilelang in a `try` at the top of the file, each as a statement of its own."""
    if not re.match(r"try\b", piece.text):
        return
    for start, end, _ in find_logical_lines(piece.text):
        if _LANGUAGE_IMPORT.match(piece.text, start):
            yield TopLevelStatement(piece.line + piece.text.count("\n", 0, start), piece.text[start:end].lstrip())


def _is_python(text: str) -> bool:
    """Return whether Python itself can compile the text."""
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _find_bound_names(lines: list[str]) -> Iterator[str]:
    """Yield the names that lines of Python bind by definitions, imports and assignments, outside functions and
    classes.
    """
    inside: int | None = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if not line.strip() or line.lstrip().startswith("#") or (inside is not None and indent > inside):
            continue
        inside = None
        if found := _DEFINITION.match(line):
            inside = len(found[1])
            yield found[2]
        elif found := _IMPORT.match(line):
            for named in found[1].split("#")[0].strip(" \t\r\n()").split(","):
                words = _NAME.findall(named)
                yield from words[-1:] if " as " in named else words[:1]
        elif found := _BINDING.match(line):
            yield from _NAME.findall(next(group for group in found.groups() if group is not None))
