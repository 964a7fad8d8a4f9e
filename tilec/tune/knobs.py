"""What a tuner may turn besides the constants of a kernel: options of the compiler, by their names."""

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
"""What the name of an option begins with in a point; that of a constant does not."""

_DEFAULTS = CompileOptions()


_OF_CHOICES = {switch for row in PIPELINE if isinstance(row, Choice) for switch in row.switches}

KNOBS: dict[str, str] = {
    stated.name: field
    for field, stated in OPTIONS.items()
    if stated.tuned or not _OF_CHOICES.isdisjoint((stated.switch, stated.off))
}
"""The field of `CompileOptions` that each turns: those that choices of the pipeline name, and others that are said to
be tuned."""


def current(name: str) -> str:
    """The name now of a knob that may be called as it once was."""
    return OPTIONS[FORMER_NAMES[name]].name if name in FORMER_NAMES else name


def value_of(name: str, value: Value) -> Any:
    """What a knob makes of a value. Raises `ValueError` or `CompileError` where it cannot take it."""
    field = KNOBS[name]
    return option_fields.value_of(OPTIONS[field], getattr(_DEFAULTS, field), value)


def check(name: str, values: Iterable[Value], path: str) -> None:
    """Refuse an option that is none, or a value that it cannot take."""
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
    """The point of a space that is the file as it is written, where constants have the values `written` and options
    those of `base`; the empty point, which changes nothing, where the space has no such point."""
    found: list[tuple[str, Value]] = []
    given = {**written, **dict(base.defines)}
    for axis in space.axes:
        option = axis.name.removeprefix(DASHES)
        if option == axis.name:
            same = [v for v in axis.values if (type(v), v) == (type(given.get(axis.name)), given.get(axis.name))]
        else:
            same = [v for v in axis.values if value_of(option, v) == getattr(base, KNOBS[option])]
        if not same:
            return ()
        found.append((axis.name, same[0]))
    return tuple(found)


def applied(point: Point, base: CompileOptions) -> CompileOptions:
    """The options that a variant is compiled with."""
    constants = tuple((name, value) for name, value in point if not name.startswith(DASHES))
    chosen = {name.removeprefix(DASHES): value for name, value in point if name.startswith(DASHES)}
    fields: dict[str, Any] = {KNOBS[name]: value_of(name, value) for name, value in chosen.items()}
    return replace(base, defines=(*base.defines, *constants), **fields)
