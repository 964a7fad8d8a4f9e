"""The statements of a kernel: operations on whole tiles, elementwise nests, and the control flow around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from operator import is_
from typing import Any, Literal, Self

from tilec.ir.operations.fields import describe_fields
from tilec.ir.operations.interfaces import OperationInterface
from tilec.ir.tile_nodes.expressions import THREAD, Buffer, Const, Expr, Load, Var
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
        """Return the extents without those of 1, which only select an index; (1,) if all are 1."""
        return tuple(e for e in self.extent if e != 1) or (1,)

    @property
    def is_whole(self) -> bool:
        """Return whether the region is all of its buffer: each dimension from the constant 0 on."""
        return self.extent == self.buffer.extents and all(isinstance(s, Const) and s.value == 0 for s in self.start)


Attr = int | float | bool | str | tuple[int | str, ...] | Expr | None


@dataclass(frozen=True, slots=True)
class TileOp(OperationInterface):
    """One `T.*` operation on whole tiles: the base class of all operations, each of which is defined in a file of
    `ops`.

    The fields of an operation's class are its operands: those marked as regions (`In`), in order, are its `regions`,
    and all others its `attributes`. Text, parser and schema of tile IR follow from them (`ir.operations.operations`).
    `versions` names, by the number of a region, the version that is meant of a tile with several versions
    (`layout.shared.named_versions`).
    """

    versions: tuple[Expr | None, ...] = field(default=(), kw_only=True)
    span: Span = field(default=NOWHERE, compare=False, kw_only=True)

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return the operation's regions in the order of its fields, absent ones left out."""
        return describe_fields(type(self)).read(self)

    @property
    def attributes(self) -> tuple[tuple[str, Attr], ...]:
        """Return the attributes that differ from their defaults, with named versions as `version0` and so on, sorted by
        key."""
        given = [
            (key, value)
            for key, default in describe_fields(type(self)).attributes
            if (value := getattr(self, key)) is not default and value != default
        ]
        if self.versions:
            given += [(f"version{n}", index) for n, index in enumerate(self.versions) if index is not None]
            given.sort(key=lambda item: item[0])
        return tuple(given)

    def with_regions(self, regions: tuple[Region, ...]) -> Self:
        """Return the operation with its region fields set to these regions, in order; raises `InternalError` for a
        wrong number."""
        return replace(self, **describe_fields(type(self)).bind(regions))

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Return the expressions among the operation's attributes, by key, then those of its named versions."""
        found = [value for key in describe_fields(type(self)).expressions if (value := getattr(self, key)) is not None]
        found += [index for index in self.versions if index is not None]
        return tuple(found)

    def map_expressions(self, regions: Callable[[Region], Region], each: Callable[[Expr], Expr]) -> Self:
        """Return the operation with `regions` applied to its regions and `each` to its expressions. It is itself if
        nothing changes and it names no versions.
        """
        shape = describe_fields(type(self))
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
        """Return the element of the kernel's own barrier that the operation waits for or signals; None by default."""
        return None

    @property
    def block(self) -> Expr | None:
        """Return the cluster rank of the block that the operation reaches; None, the default, for its own block."""
        return None

    def element(self, place: tuple[Expr, ...], sources: tuple[Expr, ...]) -> Store:
        """Return the store of one element at `place` of the last region, from `sources`; by default raises
        `InternalError`. `sources` are the corresponding elements of the other regions."""
        raise InternalError(f"T.{self.name} is no nest of elements")

    def with_leader(self, leader: int) -> Self:
        """Return the operation issued by thread `leader` of the block for all; raises `InternalError` if it has no such
        field."""
        if all(key != "leader" for key, _ in describe_fields(type(self)).attributes):
            raise InternalError(f"T.{self.name} is not done by one thread")
        led: dict[str, Any] = {"leader": leader}
        return replace(self, **led)


Atomic = Literal["add", "min", "max", "bitand", "bitor", "xor", "store", "load"]
Order = Literal["relaxed", "acquire", "release", "acq_rel", "seq_cst"]


