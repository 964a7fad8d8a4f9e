"""What each operation looks like in tile IR: how many regions, where they may lie, and which attributes, of what type.

The form of an operation stands in its file: a dataclass with a field for each attribute, whose types are the schema by
which tile IR is verified, whoever has made it, the front end or a file. An attribute with a default may be absent.
What regions must have in common is said by a function, the facet `agrees`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar

from tilec.ir.text import show_expr, show_region, show_tile_op
from tilec.ir.tile import Kernel, Load, Region, Scope, Stmt, TileOp, walk
from tilec.ir.types import BOOL, INT32
from tilec.ops import registry
from tilec.ops.values import EXPR_TYPES
from tilec.support import schema
from tilec.support.records import dataclass
from tilec.support.source import Span

T = TypeVar("T")
Scopes = tuple[Scope, ...]

ON_CHIP: Scopes = ("shared", "fragment")
MEMORY: Scopes = ("global", "shared", "fragment", "tmem")
MOST = (1 << 31) - 1


def _is_barrier(value: Any) -> bool:
    return isinstance(value, Load) and value.buffer.scope == "barrier"


def _is(dtype: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, EXPR_TYPES) and value.dtype == dtype


Scalar = Annotated[Any, schema.Where(lambda value: isinstance(value, EXPR_TYPES), "an expression, as int32(0)")]
Index = Annotated[Any, schema.Where(_is(INT32), "an expression of int32, as int32(0)")]
Condition = Annotated[Any, schema.Where(_is(BOOL), "an expression of bool")]
Barrier = Annotated[Any, schema.Where(_is_barrier, "an element of a barrier")]
Whole = Annotated[int, schema.Range(0, MOST)]
Positive = Annotated[int, schema.Range(1, MOST)]
Leader = Annotated[int, schema.Range(0, 1023)]
"""The thread of the block that does what one thread does for all."""
Yes = Literal[True]


@dataclass(frozen=True, slots=True)
class Form:
    """`operands`: where each region may lie. The last `optional` of them may be absent; with `repeated`, the last one
    stands for any number. `attributes` is the dataclass that says which there are."""

    operands: tuple[Scopes, ...]
    optional: int
    repeated: bool
    attributes: Any

    @property
    def fewest(self) -> int:
        return len(self.operands) - self.optional

    def scopes(self, place: int) -> Scopes:
        return self.operands[min(place, len(self.operands) - 1)]

    def takes(self, count: int) -> bool:
        return self.fewest <= count and (self.repeated or count <= len(self.operands))


def form(name: str, *operands: Scopes, optional: int = 0, repeated: bool = False) -> Callable[[type[T]], type[T]]:
    """Decorator: the dataclass says what attributes operation `name` has, besides its `operands`."""

    def attach(attributes: type[T]) -> type[T]:
        made = Form(operands, optional, repeated, attributes)
        registry.facet(name, "form")(lambda: made)
        return attributes

    return attach


@dataclass(frozen=True, slots=True)
class Nothing:
    """No attributes."""


def violations(kernel: Kernel) -> Iterator[tuple[Span, str]]:
    """What is wrong with the operations of a kernel, each with its place."""
    for stmt in walk(kernel.body):
        for said in _wrong(stmt, kernel):
            yield stmt.span, said


def show_violations(kernel: Kernel) -> Iterator[str]:
    return (f"line {span.line}: {said}" for span, said in violations(kernel))


def _wrong(stmt: Stmt, kernel: Kernel) -> Iterator[str]:
    if not isinstance(stmt, TileOp):
        return
    operation = registry.find(stmt.name)
    if operation is None or "form" not in operation.facets:
        yield f"there is no operation '{stmt.name}'"
        return
    wanted: Form = operation.facets["form"]()
    found = [*_regions(stmt, wanted), *_attributes(stmt, wanted, kernel)]
    yield from found
    if not found and "agrees" in operation.facets:
        yield from (f"{stmt.name}: {said}" for said in operation.facets["agrees"](stmt))


def _regions(op: TileOp, wanted: Form) -> Iterator[str]:
    if not wanted.takes(len(op.regions)):
        most = "more" if wanted.repeated else str(len(wanted.operands))
        count = most if most == str(wanted.fewest) else f"{wanted.fewest} or {most}"
        yield f"{op.name} has {len(op.regions)} regions, expected {count}"
        return
    for place, region in enumerate(op.regions):
        scopes = wanted.scopes(place)
        if region.buffer.scope not in scopes:
            yield f"{op.name}: {show_region(region)} is {region.buffer.scope}, expected {' or '.join(scopes)}"


def _attributes(op: TileOp, wanted: Form, kernel: Kernel) -> Iterator[str]:
    if len({key for key, _ in op.attrs}) < len(op.attrs):
        yield f"{show_tile_op(op)} has an attribute twice"
    try:
        schema.record(wanted.attributes, dict(op.attrs), op.name)
    except schema.SchemaError as error:
        yield str(error)
        return
    leader = dict(op.attrs).get("leader")
    if isinstance(leader, int) and leader >= kernel.threads:
        yield f"{op.name}: leader is thread {leader} of {kernel.threads}"


# ---- what regions have in common -------------------------------------------------------------------------------------


def same_shape(one: Region, other: Region) -> Iterator[str]:
    if one.shape != other.shape:
        shapes = " and ".join(" × ".join(map(str, region.shape)) for region in (one, other))
        yield f"{show_region(one)} and {show_region(other)} have different shapes: {shapes}"


def same_dtype(one: Region, other: Region) -> Iterator[str]:
    if one.buffer.dtype != other.buffer.dtype:
        yield f"{one.buffer.name} is {one.buffer.dtype}, {other.buffer.name} is {other.buffer.dtype}"


def of_type(value: Any, region: Region) -> Iterator[str]:
    if value.dtype != region.buffer.dtype:
        yield f"{show_expr(value)} is {value.dtype}, {region.buffer.name} is {region.buffer.dtype}"


def whole(region: Region) -> Iterator[str]:
    if not region.is_whole:
        yield f"{show_region(region)} is a part of {region.buffer.name}, expected all of it"


def attributes(op: TileOp) -> Any:
    """An operation's attributes as its form has them; those that are absent are None."""
    made: Any = registry.get(op.name).facets["form"]().attributes
    given = dict(op.attrs)
    return made(**{f.name: given.get(f.name) for f in dataclasses.fields(made)})
