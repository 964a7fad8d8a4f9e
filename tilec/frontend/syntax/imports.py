"""Imports of other files beside the kernel: `from .folder.file import name`, as Python finds them, with .tl for .py.

`from file import name` may mean a file beside the kernel as well as a package that is installed somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.frontend.syntax import ast


def is_relative_import(node: ast.Import) -> bool:
    return node.module is not None and node.module.startswith(".")


def list_import_paths(node: ast.Import, importer: str) -> Iterator[tuple[ast.Alias, str | None, str | None]]:
    """Yield each imported name with two possible paths or None: of the file that defines it, and of the file it names.

    The former is None in `from . import name`, the latter counts if the former is a folder. `importer` is the path of
    the importing file. An import that leads out of the folder of the kernel yields nothing.
    """
    origin = node.module or ""
    dots = len(origin) - len(origin.lstrip("."))
    *folder, _ = importer.split("/") if dots else [""]
    above = len(folder) - max(dots - 1, 0)
    if above < 0:
        return
    within = [*folder[:above], *(part for part in origin[dots:].split(".") if part)]
    for name in node.names:
        itself = None if name.name == "*" else "/".join([*within, *name.name.split(".")]) + ".tl"
        yield name, "/".join(within) + ".tl" if origin[dots:] else None, itself


def list_candidate_files(path: str) -> tuple[str, ...]:
    """Return the four paths to try in order for an import path: `.tl`, `.py`, and both as `__init__` in a folder."""
    stem = path.removesuffix(".tl")
    return path, f"{stem}.py", f"{stem}/__init__.tl", f"{stem}/__init__.py"


def find_imports(body: tuple[ast.Stmt, ...]) -> Iterator[ast.Import]:
    """Yield the import statements in these statements, also inside branches, loops, functions and `with`s."""
    for statement in body:
        match statement:
            case ast.Import():
                yield statement
            case ast.If(then=then, orelse=orelse):
                yield from find_imports((*then, *orelse))
            case ast.Function(body=inside) | ast.For(body=inside) | ast.While(body=inside) | ast.With(body=inside):
                yield from find_imports(inside)
            case _:
                pass
