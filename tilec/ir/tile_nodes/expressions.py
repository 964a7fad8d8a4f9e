"""Buffers, and the scalar expressions over them. Sizes count elements unless bytes or bits are named."""

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
    """Row-major storage. `global` buffers are the kernel's tensors; the others are tiles that the kernel allocates.

    Every thread has its own copy of a `local` buffer, in registers. Of a `reducer` each thread holds a partial value of
    each element, also in registers. `tmem` is the tensor memory of tcgen05. The elements of a `barrier` are mbarriers,
    not values.

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
    """Of a tensor whose rows are not contiguous: the distance along each dimension, in elements; the last is 1."""
    table_rank: int = 0
    """Of a table of addresses: how many leading dimensions count its entries. Each entry is the address of a tensor
    with the other dimensions, and the kernel's parameter is the address of the table."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the extents as numbers; raises `InternalError` for a tensor whose extents are known only at launch."""
        if self.is_dynamic:
            raise InternalError(f"the shape of {self.name} is known only at launch")
        return cast("tuple[int, ...]", self.extents)

    @property
    def is_dynamic(self) -> bool:
        """Return whether the buffer is a tensor some of whose extents are known only at launch."""
        return self.scope == "global" and not all(isinstance(e, int) for e in self.extents)

    @property
    def in_registers(self) -> bool:
        """Return whether the buffer's elements lie in registers."""
        return self.scope in IN_REGISTERS

    @property
    def bytes(self) -> int:
        """Return the size of the buffer in bytes, one for a four-bit element too; raises `InternalError` for dynamic
        extents.
        """
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
"""The thread's index in its block, or in its role where the kernel makes its own roles; visible everywhere. A value
that depends on it differs between threads."""

WARPGROUP = Var("%warpgroup")
"""The index of the thread's warpgroup in its block, visible everywhere. Used only by the conditions of `ir.groups`."""

BLOCK_WARP = Var("%block_warp")
"""The index of the thread's warp in its block, visible everywhere. Used only by the conditions of `ir.groups`."""

ONCE_PREFIX = "%once"
"""The prefix of the names of variables that keep a value which is used several times."""

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
"""Calls whose value in a thread depends on the arguments in all threads of its warp."""
WARP_ALIKE = WARP_WIDE - {"shfl_xor", "shfl_up", "shfl_down", "shfl_sync", "match_any"}
"""Those of them that give all threads of a warp the same value."""
BLOCK_WIDE = frozenset({"block_count", "block_and", "block_or"})
"""Calls whose value depends on the arguments in all threads of the block; all threads get the same value."""
PHASE_DONE = "phase_done"
"""The call that tests, without waiting, whether a barrier's phase of a given parity has completed."""
BIT_COUNTS = frozenset({"popcount", "clz"})
"""Calls of one uint32 or uint64 that give an int32: the number of 1 bits, and of leading 0 bits."""
INTEGER_CALLS: dict[str, tuple[tuple[DType, ...], DType]] = {
    "fns": ((UINT32, UINT32, INT32), UINT32),
    "philox": ((UINT64, UINT64, UINT64), UINT32),
    "clc_is_canceled": ((UINT32,) * 4, INT32),
    **{f"clc_get_first_ctaid_{axis}": ((UINT32,) * 4, INT32) for axis in "xyz"},
}
"""Calls of integers, with the types of their arguments and of their value.

`fns`: the position of the n-th 1 bit of a word, from some bit on. `philox`: the number that Philox 4x32-10 generates
for a key and a sequence at a position. `clc_*`: from the words of a cluster launch control response, whether a block's
work was taken over, and the index of that block.
"""


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
    """A function of scalars: a mathematical function of floats (exp exp2 exp10 log log2 log10 sqrt rsqrt sinh cosh tanh
    sigmoid erf abs sin cos tan atan floor ceil trunc round nearbyint pow fmod
    reciprocal); `reinterpret`, the bits of any type as
    another type of the same size; one of `BIT_COUNTS` or `INTEGER_CALLS`; one of `WARP_WIDE` or `BLOCK_WIDE`, which
    threads compute together; or `PHASE_DONE`, of a load of a barrier and a parity."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Ptx:
    """The value that PTX written by the kernel's author computes from `args`; `ptx.snippet` defines which text is
    allowed."""

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
    """One element of a buffer. Out-of-bounds reads of a global buffer give 0."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


Expr = Const | Var | Unary | Binary | Call | Ptx | Cast | Select | Load
Extent = int | Expr
"""A number, or an int32 expression of the kernel's parameters."""


def extent_expr(extent: Extent) -> Expr:
    """Return a size as an expression: an int32 constant for a number."""
    return int32_const(extent) if isinstance(extent, int) else extent


def int32_const(value: int) -> Const:
    """Return a literal of type int32."""
    return Const(value, INT32)
