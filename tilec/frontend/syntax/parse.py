"""Kernel text to syntax tree. `grammar/tile.lark` says what is legal."""

from __future__ import annotations

from pathlib import Path

from tilec.frontend.syntax import ast
from tilec.frontend.syntax.statements import statement
from tilec.frontend.syntax.tables import legal, read
from tilec.frontend.syntax.tree import Branch
from tilec.support.diagnostics import CompileError, Diagnostic, InternalError, Mistakes
from tilec.support.source import SourceFile, Span


def parse(source: SourceFile, cache_dir: Path | None = None) -> ast.Module:
    """The syntax tree of a file, or a `CompileError` that says what was expected instead.

    Tests and references around the kernels may be any Python: where the file as a whole is not in the language, its
    definitions are read one by one, and mistakes in all of their statements are reported.
    """
    whole = Span(1, 1, len(source.lines), len(source.lines[-1]) + 1)
    try:
        body = _legal(source.text, cache_dir)
    except CompileError:
        body = None
    return ast.Module(_piecewise(source.text) if body is None else body, whole)


def parse_mended(source: SourceFile) -> tuple[ast.Module, bool]:
    """The syntax tree of what can be read of a file, statement by statement, and whether that is all of it: for who
    looks names up in a text that is being written. Nothing is a mistake."""
    from tilec.frontend.syntax import recover
    from tilec.frontend.syntax.foreign import top_level

    whole = Span(1, 1, len(source.lines), len(source.lines[-1]) + 1)
    try:
        return ast.Module(_statements(source.text), whole), True
    except CompileError:
        left = recover.Repairs()
    body: list[ast.Stmt] = []
    for piece in top_level(source.text):
        body.extend(recover.mended(_placed(piece.text, piece.line), _statements, left))
    return ast.Module(tuple(body), whole), False


def _piecewise(text: str) -> tuple[ast.Stmt, ...]:
    # Most files never need these.
    from tilec.frontend.syntax import recover
    from tilec.frontend.syntax.foreign import foreign_names, top_level

    pieces = tuple(top_level(text))
    body: list[ast.Stmt] = []
    mistakes: list[Diagnostic] = []
    for number, piece in enumerate(pieces):
        try:
            found = _legal(piece.text, line=piece.line)
        except CompileError:
            found = None
        if found is not None:
            body.extend(found)
        elif len(pieces) > 1 and (names := foreign_names(piece)) is not None:
            # A file that is nothing but a foreign definition is a mistake.
            first_line = Span(piece.line, 1, piece.line, len(piece.text.split("\n", 1)[0]) + 1)
            body.append(ast.Foreign(names, piece.text.rstrip(), first_line))
        else:
            # What follows, as far as it is of use to see where this ends.
            rest = _placed("".join(p.text for p in pieces[number : number + 3]), piece.line)
            mistakes += recover.mistakes(rest, piece.line + piece.text.rstrip().count("\n"), _statements)
            if len(mistakes) >= Mistakes.MOST:
                break
    if mistakes:
        raise CompileError(*mistakes[: Mistakes.MOST])
    return tuple(body)


def mistake_of(definition: ast.Foreign) -> Diagnostic:
    """Why a definition is none of the kernel language."""
    span = definition.span
    try:
        _statements(_placed(definition.text, span.line))
    except CompileError as error:
        return error.in_file(span.file).diagnostics[0]
    raise InternalError(f"the definition at {span.place} can be read")


def _placed(text: str, line: int) -> str:
    """With so many line feeds in front that its first line has this number."""
    return "\n" * (line - 1) + text


def _statements(text: str, cache_dir: Path | None = None) -> tuple[ast.Stmt, ...]:
    return _of_tree(read(text, cache_dir))


def _legal(text: str, cache_dir: Path | None = None, line: int = 1) -> tuple[ast.Stmt, ...] | None:
    """None where the text, whose first line has this number, is not in the language."""
    found = legal(text, cache_dir, line)
    return None if found is None else _of_tree(found)


def _of_tree(tree: Branch) -> tuple[ast.Stmt, ...]:
    return tuple(statement(c, 0) for c in tree.children if isinstance(c, Branch))
