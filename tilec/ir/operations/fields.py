"""The fields of an operation's class: which are regions, and the defaults of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from tilec.ir.parts import make_part_reader
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass

REQUIRED = object()
"""The default of a field that has none."""
BY_PASSES = {"by": "passes"}
"""The metadata of a field that kernels cannot set, in which passes record what they find out."""
_COMMON_FIELDS = ("span", "versions")
"""Fields of every operation, which are neither regions nor attributes."""


@dataclass(frozen=True, slots=True)
class In:
    """Marks a field as a region, with the scopes that it may lie in: `Annotated[Region, In(("shared",
    "fragment"))]`."""

    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """A field that is a region, or None where `optional`; with `many`, a field of all remaining regions."""

    name: str
    scopes: tuple[str, ...]
    optional: bool
    many: bool


@dataclass(frozen=True, slots=True)
class OperationFields:
    """The fields of an operation's class. `attributes` are sorted, each with its default or `REQUIRED`; `expressions`
    are the attributes that may hold one; `read` returns an operation's regions."""

    operands: tuple[Operand, ...]
    attributes: tuple[tuple[str, Any], ...]
    expressions: tuple[str, ...]
    read: Callable[[Any], tuple[Any, ...]]

    def bind(self, regions: tuple[Any, ...]) -> dict[str, Any]:
        """Return the given regions by the names of their fields; raises `InternalError` where the fields take another
        number."""
        made: dict[str, Any] = {}
        for place, operand in enumerate(self.operands):
            if operand.many:
                made[operand.name] = regions[place:]
            elif place < len(regions) or operand.optional:
                made[operand.name] = regions[place] if place < len(regions) else None
        if len(_collect_regions(self.operands, made.get)) != len(regions):
            raise InternalError(f"{len(regions)} regions for the fields {', '.join(o.name for o in self.operands)}")
        return made


def _inspect_fields(operation: Any) -> OperationFields:
    """Return the fields of an operation's class: its regions, sorted attributes and expressions, by the types of
    annotations."""
    hints = get_type_hints(operation, include_extras=True)
    operands: list[Operand] = []
    attributes: list[tuple[str, Any]] = []
    for f in fields(operation):
        if (operand := _parse_operand(f.name, hints[f.name])) is not None:
            operands.append(operand)
        elif f.name not in _COMMON_FIELDS:
            attributes.append((f.name, REQUIRED if f.default is MISSING else f.default))
    attributes.sort(key=lambda item: item[0])
    expressions = tuple(key for key, _ in attributes if any(map(is_dataclass, _union_members(hints[key]))))
    return OperationFields(tuple(operands), tuple(attributes), expressions, _make_region_reader(operands))


describe_fields: Callable[[type], OperationFields] = cache(_inspect_fields)
"""Returns the fields of an operation's class, from a cache."""


def _union_members(hint: Any) -> Iterator[Any]:
    """Yield the types that a type hint allows: the members of a union, `Annotated` stripped, else the hint itself."""
    if get_origin(hint) is Annotated:
        yield from _union_members(get_args(hint)[0])
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from _union_members(part)
    else:
        yield hint


def _parse_operand(name: str, hint: Any) -> Operand | None:
    """Return the operand that a field is if its type is annotated with `In`; None for an attribute."""
    is_union = get_origin(hint) in (Union, UnionType)
    optional = is_union and NoneType in get_args(hint)
    kind = next(a for a in get_args(hint) if a is not NoneType) if is_union else hint
    many = get_origin(kind) is tuple
    member = get_args(kind)[0] if many else kind
    if get_origin(member) is not Annotated:
        return None
    places = [place for place in member.__metadata__ if isinstance(place, In)]
    return Operand(name, places[0].scopes, optional, many) if places else None


def _collect_regions(operands: Iterable[Operand], read: Callable[[str], Any]) -> list[Any]:
    """Return the regions of these operands in order, absent ones left out; `read` returns the value of a field."""
    found: list[Any] = []
    for operand in operands:
        value = read(operand.name)
        found += value if operand.many else () if value is None else (value,)
    return found


def _make_region_reader(operands: list[Operand]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function from an operation with these operands to the tuple of its regions, absent optional ones left
    out."""
    if not any(operand.optional for operand in operands):
        return make_part_reader(tuple((operand.name, operand.many) for operand in operands))
    return lambda op: tuple(_collect_regions(operands, lambda name: getattr(op, name)))
