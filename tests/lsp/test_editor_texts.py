"""Places, names and calls in the texts that editors hold, without a server."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest
from lsprotocol import types

from tilec.frontend.syntax.parse import parse_repaired
from tilec.lsp import vocabulary
from tilec.lsp.documents import Document, Documents, path_of
from tilec.lsp.hover import describe_place
from tilec.lsp.names import Names, resolve_names
from tilec.lsp.positions import CodeUnits
from tilec.lsp.server import _relevant_options
from tilec.lsp.worker import Answer
from tilec.support.diagnostics import Diagnostic, Label
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile, Span

SAMPLES = Path(__file__).parents[2] / "samples"
LINES = ("ab", "é𝕏c\r", "")


@pytest.mark.parametrize(
    ("encoding", "units"), [("utf-8", (0, 2, 6, 7)), ("utf-16", (0, 1, 3, 4)), ("utf-32", range(4))]
)
def test_places_there_and_back(encoding: str, units: tuple[int, ...]) -> None:
    counted = CodeUnits(encoding)
    for column, character in enumerate(units, start=1):
        assert counted.place(types.Position(1, character), LINES) == (2, column)
        found = counted.range(Span(2, column, 2, 4), LINES)
        assert (found.start.character, found.end.character) == (character, units[3])
    assert counted.place(types.Position(1, 99), LINES) == (2, 4), "before the line's end"
    assert counted.place(types.Position(9, 9), LINES) == (3, 1)
    assert counted.range(Span(0, 0, 0, 0), LINES).start == types.Position(0, 0)
    assert counted.range(Span(7, 1, 7, 2), LINES).start == types.Position(3, 0)


def names(text: str) -> Names:
    module, is_whole = parse_repaired(SourceFile("a.tl", text))
    return resolve_names(module, is_whole)


def lines_of(text: str, name: str) -> list[list[int]]:
    return [[span.line for span in symbol.spans] for symbol in names(text).symbols() if symbol.name == name]


def test_names_belong_to_functions_lambdas_and_comprehensions() -> None:
    text = "x = 1\ndef f(x, y=x):\n    z = x\n    return [x for x in (z, y)]\ng = lambda x: x\nw = f(x=x, y=2)\n"
    assert lines_of(text, "x") == [[1, 2, 6], [2, 3, 6], [4, 4], [5, 5]]
    assert lines_of(text, "y") == [[2, 4, 6]]
    assert lines_of(text, "f") == [[2, 6]]


def test_a_use_means_the_last_value_before_it_and_a_tile_its_allocation() -> None:
    text = "T = 0\ndef f():\n    x = 1\n    x = x + 1\n    v = T.alloc_var('int32')\n    v = x\n    return v\n"
    found = names(text)
    symbols = {symbol.name: symbol for symbol in found.symbols()}
    assert symbols["x"].definition_of_use(6, 9).line == 4
    assert symbols["v"].definition_of_use(7, 12).line == 5
    assert (symbols["v"].kind, symbols["x"].kind, symbols["f"].kind) == ("buffer", "variable", "function")


def test_every_name_of_the_samples_is_found() -> None:
    """But Python's own, which no text defines."""
    read = {path: names(path.read_text(encoding="utf-8")) for path in SAMPLES.rglob("*.tl")}
    strange = {path.name: set(found.unresolved.values()) - set(dir(builtins)) for path, found in read.items()}
    assert len(strange) > 50 and [(file, unknown) for file, unknown in strange.items() if unknown] == []
    for found in read.values():
        for symbol in found.symbols():
            assert all(found.at(span.line, span.column) == (symbol, span) for span in symbol.spans)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("a = 1\nb = (\nc = 3\n", {"a", "c"}),
        ("a = 1\nb = f(a,\n      2\nc = 3\n", {"a", "c"}),
        ("a = 1\ndef f(:\n    b = 2\nc = a\n", {"a", "c"}),
        ("def f(x):\n    a = 1\n    b = = 2\n    c = a\n", {"f", "x", "a", "c"}),
        ("a = 'x\nb = 2\n", {"b"}),
        ("if 1:\n", set()),
    ],
)
def test_what_can_be_read_of_a_broken_text_has_names(text: str, whole: set[str]) -> None:
    found = names(text)
    assert {symbol.name for symbol in found.symbols()} >= whole
    assert not found.is_whole
    assert names("a = 1\n").is_whole


