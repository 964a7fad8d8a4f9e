"""What a kernel does: operations on whole tiles, elementwise nests, and the control flow around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from operator import is_
from typing import Any, Literal, Self

from tilec.ir.operation_fields import shape_of
from tilec.ir.operation_interfaces import Asked
from tilec.ir.tile.expressions import (
    THREAD,
    Binary,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Ptx,
    Select,
    Unary,
    Var,
)
from tilec.ir.types import INT32
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span


@dataclass(frozen=True, slots=True)
class Region:
    """A box of a buffer: first index and static extent along each of its dimensions."""

    buffer: Buffer
    start: tuple[Expr, ...]
    extent: tuple[int, ...]
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents without the dimensions of extent 1 that only select an index."""
        return tuple(e for e in self.extent if e != 1) or (1,)

    @property
    def is_whole(self) -> bool:
        return self.extent == self.buffer.extents and all(isinstance(s, Const) and s.value == 0 for s in self.start)


Attr = (
    int
    | float
    | bool
    | str
    | tuple[int | str, ...]
    | Const
    | Var
    | Unary
    | Binary
    | Call
    | Ptx
    | Cast
    | Select
    | Load
    | None
)


@dataclass(frozen=True, slots=True)
class TileOp(Asked):
    """One `T.*` operation on whole tiles: the base of all of them, each of which is a class in its file of `ops`.

    What an operation is made of are the fields of its class: those that are regions (`In`), in order, are its
    `regions`, and all others its `attributes`. Text, parser and schema of tile IR follow from them (`ir.operations`).
    `versions` are, by the number of a region, the version that is meant of a tile which has several
    (`analysis.named_versions`).
    """

    versions: tuple[Expr | None, ...] = field(default=(), kw_only=True)
    span: Span = field(default=NOWHERE, compare=False, kw_only=True)

    @property
    def regions(self) -> tuple[Region, ...]:
        """What it works on, in the order of its fields."""
        return shape_of(type(self)).read(self)

    @property
    def attributes(self) -> tuple[tuple[str, Attr], ...]:
        """All else that it says, sorted by key; what a field has by default is not said."""
        given = [
            (key, value)
            for key, default in shape_of(type(self)).attributes
            if (value := getattr(self, key)) is not default and value != default
        ]
        if self.versions:
            given += [(f"version{n}", index) for n, index in enumerate(self.versions) if index is not None]
            given.sort(key=lambda item: item[0])
        return tuple(given)

    def with_regions(self, regions: tuple[Region, ...]) -> Self:
        """The operation on other regions, as many as its fields take."""
        return replace(self, **shape_of(type(self)).bind(regions))

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The expressions among its attributes, by key."""
        found = [value for key in shape_of(type(self)).expressions if (value := getattr(self, key)) is not None]
        found += [index for index in self.versions if index is not None]
        return tuple(found)

    def map_expressions(self, regions: Callable[[Region], Region], each: Callable[[Expr], Expr]) -> Self:
        """The operation with its regions and expressions as these make them; itself where that changes none."""
        shape = shape_of(type(self))
        changed: dict[str, Any] = {}
        for key in shape.expressions:
            if (old := getattr(self, key)) is not None and (new := each(old)) is not old:
                changed[key] = new
        if self.versions:
            changed["versions"] = tuple(index if index is None else each(index) for index in self.versions)
        made = tuple(map(regions, self.regions))
        if not all(map(is_, made, self.regions)):
            changed |= shape.bind(made)
        return replace(self, **changed) if changed else self

    @property
    def barrier(self) -> Load | None:
        """The element of the kernel's own barrier that it is about."""
        return None

    @property
    def block(self) -> Expr | None:
        """The block of the cluster, by its number there, that it reaches; None: its own."""
        return None

    def element(self, place: tuple[Expr, ...], sources: tuple[Expr, ...]) -> Store:
        """What it does to the element at `place` of its last region, of those of the other ones that belong to it."""
        raise InternalError(f"T.{self.name} is no nest of elements")

    def with_leader(self, leader: int) -> Self:
        """The operation, done by this thread of the block for all."""
        if all(key != "leader" for key, _ in shape_of(type(self)).attributes):
            raise InternalError(f"T.{self.name} is not done by one thread")
        led: dict[str, Any] = {"leader": leader}
        return replace(self, **led)


Atomic = Literal["add", "min", "max", "bitand", "bitor", "xor", "store", "load"]
Order = Literal["relaxed", "acquire", "release", "acq_rel", "seq_cst"]


