"""Reads a space from TOML: lists of values, for constants in [constants] and for compile options in [options]."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from difflib import get_close_matches

from tilec.support import readers, schema
from tilec.support.diagnostics import Warn, fail, unheard
from tilec.support.option_fields import deprecated
from tilec.support.records import dataclass
from tilec.tune import knobs
from tilec.tune.space import Space, SpaceError, Value, space

_Values = Mapping[str, Value | tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class _File:
    constants: _Values = field(default_factory=dict)
    options: _Values = field(default_factory=dict)


def read(text: str, path: str, constants: Collection[str], warn: Warn = unheard) -> Space:
    """Return the space of a file, for a kernel with these constants. `warn` receives deprecated option names."""
    try:
        given = schema.record(_File, readers.toml_table(text), "")
    except schema.SchemaError as error:
        fail("bad-space", f"{path} is no space to search: {error}", help="write name = [value, …] lines under "
             "[constants] and [options]; values are numbers, true, false or strings")  # fmt: skip
    except ValueError as error:
        fail("bad-space", f"{path} is no TOML: {error}", help="write name = [value, …] lines under [constants]")
    axes: list[tuple[str, list[Value]]] = []
    for name, values in given.constants.items():
        if name not in constants:
            near = get_close_matches(name, constants, n=1)
            fail(
                "bad-space",
                f"{path} tries `{name}`, which is no constant of the kernel",
                help=f"did you mean {near[0]}?" if near else f"the constants are {', '.join(constants)}",
            )
        axes.append((name, _listed(values)))
    for name, values in given.options.items():
        listed, now = _listed(values), knobs.current(name)
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


def _listed(values: Value | tuple[Value, ...]) -> list[Value]:
    return list(values) if isinstance(values, tuple) else [values]
