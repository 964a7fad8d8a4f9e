"""Deterministic mutation: a text of a corpus, changed as slips of the hand, editors and bad intentions change it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

_TOKENS = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\"[^\"\n]*\"|'[^'\n]*'|[ \t]+|\n|\*\*|//|[<>=!]=|->|.", re.DOTALL)

_NUMBERS = (
    "0", "1", "-1", "7", "2**31", "2**63", "2**64", "10**40", "9" * 400, "9" * 5000, "0x" + "f" * 300, "1e400",
    "-1e-400", "0.1",
    "1_000", "08", "1e", "0b2", "1j", "float('nan')", "float('inf')", "2**10**9", "1 << 10**9", "'a' * 10**9",
    "(0,) * 10**9",
    "range(10**12)", "[x for x in range(10**9)]", "None", "True", "'float16'", "()", "[]", "{}", "...", "lambda: 0",
)  # fmt: skip
_CHARACTERS = (
    "\0", "\x01", "\x0c", "\x1b[31m", "\r", "\r\n", "\u2028", "\ufeff", "\u202e", "\ud800", "é", "名", "𝐍", "²", "٣",
    "\u200b",
    "\\", "\\\n", "\t", "`", "$", "?", "!", "#", "'", '"', '"""', "(", ")", "[", "]", "{", "}", ":", ",", ";", "@",
    ".", "=",
    "*", "**", "->", ":=", "~", "\n", "\n    ", "\n\t", "\n   ",
)  # fmt: skip
_WORDS = (
    "if", "else", "elif", "for", "in", "while", "def", "return", "with", "as", "from", "import", "lambda", "not",
    "and", "or",
    "is", "pass", "break", "continue", "class", "try", "raise", "assert", "del", "global", "yield", "async", "await",
    "match",
    "True", "False", "None", "T", "T.copy", "T.gemm", "T.serial", "T.Pipelined", "T.Parallel", "T.unroll", "T.Kernel",
    "T.alloc_shared", "T.alloc_fragment", "T.Tensor", "T.reduce_sum", "T.ws", "range", "len", "min", "max", "sum",
    "print", "open",
    "exec", "eval", "__import__", "__class__", "A", "B", "C", "A_shared", "i", "bx", "num_stages=3", "stage=1",
    "order=0", ".shape",
    "[0]", "[:]", "[1:2, ::3]", "(0)", "()", ".T", "*args", "**kwargs", 'f"{x!r:>10}"', "float16", '"int4"',
    "'float8_e4m3fn'",
)  # fmt: skip


def tokens(text: str) -> list[str]:
    return _TOKENS.findall(text)


def mutated(corpus: Sequence[str], seed: str) -> str:
    """The mutant of this seed: one text of the corpus, changed in one to six places."""
    chance = random.Random(seed)
    words = tokens(chance.choice(corpus))
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 6))):
        if not words:
            break
        chance.choice(_CHANGES)(words, chance, corpus)
    # As a file would bring it: what is no text in UTF-8 gets no further than that.
    return "".join(words).encode(errors="replace").decode()


def mutated_json(corpus: Sequence[str], seed: str) -> str:
    """JSON that is still JSON three times out of four: values replaced, left out, doubled, exchanged."""
    chance = random.Random(seed)
    if chance.random() < 0.25:
        return mutated(corpus, seed)
    try:
        value = json.loads(chance.choice(corpus))
    except (ValueError, RecursionError):  # a mutant that was kept
        return mutated(corpus, seed)
    for _ in range(chance.choice((1, 1, 2, 4))):
        changed_inside(value, chance)
    return json.dumps(value)


_VALUES: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.5, 1e308, float("nan"), float("inf"), None, True, False,
    "", "x", "add",
    "../../etc/passwd", "a\0b", "\ud800", "\n", [], {}, [1], [[1]], {"x": 1}, ["add", "m", 1], ["floordiv", 1, 0],
)  # fmt: skip