@dataclass(frozen=True, slots=True)
class Store:
    """One element of a buffer, inside `Parallel`. Out-of-bounds stores to a global buffer are dropped.

    With `atomic` the element becomes the combination of its old value and the new one, as one atomic step; `previous`
    is the old value, visible to the statements after it. A `load` leaves the element unchanged. A store to a `reducer`
    adds to the thread's own partial value.
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
    """Inside `Parallel`: write `text`, a format of C's printf, with values of at least 32 bits for its conversions. The
    output of one thread keeps its order. With `stops` nothing is written: the grid stops, for the reason `text`."""

    text: str
    values: tuple[Expr, ...]
    span: Span = field(default=NOWHERE, compare=False)
    stops: bool = False


PRINT_OUTPUT = Buffer("%printed", (1,), INT32, "local")
"""A buffer that stands for the output when statements are ordered: every print writes it."""


@dataclass(frozen=True, slots=True)
class Bind:
    """`var = value`, visible to the statements after it in the same body."""

    var: Var
    value: Expr
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class LoopLayout:
    """The thread that runs each iteration of a nest, and the iteration's index within it (None: in program order). Both
    are expressions of `vars`, one variable per dimension of `shape`. Where threads have several `copies` of an
    iteration, one more variable, the last, is the copy's number."""

    shape: tuple[int, ...]
    vars: tuple[Var, ...]
    thread: Expr
    index: Expr | None
    span: Span = field(default=NOWHERE, compare=False)
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """The slot of each element of a shared tile, among `size` slots of one element each: an expression of `vars`, the
    indices. No two elements share a slot."""

    shape: tuple[int, ...]
    vars: tuple[Var, ...]
    place: Expr
    size: int


@dataclass(frozen=True, slots=True)
class Parallel:
    """A perfect elementwise nest over all threads; its body holds only `Store`, `Print`, `Bind` and `If`.

    `width` is how many neighbours of the last dimension one thread should handle together (None: the compiler chooses);
    `layout` assigns every iteration to a thread. Where `THREAD` is the first variable, each thread runs the iterations
    with its own index. An `asynchronous` nest is a copy by cp.async, if the layouts allow it. `versions` are the
    versions that it means of the `versioned` tiles, which have several (`layout.shared.named_versions`).
    """

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
        """Return whether each thread runs the iterations with its own index: the first variable is `THREAD`."""
        return self.vars[0] == THREAD


LoopKind = Literal["serial", "pipelined", "unroll"]


@dataclass(frozen=True, slots=True)
class SchedulingHints:
    """The author's requests for a pipelined loop besides stage and order, with one entry per scheduled statement:
    whether it must be asynchronous, the group of producers that it fills a ring with (-1: none), and in `sync` the
    statements whose work it waits for. `span` is where the stages are requested."""

    asynchronous: tuple[bool, ...] | None = None
    groups: tuple[int, ...] | None = None
    sync: tuple[tuple[int, ...], ...] | None = None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class For:
    """`for var in range(start, stop, step)`, with a positive step.

    `num_stages` is None where the source does not give it; `stage` and `order` are the manual lists of T.Pipelined, one
    entry per scheduled statement. `factor` is the unroll factor (None: unroll fully, unless that is too much).
    `distinct_by` names variables bound in the body whose values, taken together, differ in each iteration, so that
    accesses indexed by them never overlap; if it is empty, the iterations need no order at all. A loop that is
    `dynamically_scheduled` runs a first iteration, and one for each value that cluster launch control returns: perhaps
    none, all less than `stop`.
    """

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
    """A loop whose condition is the same in all threads and is evaluated before each iteration."""

    condition: Expr
    body: tuple[Stmt, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Break:
    """Leave the innermost loop, a `For` that is not pipelined or a `While`. It is the last statement of an iteration:
    it ends the body, or a branch of the `If` that ends the body."""

    span: Span = field(default=NOWHERE, compare=False)


Stmt = TileOp | Store | Print | Bind | Parallel | For | If | While | Break
