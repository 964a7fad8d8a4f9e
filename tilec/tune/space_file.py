"""Reads a space from TOML: lists of values, of constants in [constants] and of compile options in [options]."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from tilec.support import readers
from tilec.support.diagnostics import Warn, fail, unheard
from tilec.support.option_fields import deprecated
from tilec.tune import knobs
from tilec.tune.space import Space, SpaceError, Value, space

TABLES = ("constants", "options")


def read(text: str, path: str, constants: Collection[str], warn: Warn = unheard) -> Space:
    """The space of a file, for a kernel with these constants. `warn` hears of options by names that they once had."""
    try:
        tables = readers.toml_table(text)
    except ValueError as error:
        fail("bad-space", f"{path} is no TOML: {error}", help="write name = [value, …] lines under [constants]")
    for name in tables:
        if name not in TABLES or not isinstance(tables[name], dict):
            fail(
                "bad-space", f"{path} has `{name}`, which is no table of a space", help="use [constants] and [options]"
            )
    axes: list[tuple[str, list[Value]]] = []
    for name, values in tables.get("constants", {}).items():
        if name not in constants:
            near = get_close_matches(name, constants, n=1)
            fail(
                "bad-space",
                f"{path} tries `{name}`, which is no constant of the kernel",
                help=f"did you mean {near[0]}?" if near else f"the constants are {', '.join(constants)}",
            )
        axes.append((name, _values(name, values, path)))
    for name, values in tables.get("options", {}).items():
        listed, now = _values(name, values, path), knobs.current(name)
        if now != name:
            warn(deprecated(f"{name} in {path}", now))
        knobs.check(now, listed, path)
        axes.append((f"{knobs.DASHES}{now}", listed))
    if not axes:
        fail("bad-space", f"{path} has nothing to try", help="write name = [value, …] lines under [constants]")
    try:
        return space(axes)
    except SpaceError as error:
        fail("bad-space", f"{path}: {error}", help="give each name at least one value, or take it out")


def _values(name: str, values: Any, path: str) -> list[Value]:
    listed = values if isinstance(values, list) else [values]
    for value in listed:
        if not isinstance(value, int | float | bool | str):
            fail("bad-space", f"{path} tries {name} = {value!r}", help="values are numbers, true, false or strings")
    return listed
