"""Reads a text by LALR tables: the way of every text that is in the language.

The tables are what Lark makes of the grammar, as plain data (`syntax.tables`). Of a text that is not in the language
this says only so; Lark then reads it again, to say what could have stood there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from tilec.frontend.syntax.tree import Branch, Child, Token

_TAB_WIDTH = 8
_OPENING, _CLOSING = frozenset({"LPAR", "LSQB", "LBRACE"}), frozenset({"RPAR", "RSQB", "RBRACE"})


class Rule(NamedTuple):
    """What becomes of `size` parts: a branch called `name` under `origin`.

    `kept` are those parts that are its children, each with whether its own children take its place, and how many None
    come before it; `trailing` is how many come last; None where all parts are children. With `is_single`, a branch with
    one child is that child; with `is_chain` the rule only hands on its part."""

    origin: str
    size: int
    name: str
    kept: tuple[tuple[int, bool, int], ...] | None
    trailing: int
    is_single: bool
    is_chain: bool


class Tables(NamedTuple):
    """`states` say, for the type of a token or a rule's origin, the next state, or ~n to apply rule n. The first token
    that `scanner` matches counts; those of `keywords` go by another type, those of `ignored` are left out."""

    states: tuple[dict[str, int], ...]
    rules: tuple[Rule, ...]
    start: int
    end: int
    scanner: str
    keywords: dict[str, dict[str, str]]
    ignored: tuple[str, ...]
    with_newlines: tuple[str, ...]


_Place = tuple[int, int]
_Where = tuple[_Place, _Place]
"""Where something begins and ends."""


@lru_cache(maxsize=4)
def _compiled(scanner: str) -> re.Pattern[str]:
    return re.compile(scanner)


def tree(tables: Tables, text: str, line: int = 1) -> Branch | None:
    """The tree of a text that ends in a line feed, and whose first line has this number; None where it is not in the
    language."""
    table, rules = tables.states, tables.rules
    states = [tables.start]
    values: list[Child] = []
    # Where the text of each value begins and ends; None where it has none.
    starts: list[_Place | None] = []
    ends: list[_Place | None] = []
    for kind, words, where in _tokens(tables, text, line):
        while True:
            step = table[states[-1]].get(kind)
            if step is None:
                return None
            if step >= 0:
                break
            rule = rules[~step]
            if rule.is_chain:  # most are: an expression has a rule for each precedence
                states[-1] = table[states[-2]][rule.origin]
                continue
            first = len(values) - rule.size
            parts = values[first:]
            start = next((s for s in starts[first:] if s is not None), None)
            end = next((e for e in reversed(ends[first:]) if e is not None), None)
            del values[first:], starts[first:], ends[first:], states[first + 1 :]
            children = parts if rule.kept is None else _children(parts, rule)
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


def _children(parts: list[Child], rule: Rule) -> list[Child]:
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
                children = part.children  # nobody else has it: lists that grow from the left are not copied
    if rule.trailing:
        children += [None] * rule.trailing
    return children


# ---- tokens ----------------------------------------------------------------------------------------------------------


def _tokens(tables: Tables, text: str, line: int) -> Iterator[tuple[str, str, _Where]]:
    """Type, text and place of each token, with line feeds as blocks, and of the end. One that no rule has, where the
    text has no token, or brackets and indentation do not fit."""
    wrong = "", "", ((1, 1), (1, 1))
    keywords, ignored, with_newlines = tables.keywords, set(tables.ignored), set(tables.with_newlines)
    match = _compiled(tables.scanner).match
    place, line_start, depth, indents = 0, 0, 0, [0]
    where: _Where | None = None  # of the token before
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
                yield from ((block, white, where) for block in _blocks(white, indents))
            continue
        depth += (kind in _OPENING) - (kind in _CLOSING)
        yield (kind, words, where) if depth >= 0 else wrong
    last = where or ((1, 1), (1, 1))
    yield from (("_DEDENT", "", last) for _ in indents[1:])
    yield wrong if depth else ("$END", "", last)


def _blocks(white: str, indents: list[int]) -> Iterator[str]:
    """The blocks that begin or end with a line after so much white space."""
    wanted = white.count(" ") + white.count("\t") * _TAB_WIDTH
    if wanted > indents[-1]:
        indents.append(wanted)
        yield "_INDENT"
    while wanted < indents[-1]:
        indents.pop()
        yield "_DEDENT"
    if wanted != indents[-1]:
        yield ""
