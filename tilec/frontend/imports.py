"""Reads the files that a kernel file imports from its folder, transitively. No other file is read.

The file of `from .file import name` must exist and be a kernel file. `from file import name` may mean an installed
package: the file is read if it exists and can be parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.frontend.syntax import ast
from tilec.frontend.syntax.imports import find_imports, is_relative_import, list_candidate_files, list_import_paths
from tilec.frontend.syntax.parse import parse_file
from tilec.support import files
from tilec.support.diagnostics import CompileError, Label, raise_error
from tilec.support.source import SourceFile, Span

if TYPE_CHECKING:
    from collections.abc import Sequence


def read_imports(module: ast.Module, source: SourceFile, cache_dir: Path | None = None) -> Mapping[str, ast.Module]:
    """Parse all files that a module imports, transitively, into a map by relative path; add their texts to
    `source.imported`. Spans name the file. A relative import that fails raises an error; another one that does is left
    out.
    """
    found: dict[str, ast.Module] = {}
    _follow_imports(module, "", source, cache_dir, found, ())
    return found


def _follow_imports(
    module: ast.Module,
    importer: str,
    source: SourceFile,
    cache_dir: Path | None,
    found: dict[str, ast.Module],
    chain: Sequence[tuple[str, Span]],
) -> None:
    """Parse the files that a module imports, recursively, into `found`; refuse bad relative imports, skip other bad
    ones. `chain` has the imports that led here, each with the file it is in.
    """
    for node in find_imports(module.body):
        longer_chain = (*chain, (importer, node.span))
        importers = {name for name, _ in longer_chain}
        if not is_relative_import(node):
            for path in _find_possible_files(node, source):
                if path not in found and path not in importers:
                    _check_chain_length(chain, node.span)
                    with suppress(CompileError):  # not a kernel file
                        found[path] = _read_import(path, node.span, source, cache_dir)
                        _follow_imports(found[path], path, source, cache_dir, found, longer_chain)
            continue
        candidates = list(list_import_paths(node, importer))
        if not candidates:
            way_out = "put shared files beside the kernel, or into a folder there"
            raise_error("import-outside", "the import leaves the folder of the kernel", node.span, help=way_out)
        for _, file, itself in candidates:
            named = itself if file is None or (itself is not None and _is_only_folder(file, source)) else file
            if named is None:
                raise_error("bad-import", "`import *` needs a file", node.span)
            path = _find_existing_file(named, source) or named
            if path == Path(source.path).name or path in importers:
                steps = tuple(Label(span, "imported from here") for _, span in chain)
                raise_error("import-cycle", f"{path} is imported while it is being read", node.span, secondary=steps)
            if path not in found:
                _check_chain_length(chain, node.span)
                found[path] = _read_import(path, node.span, source, cache_dir)
                _follow_imports(found[path], path, source, cache_dir, found, longer_chain)


MAX_IMPORT_CHAIN = 32
"""The most files in a chain of imports. Each is read recursively inside the one before."""


def _check_chain_length(chain: Sequence[tuple[str, Span]], span: Span) -> None:
    """Raise `bad-import` if the chain of imports that led here already has `MAX_IMPORT_CHAIN` links."""
    if len(chain) >= MAX_IMPORT_CHAIN:
        title = f"this is the end of a chain of more than {MAX_IMPORT_CHAIN} imports"
        raise_error("bad-import", title, span, help="import the names from the file that defines them")


def _find_possible_files(node: ast.Import, source: SourceFile) -> list[str]:
    """Return the existing files, without the kernel itself, that an import without a leading dot may mean, often
    none.
    """
    folder = Path(source.path).parent
    top = (node.module or node.names[0].name).split(".")[0]
    has_file = any((folder / path).exists() for path in list_candidate_files(f"{top}.tl")[:2])
    if not has_file and not (folder / top).is_dir():
        return []
    paths = (path for _, file, itself in list_import_paths(node, "") for path in (file, itself) if path)
    listed = (_find_existing_file(path, source) for path in paths)
    return [path for path in listed if path is not None and path != Path(source.path).name]


def _find_existing_file(path: str, source: SourceFile) -> str | None:
    """Return the first spelling of a relative path that exists in the kernel's folder, or None."""
    return next((p for p in list_candidate_files(path) if (Path(source.path).parent / p).exists()), None)


def _is_only_folder(path: str, source: SourceFile) -> bool:
    """Return whether a folder has the name of this path without its suffix, and no file has the path."""
    return _find_existing_file(path, source) is None and (Path(source.path).parent / path).with_suffix("").is_dir()


def _read_import(path: str, at: Span, source: SourceFile, cache_dir: Path | None) -> ast.Module:
    """Read and parse an imported file, or raise why not; record its text in `source.imported`, and make its spans name
    it. `at` is the import, for errors.
    """
    place = Path(source.path).parent / path
    _check_inside_folder(place, at, source)
    try:
        if place.exists() and not (place.is_file() or place.is_dir()):
            raise_error("not-a-file", f"{place} is a device or a pipe, not a file")
        read = files.read_source(str(place))
    except CompileError as error:
        (only,) = error.diagnostics
        raise CompileError(replace(only, primary=Label(at, "imported here"))) from error
    source.imported[path] = read
    try:
        module = parse_file(read, cache_dir)
    except CompileError as error:
        raise error.in_file(path) from error
    for statement in module.body:
        ast.set_spans(statement, lambda span: replace(span, file=path))
    return module


def _check_inside_folder(place: Path, at: Span, source: SourceFile) -> None:
    """Raise `import-outside` for a path whose links lead out of the kernel's folder. The kernel itself may be a
    link.
    """
    with suppress(OSError, RuntimeError):  # links in a circle: reading says so
        real = place.resolve()
        kernel = Path(source.path)
        if not any(real.is_relative_to(folder) for folder in (kernel.parent.resolve(), kernel.resolve().parent)):
            note = f"{place} is outside of it"
            raise_error("import-outside", "a link leads out of the folder of the kernel", at, note)
