"""A kernel: its parameters, its grid, and the options that its author sets for the compiler."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from tilec.ir.tile_nodes.expressions import Buffer, Extent, Var
from tilec.ir.tile_nodes.statements import LoopLayout, Placement, Stmt
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span


@dataclass(frozen=True, slots=True)
class LayoutAnnotation:
    """A layout that the author gives a tile: the threads and registers of a fragment; for a shared tile the width in
    bytes of its swizzle (0: plain row-major), or an arbitrary placement."""

    buffer: Buffer
    layout: LoopLayout | Placement | int
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Subtile:
    """The number of equal parts that the author wants a tile split into along each dimension, with all tiles that are
    used with it; 1 leaves a dimension whole. At most one number is larger than 1."""

    buffer: Buffer
    parts: tuple[int, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The number of blocks along x, y and z that run together and reach each other's shared memory."""

    extents: tuple[int, int, int]
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def blocks(self) -> int:
        """Return the number of blocks in the cluster."""
        x, y, z = self.extents
        return x * y * z


NO_CLUSTER = Cluster((1, 1, 1))


@dataclass(frozen=True, slots=True)
class Raster:
    """The order in which the hardware's block numbers cover the first two dimensions of a grid: panel by panel of
    `panel` rows of blocks (columns unless `by_rows`), each walked along its length, every other one backwards. Without
    a panel x varies fastest."""

    panel: int
    by_rows: bool = True
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class MinBlocks:
    """The least number of blocks that the kernel's author wants to share a multiprocessor."""

    count: int
    span: Span = field(default=NOWHERE, compare=False)


CLUSTER_RANK = Var("%rank")
"""The block's rank in its cluster, x fastest: a block index of kernels that ask for it."""

KernelOption = Literal["fast-math", "serial", "thread-loads", "unspecialised", "without-tma"]
"""Use approximate functions; run pipelined loops one iteration after the other; load by all threads where there is no
producer; do not specialise warps; do not copy by TMA."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel in tile IR. `params` are in launch order: global buffers and scalar variables, among them those that
    extents depend on. `grid` and `block_vars` are x, y, z, as many as written. `outputs` are the tensors that the file
    says it returns, in that order; `asks` are its compiler options; `raster` is the order of blocks that it states
    (None: left open); `subtiles` are the tiles that it splits into parts; `min_blocks` is the number of blocks that it
    wants to share a multiprocessor (None: left open)."""

    name: str
    params: tuple[Buffer | Var, ...]
    grid: tuple[Extent, ...]
    block_vars: tuple[Var, ...]
    threads: int
    buffers: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    span: Span = field(default=NOWHERE, compare=False)
    layouts: tuple[LayoutAnnotation, ...] = ()
    outputs: tuple[str, ...] = ()
    asks: tuple[KernelOption, ...] = ()
    cluster: Cluster = NO_CLUSTER
    raster: Raster | None = None
    subtiles: tuple[Subtile, ...] = ()
    min_blocks: MinBlocks | None = None

    @property
    def workspaces(self) -> tuple[Buffer, ...]:
        """Return the tensors that the kernel allocates itself: global buffers, which the launcher makes and passes."""
        return tuple(b for b in self.buffers if b.scope == "global")
