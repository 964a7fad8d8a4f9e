"""Parses kernel text to a syntax tree. `grammar/tile.lark` defines the language."""

from __future__ import annotations

from pathlib import Path

from tilec.frontend.syntax import ast
from tilec.frontend.syntax.lalr import Branch
from tilec.frontend.syntax.statements import convert_statement
from tilec.frontend.syntax.tables import parse_text, try_parse_text
from tilec.support.diagnostics import CompileError, Diagnostic, ErrorCollector, InternalError
from tilec.support.source import SourceFile, Span


def parse_file(source: SourceFile, cache_dir: Path | None = None, entry: str | None = None) -> ast.Module:
    """Parse a kernel file, setting other Python aside, with `entry` also other kernels; raise all its syntax errors
    together. Tests and references around the kernels may be any Python. If the file as a whole is not in the language,
    its top-level statements are parsed one by one. Where the kernel `entry` is compiled, other definitions may be any
    Python too, even if kernels stand in them.
    """
    whole = Span(1, 1, len(source.lines), len(source.lines[-1]) + 1)
    try:
        body = _parse_legal(source.text, cache_dir)
    except CompileError:
        body = None
    return ast.Module(_parse_each_statement(source.text, entry) if body is None else body, span=whole)


def parse_repaired(source: SourceFile) -> tuple[ast.Module, bool]:
    """Parse what can be parsed of a file, without raising syntax errors, and return whether that is the whole. This
    serves name lookup in a text that is being edited.
    """
    from tilec.frontend.syntax import recover
    from tilec.frontend.syntax.foreign import split_top_level

    whole = Span(1, 1, len(source.lines), len(source.lines[-1]) + 1)
    try:
        return ast.Module(_parse_statements(source.text), span=whole), True
    except CompileError:
        repairs = recover.RepairBudget()
    body: list[ast.Stmt] = []
    for piece in split_top_level(source.text):
        body.extend(recover.parse_with_repairs(_shift_to_line(piece.text, piece.line), _parse_statements, repairs))
    return ast.Module(tuple(body), span=whole), False


def _parse_each_statement(text: str, entry: str | None) -> tuple[ast.Stmt, ...]:
    """Parse statements one by one, setting other Python aside, other kernels too with `entry`; raise all errors
    together. Imports of tilelang in a `try` that is set aside are kept.
    """
    # Imported here, since most files do not need them.
    from tilec.frontend.syntax import recover
    from tilec.frontend.syntax.foreign import find_foreign_names, find_language_imports, split_top_level

    pieces = tuple(split_top_level(text))
    body: list[ast.Stmt] = []
    mistakes: list[Diagnostic] = []
    for number, piece in enumerate(pieces):
        is_readable = True
        try:
            found = _parse_legal(piece.text, line=piece.line)
        except CompileError as error:
            # What has a meaning that tilec refuses, such as a number of a thousand digits, is no other language.
            found, is_readable = None, error.diagnostics[0].code == "syntax"
        if found is not None:
            body.extend(found)
        elif is_readable and len(pieces) > 1 and (names := find_foreign_names(piece, entry)) is not None:
            # A file with a single foreign definition and nothing else is a mistake.
            first_line = Span(piece.line, 1, piece.line, len(piece.text.split("\n", 1)[0]) + 1)
            imports = [
                s for each in find_language_imports(piece) for s in _parse_legal(each.text, line=each.line) or ()
            ]
            imported = {
                name.alias or name.name.split(".")[0] for s in imports if isinstance(s, ast.Import) for name in s.names
            }
            body.extend(imports)
            names = tuple(name for name in names if name not in imported)
            body.append(ast.Foreign(names, piece.text.rstrip(), span=first_line))
        else:
            # The next statements show where this one ends.
            rest = _shift_to_line("".join(p.text for p in pieces[number : number + 3]), piece.line)
            mistakes += recover.find_mistakes(rest, piece.line + piece.text.rstrip().count("\n"), _parse_statements)
            if len(mistakes) >= ErrorCollector.MOST:
                break
    if mistakes:
        raise CompileError(*mistakes[: ErrorCollector.MOST])
    return tuple(body)


def diagnose_foreign(definition: ast.Foreign) -> Diagnostic:
    """Return the syntax error that parsing a set-aside Python statement as kernel language gives."""
    span = definition.span
    try:
        _parse_statements(_shift_to_line(definition.text, span.line))
    except CompileError as error:
        return error.in_file(span.file).diagnostics[0]
    raise InternalError(f"the definition at {span.place} can be read")


def _shift_to_line(text: str, line: int) -> str:
    """Prepend line feeds, so that the first line of the text has this number."""
    return "\n" * (line - 1) + text


def _parse_statements(text: str, cache_dir: Path | None = None) -> tuple[ast.Stmt, ...]:
    """Parse a text to statements, or raise its first syntax error."""
    return _convert_tree(parse_text(text, cache_dir))


def _parse_legal(text: str, cache_dir: Path | None = None, line: int = 1) -> tuple[ast.Stmt, ...] | None:
    """Parse a text to statements, or return None if it is not in the language. `line` is the number of its first
    line.
    """
    found = try_parse_text(text, cache_dir, line)
    return None if found is None else _convert_tree(found)


def _convert_tree(tree: Branch) -> tuple[ast.Stmt, ...]:
    """Convert the parse tree of a file to its statements."""
    return tuple(convert_statement(c, 0) for c in tree.children if isinstance(c, Branch))
