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
class Constraint:
    """Any other constraint on a value; `wanted` describes it in messages. With `of_any_type` it is tested on values of
    any type, and its description replaces the type's."""

    allows: Callable[[Any], bool]
    wanted: str
    of_any_type: bool = False


@dataclass(frozen=True, slots=True)
class Conversion:
    """A field whose file representation is of type `of`; the function `by` converts it to the value, or raises
    `ValueError`."""

    of: Any
    by: Callable[[Any], Any]

    def read(self, value: object, place: str) -> Any:
        """Return a field's value converted by `by` from its file form; raise `SchemaError` with the place if that
        fails.
        """
        given = read_value(self.of, value, place)
        try:
            return self.by(given)
        except ValueError as error:
            raise SchemaError(f"{place}: {error}") from error


_WORD = Range(-(1 << 63), (1 << 63) - 1)
"""The range of a whole number without a narrower constraint."""

_NAMES: Mapping[Any, str] = {
    int: "a whole number", float: "a number", str: "a string", bool: "true, false", types.NoneType: "null",
}  # fmt: skip


def read_value(wanted: Any, value: object, place: str) -> Any:
    """Return `value` as the type `wanted`, with dataclasses for objects, tuples for arrays; raise `SchemaError`."""
    origin, arguments = _split_type(wanted)
    if wanted is Any:
        return value
    if origin is typing.Annotated:
        for demand in arguments[1:]:
            if isinstance(demand, Constraint) and demand.of_any_type and not demand.allows(value):
                _raise_mismatch(place, demand.wanted, value)
        maker = next((demand for demand in arguments[1:] if isinstance(demand, Conversion)), None)
        made = read_value(arguments[0], value, place) if maker is None else maker.read(value, place)
        for demand in arguments[1:]:
            if demand is not maker and not demand.allows(made):
                _raise_mismatch(place, demand.wanted, value)
        return made
    if origin in (types.UnionType, typing.Union):
        return _read_union(arguments, value, place)
    if origin is typing.Literal:
        return _check_known(arguments, value, place)
    if origin is tuple:
        return _read_array(arguments, value, place)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            _raise_mismatch(place, "an object or table", value)
        return {
            name: read_value(arguments[1], member, _format_member_place(place, name)) for name, member in value.items()
        }
    if isinstance(wanted, type) and _is_dataclass(wanted):
        make: Callable[..., Any] = wanted
        return value if isinstance(value, wanted) else read_record(make, value, place)
    if isinstance(wanted, type) and issubclass(wanted, tuple):
        return _read_named_tuple(wanted, value, place)
    if wanted is float and type(value) is int:
        return float(value) if _WORD.allows(value) else _raise_mismatch(place, _NAMES[float], value)
    # True is an int to Python, not to us.
    if type(value) is not wanted:
        _raise_mismatch(place, _NAMES.get(wanted, str(wanted)), value)
    if wanted is float and not math.isfinite(typing.cast(float, value)):
        _raise_mismatch(place, "a number that is finite", value)
    if wanted is int and not _WORD.allows(value):
        _raise_mismatch(place, "a whole number of 64 bits", value)
    return value


def read_record(wanted: Callable[..., T], value: object, place: str) -> T:
    """Return a dataclass from an object with a member per field; raise `SchemaError` for missing or unknown members.

    Fields with a default are optional. Unknown members are ignored if the class's `OPEN` is true.
    """
    if not isinstance(value, dict):
        _raise_mismatch(place, "an object or table", value)
    hints, required = _find_field_types(wanted)
    if getattr(wanted, "OPEN", False):
        value = {name: member for name, member in value.items() if name in hints}
    elif hasattr(wanted, "KIND"):
        _check_known((wanted.KIND,), value.get("kind"), _format_member_place(place, "kind"))
        value = {name: member for name, member in value.items() if name != "kind"}
    prefix = f"{place}: " if place else ""
    for name in value:
        if name not in hints:
            raise SchemaError(f"{prefix}unknown member '{name}'")
    for name in required:
        if name not in value:
            raise SchemaError(f"{prefix}'{name}' is missing")
    members = {
        name: read_value(hints[name], member, _format_member_place(place, name)) for name, member in value.items()
    }
    return wanted(**members)


