"""The compiler options that a tuner may set, by name, besides the constants of a kernel; and the decisions of the
compiler that it may change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from tilec.driver.pipeline import PIPELINE, Choice
from tilec.support import option_fields
from tilec.support.diagnostics import CompileError, raise_error
from tilec.support.options import FORMER_NAMES, OPTIONS, CompileOptions
from tilec.tune.space import Point, Space, Value

if TYPE_CHECKING:
    from tilec.sched.decision import Decision

OPTION_PREFIX = "--"
"""Prefix of an option's name in a point; names of constants lack it."""

_DEFAULTS = CompileOptions()
_CHOICE_SWITCHES = {switch for row in PIPELINE if isinstance(row, Choice) for switch in row.switches}

KNOBS: dict[str, str] = {
    stated.name: field
    for field, stated in OPTIONS.items()
    if stated.tuned or not _CHOICE_SWITCHES.isdisjoint((stated.switch, stated.negated_switch))
}
"""The `CompileOptions` field of each knob: options of the pipeline's choices, and others marked as tuned."""


def find_current_name(name: str) -> str:
    """Return the present name of a tunable option, given that or a former name."""
    return OPTIONS[FORMER_NAMES[name]].name if name in FORMER_NAMES else name


def convert_value(name: str, value: Value) -> Any:
    """Return a knob's value as its `CompileOptions` field holds it; raise an error if the knob does not take it.

    That is `ValueError` or `CompileError`.
    """
    field = KNOBS[name]
    return option_fields.parse_value(OPTIONS[field], getattr(_DEFAULTS, field), value)


def check_knob(name: str, values: Iterable[Value], path: str) -> None:
    """Raise `bad-space` for an unknown tunable option, or for a value that it does not take."""
    if name not in KNOBS:
        near = get_close_matches(name, KNOBS, n=1)
        advice = f"did you mean {near[0]}?" if near else f"tunable options: {', '.join(sorted(KNOBS))}"
        raise_error("bad-space", f"`{name}` in {path} is not a tunable option", help=advice)
    for value in values:
        try:
            convert_value(name, value)
        except CompileError as refused:
            raise_error("bad-space", f"{path} tries {name} = {value!r}", help=refused.diagnostics[0].help)
        except ValueError as reason:
            raise_error("bad-space", f"{path} tries {name} = {value!r}", help=f"{name} {reason}")


def find_written_point(space: Space, written: Mapping[str, Value | None], base: CompileOptions) -> Point:
    """Return the space's point that equals the file as written, with options of `base`; () if it has none.

    `written` has the constants. The empty point changes nothing.
    """
    found: list[tuple[str, Value]] = []
    given = {**written, **dict(base.defines)}
    for axis in space.axes:
        option = axis.name.removeprefix(OPTION_PREFIX)
        if option == axis.name:
            constant = given.get(axis.name)
            equal_values = [v for v in axis.values if (type(v), v) == (type(constant), constant)]
        else:
            equal_values = [v for v in axis.values if convert_value(option, v) == getattr(base, KNOBS[option])]
        if not equal_values:
            return ()
        found.append((axis.name, equal_values[0]))
    return tuple(found)


def apply_point(point: Point, base: CompileOptions) -> CompileOptions:
    """Return `base` with a point's constants added as definitions and its options set."""
    constants = tuple((name, value) for name, value in point if not name.startswith(OPTION_PREFIX))
    chosen = {name.removeprefix(OPTION_PREFIX): value for name, value in point if name.startswith(OPTION_PREFIX)}
    fields: dict[str, Any] = {KNOBS[name]: convert_value(name, value) for name, value in chosen.items()}
    return replace(base, defines=(*base.defines, *constants), **fields)


def list_alternative_points(decisions: Iterable[Decision], written: Point, base: CompileOptions) -> tuple[Point, ...]:
    """Return points equal to `written` but for one decision of the compiler, in the order of decisions.

    Answers that `base` gives already, or that no option requests, are left out.
    """
    found: dict[tuple[str, type[Value], Value], Point] = {}
    for decision, alternative in ((one, each) for one in decisions for each in one.alternatives):
        if alternative.option is None or alternative.answer == decision.chosen:
            continue
        name, value = _parse_option(alternative.option)
        if convert_value(name, value) != getattr(base, KNOBS[name]):
            point = (*written, (f"{OPTION_PREFIX}{name}", value))
            found.setdefault((name, type(value), value), tuple(sorted(point)))
    return tuple(found.values())


def _parse_option(option: str) -> tuple[str, Value]:
    """Return the knob's name and value for an option as written on the command line; raise ValueError if unknown."""
    switch, _, word = option.partition(" ")
    for name, field in KNOBS.items():
        if switch == OPTIONS[field].negated_switch:
            return name, False
        if switch == OPTIONS[field].switch:
            return name, (int(word) if word.isdecimal() else word) if word else True
    raise ValueError(f"{option} is not an option of any choice")
