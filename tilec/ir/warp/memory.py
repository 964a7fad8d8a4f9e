"""Where the tiles of a program lie: rings of versions and the cursors that walk through them, tensor maps, barriers."""

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
"""Rows of a tile that a warpgroup has together, as wgmma gives them to it."""

SMALL_STRIDE = 128
"""Bytes between versions of a tile that is no larger, as TMA wants them aligned, if it has no bank swizzle to begin
anew."""

FIRST_PING_PONG = 3
"""The first named barrier for turns: 0 is the whole block's, 1 and 2 those of two roles."""

FIRST_PER_WARPGROUP = 6
"""The first named barrier for warpgroups that meet apart: at most three take turns."""


def arrivals_of(warps: int, by: Arrivals) -> int:
    """Return how often so many warps arrive at an mbarrier to say one thing."""
    return warps if by == "warp" else 32 * warps


@dataclass(frozen=True, slots=True)
class Ring:
    """`depth` versions of some shared tiles that are filled and freed together.

    With mbarriers (`arrivals` > 0) one role fills it for others: `full` completes with `fills` arrivals of those who
    fill the version, and the `bytes` that TMA copies into it; `empty` with `arrivals` of those who have released it.
    A role of one thread arrives once, any other one as `arrivals_of` says. Without, all that touch it are of one role,
    which orders them by waits and barriers. A ring without tiles passes on versions of other rings.

    `shared` has the axes of the cluster along which blocks load some of the tiles together (`ir.multicast`): then a
    version is released to all who fill it, and `arrivals` counts those of all whom this block fills it for.

    `paired`: the tensor cores of a pair of blocks work on it together, asked by a thread of the first. What both blocks
    fill and threads of both release counts at the first one's barriers, `bytes` and `arrivals` of both; what the tensor
    cores fill and release they say to both blocks.

    `heard_by`: its versions are answers to what a thread of the cluster's first block asks the machine (`TryCancel`),
    and so many blocks of the cluster hear each. A version comes to all of them, each of which announces its `bytes` to
    itself, and all release it to the first one, which counts the `arrivals` of all.
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
        return self.arrivals > 0

    @property
    def crosses_blocks(self) -> bool:
        """Return whether other blocks signal its barriers."""
        return bool(self.shared) or self.paired or self.heard_by > 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """A role's position in a ring. `name` is unique in the program. Where a kernel says itself which version it means,
    `index` is that."""

    name: str
    ring: str
    index: Expr | None = None


@dataclass(frozen=True, slots=True)
class SharedTile:
    """A shared buffer with all its versions: `depth` of them, `stride` bytes apart, the first at `offset`. One that is
    `over_rings` lives when the rings are done with, and may lie in their memory."""

    buffer: Buffer
    layout: SharedLayout
    depth: int = 1
    offset: int = 0
    over_rings: bool = False

    @property
    def stride(self) -> int:
        if self.depth == 1:
            return self.layout.bytes
        unit = SMALL_STRIDE if self.layout.bytes <= SMALL_STRIDE and not self.layout.swizzle else 1024
        return -(-self.layout.bytes // unit) * unit

    @property
    def bytes(self) -> int:
        return self.stride * self.depth

    def meets(self, other: SharedTile) -> bool:
        """Return whether both have some byte."""
        return self.offset < other.offset + other.bytes and other.offset < self.offset + self.bytes


@dataclass(frozen=True, slots=True)
class TensorTile:
    """A buffer in tensor memory with all its versions: `depth` of them, `columns` apart, the first from column `offset`
    of the block's allocation on."""

    buffer: Buffer
    columns: int
    depth: int = 1
    offset: int = 0

    @property
    def per_column(self) -> int:
        """Return how many elements of a row share a column: several where the tile is a factor, not a sum. Dimensions
        before the last two number versions, which lie side by side in its columns."""
        *versions, rows, width = self.buffer.shape
        return math.prod(versions) * -(-rows // TENSOR_LANES) * width // self.columns


@dataclass(frozen=True, slots=True)
class Corners:
    """What an im2col descriptor is about: a filter is at all places, `stride` pixels apart, from `lower` pixels before
    an image's first one up to `upper` pixels after its last one, in every direction."""

    lower: int
    upper: int
    stride: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A TMA descriptor parameter: boxes of `box` elements in the order of the tensor's axes, bank swizzle in bytes.
    With `corners` it is one for im2col, and a box so many places of so many channels."""

    name: str
    tensor: Buffer
    box: tuple[int, ...]
    swizzle: int
    corners: Corners | None = None


@dataclass(frozen=True, slots=True)
class Barriers:
    """mbarriers that the kernel itself arrives at and waits for: one for each count, which is that of its arrivals."""

    name: str
    counts: tuple[int, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Barrier:
    """One of several `Barriers`."""

    name: str
    index: Expr
