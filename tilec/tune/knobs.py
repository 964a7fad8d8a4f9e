"""What a tuner may turn besides the constants of a kernel: options of the compiler, by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from tilec.support import options as words
from tilec.support.diagnostics import CompileError, fail
from tilec.support.options import CompileOptions
from tilec.tune.space import Point, Space, Value

DASHES = "--"
"""What the name of an option begins with in a point; that of a constant does not."""


def _switch(value: Value) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is true or false")
    return value


def _one_of(allowed: tuple[str, ...]) -> Callable[[Value], str]:
    def chosen(value: Value) -> str:
        if value not in allowed:
            raise ValueError(f"is one of {', '.join(allowed)}")
        return str(value)

    return chosen


def _cluster(value: Value) -> tuple[int, int, int] | None:
    if value == "auto":
        return None
    return (1, 1, 1) if value == "none" else words.parse_cluster(str(value))


def _consumers(value: Value) -> int | None:
    if value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 7:
        raise ValueError("is auto, or a number from 1 to 7")
    return value


def _register_stages(value: Value) -> int | None:
    return words.parse_register_stages(_one_of(words.REGISTER_STAGES)(str(value)))


KNOBS: dict[str, Callable[[Value], Any]] = {
    "cluster": _cluster,
    "consumers": _consumers,
    "rasterisation": lambda value: words.parse_rasterisation(str(value)),
    "subtile": lambda value: words.parse_subtile(str(value)),
    "register-stages": _register_stages,
    "pipeline-strategy": _one_of(words.STRATEGIES),
    "scheduler": _one_of(words.SCHEDULERS),
    "tile-scheduler": _one_of(words.TILE_SCHEDULERS),
    "arrivals": _one_of(words.ARRIVALS),
    **dict.fromkeys(
        (
            "auto-pipeline",
            "dependent-launch",
            "multicast",
            "overlap",
            "persistent",
            "ping-pong",
            "stmatrix",
            "store-role",
            "tma-loads",
        ),
        _switch,
    ),
}
"""What each makes of a value: the field of `CompileOptions` of the same name, with underscores."""


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
            KNOBS[name](value)
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
            same = [v for v in axis.values if KNOBS[option](v) == getattr(base, option.replace("-", "_"))]
        if not same:
            return ()
        found.append((axis.name, same[0]))
    return tuple(found)


def applied(point: Point, base: CompileOptions) -> CompileOptions:
    """The options that a variant is compiled with."""
    constants = tuple((name, value) for name, value in point if not name.startswith(DASHES))
    chosen = {name.removeprefix(DASHES): value for name, value in point if name.startswith(DASHES)}
    fields: dict[str, Any] = {name.replace("-", "_"): KNOBS[name](value) for name, value in chosen.items()}
    return replace(base, defines=(*base.defines, *constants), **fields)
