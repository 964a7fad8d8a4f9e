"""Checks of outside values against the types of dataclasses: the fields are the schema.

`read_value` converts plain JSON or TOML to a type, or checks an existing value. Ranges and other constraints are part
of the type: `Annotated[int, Range(0, 255)]`. A message names the place, the expected and the found value. `to_plain` is
the inverse.

The dataclasses of a union name their `kind` in JSON in `KIND`.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NoReturn, TypeVar

from tilec.support.records import dataclass

T = TypeVar("T")
_LONGEST_SHOWN = 60


class SchemaError(ValueError):
    """The value does not match its type; the message names the place."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range of whole numbers, both ends included."""

    low: int
    high: int

    def allows(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    @property
    def wanted(self) -> str:
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Where:
    """Any other constraint on a value; `wanted` describes it in messages. With `of_any_type` it is tested on values of
    any type, and its description replaces the type's."""

    allows: Callable[[Any], bool]
    wanted: str
    of_any_type: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """A field whose file representation is of type `of`; the function `by` converts it to the value, or raises
    `ValueError`."""

    of: Any
    by: Callable[[Any], Any]

    def read(self, value: object, place: str) -> Any:
        given = read(self.of, value, place)
        try:
            return self.by(given)
        except ValueError as error:
            raise SchemaError(f"{place}: {error}") from error


_WORD = Range(-(1 << 63), (1 << 63) - 1)
"""The range of a whole number without a narrower constraint."""

_NAMES: Mapping[Any, str] = {
    int: "a whole number", float: "a number", str: "a string", bool: "true, false", types.NoneType: "null",
}  # fmt: skip


def read(wanted: Any, value: object, place: str) -> Any:
    """Return `value` as the type `wanted`: objects become dataclasses, arrays tuples. Raises `SchemaError`."""
    origin, arguments = _parts(wanted)
    if wanted is Any:
        return value
    if origin is typing.Annotated:
        for demand in arguments[1:]:
            if isinstance(demand, Where) and demand.of_any_type and not demand.allows(value):
                _refuse(place, demand.wanted, value)
        maker = next((demand for demand in arguments[1:] if isinstance(demand, Made)), None)
        made = read(arguments[0], value, place) if maker is None else maker.read(value, place)
        for demand in arguments[1:]:
            if demand is not maker and not demand.allows(made):
                _refuse(place, demand.wanted, value)
        return made
    if origin in (types.UnionType, typing.Union):
        return _one_of(arguments, value, place)
    if origin is typing.Literal:
        return _known(arguments, value, place)
    if origin is tuple:
        return _members(arguments, value, place)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            _refuse(place, "an object or table", value)
        return {name: read(arguments[1], member, _member(place, name)) for name, member in value.items()}
    if isinstance(wanted, type) and _is_dataclass(wanted):
        return value if isinstance(value, wanted) else record(typing.cast(Callable[..., Any], wanted), value, place)
    if isinstance(wanted, type) and issubclass(wanted, tuple):
        return _named(wanted, value, place)
    if wanted is float and type(value) is int:
        return float(value) if _WORD.allows(value) else _refuse(place, _NAMES[float], value)
    # True is an int to Python, not to us.
    if type(value) is not wanted:
        _refuse(place, _NAMES.get(wanted, str(wanted)), value)
    if wanted is float and not math.isfinite(typing.cast(float, value)):
        _refuse(place, "a number that is finite", value)
    if wanted is int and not _WORD.allows(value):
        _refuse(place, "a whole number of 64 bits", value)
    return value


def record(wanted: Callable[..., T], value: object, place: str) -> T:
    """Return a dataclass from an object with a member for each field; fields with a default are optional. Unknown
    members are refused unless the class's `OPEN` is true."""
    if not isinstance(value, dict):
        _refuse(place, "an object or table", value)
    hints, required = _fields(wanted)
    if getattr(wanted, "OPEN", False):
        value = {name: member for name, member in value.items() if name in hints}
    elif hasattr(wanted, "KIND"):
        _known((wanted.KIND,), value.get("kind"), _member(place, "kind"))
        value = {name: member for name, member in value.items() if name != "kind"}
    prefix = f"{place}: " if place else ""
    for name in value:
        if name not in hints:
            raise SchemaError(f"{prefix}'{name}' is not known here")
    for name in required:
        if name not in value:
            raise SchemaError(f"{prefix}'{name}' is missing")
    return wanted(**{name: read(hints[name], member, _member(place, name)) for name, member in value.items()})


def versioned(value: object, *known: int) -> dict[str, Any]:
    """Return the other members of an object whose `schema` is one of the known versions."""
    if not isinstance(value, dict):
        _refuse("", "an object or table", value)
    version = value.get("schema")
    if type(version) is not int or version not in known:
        raise SchemaError(f"schema is {_shown(version)}, this version reads {', '.join(map(str, known))}")
    return {name: member for name, member in value.items() if name != "schema"}


def plain(value: object) -> Any:
    """Return the JSON form of a value, as `read_value` takes it, without fields that equal their defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        given = {f.name: plain(member) for f, member in members if member != _default(f)}
        return {"kind": value.KIND, **given} if hasattr(value, "KIND") else given
    if isinstance(value, Mapping):
        return {name: plain(member) for name, member in value.items()}
    return [plain(member) for member in value] if isinstance(value, tuple) else value


def _default(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def faults(value: Any, place: str) -> Iterator[str]:
    """Yield the mismatches between a dataclass and its own types."""
    made: Callable[..., Any] = type(value)
    for name, hint in _fields(made)[0].items():
        yield from _faults(hint, getattr(value, name), _member(place, name))


def _faults(hint: Any, value: Any, place: str) -> Iterator[str]:
    if _fits(hint)(value):
        return
    if _is_dataclass(value.__class__):
        yield from faults(value, place)
    elif isinstance(value, tuple) and _parts(hint)[1][1:] == (Ellipsis,):
        for index, member in enumerate(value):
            yield from _faults(_parts(hint)[1][0], member, f"{place}[{index}]")
    else:
        try:
            read(hint, value, place)
        except SchemaError as error:
            yield str(error)


@cache
def _fits(hint: Any) -> Callable[[Any], bool]:
    """Return a quick test. A value that passes has no faults; one that does not is left to `read_value`."""
    origin, arguments = _parts(hint)
    if hint is int:
        low, high = _WORD.low, _WORD.high
        return lambda value: type(value) is int and low <= value <= high
    if hint in (str, bool, types.NoneType):
        return lambda value: type(value) is hint
    if origin is typing.Annotated and not any(isinstance(demand, Made) for demand in arguments[1:]):
        fits, allows = _fits(arguments[0]), tuple(demand.allows for demand in arguments[1:])
        return lambda value: fits(value) and all(allow(value) for allow in allows)
    if origin in (types.UnionType, typing.Union):
        each = tuple(map(_fits, arguments))
        return lambda value: any(fits(value) for fits in each)
    if origin is typing.Literal and all(isinstance(known, str) for known in arguments):
        return lambda value: type(value) is str and value in arguments
    if origin is tuple and arguments[1:] == (Ellipsis,):
        fits = _fits(arguments[0])
        return lambda value: type(value) is tuple and all(map(fits, value))
    if isinstance(hint, type) and _is_dataclass(hint):
        return lambda value: (
            value.__class__ is hint and all(fits(getattr(value, name)) for name, fits in _members_fit(hint))
        )
    return lambda value: False


@cache
def _members_fit(kind: Callable[..., Any]) -> tuple[tuple[str, Callable[[Any], bool]], ...]:
    return tuple((name, _fits(hint)) for name, hint in _fields(kind)[0].items())


@cache
def _parts(wanted: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type's origin and arguments, cached: they are needed for each member of each object."""
    return typing.get_origin(wanted), typing.get_args(wanted)


@cache
def _is_dataclass(kind: type) -> bool:
    return dataclasses.is_dataclass(kind)


def _one_of(alternatives: tuple[Any, ...], value: object, place: str) -> Any:
    if value is None and types.NoneType in alternatives:
        return None
    others = [one for one in alternatives if one is not types.NoneType]
    kinds = {one.KIND: one for one in others if hasattr(one, "KIND")}
    if kinds and isinstance(value, dict):
        return record(kinds[_known((*kinds,), value.get("kind"), _member(place, "kind"))], value, place)
    # Only one alternative may fit an array, or anything else: then its message names the place inside.
    meant = [one for one in others if (_parts(one)[0] is tuple) == isinstance(value, list)]
    if len(others) == 1 or len(meant) == 1:
        return read((meant or others)[0], value, place)
    for one in others:
        try:
            return read(one, value, place)
        except SchemaError:
            continue
    shown = [one for one in others if one is not int or float not in others]
    *named, last = dict.fromkeys("an object or table" if one in kinds.values() else _name(one) for one in shown)
    return _refuse(place, f"{', '.join(named)} or {last}" if named else last, value)


def _known(known: tuple[Any, ...], value: Any, place: str) -> Any:
    if not any(type(value) is type(one) and value == one for one in known):
        _refuse(place, f"one of {', '.join(map(repr, known))}", value)
    return value


def _name(wanted: Any) -> str:
    if _parts(wanted)[0] is tuple:
        return "an array"
    return _NAMES.get(wanted, getattr(wanted, "__name__", str(wanted)))


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
    raise SchemaError(f"{place}{': ' if place else ''}expected {wanted}, found {_shown(found)}")


def _shown(found: object) -> str:
    if not isinstance(found, int) or -(1 << 64) <= found <= 1 << 64:
        return f"{found!r:.{_LONGEST_SHOWN}}"
    return f"a number of {found.bit_length()} bits"
