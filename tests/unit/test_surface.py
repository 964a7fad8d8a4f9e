"""Every name of TileLang, and whether tilec carries it out.

`surface.txt` has a line per name: `works`, `refused` (with a message of its own) or `missing` (taken for a mistake).
`pytest --bless` writes down what is true now; a name that stops working shows in the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.driver.build import Observer, load_kernel
from tilec.driver.explanations import EXPLANATIONS
from tilec.frontend.sema.vocabulary import list_supported_names
from tilec.ops.language.unavailable_names import REFUSED
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

SURFACE = Path(__file__).with_name("surface.txt")


def rows() -> list[list[str]]:
    lines = SURFACE.read_text(encoding="utf-8").splitlines()
    return [line.split() if line and line[0] != "#" else [line] for line in lines]


def status(name: str) -> str:
    if f"T.{name}" in list_supported_names():
        return "works"
    return "refused" if name in REFUSED else "missing"


def test_the_table_is_true(request: pytest.FixtureRequest) -> None:
    table = rows()
    if request.config.getoption("--bless"):
        text = "".join(f"{r[0]:32}{status(r[0])}\n" if len(r) == 2 else f"{r[0]}\n" for r in table)
        SURFACE.write_text(text, encoding="utf-8")
        return
    named = [row for row in table if len(row) == 2]
    assert len(named) > 300
    assert [(name, said) for name, said in named if status(name) != said] == []


def test_no_name_is_both_supported_and_refused() -> None:
    assert [name for name in list_supported_names() if name.removeprefix("T.") in REFUSED] == []


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_name_says_why(name: str) -> None:
    text = f"import tilelang.language as T\n@T.prim_func\ndef k():\n    with T.Kernel(1):\n        T.{name}(1)\n"
    source = SourceFile("k.tl", text)
    with pytest.raises(CompileError) as raised:
        load_kernel(source, CompileOptions(), Observer())
    (found,) = raised.value.diagnostics
    assert found.code == REFUSED[name].code and found.code in EXPLANATIONS
    assert f"T.{name} is not available: " in found.title
    assert found.primary is not None and found.primary.span.line == 5
