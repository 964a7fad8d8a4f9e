"""The registry of tile IR's operations by name, and their construction from regions and attributes.

The classes are defined in `ops`, which registers them here: neither printer nor parser knows any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from tilec.ir.operations.fields import BY_PASSES, REQUIRED, describe_fields
from tilec.ir.text import show_region
from tilec.ir.tile import Attr, Region, TileOp
from tilec.support import schema
from tilec.support.source import Span

_CLASSES: dict[str, type[TileOp]] = {}


def register_operation_class(operation: type[TileOp]) -> None:
    """Register an operation's class under its name, for `make_operation`; another class of that name is an error."""
    assert _CLASSES.setdefault(operation.name, operation) is operation, f"two operations are called {operation.name}"


def make_operation(name: str, regions: tuple[Region, ...], attributes: Mapping[str, Attr], span: Span) -> TileOp:
    """Return the checked operation of this name with these fields; raises `SchemaError` for unknown, missing or wrong
    ones."""
    if name not in _CLASSES:
        raise schema.SchemaError(f"there is no operation '{name}'")
    operation = _CLASSES[name]
    wanted = describe_fields(operation)
    check_region_count(operation, len(regions))
    defaults = dict(wanted.attributes)
    for key in attributes:
        if key not in defaults:
            raise schema.SchemaError(f"{name}: unknown attribute '{key}'")
    for key, default in wanted.attributes:
        if default is REQUIRED and key not in attributes:
            raise schema.SchemaError(f"{name}: '{key}' is missing")
    made: Any = operation
    result: TileOp = made(**wanted.bind(regions), **attributes, span=span)
    check_operation(result)
    return result


def check_operation(op: TileOp) -> None:
    """Raise `SchemaError` where an operation has a wrong number of regions, a region of a wrong scope, or a mistyped
    attribute."""
    check_region_count(type(op), len(op.regions))
    check_scopes(op)
    check_attributes(op)


def check_region_count(operation: type[TileOp], found: int) -> None:
    """Raise `SchemaError` unless an operation's class takes `found` regions."""
    operands = describe_fields(operation).operands
    fewest = sum(not operand.optional and not operand.many for operand in operands)
    most = "more" if any(operand.many for operand in operands) else str(len(operands))
    if found < fewest or (most != "more" and found > len(operands)):
        count = most if most == str(fewest) else f"{fewest} or {most}"
        raise schema.SchemaError(f"{operation.name} has {found} regions, expected {count}")


def check_scopes(op: TileOp) -> None:
    """Raise `SchemaError` where a region's buffer has a scope that its field does not allow."""
    operands = describe_fields(type(op)).operands
    for place, region in enumerate(op.regions):
        scopes = operands[min(place, len(operands) - 1)].scopes
        if region.buffer.scope not in scopes:
            expected = " or ".join(scopes)
            raise schema.SchemaError(f"{op.name}: {show_region(region)} is {region.buffer.scope}, expected {expected}")


def check_attributes(op: TileOp) -> None:
    """Raise `SchemaError` where an attribute's value is not of its field's type."""
    operation: type = type(op)
    hints = _field_types(operation)
    for key, _ in describe_fields(type(op)).attributes:
        schema.read_value(hints[key], getattr(op, key), f"{op.name}.{key}")


@cache
def _field_types(operation: type) -> dict[str, Any]:
    """Return the type hints of a class's fields by name, from a cache."""
    return get_type_hints(operation, include_extras=True)


def find_pass_only_field(op: TileOp) -> str | None:
    """Return the name of the first field set to other than its default although only passes may set it; None if none
    is."""
    own = (f for f in fields(op) if f.metadata == BY_PASSES)
    return next((f.name for f in own if getattr(op, f.name) != f.default), None)
