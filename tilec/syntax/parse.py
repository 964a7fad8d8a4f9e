"""Kernel text to syntax tree. `grammar/tile.lark` says what is legal."""

from __future__ import annotations

from pathlib import Path

from tilec.diag import CompileError, Diagnostic, Mistakes
from tilec.source import SourceFile, Span
from tilec.syntax import ast
from tilec.syntax.statements import statement
from tilec.syntax.tables import read
from tilec.syntax.tree import Branch


def parse(source: SourceFile, cache_dir: Path | None = None) -> ast.Module:
    """The syntax tree of a file, or a `CompileError` that says what was expected instead.

    Tests and references around the kernels may be any Python: where the file as a whole is not in the language, its
    definitions are read one by one, and mistakes in all of their statements are reported.
    """
    whole = Span(1, 1, len(source.lines), len(source.lines[-1]) + 1)
    try:
        body = _statements(source.text, cache_dir)
    except CompileError:
        body = _piecewise(source.text)
    return ast.Module(body, whole)


def parse_mended(source: SourceFile) -> tuple[ast.Module, bool]:
    """The syntax tree of what can be read of a file, statement by statement, and whether that is all of it: for who
    looks names up in a text that is being written. Nothing is a mistake."""
    from tilec.syntax import recover
    from tilec.syntax.foreign import top_level

    whole = Span(1, 1, len(source.lines), len(source.lines[-1]) + 1)
    try:
        return ast.Module(_statements(source.text), whole), True
    except CompileError:
        left = recover.Repairs()
    body: list[ast.Stmt] = []
    for piece in top_level(source.text):
        body.extend(recover.mended("\n" * (piece.line - 1) + piece.text, _statements, left))
    return ast.Module(tuple(body), whole), False


def _piecewise(text: str) -> tuple[ast.Stmt, ...]:
    # Most files never need these.
    from tilec.syntax import recover
    from tilec.syntax.foreign import foreign_name, top_level

    pieces = tuple(top_level(text))
    body: list[ast.Stmt] = []
    mistakes: list[Diagnostic] = []
    for number, piece in enumerate(pieces):
        try:
            # Line feeds in front keep the numbers of the lines.
            body.extend(_statements("\n" * (piece.line - 1) + piece.text))
        except CompileError as found:
            # A file that is nothing but a foreign definition is a mistake.
            if len(mistakes) >= Mistakes.MOST:
                break
            if len(pieces) > 1 and (name := foreign_name(piece)) is not None:
                end = Span(piece.line, 1, piece.line, len(piece.text.split("\n", 1)[0]) + 1)
                body.append(ast.Foreign(name, piece.text.rstrip(), found.diagnostics[0], end))
            else:
                # What follows, as far as it is of use to see where this ends.
                rest = "\n" * (piece.line - 1) + "".join(p.text for p in pieces[number : number + 3])
                mistakes += recover.mistakes(rest, piece.line + piece.text.rstrip().count("\n"), _statements)
    if mistakes:
        raise CompileError(*mistakes[: Mistakes.MOST])
    return tuple(body)


def _statements(text: str, cache_dir: Path | None = None) -> tuple[ast.Stmt, ...]:
    return tuple(statement(c, 0) for c in read(text, cache_dir).children if isinstance(c, Branch))