def check_schema_version(value: object, *known: int) -> dict[str, Any]:
    """Return an object's members besides `schema`; raise `SchemaError` unless that is one of the known versions."""
    if not isinstance(value, dict):
        _raise_mismatch("", "an object or table", value)
    version = value.get("schema")
    if type(version) is not int or version not in known:
        raise SchemaError(f"schema is {_show_value(version)}, this version reads {', '.join(map(str, known))}")
    return {name: member for name, member in value.items() if name != "schema"}


def to_plain(value: object) -> Any:
    """Return a value in the JSON form that `read_value` takes, without fields that equal their defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        given = {f.name: to_plain(member) for f, member in members if member != _make_default_value(f)}
        return {"kind": value.KIND, **given} if hasattr(value, "KIND") else given
    if isinstance(value, Mapping):
        return {name: to_plain(member) for name, member in value.items()}
    return [to_plain(member) for member in value] if isinstance(value, tuple) else value


def _make_default_value(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, made anew if it has a factory; MISSING without a default."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def find_faults(value: Any, place: str) -> Iterator[str]:
    """Yield a message for each field of a dataclass whose value does not match its declared type."""
    made: Callable[..., Any] = type(value)
    for name, hint in _find_field_types(made)[0].items():
        yield from _find_faults(hint, getattr(value, name), _format_member_place(place, name))


def _find_faults(hint: Any, value: Any, place: str) -> Iterator[str]:
    """Yield a message for each mismatch between a value and its type; none if a quick test passes."""
    if _make_quick_test(hint)(value):
        return
    if _is_dataclass(value.__class__):
        yield from find_faults(value, place)
    elif isinstance(value, tuple) and _split_type(hint)[1][1:] == (Ellipsis,):
        for index, member in enumerate(value):
            yield from _find_faults(_split_type(hint)[1][0], member, f"{place}[{index}]")
    else:
        try:
            read_value(hint, value, place)
        except SchemaError as error:
            yield str(error)


@cache
def _make_quick_test(hint: Any) -> Callable[[Any], bool]:
    """Return a quick test of a type: a value that passes has no faults, others are left to `read_value`."""
    origin, arguments = _split_type(hint)
    if hint is int:
        low, high = _WORD.low, _WORD.high
        return lambda value: type(value) is int and low <= value <= high
    if hint in (str, bool, types.NoneType):
        return lambda value: type(value) is hint
    if origin is typing.Annotated and not any(isinstance(demand, Conversion) for demand in arguments[1:]):
        fits, allows = _make_quick_test(arguments[0]), tuple(demand.allows for demand in arguments[1:])
        return lambda value: fits(value) and all(allow(value) for allow in allows)
    if origin in (types.UnionType, typing.Union):
        each = tuple(map(_make_quick_test, arguments))
        return lambda value: any(fits(value) for fits in each)
    if origin is typing.Literal and all(isinstance(known, str) for known in arguments):
        return lambda value: type(value) is str and value in arguments
    if origin is tuple and arguments[1:] == (Ellipsis,):
        fits = _make_quick_test(arguments[0])
        return lambda value: type(value) is tuple and all(map(fits, value))
    if isinstance(hint, type) and _is_dataclass(hint):
        return lambda value: (
            value.__class__ is hint and all(fits(getattr(value, name)) for name, fits in _make_member_tests(hint))
        )
    return lambda value: False


@cache
def _make_member_tests(kind: Callable[..., Any]) -> tuple[tuple[str, Callable[[Any], bool]], ...]:
    """Return the name and the quick test of each field of a dataclass."""
    return tuple((name, _make_quick_test(hint)) for name, hint in _find_field_types(kind)[0].items())


@cache
def _split_type(wanted: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type's origin and arguments, cached. They are needed for each member of each object."""
    return typing.get_origin(wanted), typing.get_args(wanted)


