"""What a value from outside must be, as the types of our dataclasses say it: one schema, made from the fields.

`read` makes a value of a type from plain JSON or TOML, and checks one that is there already; a field's type is all that
there is to write. Ranges and other demands stand in it: `Annotated[int, Range(0, 255)]`. The message names the place,
what was expected there and what was found.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NoReturn, TypeVar

from tilec.support.records import dataclass

T = TypeVar("T")
_LONGEST_SHOWN = 60


class SchemaError(ValueError):
    """The value is not what its type says; the message names the place."""


@dataclass(frozen=True, slots=True)
class Range:
    """Of whole numbers: both ends belong to it."""

    low: int
    high: int

    def allows(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    @property
    def wanted(self) -> str:
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Where:
    """Any other demand on a value, with the words for what is `wanted`. One that is `of_any_type` may be asked of any
    value, so that its words stand for the type's too."""

    allows: Callable[[Any], bool]
    wanted: str
    of_any_type: bool = False


_WORD = Range(-(1 << 63), (1 << 63) - 1)
"""What a whole number is where nothing narrower is said."""

_NAMES: Mapping[Any, str] = {
    int: "a whole number", float: "a number", str: "a string", bool: "true or false", types.NoneType: "null",
}  # fmt: skip


def read(wanted: Any, value: object, place: str) -> Any:
    """`value` as the type `wanted`: objects become dataclasses, arrays tuples. Raises `SchemaError`."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any:
        return value
    if origin is typing.Annotated:
        for demand in arguments[1:]:
            if isinstance(demand, Where) and demand.of_any_type and not demand.allows(value):
                _refuse(place, demand.wanted, value)
        made = read(arguments[0], value, place)
        for demand in arguments[1:]:
            if not demand.allows(made):
                _refuse(place, demand.wanted, value)
        return made
    if origin in (types.UnionType, typing.Union):
        return _one_of(arguments, value, place)
    if origin is typing.Literal:
        if not any(type(value) is type(known) and value == known for known in arguments):
            _refuse(place, f"one of {', '.join(map(repr, arguments))}", value)
        return value
    if origin is tuple:
        return _members(arguments, value, place)
    if origin is dict:
        if not isinstance(value, dict):
            _refuse(place, "an object", value)
        return {name: read(arguments[1], member, _member(place, name)) for name, member in value.items()}
    if dataclasses.is_dataclass(wanted):
        return (
            value
            if isinstance(value, typing.cast(type, wanted))
            else record(typing.cast(Callable[..., Any], wanted), value, place)
        )
    if isinstance(wanted, type) and issubclass(wanted, tuple):
        return _named(wanted, value, place)
    if wanted is float and type(value) is int:
        return float(value) if _WORD.allows(value) else _refuse(place, _NAMES[float], value)
    # True is an int to Python, not to us.
    if type(value) is not wanted:
        _refuse(place, _NAMES.get(wanted, str(wanted)), value)
    if wanted is int and not _WORD.allows(value):
        _refuse(place, "a whole number of 64 bits", value)
    return value


def record(wanted: Callable[..., T], value: object, place: str) -> T:
    """An object with a member for each field; those with a default may be left out. Of a class whose `OPEN` is true
    the object may have others too, which are passed over."""
    if not isinstance(value, dict):
        _refuse(place, "an object", value)
    hints, required = _fields(wanted)
    if getattr(wanted, "OPEN", False):
        value = {name: member for name, member in value.items() if name in hints}
    said = f"{place}: " if place else ""
    for name in value:
        if name not in hints:
            raise SchemaError(f"{said}'{name}' is not known here")
    for name in required:
        if name not in value:
            raise SchemaError(f"{said}'{name}' is missing")
    return wanted(**{name: read(hints[name], member, _member(place, name)) for name, member in value.items()})


def faults(value: Any, place: str) -> Iterator[str]:
    """What a dataclass that the program has made holds against its own types."""
    made: Callable[..., Any] = type(value)
    for name, hint in _fields(made)[0].items():
        yield from _faults(hint, getattr(value, name), _member(place, name))


def _faults(hint: Any, value: Any, place: str) -> Iterator[str]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from faults(value, place)
    elif isinstance(value, tuple) and typing.get_args(hint)[1:] == (Ellipsis,):
        for index, member in enumerate(value):
            yield from _faults(typing.get_args(hint)[0], member, f"{place}[{index}]")
    else:
        try:
            read(hint, value, place)
        except SchemaError as error:
            yield str(error)


def _one_of(alternatives: tuple[Any, ...], value: object, place: str) -> Any:
    if value is None and types.NoneType in alternatives:
        return None
    others = [one for one in alternatives if one is not types.NoneType]
    if len(others) == 1:
        return read(others[0], value, place)
    for one in others:
        try:
            return read(one, value, place)
        except SchemaError:
            continue
    named = [_NAMES.get(one, getattr(one, "__name__", str(one))) for one in others]
    return _refuse(place, " or ".join(named), value)


def _members(arguments: tuple[Any, ...], value: object, place: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        _refuse(place, "an array", value)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(read(arguments[0], member, f"{place}[{index}]") for index, member in enumerate(value))
    if len(value) != len(arguments):
        _refuse(place, f"an array of {len(arguments)}", value)
    each = enumerate(zip(arguments, value, strict=True))
    return tuple(read(argument, member, f"{place}[{index}]") for index, (argument, member) in each)


def _named(wanted: Any, value: object, place: str) -> Any:
    """A `NamedTuple` from an array."""
    if not isinstance(value, list | tuple) or len(value) != len(wanted._fields):
        _refuse(place, f"[{', '.join(wanted._fields)}]", value)
    hints = typing.get_type_hints(wanted, include_extras=True)
    named = zip(wanted._fields, value, strict=True)
    return wanted(*(read(hints[name], member, _member(place, name)) for name, member in named))


def _member(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


@cache
def _fields(wanted: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    hints = typing.get_type_hints(wanted, include_extras=True)
    fields = dataclasses.fields(wanted)
    optional = {f.name for f in fields if f.default is not f.default_factory}
    return {f.name: hints[f.name] for f in fields}, tuple(f.name for f in fields if f.name not in optional)


def _refuse(place: str, wanted: str, found: object) -> NoReturn:
    shown = f"{found!r:.{_LONGEST_SHOWN}}" if not isinstance(found, int) else _number(found)
    raise SchemaError(f"{place}: expected {wanted}, found {shown}")


def _number(found: int) -> str:
    return repr(found) if -(1 << 64) <= found <= 1 << 64 else f"a number of {found.bit_length()} bits"
