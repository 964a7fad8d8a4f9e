"""The language's vocabulary at a place of a text, finished or not: the call around it, names, parameters, dtypes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from tilec.frontend.examples.read import find_example
from tilec.frontend.language import (
    LanguageEntry,
    format_meaning,
    format_parameter,
    format_signature,
    list_documented_names,
)
from tilec.ops.language.signature import Signature
from tilec.ops.language.values import WARP_POLICIES
from tilec.support.records import dataclass

_TOKEN = re.compile(
    r"""(?P<string>\"\"\"[\s\S]*?(?:\"\"\"|\Z)|'''[\s\S]*?(?:'''|\Z)|"(?:[^"\\\n]|\\.)*(?:"|$)|'(?:[^'\\\n]|\\.)*(?:'|$))"""
    r"""|(?P<comment>\#[^\n]*)|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<comma>,)"""
    r"""|(?P<keyword>\b[A-Za-z_]\w*(?=\s*=(?!=)))|(?P<word>[A-Za-z_][\w.]*)""",
    re.MULTILINE,
)
_IMPORTED = re.compile(
    r"^\s*(?:import\s+tilelang\.language\s+as\s+(\w+)|from\s+tilelang\s+import\s+language\s+as\s+(\w+))", re.MULTILINE
)
_WORD = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class OpenCall:
    """The innermost open call at a place: its name as written, the index and the keyword of the argument there, and all
    keywords given."""

    name: str
    argument: int
    keyword: str | None
    given: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """The context of a place. `written` is the dotted word that ends there; in a string or comment only its part before
    the place."""

    kind: Literal["code", "string", "comment"]
    written: str
    call: OpenCall | None


def find_context(text: str, offset: int) -> Context:
    """Return, from unfinished text, whether an offset is in code, string or comment, its word and the open call
    there.
    """
    kind: Literal["code", "string", "comment"] = "code"
    calls: list[tuple[str, int, list[str], str | None]] = []
    before, last = text[:offset], ""
    for token in _TOKEN.finditer(before):
        match token.lastgroup:
            case "string" | "comment" if token.end() == offset and not _is_closed(token[0]):
                kind = "comment" if token.lastgroup == "comment" else "string"
            case "open":
                is_call = token[0] == "(" and last and before[: token.start()].endswith(last)
                calls.append((last if is_call else "", 0, [], None))
            case "close" if calls:
                calls.pop()
            case "comma" if calls:
                name, argument, given, _ = calls[-1]
                calls[-1] = name, argument + 1, given, None
            case "keyword" if calls:
                name, argument, given, _ = calls[-1]
                calls[-1] = name, argument, [*given, token[0]], token[0]
            case "word":
                last = token[0]
            case _:
                pass
    found = re.search(r"[\w.]*$", before)
    name, argument, given, keyword = next((c for c in reversed(calls) if c[0]), ("", 0, [], None))
    # A tuple among the arguments is one of them.
    inside = OpenCall(name, argument, keyword, tuple(given)) if name else None
    return Context(kind, found[0] if found else "", inside)


def _is_closed(token: str) -> bool:
    """Return whether a string literal's text ends with its closing quotes; False for a comment."""
    if token.startswith("#"):
        return False
    quote = token[:3] if token[:3] in ('"""', "'''") else token[0]
    return len(token) >= 2 * len(quote) and token.endswith(quote)


def find_language_names(text: str) -> tuple[str, ...]:
    """Return the names under which a file imports `tilelang.language`, and "T"."""
    return tuple(dict.fromkeys([*(a or b for a, b in _IMPORTED.findall(text)), "T"]))


def make_canonical_name(word: str, text: str) -> str:
    """Return a dotted word with `T.` in place of the file's name for the language; other words unchanged."""
    head, dot, rest = word.partition(".")
    return f"T.{rest}" if dot and head in find_language_names(text) else word


def find_word_at(line: str, column: int) -> tuple[str, int]:
    """Return the dotted word at a column, cut after the part there, and its first column; "" without a word. Columns
    count from 1.
    """
    for found in _WORD.finditer(line):
        if found.start() < column <= found.end() + 1:
            end = column - 1
            while end < found.end() and line[end] != ".":
                end += 1
            return line[found.start() : end], found.start() + 1
    return "", column


def find_name(word: str, text: str) -> LanguageEntry | None:
    """Return the documentation entry of a dotted word of the language, or None."""
    return list_documented_names().get(make_canonical_name(word, text))


def signature_text(name: LanguageEntry) -> str:
    """Return the signature of a documentation entry as text."""
    return name.signature if isinstance(name.signature, str) else format_signature(name.signature)


def to_markdown(name: LanguageEntry) -> str:
    """Return an entry's signature, its meaning and an example, if it has one, as Markdown."""
    found = find_example(*name.names)
    fenced = f"\n\n```python\n{found.rstrip()}\n```" if found else ""
    return f"```python\n{signature_text(name)}\n```\n{format_meaning(name)}{fenced}"


def list_language_members(prefix: str, text: str) -> Iterator[tuple[str, LanguageEntry]]:
    """Yield each name that may follow a dotted prefix of the language, as `T.`, with its documentation entry."""
    head = make_canonical_name(prefix, text)
    if head == "T.GemmWarpPolicy.":
        policy = list_documented_names()["T.GemmWarpPolicy"]
        yield from ((member, policy) for member in WARP_POLICIES)
        return
    for name, entry in list_documented_names().items():
        if head and name.startswith(head) and "." not in name[len(head) :]:
            yield name[len(head) :], entry


def list_missing_keywords(call: OpenCall, text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text, as `dtype=None`, of each parameter that an open call has not given yet. A call of an
    unknown name has none.
    """
    entry = find_name(call.name, text)
    if entry is None or not isinstance(entry.signature, Signature):
        return
    places = [p for p in entry.signature.parameters if not p.keyword_only]
    by_position = set() if entry.signature.variadic else {p.name for p in places[: call.argument]}
    for parameter in entry.signature.parameters:
        if parameter.supported and parameter.name not in (*call.given, *by_position):
            yield parameter.name, format_parameter(parameter)


def format_parameters(entry: LanguageEntry) -> tuple[str, ...]:
    """Return the texts of a call's parameters as its signature shows them, without a lone `*`; none for a plain
    notation.
    """
    if isinstance(entry.signature, str):
        return ()
    shown = ("*args",) if entry.signature.variadic else ()
    return (*shown, *(format_parameter(p) for p in entry.signature.parameters if p.supported))