@cache
def _is_dataclass(kind: type) -> bool:
    return dataclasses.is_dataclass(kind)


def _read_union(alternatives: tuple[Any, ...], value: object, place: str) -> Any:
    """Return the value as the first alternative type that fits; raise `SchemaError` if none does.

    The message is that of the only possible alternative, if there is one. Classes with a `KIND` are told by it.
    """
    if value is None and types.NoneType in alternatives:
        return None
    others = [one for one in alternatives if one is not types.NoneType]
    kinds = {one.KIND: one for one in others if hasattr(one, "KIND")}
    if kinds and isinstance(value, dict):
        kind = _check_known((*kinds,), value.get("kind"), _format_member_place(place, "kind"))
        return read_record(kinds[kind], value, place)
    # Only one alternative may fit an array, or anything else: then its message names the place inside.
    meant = [one for one in others if (_split_type(one)[0] is tuple) == isinstance(value, list)]
    if len(others) == 1 or len(meant) == 1:
        return read_value((meant or others)[0], value, place)
    for one in others:
        try:
            return read_value(one, value, place)
        except SchemaError:
            continue
    shown = [one for one in others if one is not int or float not in others]
    *named, last = dict.fromkeys(
        "an object or table" if one in kinds.values() else _describe_type(one) for one in shown
    )
    return _raise_mismatch(place, f"{', '.join(named)} or {last}" if named else last, value)


def _check_known(known: tuple[Any, ...], value: Any, place: str) -> Any:
    """Return the value if it equals a known one of the same type; else raise `SchemaError`."""
    if not any(type(value) is type(one) and value == one for one in known):
        _raise_mismatch(place, f"one of {', '.join(map(repr, known))}", value)
    return value


def _describe_type(wanted: Any) -> str:
    """Return the name of a type in messages: `an array` for tuples."""
    if _split_type(wanted)[0] is tuple:
        return "an array"
    return _NAMES.get(wanted, getattr(wanted, "__name__", str(wanted)))


def _read_array(arguments: tuple[Any, ...], value: object, place: str) -> tuple[Any, ...]:
    """Return an array as a tuple, its members read as their types: one type for each, or one for all."""
    if not isinstance(value, list | tuple):
        _raise_mismatch(place, "an array", value)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(read_value(arguments[0], member, f"{place}[{index}]") for index, member in enumerate(value))
    if len(value) != len(arguments):
        _raise_mismatch(place, f"an array of {len(arguments)}", value)
    each = enumerate(zip(arguments, value, strict=True))
    return tuple(read_value(argument, member, f"{place}[{index}]") for index, (argument, member) in each)


def _read_named_tuple(wanted: Any, value: object, place: str) -> Any:
    """Return an array as a named tuple; raise `SchemaError` unless it has one member for each field."""
    if not isinstance(value, list | tuple) or len(value) != len(wanted._fields):
        _raise_mismatch(place, f"[{', '.join(wanted._fields)}]", value)
    hints = typing.get_type_hints(wanted, include_extras=True)
    named = zip(wanted._fields, value, strict=True)
    return wanted(*(read_value(hints[name], member, _format_member_place(place, name)) for name, member in named))


def _format_member_place(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


@cache
def _find_field_types(wanted: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the types of a dataclass's fields by name, and the names of the fields without a default."""
    hints = typing.get_type_hints(wanted, include_extras=True)
    fields = dataclasses.fields(wanted)
    optional = {f.name for f in fields if f.default is not f.default_factory}
    return {f.name: hints[f.name] for f in fields}, tuple(f.name for f in fields if f.name not in optional)


def _raise_mismatch(place: str, wanted: str, found: object) -> NoReturn:
    raise SchemaError(f"{place}{': ' if place else ''}expected {wanted}, found {_show_value(found)}")


def _show_value(found: object) -> str:
    """Return a value as text for messages, cut at 60 characters; of a huge number only its bits."""
    if not isinstance(found, int) or -(1 << 64) <= found <= 1 << 64:
        return f"{found!r:.{_LONGEST_SHOWN}}"
    return f"a number of {found.bit_length()} bits"