@dataclass(frozen=True, slots=True)
class Store:
    """One element of a buffer, inside `Parallel`. Out-of-range stores to a global buffer are dropped.

    With `atomic` the element becomes the combination of what it held and the value, in one step that no thread of the
    grid sees half done; `previous` is what it held, visible to the statements after it. A `load` leaves it as it was.
    To a `reducer` a thread adds in its own part.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)
    atomic: Atomic | None = None
    order: Order = "relaxed"
    previous: Var | None = None


@dataclass(frozen=True, slots=True)
class Print:
    """Inside `Parallel`: write `text`, a format of C's printf, with values of 32 bits at least in place of its
    conversions. What one thread prints keeps its order."""

    text: str
    values: tuple[Expr, ...]
    span: Span = field(default=NOWHERE, compare=False)


PRINTED = Buffer("%printed", (1,), INT32, "local")
"""What stands for the output where statements are ordered: whoever prints writes it."""


@dataclass(frozen=True, slots=True)
class Bind:
    """`var = value`, visible to the statements after it in the same body."""

    var: Var
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class LoopLayout:
    """Which thread runs each iteration of a nest, and as its how-manieth (None: in their order): expressions of `vars`,
    one per dimension of `shape`. Where threads have several `copies` of an iteration, a last one is the copy's number.
    """

    shape: tuple[int, ...]
    vars: tuple[Var, ...]
    thread: Expr
    index: Expr | None
    span: Span = field(default=NOWHERE, compare=False)
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """Which of `size` places of a shared tile, each of an element, is that of each element: an expression of `vars`,
    the indices. No two elements share a place."""

    shape: tuple[int, ...]
    vars: tuple[Var, ...]
    place: Expr
    size: int


@dataclass(frozen=True, slots=True)
class Parallel:
    """A perfect elementwise nest over all threads; the body holds `Store`, `Print`, `Bind` and `If`
    only. `width` is how many
    neighbours of the last dimension one thread should handle together (None: as pays); `layout` gives every iteration
    its thread. Where `THREAD` is the first variable, each thread runs the iterations that have its index. An
    `asynchronous` one is a copy by cp.async, if the layouts allow it. `versions` are those that it means of the tiles
    `versioned`, which have several (`analysis.named_versions`)."""

    vars: tuple[Var, ...]
    extents: tuple[int, ...]
    body: tuple[Stmt, ...]
    span: Span = field(default=NOWHERE, compare=False)
    width: int | None = None
    layout: LoopLayout | None = None
    asynchronous: bool = False
    versioned: tuple[str, ...] = ()
    versions: tuple[Expr, ...] = ()

    @property
    def is_per_thread(self) -> bool:
        return self.vars[0] == THREAD


LoopKind = Literal["serial", "pipelined", "unroll"]


@dataclass(frozen=True, slots=True)
class SchedulingHints:
    """What a person asks of a pipelined loop beside stage and order. One entry per scheduled statement: whether it must
    be asynchronous, the group of producers that it fills a ring with (-1: none), and in `sync` the statements for whose
    work it waits. `span` is where the stages are asked for."""

    asynchronous: tuple[bool, ...] | None = None
    groups: tuple[int, ...] | None = None
    sync: tuple[tuple[int, ...], ...] | None = None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class For:
    """`for var in range(start, stop, step)`, the step positive. `num_stages` is None where the source does not give
    one; `stage` and `order` are the manual lists of T.Pipelined, one entry per scheduled statement. `factor` is how
    many iterations of an unrolled loop become one (None: all of them, where that is not too many). `distinct_by` names
    variables that are bound in the body and have, taken together, other values in each iteration, so that what they
    index is another place each time; with none in it, nobody asks for an order among the iterations. A loop that is
    `dynamically_scheduled` has a first iteration, and one for each value that the machine hands out instead of
    beginning blocks (cluster launch control): perhaps none, all of them less than `stop`."""

    kind: LoopKind
    var: Var
    start: Expr
    stop: Expr
    step: int
    body: tuple[Stmt, ...]
    num_stages: int | None = None
    stage: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    span: Span = field(default=NOWHERE, compare=False)
    scheduling_hints: SchedulingHints | None = None
    factor: int | None = None
    distinct_by: tuple[str, ...] | None = None
    dynamically_scheduled: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """One branch or the other, by a condition of type bool."""

    condition: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class While:
    """All threads agree on the condition, and look at it anew before each iteration."""

    condition: Expr
    body: tuple[Stmt, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Break:
    """Leave the innermost loop, a `For` that is not pipelined or a `While`. Nothing that runs in an iteration follows
    it: it ends the body, or a branch of the `If` that ends it."""

    span: Span = field(default=NOWHERE, compare=False)


Stmt = TileOp | Store | Print | Bind | Parallel | For | If | While | Break
