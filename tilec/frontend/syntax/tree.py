"""Parse trees and tokens, with their places in the text."""

from __future__ import annotations

from tilec.support.source import Span

MAX_DEPTH = 100
"""The deepest nesting allowed, so that no later stage reaches the interpreter's recursion limit."""


class Token(str):
    """A token. Lines and columns count from 1, and the end is exclusive."""

    __slots__ = ("column", "end_column", "end_line", "line", "type")

    type: str
    line: int
    column: int
    end_line: int
    end_column: int


class Branch:
    """A node of the parse tree: the name of a rule and its children. An absent optional part is None."""

    __slots__ = ("children", "column", "data", "end_column", "end_line", "line")

    def __init__(self, data: str, children: list[Child], start: tuple[int, int], end: tuple[int, int]) -> None:
        self.data, self.children = data, children
        self.line, self.column = start
        self.end_line, self.end_column = end


Child = Branch | Token | None


def token_span(token: Token) -> Span:
    return Span(token.line, token.column, token.end_line, token.end_column)


def tree_span(tree: Branch) -> Span:
    return Span(tree.line, tree.column, tree.end_line, tree.end_column)


def token_text(child: Child) -> str:
    assert isinstance(child, Token)
    return str(child)
