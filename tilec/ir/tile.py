"""Tile IR: one kernel as whole-tile operations on global, shared and fragment buffers.

Names are resolved, every expression has a type, and each buffer and variable name is unique within the kernel. Tile
IR is never changed in place: passes make new nodes, and keep the ones they do not touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from operator import is_
from typing import Any, Literal, Self

from tilec.ir import parts
from tilec.ir.operation_fields import shape_of
from tilec.ir.operation_interfaces import Asked
from tilec.ir.parts import expressions, lists
from tilec.ir.rewrite import map_expressions
from tilec.ir.types import BOOL, INT32, UINT32, UINT64, DType
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span

Scope = Literal["global", "shared", "tmem", "fragment", "local", "reducer", "barrier"]
IN_REGISTERS: tuple[Scope, ...] = ("fragment", "local", "reducer")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Row-major storage. `global` buffers are the kernel's tensors; the others are tiles the kernel allocates. Of a
    `local` one every thread has its own, in registers; of a `reducer` threads have parts of each element, also there.
    `tmem` is the tensor memory of tcgen05. Of a `barrier` the elements are mbarriers, not values.

    An extent of a tensor may be an expression of the kernel's integer parameters, known at launch. `lanes` is the last
    extent where the kernel's text has a vector there, as an element of float32x4, and 1 elsewhere.
    """

    name: str
    extents: tuple[Extent, ...]
    dtype: DType
    scope: Scope
    span: Span = field(default=NOWHERE, compare=False)
    lanes: int = field(default=1, compare=False)
    strides: tuple[Extent, ...] | None = None
    """Of a tensor whose rows do not lie one after the other: how many elements a step along each dimension is; the last
    one is 1."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents where all are numbers, as a tile's always are."""
        if self.is_dynamic:
            raise InternalError(f"the shape of {self.name} is known only at launch")
        return self.extents  # type: ignore[return-value]

    @property
    def is_dynamic(self) -> bool:
        return self.scope == "global" and not all(isinstance(e, int) for e in self.extents)

    @property
    def in_registers(self) -> bool:
        return self.scope in IN_REGISTERS

    @property
    def bytes(self) -> int:
        total = self.dtype.bytes
        for extent in self.shape:
            total *= extent
        return total


# ---- scalar expressions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Const:
    """A literal of a type."""

    value: int | float | bool
    dtype: DType


@dataclass(frozen=True, slots=True)
class Var:
    """A block index, loop variable, scalar parameter or bind. Immutable where it is visible."""

    name: str
    dtype: DType = INT32


THREAD = Var("%tid")
"""The thread's index in its block, or in its role where that has a kernel of its own; visible everywhere. What depends
on it differs from thread to thread."""

WARPGROUP = Var("%warpgroup")
"""The warpgroup of the thread in its block, visible everywhere. Only the conditions of `ir.groups` name it."""

ONCE = "%once"
"""How names of variables begin that are there because their values are used several times."""

UnaryOp = Literal["neg", "not"]
BinaryOp = Literal[
    "add", "sub", "mul", "div", "floordiv", "floormod", "min", "max",
    "and", "or", "bitand", "bitor", "xor", "shl", "shr",
    "lt", "le", "gt", "ge", "eq", "ne",
]  # fmt: skip
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


WARP_WIDE = frozenset(
    {"shfl_xor", "shfl_up", "shfl_down", "shfl_sync", "warp_sum", "warp_max", "warp_min", "warp_and", "warp_or",
     "vote_any", "vote_all", "ballot", "match_any", "match_all"}
)  # fmt: skip
"""Calls whose value in a thread is made of the arguments in all threads of its warp."""
BLOCK_WIDE = frozenset({"block_count", "block_and", "block_or"})
"""Those made of the arguments in all threads of the block: all have one value."""
PHASE_DONE = "phase_done"
"""Whether the phase of a parity has completed of a barrier, without waiting for it."""
BIT_COUNTS = frozenset({"popcount", "clz"})
"""Calls of one uint32 or uint64 that give an int32: the bits that are 1, and those that are 0 before the first 1."""
INTEGER_CALLS: dict[str, tuple[tuple[DType, ...], DType]] = {
    "fns": ((UINT32, UINT32, INT32), UINT32),
    "philox": ((UINT64, UINT64, UINT64), UINT32),
    "clc_is_canceled": ((UINT32,) * 4, INT32),
    **{f"clc_get_first_ctaid_{axis}": ((UINT32,) * 4, INT32) for axis in "xyz"},
}
"""Calls of integers, with the types of their arguments and of their value: the place of the n-th 1 among the bits of a
word from some place on; of a key and a sequence the number that Philox 4x32-10 has at a position; and of the words of
an answer of cluster launch control whether it gives a block's work away, and the index of that block."""


