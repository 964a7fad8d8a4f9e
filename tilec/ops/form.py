"""The types of the fields of operations, and the verifier of a kernel's operations against them.

It verifies tile IR from the front end and from files alike. An attribute with a default may be absent from the text.
The facet `agrees` of an operation verifies what its regions must have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, get_args

from tilec.ir import tile
from tilec.ir.operations import operations
from tilec.ir.operations.fields import In
from tilec.ir.text import show_expr, show_region
from tilec.ir.types import BOOL, INT32
from tilec.ops import registry
from tilec.ops.language.values import EXPR_TYPES
from tilec.support import schema
from tilec.support.source import Span

Shared = Annotated[tile.Region, In(("shared",))]
Global = Annotated[tile.Region, In(("global",))]
TensorMemory = Annotated[tile.Region, In(("tmem",))]
OnChip = Annotated[tile.Region, In(("shared", "fragment"))]
AnyMemory = Annotated[tile.Region, In(("global", "shared", "fragment", "tmem"))]
Anywhere = Annotated[tile.Region, In(get_args(tile.Scope))]
MAX_INT32 = (1 << 31) - 1


def _has_dtype(dtype: Any) -> Callable[[Any], bool]:
    """Return a predicate of values: whether one is an expression of this type."""
    return lambda value: isinstance(value, EXPR_TYPES) and value.dtype == dtype


Scalar = Annotated[
    tile.Expr, schema.Constraint(lambda value: isinstance(value, EXPR_TYPES), "an expression, as int32(0)", True)
]
Index = Annotated[tile.Expr, schema.Constraint(_has_dtype(INT32), "an expression of int32, as int32(0)", True)]
Condition = Annotated[tile.Expr, schema.Constraint(_has_dtype(BOOL), "an expression of bool", True)]
_IS_BARRIER = schema.Constraint(
    lambda value: isinstance(value, tile.Load) and value.buffer.scope == "barrier", "an element of a barrier", True
)
Barrier = Annotated[tile.Load, _IS_BARRIER]
Whole = Annotated[int, schema.Range(0, MAX_INT32)]
Positive = Annotated[int, schema.Range(1, MAX_INT32)]
Leader = Annotated[int, schema.Range(0, 1023)]
"""The thread of the block that issues an operation for all threads."""
UNKNOWN_LEADER = -1
"""The leader until the front end knows which role executes the operation."""
Announces = Annotated[bool, schema.Constraint(lambda announces: announces is True, "True")]
"""The operation announces its bytes to its barrier (expect-tx) by itself; no kernel can say otherwise."""
Yes = Literal[True]


def find_violations(kernel: tile.Kernel) -> Iterator[tuple[Span, str]]:
    """Yield the violations of all operations of a kernel, each with its statement's span."""
    for stmt in tile.walk_statements(kernel.body):
        for violation in _find_statement_violations(stmt, kernel):
            yield stmt.span, violation


def show_violations(kernel: tile.Kernel) -> Iterator[str]:
    """Yield the violations of all operations of a kernel as sentences with their lines."""
    return (f"line {span.line}: {violation}" for span, violation in find_violations(kernel))


def _find_statement_violations(stmt: tile.Stmt, kernel: tile.Kernel) -> Iterator[str]:
    """Yield an operation's violations of the first kind found: fields, attributes only passes may set, leader, regions.
    Nothing for another statement."""
    if not isinstance(stmt, tile.TileOp):
        return
    try:
        operations.check_operation(stmt)
    except schema.SchemaError as error:
        yield str(error)
        return
    if (key := operations.find_pass_only_field(stmt)) is not None:
        yield f"{stmt.name}: '{key}' is set by passes and cannot stand in a file before them"
    elif isinstance(stmt.leader, int) and stmt.leader >= kernel.threads:
        yield f"{stmt.name}: leader is thread {stmt.leader} of {kernel.threads}"
    elif "agrees" in (facets := registry.get_operation(stmt.name).facets):
        yield from (f"{stmt.name}: {violation}" for violation in facets["agrees"](stmt))


# ---- agreement of regions --------------------------------------------------------------------------------------------


def verify_same_shape(one: tile.Region, other: tile.Region) -> Iterator[str]:
    """Yield a violation if two regions have different shapes, dimensions of extent 1 aside."""
    if one.shape != other.shape:
        shapes = " and ".join(" × ".join(map(str, region.shape)) for region in (one, other))
        yield f"{show_region(one)} and {show_region(other)} have different shapes: {shapes}"


def verify_same_dtype(one: tile.Region, other: tile.Region) -> Iterator[str]:
    """Yield a violation if the buffers of two regions have different element types."""
    if one.buffer.dtype != other.buffer.dtype:
        yield f"{one.buffer.name} is {one.buffer.dtype}, {other.buffer.name} is {other.buffer.dtype}"


def verify_value_dtype(value: Any, region: tile.Region) -> Iterator[str]:
    """Yield a violation if a value's type differs from the region's buffer's."""
    if value.dtype != region.buffer.dtype:
        yield f"{show_expr(value)} is {value.dtype}, {region.buffer.name} is {region.buffer.dtype}"


def verify_whole_buffer(region: tile.Region) -> Iterator[str]:
    """Yield a violation if the region is only a part of its buffer."""
    if not region.is_whole:
        yield f"{show_region(region)} is a part of {region.buffer.name}; the operation needs the whole buffer"
