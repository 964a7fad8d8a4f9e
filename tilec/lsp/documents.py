"""The files that an editor has open: their text, their names, and the results about them so far."""

from __future__ import annotations

import dataclasses
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from tilec.frontend.syntax import ast
from tilec.frontend.syntax.parse import parse_repaired
from tilec.lsp.names import Names, Origin, Symbol, resolve_names
from tilec.lsp.worker import Answer, Notes
from tilec.support import files
from tilec.support.diagnostics import CompileError
from tilec.support.source import SourceFile, Span


@dataclasses.dataclass(eq=False)
class Document:
    """A file as it is in the editor. `edition` counts its texts; `checked` and `scheduled` are the results for this one
    (None: not yet)."""

    uri: str
    source: SourceFile
    edition: int = 0
    checked: Answer | None = None
    scheduled: Answer | None = None
    _names: Names | None = None

    def change(self, text: str) -> None:
        """Replace the text, count a new edition, and forget the results and names of the old one."""
        self.source = SourceFile(self.source.path, text)
        self.edition += 1
        self.checked = self.scheduled = self._names = None

    @property
    def names(self) -> Names:
        """Return the names in the text and their uses, resolved at first use and kept until the text changes."""
        if self._names is None:
            self._names = _resolve_document(self.source)
        return self._names

    def offset(self, line: int, column: int) -> int:
        """Return the index into the text of a line and column, which count from 1."""
        return sum(len(text) + 1 for text in self.source.lines[: line - 1]) + column - 1

    def find_note(self, notes: Notes, span: Span) -> str | None:
        """Return the text of the note whose place in this file begins where the span does, or None."""
        at = span.line, span.column
        return next((text for where, text in notes if not where.file and (where.line, where.column) == at), None)


def path_of(uri: str) -> str:
    """Return the file path of a URI; one that is no file (`untitled:`) gets a path in a folder that does not exist. So
    it imports nothing.
    """
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return url2pathname(unquote(parts.path)) if not parts.netloc else f"//{parts.netloc}{unquote(parts.path)}"
    return f"{parts.scheme or 'unknown'}:/{PurePosixPath(unquote(parts.path)).name}"


def _resolve_document(source: SourceFile) -> Names:
    """Return the names of a source, resolved in what can be parsed; no names if nothing can."""
    try:
        return resolve_names(*parse_repaired(source))
    except (CompileError, RecursionError):
        return resolve_names(ast.Module((), span=Span(1, 1, 1, 1)), is_whole=False)


class Documents(dict[str, Document]):
    """The open files, by their URIs."""

    def open(self, uri: str, text: str) -> Document:
        """Add and return the document of a file that the editor has opened, under its URI."""
        document = self[uri] = Document(uri, SourceFile(path_of(uri), text))
        return document

    def is_current(self, document: Document, edition: int) -> bool:
        """Return whether the document is still open and has the text of this edition."""
        return self.get(document.uri) is document and document.edition == edition

    def beside(self, document: Document, path: str) -> Document | None:
        """Return the document at a path relative to another one's folder: the open one, else the disk's, or None."""
        place = Path(document.source.path).parent / path
        for other in self.values():
            if Path(other.source.path) == place:
                return other
        try:
            source = files.read_source(str(place))
        except CompileError:
            return None
        return Document(place.as_uri(), source) if place.is_absolute() else None

    def origin(self, document: Document, origin: Origin) -> tuple[Document, Symbol | None] | None:
        """Return the file that an imported name comes from and its symbol there (None: the file itself); None if not
        found. An imported name may be imported there too.
        """
        name = origin.name
        for path in origin.files:
            there = self.beside(document, path)
            if there is None:
                continue
            if name is None or path.endswith(f"/{name}.tl") or path == f"{name}.tl":
                return there, None
            if (symbol := there.names.top.symbols.get(name)) is not None:
                return there, symbol
        return None

    def find_starred_name(self, document: Document, name: str) -> tuple[Document, Symbol] | None:
        """Return the file and symbol of a name that the document gets by `from .file import *`, or None."""
        for star in document.names.stars:
            for path in star.files:
                there = self.beside(document, path)
                if there is not None and (symbol := there.names.top.symbols.get(name)) is not None:
                    return there, symbol
        return None
