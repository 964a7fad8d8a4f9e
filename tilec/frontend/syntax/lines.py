"""Lark postlexer: makes block tokens of line feeds, and reports mistakes in brackets and indentation.

`syntax.lalr` does the same for a text without mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator

import lark
from lark.lark import PostLex

from tilec.frontend.syntax.explain import CLOSING_BRACKETS, token_span
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span

_TAB_WIDTH = 8


class IndentationPostLex(PostLex):
    """Turns line feeds outside brackets into INDENT and DEDENT, and drops them inside. It has no state."""

    always_accept = ("_NEWLINE",)

    def process(self, stream: Iterator[lark.Token]) -> Iterator[lark.Token]:
        indents = [0]
        opened: list[lark.Token] = []
        last: lark.Token | None = None
        for token in stream:
            if last is None and token.type != "_NEWLINE" and token.column != 1:
                raise_error(
                    "syntax", "unexpected indentation", Span(1, 1, 1, token.column or 1), "no block was opened above"
                )
            last = token
            if token.type == "_NEWLINE":
                if not opened:
                    yield token
                    yield from _emit_block_tokens(token, indents)
                continue
            if token.type in CLOSING_BRACKETS:
                opened.append(token)
            elif token.type in CLOSING_BRACKETS.values():
                _close_bracket(token, opened)
            yield token
        if opened:
            raise_error("syntax", f"`{opened[-1]}` is never closed", token_span(opened[-1]), "opened here")
        for _ in indents[1:]:
            assert last is not None
            yield lark.Token.new_borrow_pos("_DEDENT", "", last)


def _emit_block_tokens(newline: lark.Token, indents: list[int]) -> Iterator[lark.Token]:
    white = newline.rsplit("\n", 1)[1]
    column = white.count(" ") + white.count("\t") * _TAB_WIDTH
    if column > indents[-1]:
        indents.append(column)
        yield lark.Token.new_borrow_pos("_INDENT", white, newline)
        return
    while column < indents[-1]:
        indents.pop()
        yield lark.Token.new_borrow_pos("_DEDENT", white, newline)
    if column != indents[-1]:
        line = newline.end_line or 1
        raise_error(
            "syntax",
            "indentation matches no enclosing block",
            Span(line, 1, line, len(white) + 1),
            f"indented by {column}, the enclosing blocks by {', '.join(map(str, indents))}",
        )


def _close_bracket(token: lark.Token, opened: list[lark.Token]) -> None:
    if not opened:
        raise_error("syntax", f"`{token}` closes nothing", token_span(token), "no bracket is open here")
    opener = opened.pop()
    if CLOSING_BRACKETS[opener.type] != token.type:
        label = Label(token_span(opener), "opened here")
        raise_error("syntax", f"`{token}` does not close `{opener}`", token_span(token), secondary=(label,))
