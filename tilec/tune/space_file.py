"""Reads a space from TOML: lists of values, for constants in [constants] and for compile options in [options]."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from difflib import get_close_matches

from tilec.support import readers, schema
from tilec.support.diagnostics import Warn, ignore_warning, raise_error
from tilec.support.option_fields import deprecation_warning
from tilec.support.records import dataclass
from tilec.tune import knobs
from tilec.tune.space import Space, SpaceError, Value, build_space

_Values = Mapping[str, Value | tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class _File:
    constants: _Values = field(default_factory=dict)
    options: _Values = field(default_factory=dict)


def read_space(text: str, path: str, constants: Collection[str], warn: Warn = ignore_warning) -> Space:
    """Return the search space in a TOML file; raise `bad-space` for another form, unknown names or no values.

    `constants` are the kernel's. `warn` receives deprecated option names.
    """
    try:
        given = schema.read_record(_File, readers.parse_toml(text), "")
    except schema.SchemaError as error:
        raise_error("bad-space", f"{path} is not a search space: {error}", help="write name = [value, …] lines under "
             "[constants] and [options]; values are numbers, true, false or strings")  # fmt: skip
    except ValueError as error:
        raise_error("bad-space", f"{path} is not TOML: {error}", help="write name = [value, …] lines under [constants]")
    axes: list[tuple[str, list[Value]]] = []
    for name, values in given.constants.items():
        if name not in constants:
            near = get_close_matches(name, constants, n=1)
            advice = f"did you mean {near[0]}?" if near else f"the constants are {', '.join(constants)}"
            raise_error("bad-space", f"`{name}` in {path} is not a constant of the kernel", help=advice)
        axes.append((name, _list_values(values)))
    for name, values in given.options.items():
        listed, now = _list_values(values), knobs.find_current_name(name)
        if now != name:
            warn(deprecation_warning(f"{name} in {path}", now))
        knobs.check_knob(now, listed, path)
        axes.append((f"{knobs.OPTION_PREFIX}{now}", listed))
    if not axes:
        advice = "write name = [value, …] lines under [constants]"
        raise_error("bad-space", f"{path} has no values to search", help=advice)
    try:
        return build_space(axes)
    except SpaceError as error:
        raise_error("bad-space", f"{path}: {error}", help="give each name at least one value, or remove it")


def _list_values(values: Value | tuple[Value, ...]) -> list[Value]:
    return list(values) if isinstance(values, tuple) else [values]
