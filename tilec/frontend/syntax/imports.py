"""Imports of other kernel files: `from .folder.file import name`, as Python finds them, with .tl for .py."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.frontend.syntax import ast


def is_relative(node: ast.Import) -> bool:
    return node.module is not None and node.module.startswith(".")


def places(node: ast.Import, importer: str) -> Iterator[tuple[ast.Alias, str | None, str | None]]:
    """For each name, the path of the file that it is looked for in, None in `from . import name`; and of the file that
    it is itself, where there is a folder in place of the former. `importer` is the path of the file that imports.
    Nothing where the import leads outside the folder of the kernel."""
    origin = node.module or ""
    dots = len(origin) - len(origin.lstrip("."))
    *folder, _ = importer.split("/")
    above = len(folder) - (dots - 1)
    if above < 0:
        return
    within = [*folder[:above], *(part for part in origin[dots:].split(".") if part)]
    for name in node.names:
        itself = None if name.name == "*" else "/".join([*within, *name.name.split(".")]) + ".tl"
        yield name, "/".join(within) + ".tl" if origin[dots:] else None, itself


def relative_imports(body: tuple[ast.Stmt, ...]) -> Iterator[ast.Import]:
    """Where they may stand: at the top of a file, under an `if` or not."""
    for statement in body:
        if isinstance(statement, ast.Import) and is_relative(statement):
            yield statement
        elif isinstance(statement, ast.If):
            yield from relative_imports((*statement.then, *statement.orelse))
