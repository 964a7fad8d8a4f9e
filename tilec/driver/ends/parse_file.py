"""From kernel text to a syntax tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tilec.driver.observer import Observer
from tilec.passes.state import FileState
from tilec.support.diagnostics import raise_error


def parse_file(file: FileState, observer: Observer) -> FileState:
    """Parse the file and its imports; raise an error for another language or a kernel changed since it was tuned.

    A file of tile IR is not parsed here.
    """
    if file.is_tile_ir:
        return file
    from tilec.frontend.imports import read_imports
    from tilec.frontend.syntax import parse
    from tilec.support.files import refuse_other_languages

    source, options = file.source, file.options
    folder = Path(options.cache_dir) if options.cache_dir else None
    refuse_other_languages(source.path, source.text)
    tree = parse.parse_file(source, folder, options.entry)
    imported = read_imports(tree, source, folder)
    if options.tuned_for not in (None, source.digest()):
        title = f"{source.path} is not the kernel that was tuned, or it has changed since then"
        advice = "tune it again with tilec tune, or compile it without --tuned"
        raise_error("tuned-for-another", title, help=advice)
    return replace(file, tree=tree, imported=imported)