@dataclass(frozen=True, slots=True)
class Unary:
    """One operand, and a result of `dtype`."""

    op: UnaryOp
    a: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Binary:
    """Both operands have one type; comparisons and and/or give bool. `div` is true division on floats only;
    `floordiv` and `floormod` are Python's on integers."""

    op: BinaryOp
    a: Expr
    b: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Call:
    """A mathematical function of floats: exp exp2 exp10 log log2 log10 sqrt rsqrt sinh cosh tanh sigmoid erf abs sin
    cos tan atan floor ceil trunc round nearbyint pow fmod; or `reinterpret`, the bits of any type as another one of the
    same size; or one of `BIT_COUNTS` or `INTEGER_CALLS`; or what threads compute together, one of `WARP_WIDE` or
    `BLOCK_WIDE`; or `PHASE_DONE`, of a load of a barrier and a parity."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Cast:
    """The value of `a` converted to `dtype`."""

    a: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Select:
    """`then` where `condition` (of type bool) holds, else `orelse`; both are of `dtype`."""

    condition: Expr
    then: Expr
    orelse: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Load:
    """One element of a buffer. Out-of-range reads of a global buffer give 0."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


Expr = Const | Var | Unary | Binary | Call | Cast | Select | Load
Extent = int | Expr
"""A number, or an int32 expression of the kernel's parameters."""


def extent_expr(extent: Extent) -> Expr:
    """A size as an expression."""
    return integer(extent) if isinstance(extent, int) else extent


def integer(value: int) -> Const:
    """A literal of type int32."""
    return Const(value, INT32)


# ---- statements ------------------------------------------------------------------------------------------------------


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


Attr = int | float | bool | str | Const | Var | Unary | Binary | Call | Cast | Select | Load | None


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
    `asynchronous` one is a copy by cp.async, if the layouts allow it."""

    vars: tuple[Var, ...]
    extents: tuple[int, ...]
    body: tuple[Stmt, ...]
    span: Span = field(default=NOWHERE, compare=False)
    width: int | None = None
    layout: LoopLayout | None = None
    asynchronous: bool = False

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


@dataclass(frozen=True, slots=True)
class Pinned:
    """The layout that a person gives a tile: the threads and registers of a fragment; of a shared tile the width in
    bytes of its swizzle (0: its rows one after another), or a placement that is no such swizzle."""

    buffer: Buffer
    layout: LoopLayout | Placement | int
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Subtile:
    """In how many parts of equal size, each a tile of its own, a person wants a tile along each dimension, with all
    tiles that go with it; 1 all over: as it is. At most one number is larger."""

    buffer: Buffer
    parts: tuple[int, ...]
    span: Span = field(default=NOWHERE, compare=False)


Stmt = TileOp | Store | Print | Bind | Parallel | For | If | While | Break


@dataclass(frozen=True, slots=True)
class Cluster:
    """How many blocks along x, y and z run together and reach each other's shared memory."""

    extents: tuple[int, int, int]
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def blocks(self) -> int:
        x, y, z = self.extents
        return x * y * z


ALONE = Cluster((1, 1, 1))


@dataclass(frozen=True, slots=True)
class Raster:
    """In which order the numbers of the hardware go over the first two dimensions of a grid: panel after panel of
    `panel` rows of blocks (columns, if not `by_rows`), each walked along its length, every other one backwards. With
    no panel x counts fastest."""

    panel: int
    by_rows: bool = True
    span: Span = field(default=NOWHERE, compare=False)


RANK = Var("%rank")
"""The block's number in its cluster, x counted fastest: of the block indices, where the kernel asks for it."""

Ask = Literal["fast-math", "unspecialised", "without-tma"]
"""Approximate functions; no roles for warps; no copy by TMA."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """`params` in launch order: global buffers and scalar variables, among them those that extents are made of. `grid`
    and `block_vars` are x, y, z, as many as written. `outputs` are the tensors that the file says it returns, in that
    order; `asks` is what it asks of the compiler; `raster` is the order of the blocks that it states (None: left open);
    `subtiles` are the tiles of which it says in how many parts they are.
    """

    name: str
    params: tuple[Buffer | Var, ...]
    grid: tuple[Extent, ...]
    block_vars: tuple[Var, ...]
    threads: int
    buffers: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    span: Span = field(default=NOWHERE, compare=False)
    layouts: tuple[Pinned, ...] = ()
    outputs: tuple[str, ...] = ()
    asks: tuple[Ask, ...] = ()
    cluster: Cluster = ALONE
    raster: Raster | None = None
    subtiles: tuple[Subtile, ...] = ()

    @property
    def workspaces(self) -> tuple[Buffer, ...]:
        """The tensors that the kernel allocates: parameters too, but who launches it makes them."""
        return tuple(b for b in self.buffers if b.scope == "global")


# ---- walks -----------------------------------------------------------------------------------------------------------


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands of an expression."""
    return expressions(expr).read(expr)


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """The expression with variables replaced."""
    if isinstance(expr, Var):
        return values.get(expr, expr)
    return map_expressions(expr, lambda operand: substitute(operand, values))


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """The expression and everything below it, parents first."""
    left = [expr]
    while left:
        one = left.pop()
        yield one
        left += reversed(children(one))


def bodies(stmt: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The statement lists nested in a statement."""
    return lists(stmt)


def declared(stmt: Stmt) -> tuple[Var, ...]:
    """The variables that a statement declares, for those inside it or behind it."""
    return tuple(var for var in parts.declared(stmt).read(stmt) if var is not None)


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, in program order, parents first."""
    for stmt in body:
        yield stmt
        for nested in lists(stmt):
            yield from walk(nested)


def is_true(expr: Expr) -> bool:
    """Whether an expression is the literal `true`."""
    return isinstance(expr, Const) and expr.dtype == BOOL and bool(expr.value)
