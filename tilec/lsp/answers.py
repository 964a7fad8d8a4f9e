"""Answers to an editor's requests about an open file, in the types of the protocol. The handlers are named after the
requests of the protocol."""

from __future__ import annotations

import asyncio
import re
from keyword import iskeyword

from lsprotocol import types

from tilec.frontend.language import format_meaning
from tilec.frontend.syntax import ast
from tilec.ir.types import TYPES_BY_NAME
from tilec.lsp import findings, vocabulary
from tilec.lsp.documents import Document, Documents
from tilec.lsp.hover import describe_place as describe_place
from tilec.lsp.names import Kind, Names, Symbol
from tilec.lsp.positions import CodeUnits
from tilec.support.records import dataclass
from tilec.support.source import Span

_ITEM, _SYMBOL = types.CompletionItemKind, types.SymbolKind
_KINDS: dict[Kind, types.CompletionItemKind] = {
    "constant": _ITEM.Constant, "variable": _ITEM.Variable, "buffer": _ITEM.Variable, "parameter": _ITEM.Variable,
    "function": _ITEM.Function, "kernel": _ITEM.Function, "macro": _ITEM.Function,
    "module": _ITEM.Module, "imported": _ITEM.Reference,
}  # fmt: skip
_SYMBOLS: dict[Kind, types.SymbolKind] = {
    "constant": _SYMBOL.Constant, "buffer": _SYMBOL.Array, "function": _SYMBOL.Function, "kernel": _SYMBOL.Class,
    "macro": _SYMBOL.Function, "parameter": _SYMBOL.Variable,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """The inputs of every answer: the open files, the editor's code units, and the address of the documents' site."""

    documents: Documents
    units: CodeUnits
    site: str | None

    def location(self, document: Document, span: Span) -> types.Location:
        """Return a span of a document as the protocol's location, with its URI and in the editor's code units."""
        return types.Location(document.uri, self.units.range(span, document.source.lines))

    def definition(self, document: Document, line: int, column: int) -> tuple[Document, Span] | None:
        """Return the file and span that define the name at a place, perhaps another file; None if it is unknown."""
        found = document.names.at(line, column)
        if found is not None:
            symbol, _ = found
            if symbol.origin is None:
                return document, symbol.definition_of_use(line, column)
            there = self.documents.origin(document, symbol.origin)
            return None if there is None else _find_first_place(*there)
        member = document.names.member_at(line, column)
        if member is not None and member.base.origin is not None:
            file = self.documents.origin(document, member.base.origin)
            if file is not None and (symbol_there := file[0].names.top.symbols.get(member.name)) is not None:
                return _find_first_place(file[0], symbol_there)
        name = document.names.unresolved_at(line, column)
        there_by_star = self.documents.find_starred_name(document, name) if name is not None else None
        return None if there_by_star is None else _find_first_place(*there_by_star)


def _find_first_place(document: Document, symbol: Symbol | None) -> tuple[Document, Span]:
    """Return a file and the first definition of a symbol there; its beginning for the file itself."""
    return document, Span(1, 1, 1, 1) if symbol is None else symbol.places[0]


def hover(desk: AnswerContext, document: Document, params: types.HoverParams) -> types.Hover | None:
    """Answer a hover request: what the place under the cursor is, as Markdown, or None."""
    place = desk.units.place(params.position, document.source.lines)
    found = describe_place(document, desk.documents, *place)
    if found is None:
        return None
    text, span = found
    content = types.MarkupContent(types.MarkupKind.Markdown, text)
    return types.Hover(content, desk.units.range(span, document.source.lines))


def completion(
    desk: AnswerContext, document: Document, params: types.CompletionParams
) -> list[types.CompletionItem] | None:
    """Answer a completion request: dtypes in a string, members after a dot, else keywords and names; None in a
    comment.
    """
    line, column = desk.units.place(params.position, document.source.lines)
    text = document.source.text
    context = vocabulary.find_context(text, document.offset(line, column))
    if context.kind == "comment":
        return None
    if context.kind == "string":
        return [types.CompletionItem(name, kind=types.CompletionItemKind.EnumMember) for name in TYPES_BY_NAME]
    head, dot, _ = context.written.rpartition(".")
    if dot:
        return [
            types.CompletionItem(
                name,
                kind=types.CompletionItemKind.Function,
                detail=vocabulary.signature_text(entry),
                documentation=types.MarkupContent(types.MarkupKind.Markdown, format_meaning(entry)),
            )
            for name, entry in vocabulary.list_language_members(f"{head}.", text)
        ]
    given = vocabulary.list_missing_keywords(context.call, text) if context.call is not None else ()
    items = [
        types.CompletionItem(f"{name}=", kind=types.CompletionItemKind.Property, detail=shown, sort_text=f"0{name}")
        for name, shown in given
    ]
    visible = document.names.visible(line, column)
    return items + [
        types.CompletionItem(name, kind=_KINDS[symbol.kind], detail=symbol.kind, sort_text=f"1{name}")
        for name, symbol in visible.items()
    ]


def signature_help(
    desk: AnswerContext, document: Document, params: types.SignatureHelpParams
) -> types.SignatureHelp | None:
    """Answer a signature request: the signature of the call around a place and the parameter being written, or None."""
    line, column = desk.units.place(params.position, document.source.lines)
    text = document.source.text
    call = vocabulary.find_context(text, document.offset(line, column)).call
    if call is None:
        return None
    entry = vocabulary.find_name(call.name, text)
    if entry is not None:
        label, documentation = vocabulary.signature_text(entry), format_meaning(entry)
        shown = vocabulary.format_parameters(entry)
    else:
        symbol = document.names.visible(line, column).get(call.name)
        if symbol is None or symbol.node is None:
            return None
        shown, documentation = tuple(f"{p.kind}{p.name}" for p in symbol.node.params), symbol.kind
        label = f"{symbol.name}({', '.join(shown)})"
    words = [p.split("=")[0] for p in shown]
    active = words.index(call.keyword) if call.keyword in words else min(call.argument, max(len(words) - 1, 0))
    signature = types.SignatureInformation(
        label,
        documentation=types.MarkupContent(types.MarkupKind.Markdown, documentation),
        parameters=[types.ParameterInformation(p) for p in shown],
    )
    return types.SignatureHelp([signature], active_signature=0, active_parameter=active)


def definition(desk: AnswerContext, document: Document, params: types.DefinitionParams) -> types.Location | None:
    """Answer a definition request: the place that defines the name under the cursor, in any file, or None."""
    found = desk.definition(document, *desk.units.place(params.position, document.source.lines))
    return None if found is None else desk.location(*found)


def references(desk: AnswerContext, document: Document, params: types.ReferenceParams) -> list[types.Location] | None:
    """Answer a references request: the uses of the name under the cursor in its file, with definitions if asked for; or
    None.
    """
    found = document.names.at(*desk.units.place(params.position, document.source.lines))
    if found is None:
        return None
    symbol, _ = found
    spans = symbol.spans if params.context.include_declaration else [s for s in symbol.uses if s not in symbol.places]
    return [desk.location(document, span) for span in spans]


def document_symbols(
    desk: AnswerContext, document: Document, params: types.DocumentSymbolParams
) -> list[types.DocumentSymbol]:
    """Answer an outline request: the functions, buffers and top-level constants of a file, nested."""
    return _build_outline_symbols(document.names.module.body, document.names, document, desk.units, top=True)


def _build_outline_symbols(
    body: tuple[ast.Stmt, ...], names: Names, document: Document, units: CodeUnits, *, top: bool = False
) -> list[types.DocumentSymbol]:
    """Return the outline of statements: functions with their buffers inside, buffers, and with `top` also constants.
    Those inside `with`s and loops count, without constants; those inside an `if` are left out.
    """
    lines = document.source.lines
    listed = []
    for statement in body:
        if isinstance(statement, ast.Function):
            found = names.at(statement.name_span.line, statement.name_span.column)
            kind = found[0].kind if found is not None else "function"
            inside = _build_outline_symbols(statement.body, names, document, units)
            name, at = statement.name, statement.name_span
            whole = units.range(statement.span, lines)
            symbol = types.DocumentSymbol(name, _SYMBOLS[kind], whole, units.range(at, lines), children=inside)
            listed.append(symbol)
        elif isinstance(statement, ast.With | ast.For | ast.While):
            listed += _build_outline_symbols(statement.body, names, document, units)
        elif isinstance(statement, ast.Assign):
            for target in (t for whole in statement.targets for t in ast.walk_nodes(whole) if isinstance(t, ast.Name)):
                named = names.at(target.span.line, target.span.column)
                kind = named[0].kind if named is not None else "variable"
                if (top and kind == "constant") or kind == "buffer":
                    whole, at_range = units.range(statement.span, lines), units.range(target.span, lines)
                    listed.append(types.DocumentSymbol(target.id, _SYMBOLS[kind], whole, at_range))
    return listed


def prepare_rename(desk: AnswerContext, document: Document, params: types.PrepareRenameParams) -> types.Range | None:
    """Answer whether the name under the cursor can be renamed: its range, or None."""
    found = _find_renamable(desk, document, params.position)
    return None if found is None else desk.units.range(found[1], document.source.lines)


def rename(desk: AnswerContext, document: Document, params: types.RenameParams) -> types.WorkspaceEdit | None:
    """Answer a rename request: the edits of all places of the name in its file, or None if they are not safe."""
    found, name = _find_renamable(desk, document, params.position), params.new_name
    if found is None or not name.isidentifier() or iskeyword(name):
        return None
    spans = found[0].spans
    if any(name in document.names.visible(span.line, span.column) for span in spans):
        return None
    lines = document.source.lines
    edits = [types.TextEdit(desk.units.range(span, lines), name) for span in spans]
    return types.WorkspaceEdit(changes={document.uri: edits})


def _find_renamable(desk: AnswerContext, document: Document, position: types.Position) -> tuple[Symbol, Span] | None:
    """Return the symbol and span at a place; None if it is imported or may also occur in unparsed text."""
    names = document.names
    found = names.at(*desk.units.place(position, document.source.lines))
    if found is None or found[0].kind in ("module", "imported"):
        return None
    name = found[0].name
    written = sum(len(re.findall(rf"\b{re.escape(name)}\b", line)) for line in document.source.lines)
    known = sum(len(symbol.spans) for symbol in names.symbols() if symbol.name == name)
    return found if names.is_whole or written == known else None


def code_actions(desk: AnswerContext, document: Document, params: types.CodeActionParams) -> list[types.CodeAction]:
    """Answer a request for quick fixes: one edit for each fixable diagnostic that overlaps a range."""
    lines, units = document.source.lines, desk.units
    found = document.checked.diagnostics if document.checked is not None else ()
    listed = []
    for one, span, right in findings.find_fixes(found, document.source):
        assert one.primary is not None
        shown = units.range(one.primary.span, lines)
        if shown.end < params.range.start or params.range.end < shown.start:
            continue
        edit = types.WorkspaceEdit(changes={document.uri: [types.TextEdit(units.range(span, lines), right)]})
        about = findings.convert_diagnostics([one], document.source, document.uri, units, desk.site)
        title = f"Write {right}"
        action = types.CodeAction(title, types.CodeActionKind.QuickFix, about, is_preferred=True, edit=edit)
        listed.append(action)
    return listed


async def formatting(
    desk: AnswerContext, document: Document, params: types.DocumentFormattingParams
) -> list[types.TextEdit] | None:
    """Answer a formatting request: one edit of the whole text, or an empty list if it is formatted or has changed
    meanwhile.
    """
    from tilec.frontend.syntax.formatting import format_kernel

    source, edition = document.source, document.edition
    text = await asyncio.to_thread(format_kernel, source)
    if text == source.text or not desk.documents.is_current(document, edition):
        return []
    whole = Span(1, 1, len(source.lines), len(source.lines[-1]) + 1)
    return [types.TextEdit(desk.units.range(whole, source.lines), text)]
