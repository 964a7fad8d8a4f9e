"""The compile-time values of a kernel's expressions: arguments of operations before their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal, Union

from tilec.frontend.syntax.ast import Function as FunctionNode, Lambda
from tilec.ir.groups import WARP_THREADS
from tilec.ir.text import show_extent
from tilec.ir.tile import Binary, Buffer, Call, Cast, Const, Expr, Extent, Load, LoopLayout, Ptx, Select, Unary, Var
from tilec.ir.types import DType
from tilec.support.diagnostics import Diagnostic
from tilec.support.records import dataclass
from tilec.support.source import Span

WARP_POLICIES = {"Square": "square", "FullRow": "full_row", "FullCol": "full_col"}
"""The members of `T.GemmWarpPolicy`, with their names in the IR."""

SWIZZLES: dict[str, int | None] = {
    "make_swizzled_layout": None, "make_mma_swizzle_layout": None, "make_wgmma_swizzled_layout": None,
    "make_full_bank_swizzled_layout": 128, "make_half_bank_swizzled_layout": 64,
    "make_quarter_bank_swizzled_layout": 32, "make_linear_layout": 0,
}  # fmt: skip
"""The functions of `tilelang.layout` that make a shared tile's layout, with the width of its swizzle in bytes."""


@dataclass(frozen=True, slots=True)
class IndexRange:
    """`start:stop` of one dimension; the extent is known at compile time, the start may be a run-time value. A T.Ramp
    indexes its elements as the lanes of a vector."""

    start: Expr
    extent: int
    is_ramp: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """`buffer[...]` as written: an element, a box, or a corner whose extents come from the other side of a copy."""

    buffer: Buffer
    indices: tuple[Expr | IndexRange, ...]

    @property
    def has_extent(self) -> bool:
        """Return whether some index is a range, so that the access has extents."""
        return any(isinstance(i, IndexRange) for i in self.indices)

    @property
    def is_vector(self) -> bool:
        """Return whether the access is one element of a tensor or tile of vectors."""
        return self.buffer.lanes > 1 and not any(isinstance(i, IndexRange) for i in self.indices[:-1])

    @property
    def is_one_value(self) -> bool:
        """Return whether reading the access gives one value: an element, or a vector, as by a T.Ramp."""
        if not self.has_extent or self.is_vector:
            return True
        *others, last = self.indices
        is_ramp = isinstance(last, IndexRange) and last.is_ramp and not any(isinstance(i, IndexRange) for i in others)
        return is_ramp and self.buffer.scope in ("global", "shared", "local")


@dataclass(frozen=True, slots=True)
class SnapshotAccess(Access):
    """An element bound to a name: its place, and `read`, which gives the element's value at the time of binding."""

    read: Callable[[], Any] = field(compare=False)


@dataclass(frozen=True, slots=True)
class ElementPointer:
    """The address of an element of a tensor or tile, as T.access_ptr gives it."""

    buffer: Buffer
    indices: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class AddressTable:
    """A parameter of type `T.Tensor((n,), T.ptr)`: a table of addresses, with its name and extents."""

    buffer: Buffer


@dataclass(frozen=True, slots=True)
class TableEntry:
    """An address in a table, of which T.make_tensor makes a tensor."""

    table: AddressTable
    indices: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class SnapshotExpr:
    """An expression bound to a name, as a macro's argument: `read` gives its value at the time of binding."""

    unread: Expr
    read: Callable[[], Any] = field(compare=False)


@dataclass(frozen=True, slots=True)
class VectorType:
    """A vector type such as T.float32x4: `lanes` neighbours as one element."""

    dtype: DType
    lanes: int

    def __str__(self) -> str:
        """Return the type's name, as `float32x4`."""
        return f"{self.dtype}x{self.lanes}"


@dataclass(frozen=True, slots=True)
class Lanes:
    """A vector: the values of its lanes, all of one type. `origin` is the vector that it is a reinterpretation of."""

    parts: tuple[Expr, ...]
    origin: Lanes | None = None

    @property
    def dtype(self) -> DType:
        """Return the element type of the lanes."""
        return self.parts[0].dtype

    @property
    def type(self) -> VectorType:
        """Return the vector type of the lanes."""
        return VectorType(self.dtype, len(self.parts))


@dataclass(frozen=True, slots=True)
class Member:
    """A function or namespace by its path, not called yet: `T.copy`, `T.GemmWarpPolicy`, `math`, `T` itself."""

    path: str


@dataclass(frozen=True, slots=True)
class WarpPolicy:
    """A member of `T.GemmWarpPolicy`."""

    name: str


class ListValue(tuple["Value", ...]):
    """A list: a tuple with an identity, even when it is empty."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class DictionaryEntry:
    """One entry of a dictionary, with the span of key and value."""

    key: Value
    value: Value
    span: Span


@dataclass(frozen=True, slots=True)
class Dictionary:
    entries: tuple[DictionaryEntry, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function made by `def` or `lambda`, evaluated where it is called; `scope` has the names of its definition.

    A kernel is elaborated rather than called; a macro's statements become the kernel's. `defaults` are those of the
    parameters, by name, evaluated at the definition."""

    node: Lambda | FunctionNode
    scope: Any = field(default=None, compare=False)
    kind: Literal["function", "macro", "kernel"] = "function"
    defaults: Any = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Return the function's name as messages call it; `the lambda` for a lambda."""
        return "the lambda" if isinstance(self.node, Lambda) else self.node.name


