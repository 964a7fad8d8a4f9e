"""Parsers of untrusted JSON, TOML and Python expressions: `ValueError` for malformed text, or too deep nesting.

Code that walks over a value recurses as deep as the value: the limit here keeps it from the interpreter's recursion
limit.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Any, NoReturn

DEEPEST = 100
"""The largest nesting of containers or operators. tilec itself writes less than twenty."""

_LONG_KEY = re.compile(
    rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{DEEPEST}}}""", re.ASCII
)  # a.a.a…

_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str) -> Any:
    """Return a JSON text's value; raise ValueError if malformed or deep, or for infinities, NaN, lone surrogates."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        _refuse_depth()
    _check_depth(value)
    if _HALF.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ord(error.object[error.start])
            raise ValueError(f"\\u{half:04x} is half of a character, and its other half is not beside it") from None
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text; raise ValueError for malformed text or deep nesting."""
    import tomllib

    if _LONG_KEY.search(text):  # which Python takes long to refuse
        _refuse_depth()
    try:
        table = tomllib.loads(text)
    except RecursionError:
        _refuse_depth()
    _check_depth(table)
    return table


def parse_python_expression(text: str) -> ast.expr:
    """Return the syntax tree of a Python expression, unevaluated; raise ValueError for wrong or deep text."""
    try:
        with warnings.catch_warnings():  # hints of Python's about probable mistakes
            warnings.simplefilter("ignore")
            expression = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(error.msg) from error
    except (RecursionError, MemoryError):  # the latter is how Python's parser says that its stack is full
        _refuse_depth()
    if len(text) > DEEPEST:  # every level takes a character at least
        level: list[ast.AST] = [expression]
        for _ in range(DEEPEST):
            level = [inner for node in level for inner in ast.iter_child_nodes(node)]
        if level:
            _refuse_depth()
    return expression


def _check_depth(value: Any) -> None:
    """Raise ValueError if containers are nested deeper than `DEEPEST`."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        inner = (part for v in level for part in (v.values() if isinstance(v, dict) else v))
        level = [part for part in inner if isinstance(part, dict | list)]
        if not level:
            return
    _refuse_depth()


def _refuse_depth() -> NoReturn:
    raise ValueError(f"it is nested more than {DEEPEST} deep") from None


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")
