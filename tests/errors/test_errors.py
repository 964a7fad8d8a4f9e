"""Kernels that are wrong, and what must be said about them.

A comment on the blamed line says what: `# error: [code] "part of the title, label, note or help"`. Where the line
cannot carry a comment, `# error@7: …` names it, and `# error@0: …` expects a diagnostic that points nowhere. A kernel
that is odd but not wrong has `# warning: …`. Anything else that is reported fails the test, but that a kernel does
nothing else than what it shows: that is looked for where it is expected. A first line
`# RUN: -D K=V --entry name --target sm_90a` passes options, of which there is also `--pipeline-strategy`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.driver.engine import check_kernels
from tilec.support.diagnostics import CompileError, Diagnostic
from tilec.support.files import read_source
from tilec.support.options import STRATEGIES, CompileOptions, parse_define
from tilec.support.render import render_diagnostic
from tilec.support.source import SourceFile

FOLDER = Path(__file__).parent
KERNELS = sorted(FOLDER.glob("*.tl"))

_EXPECTATION = re.compile(
    r'# (?P<severity>error|warning)(?:@(?P<line>\d+))?: \[(?P<code>[a-z0-9-]+)\] "(?P<text>[^"]*)"'
)


@dataclass(frozen=True)
class Expectation:
    line: int
    severity: str
    code: str
    text: str


def expectations(text: str) -> list[Expectation]:
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        for match in _EXPECTATION.finditer(line):
            found.append(Expectation(int(match["line"] or number), match["severity"], match["code"], match["text"]))
    return found


IDLE = ("nothing-written", "unused-parameter")
"""What is true of many kernels that show one mistake and no more."""


def run_options(text: str) -> list[str]:
    first = text.split("\n", 1)[0]
    return shlex.split(first.removeprefix("# RUN:")) if first.startswith("# RUN:") else []


def compile_diagnostics(
    source: SourceFile,
    options: Sequence[str],
    run: Callable[[SourceFile, CompileOptions, Observer], object] = build_kernel,
) -> tuple[Diagnostic, ...]:
    """What a build of the kernel with these command-line options reports, or what else is run."""
    pairs = list(zip(options[::2], options[1::2], strict=True))
    given = dict(pairs)
    observer = Observer()
    try:
        asked = CompileOptions(
            target=given.get("--target", "sm_90a"),
            defines=tuple(parse_define(value) for flag, value in pairs if flag == "-D"),
            entry=given.get("--entry"),
            silenced=tuple(code for code in IDLE if f"[{code}]" not in source.text),
            pipeline_strategy=next(s for s in STRATEGIES if s == given.get("--pipeline-strategy", "auto")),
        )
        run(source, asked, observer)
    except CompileError as error:
        return (*observer.warnings, *error.diagnostics)
    return tuple(observer.warnings)


def said(diagnostic: Diagnostic) -> str:
    """Everything a diagnostic says, to look for the expected text in."""
    labels = [label.text for label in (diagnostic.primary, *diagnostic.secondary) if label]
    return "\n".join([diagnostic.title, *labels, *diagnostic.notes, diagnostic.help or ""])


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_reports(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    wanted = expectations(text)
    assert wanted, f"{path.name} says nothing about what must be reported"
    source = read_source(str(path))
    diagnostics = compile_diagnostics(source, run_options(text))
    shown = "\n\n".join(render_diagnostic(d, source).plain for d in diagnostics)
    reported = [(d.primary.span.line if d.primary else 0, d.severity, d.code) for d in diagnostics]
    assert sorted(reported) == sorted((e.line, e.severity, e.code) for e in wanted), shown
    for diagnostic in diagnostics:
        assert any(e.code == diagnostic.code and e.text in said(diagnostic) for e in wanted), shown
        check_style(diagnostic)


BY_BUILDS_ALONE = ("ambiguous_entry", "several_launches", "fragment_work")
"""`tilec check` looks at every kernel of a file, and counts no instructions."""


def errors_of_check(path: Path) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return the errors that `tilec check` reports, and those that a build is expected to report."""
    text = path.read_text(encoding="utf-8")
    found = compile_diagnostics(read_source(str(path)), run_options(text), check_kernels)
    reported = [(d.primary.span.line if d.primary else 0, d.code) for d in found if d.severity == "error"]
    return sorted(reported), sorted((e.line, e.code) for e in expectations(text) if e.severity == "error")


@pytest.mark.some(24)
@pytest.mark.parametrize("path", [k for k in KERNELS if k.stem not in BY_BUILDS_ALONE], ids=lambda path: path.stem)
def test_check_finds_what_a_build_finds(path: Path) -> None:
    found, wanted = errors_of_check(path)
    assert found == wanted


@pytest.mark.parametrize("name", ["random_copies", "overflow_without_pipeline", "overflow_in_pipeline"])
def test_check_finds_what_depends_on_layouts(name: str) -> None:
    found, wanted = errors_of_check(FOLDER / f"{name}.tl")
    assert found == wanted


def check_style(diagnostic: Diagnostic) -> None:
    """Lower case, no full stop, one line, a help that is not the title again."""
    title = diagnostic.title
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", diagnostic.code)
    assert "\n" not in title and not title.endswith("."), title
    first_word = re.split(r"[\s:(]", title)[0]
    is_a_name = not first_word.isalpha() or "_" in first_word
    assert title[0].islower() or is_a_name or len(first_word) == 1 or first_word[1:] != first_word[1:].lower(), title
    assert diagnostic.help != title


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "kernel.tl"
    path.write_bytes(b"# caf\xe9\n")
    with pytest.raises(CompileError) as raised:
        read_source(str(path))
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.code == "not-utf8"
    assert "line 1" in diagnostic.title
