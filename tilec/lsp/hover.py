"""The description of the word under the cursor, as Markdown: its meaning in the language, its definition in this file,
and the schedule of its statement."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.frontend.syntax import ast
from tilec.lsp.documents import Document, Documents
from tilec.lsp.names import Symbol, is_in_span
from tilec.lsp.vocabulary import find_name, find_word_at, to_markdown
from tilec.lsp.worker import Notes
from tilec.support.source import Span

_UNSCHEDULED = "not scheduled yet"


def describe_place(document: Document, documents: Documents, line: int, column: int) -> tuple[str, Span] | None:
    """Return a Markdown description of the word at a place, and its span; None if there is nothing to say."""
    text = document.source.lines[line - 1]
    word, start = find_word_at(text, column)
    span = Span(line, start, line, start + len(word))
    parts: list[str] = []
    found = document.names.at(line, column)
    if found is not None:
        symbol, span = found
        parts += _describe_symbol(document, documents, symbol, symbol.definition_of_use(line, column))
    elif (entry := find_name(word, document.source.text)) is not None:
        parts.append(to_markdown(entry))
    elif word and (there := documents.find_starred_name(document, word)) is not None:
        parts += _describe_definition(*there)
    elif (member := document.names.member_at(line, column)) is not None and member.base.origin is not None:
        file = documents.origin(document, member.base.origin)
        other = file[0].names.top.symbols.get(member.name) if file is not None else None
        if file is not None and other is not None:
            parts += _describe_definition(file[0], other)
    parts += _explain_diagnostics(document, line, column)
    if _lies_in_function(document, line):
        parts += _describe_schedules(document, line, column)
    return ("\n\n".join(parts), span) if parts and word else None


def _describe_symbol(document: Document, documents: Documents, symbol: Symbol, place: Span) -> Iterator[str]:
    """Yield Markdown on a name: its kind and value, its definition, and for a buffer its layout."""
    entry = find_name(symbol.name, document.source.text) if symbol.kind == "module" else None
    value = document.find_note(document.checked.values, place) if document.checked is not None else None
    yield f"**{symbol.name}** ({symbol.kind}){': ' + value if value and symbol.kind != 'module' else ''}"
    if symbol.origin is not None and (there := documents.origin(document, symbol.origin)) is not None:
        file, other = there
        if other is not None:
            yield from _describe_definition(file, other)
    elif symbol.node is not None:
        yield from _describe_definition(document, symbol)
    elif entry is not None:
        yield to_markdown(entry)
    if symbol.kind == "buffer":
        layout = document.find_note(document.scheduled.layouts, place) if document.scheduled is not None else None
        if layout is not None:
            yield f"Layout in {layout}"
        if document.scheduled is None and document.checked is not None and document.checked.is_clean:
            yield f"Layout: {_UNSCHEDULED}"


def _describe_definition(document: Document, symbol: Symbol) -> Iterator[str]:
    """Yield, as Markdown, the line that defines a symbol; for a function its header, then its docstring."""
    first = symbol.places[0]
    lines = [document.source.lines[first.line - 1].strip()]
    if symbol.node is not None and symbol.node.body:
        before = symbol.node.body[0].span.line
        lines = [line.strip() for line in document.source.lines[first.line - 1 : max(before - 1, first.line)]]
    yield f"```python\n{' '.join(lines)}\n```"
    if symbol.node is not None and symbol.node.body:
        match symbol.node.body[0]:
            case ast.Evaluate(ast.String(text)):
                yield " ".join(text.split())


def _explain_diagnostics(document: Document, line: int, column: int) -> Iterator[str]:
    """Yield, as Markdown, the explanation of each diagnostic of this file whose span holds a place."""
    from tilec.driver.explanations import EXPLANATIONS

    for answer in (document.checked, document.scheduled):
        for found in answer.diagnostics if answer is not None else ():
            label = found.primary
            if label is not None and not label.span.file and is_in_span(label.span, line, column):
                yield f"**{found.severity}[{found.code}]** {' '.join(EXPLANATIONS.get(found.code, '').split())}"


def _lies_in_function(document: Document, line: int) -> bool:
    """Return whether a line lies in a function, lambda or comprehension of the file, and so may have a schedule."""
    return any(is_in_span(scope.span, line, 1) or scope.span.line == line for scope in document.names.scopes[1:])


def _describe_schedules(document: Document, line: int, column: int) -> Iterator[str]:
    """Yield Markdown on the schedule of the innermost statements at a place, or "not scheduled yet"; nothing after
    errors.
    """
    if document.checked is not None and not document.checked.is_clean:
        return
    if document.checked is None or document.scheduled is None:
        yield f"Schedule: {_UNSCHEDULED}"
    else:
        notes = [text for span, text in _find_innermost_notes(document.scheduled.schedules, line, column)]
        yield from (f"Schedule: {text}" for text in dict.fromkeys(notes))


def _find_innermost_notes(notes: Notes, line: int, column: int) -> Iterator[tuple[Span, str]]:
    """Yield the notes of those statements at a place that begin last; a place anywhere on their first line counts."""
    own = ((span, text) for span, text in notes if not span.file)
    at = [(span, text) for span, text in own if is_in_span(span, line, column) or span.line == line]
    latest = max(((span.line, span.column) for span, _ in at), default=None)
    yield from ((span, text) for span, text in at if (span.line, span.column) == latest)
