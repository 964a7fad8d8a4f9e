"""LALR parser, driven by tables that Lark makes from the grammar (`syntax.tables`), and the trees and tokens that it
gives.

It only rejects a text that is not in the language. Lark then parses the text again, for the message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

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
    """Return a token as a plain string; the child must be a token."""
    assert isinstance(child, Token)
    return str(child)


_TAB_WIDTH = 8
_OPENING_BRACKETS, _CLOSING_BRACKETS = frozenset({"LPAR", "LSQB", "LBRACE"}), frozenset({"RPAR", "RSQB", "RBRACE"})


class Rule(NamedTuple):
    """A rule of the grammar: reduces `size` parts to `origin`, as a branch called `name`.

    `kept` lists the parts that become children: the index, whether the children of the part replace it, and the number
    of None before it. It is None if all parts are children. `trailing` None come last. With `is_single`, a branch with
    one child is replaced by the child. With `is_chain` the rule only passes on its part."""

    origin: str
    size: int
    name: str
    kept: tuple[tuple[int, bool, int], ...] | None
    trailing: int
    is_single: bool
    is_chain: bool


class Tables(NamedTuple):
    """The parser tables. `states` map the type of a token, or the origin of a rule, to the next state, or to ~n for a
    reduction by rule n. `scanner` matches one token. `keywords` maps token type and text to another type. Tokens of a
    type in `ignored` are dropped, those of a type in `with_newlines` may contain line feeds."""

    states: tuple[dict[str, int], ...]
    rules: tuple[Rule, ...]
    start: int
    end: int
    scanner: str
    keywords: dict[str, dict[str, str]]
    ignored: tuple[str, ...]
    with_newlines: tuple[str, ...]


_Position = tuple[int, int]
_Extent = tuple[_Position, _Position]
"""Start and end of a piece of text."""


@lru_cache(maxsize=4)
def _compile_scanner(scanner: str) -> re.Pattern[str]:
    """Compile the regular expression of a scanner, keeping the last four."""
    return re.compile(scanner)


def build_tree(tables: Tables, text: str, line: int = 1) -> Branch | None:
    """Parse a text that ends in a line feed into a tree, or return None if it is not in the language."""
    table, rules = tables.states, tables.rules
    states = [tables.start]
    values: list[Child] = []
    # Start and end of the text of each value; None for empty text.
    starts: list[_Position | None] = []
    ends: list[_Position | None] = []
    for kind, words, where in _scan_tokens(tables, text, line):
        while True:
            step = table[states[-1]].get(kind)
            if step is None:
                return None
            if step >= 0:
                break
            rule = rules[~step]
            if rule.is_chain:  # most reductions: an expression has a rule for each precedence
                states[-1] = table[states[-2]][rule.origin]
                continue
            first = len(values) - rule.size
            parts = values[first:]
            start = next((s for s in starts[first:] if s is not None), None)
            end = next((e for e in reversed(ends[first:]) if e is not None), None)
            del values[first:], starts[first:], ends[first:], states[first + 1 :]
            children = parts if rule.kept is None else _select_children(parts, rule)
            alone = rule.is_single and len(children) == 1
            values.append(children[0] if alone else Branch(rule.name, children, start or (1, 1), end or (1, 1)))
            starts.append(start)
            ends.append(end)
            states.append(table[states[-1]][rule.origin])
            if kind == "$END" and states[-1] == tables.end:
                (whole,) = values
                return whole if isinstance(whole, Branch) else None
        token = Token(words)
        token.type, ((token.line, token.column), (token.end_line, token.end_column)) = kind, where
        states.append(step)
        values.append(token)
        starts.append(where[0])
        ends.append(where[1])
    return None


def _select_children(parts: list[Child], rule: Rule) -> list[Child]:
    """Return the children that a grammar rule keeps of its parts, some spliced in, with None for absent ones. A part's
    list of children may be extended in place.
    """
    children: list[Child] = []
    for place, is_spliced, absent in rule.kept or ():
        if absent:
            children += [None] * absent
        part = parts[place]
        if not is_spliced:
            children.append(part)
        elif isinstance(part, Branch):
            if children:
                children += part.children
            else:
                children = part.children  # not shared: left-recursive lists are extended without a copy
    if rule.trailing:
        children += [None] * rule.trailing
    return children


# ---- tokens ----------------------------------------------------------------------------------------------------------


def _scan_tokens(tables: Tables, text: str, line: int) -> Iterator[tuple[str, str, _Extent]]:
    """Yield type, text and extent of each token, with indentation tokens and the end; at an error, a token of no type.
    An error is text that is no token, or brackets or indentation that do not fit. No rule accepts that token.
    """
    wrong = "", "", ((1, 1), (1, 1))
    keywords, ignored, with_newlines = tables.keywords, set(tables.ignored), set(tables.with_newlines)
    match = _compile_scanner(tables.scanner).match
    place, line_start, depth, indents = 0, 0, 0, [0]
    where: _Extent | None = None  # of the token before
    while place < len(text):
        found = match(text, place)
        if found is None or found.lastgroup is None:
            yield wrong
            return
        kind, words = found.lastgroup, found[0]
        begin = line, place - line_start + 1
        place = found.end()
        if kind in with_newlines and "\n" in words:
            line += words.count("\n")
            line_start = found.start() + words.rfind("\n") + 1
        if kind in ignored:
            continue
        if kind in keywords:
            kind = keywords[kind].get(words, kind)
        if where is None and kind != "_NEWLINE" and begin[1] != 1:
            yield wrong
        where = begin, (line, place - line_start + 1)
        if kind == "_NEWLINE":
            if not depth:
                yield kind, words, where
                white = words.rsplit("\n", 1)[1]
                yield from ((block, white, where) for block in _scan_indentation(white, indents))
            continue
        depth += (kind in _OPENING_BRACKETS) - (kind in _CLOSING_BRACKETS)
        yield (kind, words, where) if depth >= 0 else wrong
    last = where or ((1, 1), (1, 1))
    yield from (("_DEDENT", "", last) for _ in indents[1:])
    yield wrong if depth else ("$END", "", last)


def _scan_indentation(white: str, indents: list[int]) -> Iterator[str]:
    """Yield the indentation tokens for a line's leading white space, and update the stack `indents`; "" if none
    fits.
    """
    wanted = white.count(" ") + white.count("\t") * _TAB_WIDTH
    if wanted > indents[-1]:
        indents.append(wanted)
        yield "_INDENT"
    while wanted < indents[-1]:
        indents.pop()
        yield "_DEDENT"
    if wanted != indents[-1]:
        yield ""
