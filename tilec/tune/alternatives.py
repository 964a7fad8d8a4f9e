"""Lists the decisions that the compiler could have made otherwise for the file as written. Each alternative that a
choice of the pipeline records with the option that requests it is a variant to try; a new choice needs no more than
that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tilec.support.options import OPTIONS, CompileOptions
from tilec.tune import knobs
from tilec.tune.space import Point, Value

if TYPE_CHECKING:
    from tilec.sched.decision import Decision


def list_alternative_points(decisions: Iterable[Decision], written: Point, base: CompileOptions) -> tuple[Point, ...]:
    """Return the file as `written` with one decision of the compiler changed, in the order of the decisions."""
    found: dict[tuple[str, type[Value], Value], Point] = {}
    for name, value in _list_unchosen_options(decisions):
        if knobs.convert_value(name, value) != getattr(base, knobs.KNOBS[name]):
            point = (*written, (f"{knobs.OPTION_PREFIX}{name}", value))
            found.setdefault((name, type(value), value), tuple(sorted(point)))
    return tuple(found.values())


def _list_unchosen_options(decisions: Iterable[Decision]) -> Iterator[tuple[str, Value]]:
    for decision in decisions:
        for alternative in decision.alternatives:
            if alternative.option is not None and alternative.answer != decision.chosen:
                yield _parse_option(alternative.option)


def _parse_option(option: str) -> tuple[str, Value]:
    """Return the knob and its value for an option as written on the command line."""
    switch, _, word = option.partition(" ")
    for field, name in ((field, name) for name, field in knobs.KNOBS.items()):
        if switch == OPTIONS[field].negated_switch:
            return name, False
        if switch == OPTIONS[field].switch:
            return name, (int(word) if word.isdecimal() else word) if word else True
    raise ValueError(f"{option} is not an option of any choice")
