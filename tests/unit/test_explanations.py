"""`tilec explain` knows every code that a diagnostic can carry, and no others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import tilec
from tilec.driver.explanations import EXPLANATIONS, FORMER_CODES
from tilec.ptx.assemble import RemarkKind

MAKERS = {"raise_error", "_unknown", "make_warning", "Diagnostic"}


@cache
def _codes() -> tuple[tuple[str, str], ...]:
    return tuple(_walk_codes())


def _walk_codes() -> Iterator[tuple[str, str]]:
    """Every literal first argument of a call that makes a diagnostic, with its place."""
    for path in sorted(Path(tilec.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(f"{maker}(" in text for maker in MAKERS) else ():
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if name in MAKERS and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value, f"{path}:{node.lineno}"


def test_every_code_is_explained() -> None:
    missing = {code: where for code, where in _codes() if code not in EXPLANATIONS}
    assert missing == {}
    assert set(get_args(RemarkKind)) <= EXPLANATIONS.keys()


def test_every_explanation_is_of_a_code_in_use() -> None:
    used = {code for code, _ in _codes()} | set(get_args(RemarkKind))
    assert sorted(EXPLANATIONS.keys() - used) == []


def test_what_codes_were_once_called_is_free() -> None:
    assert not FORMER_CODES.keys() & EXPLANATIONS.keys()
    assert set(FORMER_CODES.values()) <= EXPLANATIONS.keys()


def test_explanations_read_well() -> None:
    for code, text in EXPLANATIONS.items():
        assert text[0].isupper() or not text[0].isalpha(), code
        assert text.endswith((".", ")", "…", "bfloat16")), code
        assert "\n\n" not in text, code
