"""What a subject of fuzzing is, how refusals are looked at, and mutants of what JSON and TOML say."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mutate import changed_inside
from structure import NUMBERS, WORDS

from tilec.support import readers
from tilec.support.diagnostics import CompileError, Diagnostic
from tilec.support.render import render_diagnostic
from tilec.support.source import SourceFile


@dataclass(frozen=True)
class Subject:
    """`corpus` makes the good inputs; `mutant` one of them changed, by a seed; `read` returns whether it was accepted:
    True, or False where it was refused as a mistake of the user's. Anything else it raises is a finding."""

    corpus: Callable[[], list[Any]]
    mutant: Callable[[list[Any], str], Any]
    read: Callable[[Any], bool]


def refused(error: CompileError, source: SourceFile | None) -> bool:
    """A refusal can be shown."""
    assert error.diagnostics, "a refusal without a word"
    for diagnostic in error.diagnostics:
        shown(diagnostic, source)
    return False


def shown(diagnostic: Diagnostic, source: SourceFile | None) -> None:
    from tilec.cli.diagnostics import format_github, format_json, format_sarif
    from tilec.driver.explanations import EXPLANATIONS

    assert diagnostic.code in EXPLANATIONS, diagnostic.code
    render_diagnostic(diagnostic, source)
    for write in (format_json, format_github, format_sarif):
        write([(diagnostic, source)]).encode()


# ---- what JSON and TOML say ------------------------------------------------------------------------------------------


def json_mutant(corpus: list[Any], seed: str) -> str:
    return _of_tables(corpus, seed, json.loads, json.dumps)


def toml_mutant(corpus: list[Any], seed: str) -> str:
    return _of_tables(corpus, seed, readers.parse_toml, lambda table: "".join(_toml(table, "")))


def _of_tables(corpus: list[Any], seed: str, parse: Callable[[str], Any], show: Callable[[Any], str]) -> str:
    chance = random.Random(seed)
    text = str(chance.choice(corpus))
    try:
        value = parse(text)
    except ValueError:
        return text
    for _ in range(chance.choice((1, 1, 2, 3))):
        if chance.random() < 0.3:
            changed_inside(value, chance)
        else:
            _exchanged(value, chance)
    return show(value)


def _exchanged(value: Any, chance: random.Random) -> None:
    """One of all its values becomes another of that type: nearly every such mutant still has the form of its kind."""
    places = list(_places(value))
    if not places:
        return
    container, key = chance.choice(places)
    found = container[key]
    if type(found) in (int, float) and chance.random() < 0.7:
        container[key] = type(found)(chance.choice(NUMBERS)) if chance.random() < 0.7 else found + 1
    elif isinstance(found, bool):
        container[key] = not found
    elif isinstance(found, str) and chance.random() < 0.3:
        container[key] = chance.choice(WORDS)
    else:
        others = [other[at] for other, at in places if type(other[at]) is type(found)]
        container[key] = json.loads(json.dumps(chance.choice(others)))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in it with each of its keys."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _toml(table: dict[str, Any], place: str) -> Iterator[str]:
    """A table and those within it. What TOML has no words for is left out."""
    inner = {name: value for name, value in table.items() if isinstance(value, dict)}
    for name, value in table.items():
        if name not in inner and value is not None:
            yield f"{json.dumps(name)} = {_toml_value(value)}\n"
    for name, value in inner.items():
        below = f"{place}.{json.dumps(name)}" if place else json.dumps(name)
        yield f"[{below}]\n"
        yield from _toml(value, below)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml_value(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(member) for member in value if member is not None) + "]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
