"""Reading a file takes as long as it is long, whatever is wrong with it: nothing is read again for each mistake."""

from __future__ import annotations

import time

import pytest

from tilec.frontend.syntax import ast
from tilec.frontend.syntax.parse import diagnose_foreign, parse_file
from tilec.support.diagnostics import CompileError, ErrorCollector
from tilec.support.source import SourceFile

LINES = 5000
SECONDS = 5
"""Of the processor's: several times what the longest takes."""

KERNEL = "@T.prim_func\ndef k():\n    with T.Kernel(1) as bx:\n"


def _read(text: str) -> ast.Module | CompileError:
    began = time.process_time()
    try:
        return parse_file(SourceFile("long.tl", text))
    except CompileError as error:
        return error
    finally:
        assert time.process_time() - began < SECONDS


@pytest.mark.some(5)
@pytest.mark.parametrize(
    "text",
    [
        "x = = 1\n" * LINES,
        "def f(:\n    pass\n" * LINES + "@T.prim_func\n",
        KERNEL + "        x = = 1\n" * LINES,
        KERNEL + "        if x\n" * LINES,
        KERNEL + "        T.copy(A, B\n" * LINES,
        KERNEL + "        x = 1\n" * LINES + "      y = 2\n",
        "x = (\n" * LINES,
        "x = {\n" * LINES + "}\n" * LINES,
        "@a\n" * LINES,
        '"""\n' * (LINES + 1),
        "  \n" * LINES + "?",
        "else:\n" * LINES,
        "yield x\n" * LINES,
    ],
    ids=lambda text: repr(text[:30]),
)
def test_mistakes_on_every_line(text: str) -> None:
    error = _read(text)
    assert isinstance(error, CompileError)
    assert 0 < len(error.diagnostics) <= ErrorCollector.MOST


def test_definitions_of_other_python_on_every_line() -> None:
    """What is wrong with each is found out only where one is asked for."""
    module = _read("def kernelprim_func\n" * LINES + "class A:\n    pass\n" * LINES)
    assert isinstance(module, ast.Module)
    assert len(module.body) == 2 * LINES
    last = module.body[-1]
    assert isinstance(last, ast.Foreign)
    mistake = diagnose_foreign(last)
    assert mistake.title == "`class` is not part of the kernel language"
    assert mistake.primary is not None and mistake.primary.span.line == last.span.line == 3 * LINES - 1
