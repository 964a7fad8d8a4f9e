"""Deterministic mutation of what has been parsed: a tree of our dataclasses, changed so that it can be printed again.

What mutated text hardly ever reaches lies behind the parser: names that exist, but of something else; statements moved
to where they do not belong; numbers of the right type and the wrong size. A value is replaced by another one of the
type that its field says, so that nearly every mutant parses.
"""

from __future__ import annotations

import dataclasses
import random
import types
import typing
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

Path = tuple[str | int, ...]

NUMBERS = (
    0, 1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 48, 64, 100, 128, 255, 256, 1024, 4096, 1 << 16, (1 << 20) + 1, 1 << 31,
    1 << 32, 1 << 63, 10**30, -1, -2, -128, -(1 << 31),
)  # fmt: skip
WORDS = ("x", "sum", "add", "none", "float16", "", "É", "a.b", "%tid", "if")
FLOATS = (0.0, -0.0, 0.5, -1.0, 1e300, float("inf"), float("nan"))


def mutated_tree(value: Any, chance: random.Random) -> Any:
    """The value, a dataclass, changed in one to four places."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        places = list(_places(value, type(value), ()))
        by_type = defaultdict(list)
        for _, hint, found in places:
            by_type[_kind(hint)].append(found)
        path, hint, found = chance.choice(places[1:] or places)
        value = _put(value, path, _other(hint, found, by_type, chance))
    return value


def _other(hint: Any, found: Any, known: dict[str, list[Any]], chance: random.Random) -> Any:
    """Another value for a field of this type: one from elsewhere in the tree, or one that is drawn."""
    others = known[_kind(hint)]
    if isinstance(found, tuple) and chance.random() < 0.8:
        return _rearranged(found, others, chance)
    if isinstance(found, bool):
        return not found
    if isinstance(found, int) and chance.random() < 0.7:
        return chance.choice(NUMBERS) if chance.random() < 0.7 else found + chance.choice((-1, 1))
    if isinstance(found, float) and chance.random() < 0.7:
        return chance.choice(FLOATS)
    if typing.get_origin(hint) is typing.Literal:
        return chance.choice(typing.get_args(hint))
    if isinstance(found, str) and chance.random() < 0.3:
        return chance.choice(WORDS)
    if types.NoneType in typing.get_args(hint) and chance.random() < 0.3:
        return None
    return chance.choice(others)


def _rearranged(found: tuple[Any, ...], others: list[Any], chance: random.Random) -> tuple[Any, ...]:
    members = list(found)
    at = chance.randrange(len(members) + 1)
    match chance.randrange(5):
        case 0 if members:
            del members[at - 1]
        case 1 if members:
            members.insert(at, chance.choice(members))
        case 2 if len(members) > 1:
            members.insert(at % len(members), members.pop())
        case 3:
            members.insert(at, chance.choice([m for other in others for m in other] or [0]))
        case _:
            return tuple(chance.choice(others))
    return tuple(members)


def _kind(hint: Any) -> str:
    return str(hint)


@cache
def _fields(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.name not in ("span", "line")}


def _places(value: Any, hint: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    """Every value in the tree, with the type of its field."""
    yield path, hint, value
    if dataclasses.is_dataclass(value):
        for name, inner in _fields(type(value)).items():
            yield from _places(getattr(value, name), inner, (*path, name))
    elif isinstance(value, tuple):
        arguments = typing.get_args(hint)
        for at, member in enumerate(value):
            fixed = arguments and Ellipsis not in arguments and at < len(arguments)
            yield from _places(member, arguments[at if fixed else 0] if arguments else object, (*path, at))


def _put(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    first, *rest = path
    if isinstance(first, str):
        return dataclasses.replace(value, **{first: _put(getattr(value, first), tuple(rest), new)})
    return (*value[:first], _put(value[first], tuple(rest), new), *value[first + 1 :])
