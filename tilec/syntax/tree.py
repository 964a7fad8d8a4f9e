"""The parser's trees and tokens, and where they stand in the text."""

from __future__ import annotations

import lark

from tilec.source import Span

Branch = lark.Tree[lark.Token]
Child = Branch | lark.Token | None

MAX_DEPTH = 100
"""Deeper nesting is refused, so that no later stage meets the interpreter's recursion limit."""


def token_span(token: lark.Token) -> Span:
    return Span(token.line or 1, token.column or 1, token.end_line or 1, token.end_column or 1)


def tree_span(tree: Branch) -> Span:
    return Span(tree.meta.line, tree.meta.column, tree.meta.end_line, tree.meta.end_column)


def token_text(child: Child) -> str:
    assert isinstance(child, lark.Token)
    return str(child)
