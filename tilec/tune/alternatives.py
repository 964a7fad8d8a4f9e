"""What the compiler could have decided otherwise about the file as written: each alternative that a choice of the
pipeline records with the option that asks for it is a variant to try. A new choice is tried by that alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tilec.support.options import OPTIONS, CompileOptions
from tilec.tune import knobs
from tilec.tune.space import Point, Value

if TYPE_CHECKING:
    from tilec.sched.decision import Decision


def variants(decisions: Iterable[Decision], written: Point, base: CompileOptions) -> tuple[Point, ...]:
    """The file as `written` with one answer of the compiler changed, in the order of the decisions."""
    found: dict[tuple[str, type[Value], Value], Point] = {}
    for name, value in _others(decisions):
        if knobs.value_of(name, value) != getattr(base, knobs.KNOBS[name]):
            point = (*written, (f"{knobs.DASHES}{name}", value))
            found.setdefault((name, type(value), value), tuple(sorted(point)))
    return tuple(found.values())


def _others(decisions: Iterable[Decision]) -> Iterator[tuple[str, Value]]:
    for decision in decisions:
        for alternative in decision.alternatives:
            if alternative.option is not None and alternative.answer != decision.chosen:
                yield _knob(alternative.option)


def _knob(option: str) -> tuple[str, Value]:
    """The knob and its value, of an option as it stands on the command line."""
    switch, _, word = option.partition(" ")
    for field, name in ((field, name) for name, field in knobs.KNOBS.items()):
        if switch == OPTIONS[field].off:
            return name, False
        if switch == OPTIONS[field].switch:
            return name, (int(word) if word.isdecimal() else word) if word else True
    raise ValueError(f"{option} is an alternative of a choice, and no option of one")
