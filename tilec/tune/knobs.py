"""The compiler options that a tuner may set, by name, besides the constants of a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from tilec.driver.pipeline import PIPELINE, Choice
from tilec.support import option_fields
from tilec.support.diagnostics import CompileError, fail
from tilec.support.options import FORMER_NAMES, OPTIONS, CompileOptions
from tilec.tune.space import Point, Space, Value

DASHES = "--"
"""Prefix of an option's name in a point; names of constants lack it."""

_DEFAULTS = CompileOptions()


_OF_CHOICES = {switch for row in PIPELINE if isinstance(row, Choice) for switch in row.switches}

KNOBS: dict[str, str] = {
    stated.name: field
    for field, stated in OPTIONS.items()
    if stated.tuned or not _OF_CHOICES.isdisjoint((stated.switch, stated.off))
}
"""The `CompileOptions` field of each knob: options of the pipeline's choices, and others marked as tuned."""


def current(name: str) -> str:
    """Return the present name of a knob, also for a former name."""
    return OPTIONS[FORMER_NAMES[name]].name if name in FORMER_NAMES else name


def value_of(name: str, value: Value) -> Any:
    """Convert a value for a knob's field. Raise `ValueError` or `CompileError` if the knob does not accept it."""
    field = KNOBS[name]
    return option_fields.value_of(OPTIONS[field], getattr(_DEFAULTS, field), value)


def check(name: str, values: Iterable[Value], path: str) -> None:
    """Refuse an unknown option, or a value that it does not accept."""
    if name not in KNOBS:
        near = get_close_matches(name, KNOBS, n=1)
        fail(
            "bad-space",
            f"{path} tries `{name}`, which is no option that can be tuned",
            help=f"did you mean {near[0]}?" if near else f"these can be: {', '.join(sorted(KNOBS))}",
        )
    for value in values:
        try:
            value_of(name, value)
        except CompileError as refused:
            fail("bad-space", f"{path} tries {name} = {value!r}", help=refused.diagnostics[0].help)
        except ValueError as reason:
            fail("bad-space", f"{path} tries {name} = {value!r}", help=f"{name} {reason}")


def as_written(space: Space, written: Mapping[str, Value | None], base: CompileOptions) -> Point:
    """Return the point of a space that equals the file as written, with constants `written` and options of `base`; the
    empty point, which changes nothing, if the space has no such point."""
    found: list[tuple[str, Value]] = []
    given = {**written, **dict(base.defines)}
    for axis in space.axes:
        option = axis.name.removeprefix(DASHES)
        if option == axis.name:
            equal_values = [
                v for v in axis.values if (type(v), v) == (type(given.get(axis.name)), given.get(axis.name))
            ]
        else:
            equal_values = [v for v in axis.values if value_of(option, v) == getattr(base, KNOBS[option])]
        if not equal_values:
            return ()
        found.append((axis.name, equal_values[0]))
    return tuple(found)


def applied(point: Point, base: CompileOptions) -> CompileOptions:
    """Return the options to compile a variant with."""
    constants = tuple((name, value) for name, value in point if not name.startswith(DASHES))
    chosen = {name.removeprefix(DASHES): value for name, value in point if name.startswith(DASHES)}
    fields: dict[str, Any] = {KNOBS[name]: value_of(name, value) for name, value in chosen.items()}
    return replace(base, defines=(*base.defines, *constants), **fields)
