"""Names in the compiler's own code are the field's: none has a word of ours where docs/glossary.md has a term."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from fenced import ROOT

INSTEAD = {
    r"trips?(?!_count)": "iteration, trip count",
    r"turns?": "iteration, or ping-pong",
    r"turned": "transposed",
    r"teams?": "role, warpgroups",
    r"hand|by_hand": "explicit roles, manual",
    r"handed_out": "dynamically scheduled (cluster launch control)",
    r"wish(?:es|ed)?": "scheduling hint",
    r"meet|meetings?": "barrier, rendezvous",
    r"steering": "control slice",
    r"inflight": "scoreboard",
    r"unmasked": "mask elimination",
    r"unset": "uninitialised read",
    r"usual": "default, likely",
    r"residence": "occupancy",
    r"fetched": "prefetched",
    r"clears": "initialises (an accumulator)",
    r"overlays?": "reuse (of shared memory)",
    r"strips": "footprints",
    r"wholes": "if-conversion",
    r"laid|unlaid": "layout assignment",
    r"own_cop(?:y|ies)": "privatise",
    r"in_place|able|narrowed|widened": "legalise",
    r"apart": "disjoint, distinct, per warpgroup",
    r"cuts?": "split, rotate, peel (a loop)",
    r"ahead": "prefetch, hoist, software pipelining",
}
"""Patterns for words of a name, and what is said in their place."""

ELSEWHERE = {
    "trips": "a member of a calibration plan, which is a file of its own",
    "hand_over": "as above",
    "is_cut": "a search or a simulation that was cut short, no loop; and a number without its fraction",
    "cut": "a slice of a Python sequence",
    "ahead": "cycles from one use of a resource to another, in a schedule",
    "look_ahead": "the look-ahead of a parser or of a search, which is the field's",
    "widened": "of a type, to more bits; and of a layout, to more elements of a thread",
}
"""Names with such a word that means something else, and what."""


@cache
def names() -> frozenset[tuple[str, str]]:
    """Return every name that the compiler's code has, with its file; of modules too."""
    return frozenset(walk_names())


def walk_names() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "tilec").rglob("*.py")):
        here = str(path.relative_to(ROOT))
        yield path.stem, here
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                    yield name, here
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    yield name, here
                case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.alias(asname=str(name)):
                    yield name, here
                case _:
                    pass


def words(name: str) -> str:
    """`StaticTripCount` and `static_trip_count` as `static_trip_count`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@cache
def dropped(name: str) -> list[str]:
    return [now for old, now in INSTEAD.items() if re.search(rf"(?:^|_)(?:{old})(?=_|$)", words(name))]


def test_what_is_found() -> None:
    assert dropped("StaticTrips") == dropped("_trip") == ["iteration, trip count"] and not dropped("trip_count")
    assert dropped("is_loaded_ahead") and dropped("TurnWait") and not dropped("look_aheads")
    assert not dropped("returns") and not dropped("handle") and not dropped("tripled")


def test_names_are_the_terms() -> None:
    found = {(name, here, *now) for name, here in names() if name not in ELSEWHERE and (now := dropped(name))}
    assert sorted(found) == []


def test_every_exception_is_needed() -> None:
    there = {name for name, _ in names()}
    assert [name for name in ELSEWHERE if name not in there or not dropped(name)] == []