def changed_inside(value: Any, chance: random.Random) -> None:
    """Changes one value somewhere in what JSON or TOML says."""
    while isinstance(value, dict | list) and value:
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        inner = value[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.85:
            value = inner
            continue
        match chance.randrange(6):
            case 0:
                del value[key]
            case 1 if isinstance(value, list):
                value.insert(key, json.loads(json.dumps(inner)))
            case 1:
                value[f"{key}_"] = inner
            case 2:
                other = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
                value[key], value[other] = value[other], value[key]
            case 3 if type(inner) is int:
                value[key] = inner + chance.choice((-1, 1, 1, 100))
            case _:
                value[key] = json.loads(json.dumps(chance.choice(_VALUES)))
        return


def mutated_bytes(data: bytes, seed: str) -> bytes:
    """The same for what is no text: bytes flipped, overwritten, cut out, doubled; lengths and offsets made extreme."""
    chance = random.Random(seed)
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        if not made:
            break
        # Headers are small and matter most.
        at = chance.randrange(min(len(made), chance.choice((64, 1024, len(made)))))
        match chance.randrange(5):
            case 0:
                made[at] ^= 1 << chance.randrange(8)
            case 1:
                extreme = chance.choice(
                    (b"\0" * 8, b"\xff" * 8, b"\x7f" + b"\xff" * 3, b"\0\0\0\x80", bytes(7) + b"\x80")
                )
                made[at : at + len(extreme)] = extreme
            case 2:
                del made[at : at + chance.choice((1, 8, 64, len(made)))]
            case 3:
                made[at:at] = made[at : at + chance.choice((1, 8, 64))]
            case _:
                made[at : at + 4] = chance.randrange(1 << 32).to_bytes(4, "little")
    return bytes(made)


# ---- changes ---------------------------------------------------------------------------------------------------------


_Change = Callable[[list[str], random.Random, Sequence[str]], None]


def _piece(words: list[str], chance: random.Random) -> slice:
    begin = chance.randrange(len(words))
    return slice(begin, begin + chance.choice((1, 1, 2, 3, 5, 20)))


def _place_of(words: list[str], chance: random.Random, kind: Callable[[str], bool]) -> int:
    """A word of a kind, or any."""
    places = [n for n, word in enumerate(words) if kind(word)]
    return chance.choice(places or range(len(words)))


def _delete(words: list[str], chance: random.Random, _: Sequence[str]) -> None:
    del words[_piece(words, chance)]


def _duplicate(words: list[str], chance: random.Random, _: Sequence[str]) -> None:
    piece = _piece(words, chance)
    words[piece.stop : piece.stop] = words[piece]


def _repeat(words: list[str], chance: random.Random, _: Sequence[str]) -> None:
    """Many times: long lines, long files, and depth where it is an opening bracket or a block."""
    piece = _piece(words, chance)
    times = chance.choice((10, 100, 100, 1000, 10_000))
    words[piece] = words[piece] * min(times, 100_000 // max(1, sum(map(len, words[piece]))))


def _swap(words: list[str], chance: random.Random, _: Sequence[str]) -> None:
    a, b = chance.randrange(len(words)), chance.randrange(len(words))
    words[a], words[b] = words[b], words[a]


def _swap_names(words: list[str], chance: random.Random, _: Sequence[str]) -> None:
    """What still parses gets furthest."""
    a, b = (_place_of(words, chance, str.isidentifier) for _ in range(2))
    words[a], words[b] = words[b], words[a]


def _number(words: list[str], chance: random.Random, _: Sequence[str]) -> None:
    words[_place_of(words, chance, lambda word: word[0].isdigit())] = chance.choice(_NUMBERS)


def _small_number(words: list[str], chance: random.Random, _: Sequence[str]) -> None:
    words[_place_of(words, chance, lambda word: word[0].isdigit())] = str(
        chance.choice((0, 1, 2, 3, 5, 16, 17, 48, 100, 4096))
    )


def _value(words: list[str], chance: random.Random, _: Sequence[str]) -> None:
    words[_place_of(words, chance, str.isidentifier)] = chance.choice(_NUMBERS)


def _insert(words: list[str], chance: random.Random, _: Sequence[str]) -> None:
    at = chance.randrange(len(words) + 1)
    words[at:at] = [chance.choice(chance.choice((_CHARACTERS, _WORDS)))]


def _word(words: list[str], chance: random.Random, _: Sequence[str]) -> None:
    words[_place_of(words, chance, str.isidentifier)] = chance.choice(_WORDS)


def _borrow(words: list[str], chance: random.Random, corpus: Sequence[str]) -> None:
    """A piece of another text."""
    other = tokens(chance.choice(corpus))
    if other:
        at = chance.randrange(len(words) + 1)
        words[at:at] = other[_piece(other, chance)]


def _line(words: list[str], chance: random.Random, corpus: Sequence[str]) -> None:
    """A line deleted, doubled, moved, borrowed, or indented otherwise."""
    lines = "".join(words).splitlines(keepends=True)
    at = chance.randrange(len(lines))
    match chance.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines[at:at] = [lines[at]]
        case 2:
            lines.insert(chance.randrange(len(lines)), lines.pop(at))
        case 3:
            lines.insert(at, chance.choice(chance.choice(corpus).splitlines(keepends=True) or [""]))
        case _:
            lines[at] = " " * chance.choice((1, 4, 8)) + lines[at] if chance.random() < 0.5 else lines[at].lstrip()
    words[:] = tokens("".join(lines))


def _nest(words: list[str], chance: random.Random, _: Sequence[str]) -> None:
    """Something wrapped in brackets, operators or calls, many times."""
    at = _place_of(words, chance, lambda word: word.isidentifier() or word[0].isdigit())
    times = chance.choice((5, 30, 90, 200, 3000))
    before, behind = chance.choice(
        (("(", ")"), ("[", "]"), ("-", ""), ("not ", ""), ("min(", ", 1)"), ("1 + ", ""), ("", " + 1"), ("", "[0]"),
        ("", ".x"),
         ("", "()"), ("lambda: ", ""), ("(0 if ", " else 1)"), ("{0: ", "}"), ("", " ** 2"), ("abs(", ")"), ("",
         " < 1"))
    )  # fmt: skip
    words[at] = before * times + words[at] + behind * times


def _cut(words: list[str], chance: random.Random, _: Sequence[str]) -> None:
    """A file that was not written to its end."""
    del words[chance.randrange(len(words)) :]


_CHANGES: tuple[_Change, ...] = (
    _delete, _duplicate, _repeat, _swap, _swap_names, _swap_names, _number, _number, _small_number, _small_number,
    _value,
    _insert, _insert, _word, _word, _borrow, _line, _line, _line, _nest, _cut,
)  # fmt: skip