@pytest.mark.parametrize(
    ("typed", "name", "argument", "keyword"),
    [
        ("T.copy(", "T.copy", 0, None),
        ("T.copy(a, b, coalesced_width=", "T.copy", 2, "coalesced_width"),
        ("T.copy(a[i, f(x, y)], ", "T.copy", 1, None),
        ("T.copy((1, 2, ", "T.copy", 0, None),
        ("T.copy(a, f(1, 2), g(", "g", 0, None),
        ("T.copy('(', \"f(\", # g(\n", "T.copy", 2, None),
        ("T.copy(a == ", "T.copy", 0, None),
    ],
)
def test_the_call_around_a_place(typed: str, name: str, argument: int, keyword: str | None) -> None:
    found = vocabulary.find_context(typed, len(typed)).call
    assert found is not None
    assert (found.name, found.argument, found.keyword) == (name, argument, keyword)
    assert vocabulary.find_context("T.copy(a, b) ", 13).call is None


def test_strings_and_comments_are_no_code() -> None:
    def kind(text: str) -> str:
        return vocabulary.find_context(text, len(text)).kind

    assert [kind(t) for t in ("x = 'a", "x = 'a'", "x = '''a\nb", "# a", "# a\n", 'f("', "f('a', ")] == [
        "string", "code", "string", "comment", "code", "string", "code",
    ]  # fmt: skip


def test_the_language_under_another_name() -> None:
    text = "import tilelang.language as tl\n"
    assert vocabulary.make_canonical_name("tl.copy", text) == "T.copy"
    assert vocabulary.find_word_at("x = tl.copy(a)", 6) == ("tl", 5)
    assert vocabulary.find_word_at("x = tl.copy(a)", 9) == ("tl.copy", 5)
    assert "copy" in dict(vocabulary.list_language_members("tl.", text))
    assert dict(vocabulary.list_language_members("np.", text)) == {}


def test_hover_says_that_nothing_is_scheduled_yet() -> None:
    path = SAMPLES / "gemm.tl"
    documents = Documents()
    document = documents.open(path.as_uri(), path.read_text(encoding="utf-8"))
    line = next(n for n, text in enumerate(document.source.lines, start=1) if "T.gemm" in text)

    def told() -> str:
        found = describe_place(document, documents, line, 16)
        assert found is not None
        return found[0]

    assert told().endswith("Schedule: not scheduled yet")
    wrong = Diagnostic("unknown-name", "`x` is not defined", Label(Span(1, 1, 1, 2)))
    document.checked = Answer(document.source, (wrong,))
    assert "Schedule" not in told()
    document.checked = Answer(document.source)
    assert told().endswith("Schedule: not scheduled yet")
    document.scheduled = Answer(document.source, schedules=((Span(line, 13, line, 20), "stage 1"),))
    assert told().endswith("Schedule: stage 1")
    document.change(document.source.text)
    assert told().endswith("Schedule: not scheduled yet")


def test_what_is_no_file_lies_in_no_folder() -> None:
    assert path_of("file:///a/b%20c.tl") == "/a/b c.tl"
    assert path_of("untitled:Untitled-1") == "untitled:/Untitled-1"
    assert path_of("vscode-vfs://github/x/y.tl") == "vscode-vfs:/y.tl"


def test_constants_of_the_command_line_count_where_there_are_such() -> None:
    options = CompileOptions(defines=(("N", 4), ("block_M", 8)))
    document = Document("file:///a.tl", SourceFile("/a.tl", "N = 1\n"))
    assert _relevant_options(document, options).defines == (("N", 4),)
