"""The memory of a program: rings of versions, the cursors that walk through them, tiles, tensor maps, barriers."""

from __future__ import annotations

import math
from dataclasses import field

from tilec.ir.groups import TENSOR_LANES
from tilec.ir.layout import SharedLayout
from tilec.ir.tile import Buffer, Expr
from tilec.support.options import Arrivals
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span

MBARRIER_BYTES = 8

PART_ROWS = 64
"""Rows of a tile that a warpgroup holds together, as in wgmma."""

SMALL_STRIDE = 128
"""The distance in bytes between versions of a tile that is no larger and not swizzled: the alignment of TMA."""

FIRST_PING_PONG = 3
"""The first named barrier for ping-pong: 0 is the whole block's, 1 and 2 belong to two roles."""

FIRST_PER_WARPGROUP = 6
"""The first named barrier of warpgroups that synchronise separately: at most three take turns in ping-pong."""


def count_arrivals(warps: int, by: Arrivals) -> int:
    """Return how often `warps` warps arrive at an mbarrier for one event: once each, or once for each of their
    threads."""
    return warps if by == "warp" else 32 * warps


@dataclass(frozen=True, slots=True)
class Ring:
    """`depth` versions of some shared tiles that are filled and released together.

    With mbarriers (`arrivals` > 0) one role fills it for others. `full` completes with `fills` arrivals of the
    producers, and the `bytes` that TMA copies into the version; `empty` with `arrivals` of the consumers. A role of one
    thread arrives once, any other as `count_arrivals` says. Without mbarriers, only one role touches the ring, ordered
    by waits and block barriers. A ring without tiles hands on versions of other rings.

    `shared` has the axes of the cluster along which blocks load some of the tiles by multicast (`ir.multicast`): then a
    version is released to all producers, and `arrivals` counts the consumers of all blocks that this block loads for.

    `paired`: the tensor cores of a pair of blocks work on it together, at the request of a thread of the first.
    Producers and consumers of both blocks arrive at the first block's barriers, with `bytes` and `arrivals` of both;
    the tensor cores signal the barriers of both blocks.

    `heard_by`: its versions are cluster launch control responses to a thread of the cluster's first block
    (`TryCancel`), multicast to this number of blocks. Each block announces the `bytes` to itself, and all release the
    version to the first one, which counts the `arrivals` of all.
    """

    name: str
    depth: int
    buffers: tuple[str, ...]
    bytes: int = 0
    arrivals: int = 0
    fills: int = 1
    shared: tuple[str, ...] = ()
    by: Arrivals = "warp"
    paired: bool = False
    heard_by: int = 0

    @property
    def has_barriers(self) -> bool:
        """Return whether one role fills the ring for others through mbarriers: it counts arrivals."""
        return self.arrivals > 0

    @property
    def crosses_blocks(self) -> bool:
        """Return whether other blocks of the cluster signal the ring's barriers."""
        return bool(self.shared) or self.paired or self.heard_by > 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """A role's position in a ring. `name` is unique in the program. `index` is the version, where the kernel gives it
    itself."""

    name: str
    ring: str
    index: Expr | None = None


@dataclass(frozen=True, slots=True)
class SharedTile:
    """A shared buffer with all its versions: `depth` of them, `stride` bytes apart, the first at `offset`. A tile that
    is `over_rings` lives after the rings are drained, and may reuse their memory. It may also have that of the tiles
    it `reuses`, which are live before it or after it."""

    buffer: Buffer
    layout: SharedLayout
    depth: int = 1
    offset: int = 0
    over_rings: bool = False
    reuses: tuple[str, ...] = ()

    @property
    def stride(self) -> int:
        """Return the bytes between two versions: of one, its size; of several, the size rounded up to 128 or 1024. It
        is 128 for a small tile without a swizzle."""
        if self.depth == 1:
            return self.layout.bytes
        unit = SMALL_STRIDE if self.layout.bytes <= SMALL_STRIDE and not self.layout.swizzle else 1024
        return -(-self.layout.bytes // unit) * unit

    @property
    def bytes(self) -> int:
        """Return the bytes of all versions together."""
        return self.stride * self.depth

    def meets(self, other: SharedTile) -> bool:
        """Return whether the two tiles' ranges of bytes in shared memory overlap."""
        return self.offset < other.offset + other.bytes and other.offset < self.offset + self.bytes


@dataclass(frozen=True, slots=True)
class TensorTile:
    """A buffer in tensor memory with all its versions: `depth` of them, `columns` apart, the first at column `offset`
    of the block's allocation."""

    buffer: Buffer
    columns: int
    depth: int = 1
    offset: int = 0

    @property
    def per_column(self) -> int:
        """Return how many elements of a row share a column: several where the tile is an operand, not an accumulator.
        Dimensions before the last two number versions, which lie side by side in the columns."""
        *versions, rows, width = self.buffer.shape
        return math.prod(versions) * -(-rows // TENSOR_LANES) * width // self.columns


@dataclass(frozen=True, slots=True)
class Im2colCorners:
    """The corners of an im2col descriptor: filter positions are `stride` pixels apart, from `lower` pixels before an
    image's first one up to `upper` pixels after its last one, in every direction."""

    lower: int
    upper: int
    stride: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A TMA descriptor parameter: boxes of `box` elements in the order of the tensor's axes, bank swizzle in bytes.
    With `corners` it is one for im2col, and a box is a number of pixels by a number of channels."""

    name: str
    tensor: Buffer
    box: tuple[int, ...]
    swizzle: int
    corners: Im2colCorners | None = None


@dataclass(frozen=True, slots=True)
class BarrierArray:
    """mbarriers that the kernel itself arrives at and waits for: one for each of `counts`, its number of arrivals."""

    name: str
    counts: tuple[int, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Barrier:
    """One barrier of a `BarrierArray`."""

    name: str
    index: Expr
