"""A kernel: its parameters, its grid, and what it asks of the compiler."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from tilec.ir.tile.expressions import Buffer, Extent, Var
from tilec.ir.tile.statements import LoopLayout, Placement, Stmt
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span


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