@dataclass(frozen=True, slots=True)
class Method:
    """The method `owner.name` of a compile-time value."""

    owner: Value
    name: str


@dataclass(frozen=True, slots=True)
class ForeignValue:
    """A definition in Python that kernels do not support: an error where a kernel uses it."""

    mistake: Callable[[], Diagnostic]


@dataclass(frozen=True, slots=True)
class PoisonedValue:
    """The value of a name whose definition is wrong: its uses cause no further errors."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """An imported file, with its names in `scope`."""

    path: str
    scope: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ElementReference:
    """The value of a macro's parameter of type T.Ref: assigning to it sets the argument's element."""

    access: Access


@dataclass(frozen=True, slots=True)
class Swizzle:
    """The result of `make_swizzled_layout`: a swizzle of `width` bytes (0: none, None: the widest that fits)."""

    width: int | None


@dataclass(frozen=True, slots=True)
class ScheduleDescription:
    """A T.WSSchedule, or a part of one, by the name of the function that made it. Nothing reads it."""

    function: str


@dataclass(frozen=True, slots=True)
class IndexMap:
    """T.Layout: the place of each element of a shape, as expressions of `vars`."""

    shape: tuple[int, ...]
    vars: tuple[Var, ...]
    indices: tuple[Expr, ...]


@dataclass(eq=False, slots=True)
class TileScheduler:
    """The result of T.PersistentTileScheduler: `primary` by `secondary` tiles, walked in panels of `swizzle` by
    `workers` blocks, each from tile `start` on. `now` is the current tile inside its loop."""

    primary: Expr
    secondary: Expr
    workers: Expr
    swizzle: int
    by_columns: bool
    is_stateful: bool
    span: Span
    start: Expr | None = None
    now: tuple[Expr, ...] | None = None


@dataclass(frozen=True, slots=True)
class MmaEmitter:
    """The result of T.TensorCoreIntrinEmitter: a product of block tiles, as the warps of a block share it. The fields
    have TileLang's names; `block_row_warps` by `block_col_warps` warps each compute `warp_row_tiles` by
    `warp_col_tiles` elements."""

    a_dtype: DType
    b_dtype: DType
    accum_dtype: DType
    a_transposed: bool
    b_transposed: bool
    block_row_warps: int
    block_col_warps: int
    warp_row_tiles: int
    warp_col_tiles: int
    chunk: int

    @property
    def thread_count(self) -> int:
        """Return the number of threads of all warps, which a kernel that uses the emitter must have."""
        return WARP_THREADS * self.block_row_warps * self.block_col_warps

    @property
    def block_shape(self) -> tuple[int, int]:
        """Return the numbers of rows and columns of C that all warps of a block compute."""
        return self.block_row_warps * self.warp_row_tiles, self.block_col_warps * self.warp_col_tiles

    @property
    def micro_shape(self) -> tuple[int, int, int]:
        """Return M, N and K of the product of one micro tile, which one warp computes at once."""
        wide = 16 if self.warp_col_tiles % 16 == 0 else 8
        return (8, 8, 4) if self.a_dtype.bits == 64 else (16, wide, 256 // self.a_dtype.bits)


Side = Literal["producer", "consumer"]
SIDES: tuple[Side, Side] = ("producer", "consumer")


@dataclass(eq=False, slots=True)
class PipelineSide:
    """One side of a pipeline: the variables with the next stage and the parity to wait for, the roles that acquire
    stages, each with the span of its first acquire, and the roles that drain."""

    index: Buffer
    parity: Buffer
    roles: dict[range, Span] = field(default_factory=dict)
    drained: set[range] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Pipeline:
    """The result of T.InputTilePipeline and T.OutputTilePipeline: `stages` versions of the `tiles` of a payload, which
    the kernel writes in this `form`, and a full and an empty barrier for each stage."""

    name: str
    function: str
    tiles: dict[str, Buffer]
    form: Literal["tile", "tuple", "dictionary"]
    stages: int
    full: Buffer
    empty: Buffer
    ends: dict[Side, PipelineSide]
    span: Span


@dataclass(frozen=True, slots=True)
class PipelineHandle:
    """The result of `pipeline.producer()` or `pipeline.consumer()`."""

    pipeline: Pipeline
    side: Side


@dataclass(eq=False, slots=True)
class PipelineStage:
    """A stage that a role has acquired; `taken` is its entry in the ledger of resources to be released."""

    pipeline: Pipeline
    side: Side
    index: Expr
    taken: Any

    @property
    def barrier(self) -> Access:
        """Return the stage's barrier at which its release arrives: the full one for a producer, the empty one for a
        consumer."""
        signalled = self.pipeline.full if self.side == "producer" else self.pipeline.empty
        return Access(signalled, (self.index,))


@dataclass(frozen=True, slots=True)
class StageTile(Access):
    """A tile of a stage, or a part of one: the first index is the stage's."""

    stage: PipelineStage

    @property
    def tile(self) -> Buffer:
        """Return the stage's tile as a buffer of one version: without the first dimension."""
        return dataclasses.replace(self.buffer, extents=self.buffer.extents[1:])


