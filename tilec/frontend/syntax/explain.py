"""Messages of syntax errors from the state of the parser, as "expected `)`, found the end of the line"."""

from __future__ import annotations

import re
from typing import NoReturn, cast

import lark

from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span

CLOSING_BRACKETS = {"LPAR": "RPAR", "LSQB": "RSQB", "LBRACE": "RBRACE"}

# Expected terminals, most likely first. Operators are left out: they may follow nearly everywhere.
_EXPECTED_WORDS = {
    "_INDENT": "an indented block", "COLON": "`:`", "RPAR": "`)`", "RSQB": "`]`", "RBRACE": "`}`", "COMMA": "`,`",
    "EQUAL": "`=`", "IN": "`in`", "DEF": "`def`", "LPAR": "`(`", "IMPORT": "`import`",
    "_NEWLINE": "the end of the line", "NAME": "a name",
}  # fmt: skip

_FOUND_WORDS = {
    "_NEWLINE": "the end of the line", "_DEDENT": "the end of the block", "$END": "the end of the file",
    "STRING": "a string", "LONG_STRING": "a string",
}  # fmt: skip
"""Descriptions of found tokens by type; the others are shown as they are."""

_RESERVED_WORD_HELP = {"class": "a kernel file holds constants and @T.prim_func functions"}
_RESERVED_WORD = re.compile(r"(async|await|class|del|except|finally|global|nonlocal|try|yield)\b")


def token_span(token: lark.Token) -> Span:
    return Span(token.line or 1, token.column or 1, token.end_line or 1, token.end_column or 1)


def explain_character(text: str, error: lark.UnexpectedCharacters) -> NoReturn:
    """Raise the `syntax` error for text that is no token: a reserved word, an open string or a wrong character."""
    position = cast(int, error.pos_in_stream)
    reserved = _RESERVED_WORD.match(text, position)
    character = text[position]
    width = len(reserved[0]) if reserved else 1
    span = Span(error.line, error.column, error.line, error.column + width)
    if reserved:
        word = reserved[0]
        raise_error("syntax", f"`{word}` is not part of the kernel language", span, help=_RESERVED_WORD_HELP.get(word))
    if character in "\"'":
        raise_error("syntax", "the string is never closed", span, "starts here")
    if character == "!":
        raise_error("syntax", "`!` is not an operator", span, help="write `not` or `!=`")
    shown = character if character.isprintable() else f"U+{ord(character):04X}"
    title = f"`{shown}` is not allowed in a kernel file"
    raise_error("syntax", title, span, "outside strings and comments, text is ASCII")


def explain_token(text: str, error: lark.UnexpectedToken, before: list[lark.Token]) -> NoReturn:
    """Raise the `syntax` error for an unexpected token: what was expected, what was found, which bracket is open.
    `before` are the tokens that the parser had accepted.
    """
    token = error.token
    span = _get_found_span(token)
    last = next((t for t in reversed(before) if t.type not in ("_NEWLINE", "_INDENT", "_DEDENT")), None)
    if token.type == "_INDENT":
        line = token.end_line or 1
        white = Span(line, 1, line, len(token) + 1)
        raise_error("syntax", "unexpected indentation", white, "no block was opened above")
    if token.type in ("STRING", "LONG_STRING") and last is not None and last.end_pos == token.start_pos:
        raise_error("syntax", f"{last}-strings are not part of the kernel language", span)

    if token.type == "COLON" and text[token.end_pos : (token.end_pos or 0) + 1] == "=":
        way_out = "use a separate assignment"
        raise_error("syntax", "`:=` is not part of the kernel language", span, help=way_out)

    wanted = _describe_expected(error.accepts or set())
    opened = _find_open_bracket(before)
    is_far = opened is not None and opened.line != token.line
    secondary = (Label(_get_found_span(opened), "this bracket is still open"),) if opened and is_far else ()
    title = f"expected {wanted}, found {_FOUND_WORDS.get(token.type, f'`{token}`')}"
    raise_error("syntax", title, span, secondary=secondary)


def _get_found_span(token: lark.Token) -> Span:
    """Return the span of an unexpected token; at the end of a line, block or file only one character of it."""
    line, column = token.line or 1, token.column or 1
    if token.type in ("_NEWLINE", "_DEDENT", "$END"):
        # A line feed token includes the blank lines and comments after it: point at its start.
        return Span(line, column, line, column + 1)
    return Span(line, column, token.end_line or line, token.end_column or column + 1)


def _describe_expected(accepts: set[str]) -> str:
    """Return in words what the parser would accept: a block, an expression, or up to three likely tokens."""
    if "_INDENT" in accepts:
        return _EXPECTED_WORDS["_INDENT"]
    if "INT" in accepts:
        return "an expression" if "PASS" not in accepts else "a statement"
    if "_NEWLINE" in accepts:
        return _EXPECTED_WORDS["_NEWLINE"]
    if "LSQB" in accepts:
        # Any value may be called, so a missing `(` is never the mistake.
        accepts = accepts - {"LPAR"}
    words = [word for terminal, word in _EXPECTED_WORDS.items() if terminal in accepts][:3]
    if not words:
        return "an operator"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _find_open_bracket(tokens: list[lark.Token]) -> lark.Token | None:
    """Return the innermost bracket that these tokens leave open, or None."""
    opened: list[lark.Token] = []
    for token in tokens:
        if token.type in CLOSING_BRACKETS:
            opened.append(token)
        elif token.type in CLOSING_BRACKETS.values() and opened:
            opened.pop()
    return opened[-1] if opened else None
