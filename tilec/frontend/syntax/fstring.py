"""Splits f-strings into literal text and replacement fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

Conversion = Literal["", "r", "s", "a"]

_CLOSING_BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class ReplacementField:
    """`{expression!conversion:spec}`. `shown` is the text of `{expression=}`, or empty."""

    expression: str
    shown: str
    conversion: Conversion
    spec: str


def split_fstring(text: str, prefix: str, span: Span) -> Iterator[str | ReplacementField]:
    """Yield the parts of an f-string in order: text as string literals of its own, and replacement fields."""
    body = text[len(prefix) :]
    quote = body[:3] if body[:3] in ('"""', "'''") else body[0]
    body = body[len(quote) : -len(quote)]
    head = prefix.replace("f", "").replace("F", "")
    literal, at = "", 0
    while at < len(body):
        character = body[at]
        if body[at : at + 2] in ("{{", "}}"):
            literal, at = literal + character, at + 2
        elif character == "\\" and "r" not in head.lower():
            literal, at = literal + body[at : at + 2], at + 2
        elif character == "}":
            raise_error("syntax", "a single `}` in an f-string", span, help="write `}}` for the character itself")
        elif character == "{":
            if literal:
                yield f"{head}{quote}{literal}{quote}"
            piece, at = _parse_field(body, at + 1, span)
            literal = ""
            yield piece
        else:
            literal, at = literal + character, at + 1
    if literal:
        yield f"{head}{quote}{literal}{quote}"


def _parse_field(body: str, start: int, span: Span) -> tuple[ReplacementField, int]:
    """Parse the field whose brace opens before `start`. Return it, and the place after its closing brace."""
    end = _find_expression_end(body, start, span)
    expression, shown = body[start:end], ""
    if body[end] == "=":
        shown, end = body[start : end + 1], end + 1
        while body[end : end + 1].isspace():
            shown, end = shown + body[end], end + 1
    if not expression.strip():
        raise_error("syntax", "an f-string has empty braces", span, help="write `{{}}` for the characters themselves")
    conversion: Conversion = ""
    if body[end : end + 1] == "!":
        match body[end + 1 : end + 2]:
            case "r" | "s" | "a" as letter:
                conversion, end = letter, end + 2
            case _:
                raise_error("syntax", "an f-string has no such conversion", span, help="write !r, !s or !a")
    spec = ""
    if body[end : end + 1] == ":":
        close = body.find("}", end)
        spec, end = body[end + 1 : close], close
        if "{" in spec:
            raise_error("syntax", "an f-string's format contains braces", span, help="write the format without braces")
    if body[end : end + 1] != "}":
        raise_error("syntax", "a brace of the f-string is never closed", span)
    if shown and not (conversion or spec):
        conversion = "r"
    return ReplacementField(expression, shown, conversion, spec), end + 1


def _find_expression_end(body: str, start: int, span: Span) -> int:
    """Return the place of the `}`, `!`, `:` or `=` that ends the expression."""
    opened: list[str] = []
    at = start
    while at < len(body):
        character = body[at]
        if character in "\"'":
            quote = body[at : at + 3] if body[at : at + 3] in ('"""', "'''") else character
            at += len(quote)
            while at < len(body) and not body.startswith(quote, at):
                at += 2 if body[at] == "\\" else 1
            at += len(quote)
            continue
        if not opened:
            if character in "}:" or (character == "!" and body[at + 1 : at + 2] != "="):
                return at
            if character == "=" and body[at + 1 : at + 2] != "=" and body[at - 1] not in "=!<>":
                return at
        if character in _CLOSING_BRACKETS:
            opened.append(_CLOSING_BRACKETS[character])
        elif opened and character == opened[-1]:
            opened.pop()
        at += 1
    return raise_error("syntax", "a brace of the f-string is never closed", span)
