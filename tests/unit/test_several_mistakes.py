"""One mistake, one diagnostic; several mistakes, all of them in one run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilec import driver
from tilec.diag import CompileError, Diagnostic, Label, Mistakes, fail
from tilec.options import CompileOptions
from tilec.source import SourceFile, Span

SAMPLES = sorted((Path(__file__).parents[2] / "samples").rglob("*.tl"))
DEFINITION = re.compile(r"^(\s*)(\w+(?:, \w+)*) = ")
STATEMENT = re.compile(r"^\s+T\.(copy|gemm|clear|fill|reduce_\w+)\(")


def tile_statements(text: str) -> list[int]:
    """The lines, from 0, that are calls of tile operations."""
    lines = enumerate(text.split("\n"))
    return [n for n, line in lines if STATEMENT.match(line) and line.count("(") == line.count(")")]


def mistakes(text: str) -> tuple[Diagnostic, ...]:
    try:
        driver.check(SourceFile("k.tl", text), CompileOptions(), driver.Observer())
    except CompileError as error:
        assert error.diagnostics
        return error.diagnostics
    return ()


def broken(text: str) -> Iterator[tuple[int, str]]:
    """Each line that defines or does something, and the text with a mistake there."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        # A line of its own: what goes on in the next one is left alone.
        if lines[number - 1].count("(") != lines[number - 1].count(")"):
            continue
        if found := DEFINITION.match(line):
            changed = f"{found[1]}{found[2]} = no_such_thing"
        elif STATEMENT.match(line):
            changed = re.sub(r"\(.*\)", "(no_such_thing)", line, count=1)
        else:
            continue
        yield number, "\n".join([*lines[: number - 1], changed, *lines[number:]])


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_what_follows_from_a_mistake_is_not_reported(path: Path) -> None:
    reported = 0
    tried = list(broken(path.read_text(encoding="utf-8")))
    for line, text in tried[:: len(tried) // 6 or 1]:
        found = mistakes(text)
        shown = [(d.primary.span.line if d.primary else 0, d.code, d.title) for d in found]
        # Nothing, where a decision at compile time leaves the line out.
        assert [s[:2] for s in shown] in ([(line, "unknown-name")], []), shown
        reported += len(shown)
    assert reported


@pytest.mark.parametrize(
    "path",
    [p for p in SAMPLES if len(tile_statements(p.read_text(encoding="utf-8"))) > 2][:12],
    ids=lambda path: path.stem,
)
def test_all_mistakes_are_found(path: Path) -> None:
    """But those in what a decision at compile time leaves out."""
    text = path.read_text(encoding="utf-8")
    does, lines = tile_statements(text), text.split("\n")
    for number in does:
        lines[number] = re.sub(r"\(.*\)", f"(missing_{number})", lines[number], count=1)
    found = mistakes("\n".join(lines))
    reached = {d.primary.span.line - 1 for d in found if d.primary}
    assert reached <= set(does) and len(found) == len(reached)
    assert len(reached) > len(does) / 2


def test_no_more_than_twenty() -> None:
    collected = Mistakes()
    for line in range(30, 0, -1):
        with collected.caught():
            fail("unknown-name", "nothing", Span(line, 1, line, 2), "here")
        with collected.caught():
            fail("unknown-name", "again", Span(line, 1, line, 2), "here")
    with pytest.raises(CompileError) as raised:
        collected.end()
    found = raised.value.diagnostics
    assert [d.primary for d in found] == [Label(Span(n, 1, n, 2), "here") for n in range(1, 21)]
    assert found[-1].notes == ("10 mistakes more are not shown",)
    assert {d.title for d in found} == {"nothing"}


def test_without_mistakes_nothing_happens() -> None:
    collected = Mistakes()
    with collected.caught():
        pass
    collected.end()
