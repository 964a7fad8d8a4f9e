"""Buffers, and the scalar expressions over them. Sizes are elements, but where bytes or bits are said."""

from __future__ import annotations

from dataclasses import field
from typing import Literal, cast

from tilec.ir.types import INT32, UINT32, UINT64, DType
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
        return cast("tuple[int, ...]", self.extents)

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
class Ptx:
    """What PTX of the kernel's author computes of `args`: `ptx.snippet` says what the text may hold."""

    text: str
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


Expr = Const | Var | Unary | Binary | Call | Ptx | Cast | Select | Load
Extent = int | Expr
"""A number, or an int32 expression of the kernel's parameters."""


def extent_expr(extent: Extent) -> Expr:
    """A size as an expression."""
    return integer(extent) if isinstance(extent, int) else extent


def integer(value: int) -> Const:
    """A literal of type int32."""
    return Const(value, INT32)