StaticValue = Union[
    int, float, bool, str, None, range, DType, VectorType, Lanes, WarpPolicy, Dictionary, Function, Method,
    ForeignValue, PoisonedValue, SnapshotExpr, Namespace, ElementReference, LoopLayout, Swizzle, IndexMap,
    TileScheduler, MmaEmitter, Pipeline, PipelineHandle, PipelineStage, ElementPointer, AddressTable,
    TableEntry, IndexRange, ScheduleDescription, "tuple[Value, ...]",
]  # fmt: skip
Value = StaticValue | Buffer | Access | Member | Expr
"""Compile-time values, which stay Python values until they are combined with a typed operand, and run-time values."""

_KNOWN_MODULES = ("T", "tilelang", "math")
"""The modules whose names have a meaning in kernels."""

EXPR_TYPES = (Const, Var, Unary, Binary, Call, Ptx, Cast, Select, Load)


_DESCRIPTIONS: dict[type, str] = {
    WarpPolicy: "a warp policy", Dictionary: "a dictionary", ForeignValue: "a Python value", range: "a range",
    PoisonedValue: "a name whose definition has an error", TileScheduler: "a tile scheduler",
    LoopLayout: "a layout", Swizzle: "a layout", IndexMap: "a layout", MmaEmitter: "a TensorCoreIntrinEmitter",
    ScheduleDescription: "a description of a schedule",
}  # fmt: skip
_KINDS = {
    "global": "tensor", "shared": "shared tile", "tmem": "tile of tensor memory", "fragment": "fragment",
    "local": "per-thread array", "reducer": "reducer",
}  # fmt: skip
"""The kinds of buffers, by scope, as messages call them."""


def describe_value(value: Value) -> str:
    """Return a description of a value for messages, as `the number 3` or `A, a float16 tensor of shape [m, 64]`."""
    match value:
        case bool() | None:
            return f"{value}"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the string {value!r}"
        case DType(name=name):
            return f"the dtype {name}"
        case VectorType():
            return f"the dtype {value}"
        case Lanes():
            return f"a vector of type {value.type}"
        case Function(node=Lambda()):
            return "a lambda"
        case Function(kind=made, name=name):
            return f"the {made} {name}"
        case Method(name=name):
            return f"the method {name}"
        case SnapshotExpr(unread=unread):
            return describe_value(unread)
        case Namespace(path=path):
            return f"the file {path}"
        case ElementReference(access=access):
            return f"an element of {access.buffer.name}"
        case Pipeline(name=name):
            return f"the pipeline {name}"
        case PipelineHandle(pipeline=pipeline, side=side):
            return f"the {side} of {pipeline.name}"
        case PipelineStage(pipeline=pipeline):
            return f"a stage of {pipeline.name}"
        case tuple():
            return f"a tuple of {len(value)}"
        case Buffer(name=name, scope="barrier", extents=(count,)):
            return f"{name}, {count} barriers" if count != 1 else f"{name}, a barrier"
        case Buffer(name=name, extents=shape, dtype=dtype, scope=scope):
            return f"{name}, {_add_article(dtype)} {_KINDS[scope]} of shape {show_shape(shape)}"
        case ElementPointer(buffer=buffer):
            return f"the address of an element of {buffer.name}"
        case AddressTable(buffer=buffer):
            return f"{buffer.name}, a table of addresses"
        case TableEntry(table=table):
            return f"an address in {table.buffer.name}"
        case IndexRange(extent=extent):
            return f"a T.Ramp of {extent} indices"
        case Access(buffer=buffer):
            return f"a part of {buffer.name}"
        case Member(path=path):
            if path.split(".")[0] in _KNOWN_MODULES:
                return f"{path} itself"
            return (
                f"{path}, of a module that tilec does not read: it reads only kernel files, by `from .file import name`"
            )
        case (
            WarpPolicy() | Dictionary() | ForeignValue() | PoisonedValue() | range() | LoopLayout() | Swizzle()
            | IndexMap() | TileScheduler() | MmaEmitter() | ScheduleDescription()
        ):  # fmt: skip
            return _DESCRIPTIONS[type(value)]
        case _:
            return f"{_add_article(value.dtype)} known only at run time"


def _add_article(dtype: DType) -> str:
    """Return a dtype's name with its article, `a` or `an`."""
    return f"an {dtype}" if dtype.name.startswith("i") else f"a {dtype}"


def show_shape(shape: tuple[Extent, ...]) -> str:
    """Return a shape as text, as `[128, 64]` or `[m, 64]`."""
    return f"[{', '.join(map(show_extent, shape))}]"
