"""What the emitters of one role share."""

from __future__ import annotations

from dataclasses import field

from tilec.codegen.address import Addresses
from tilec.codegen.builder import Builder
from tilec.codegen.scalar import Scalars
from tilec.ir.layout import Fragment
from tilec.ir.tile import Var
from tilec.ir.warp import Program, Role, TensorTile
from tilec.ptx.module import Reg
from tilec.support.records import dataclass
from tilec.target.table import Target


@dataclass(frozen=True, slots=True)
class Share:
    """This block's part in a load for several: which slice, and the mask of those that get it."""

    slice: Var
    mask: Reg


@dataclass(frozen=True, slots=True)
class Mate:
    """The block that a lane signals, if one `exists`: where its shared memory begins."""

    exists: Reg
    base: Reg


@dataclass(frozen=True, slots=True)
class Pair:
    """The pair of blocks, or the cluster, that this one is of: how far from its own shared memory that of the first one
    is, and whether it is that itself."""

    away: Reg
    is_first: Reg


@dataclass(slots=True)
class State:
    """`written` are the tensors that the kernel stores to; of the shared tiles `partly_written` elements may never be;
    `fragments` are the registers of each fragment, an element to each, and `words` those of fragments that only
    tensor cores read (see `codegen.words`), `pairs` those of accumulators of halves, two to a register: of these
    `fragments` holds copies while an operation that is no product is at them; `leader` is true in the role's first
    thread, `lane_zero` in the first lane of each warp (None: the role is one thread), `first_lanes` in the first thread
    of each warpgroup (None: nothing is stored by warpgroups); `barriers` gives the shared address of each ring's first
    full barrier; `touched` are the tiles that threads read or write themselves, as wgmma does not; `ping_pong_barriers`
    are the numbers of the named barriers of the thread's warpgroup and of the next one; `shares` and `mates` are the
    loads and the rings that blocks of the cluster have in common, by the axes along which they do; `tensor` is where
    the block's tensor memory begins; `pair` is there where the role has to do with the barriers of a pair of blocks,
    and `head` where it has to do with those of its cluster's first block; `loaded` are the words that are on their way
    from tensor memory to a fragment."""

    builder: Builder
    scalars: Scalars
    addresses: Addresses
    program: Program
    target: Target
    role: Role
    pointers: dict[str, Reg]
    layouts: dict[str, Fragment]
    fragments: dict[str, tuple[Reg, ...]]
    words: dict[str, tuple[Reg, ...]]
    pairs: dict[str, tuple[Reg, ...]]
    written: frozenset[str]
    partly_written: frozenset[str]
    warp: Reg
    leader: Reg | None = None
    lane_zero: Reg | None = None
    first_lanes: Reg | None = None
    barrier_id: int = 0
    true: Reg | None = None
    barriers: dict[str, int] = field(default_factory=dict)
    ping_pong_barriers: tuple[Reg, ...] = ()
    touched: frozenset[str] = frozenset()
    shares: dict[str, Share] = field(default_factory=dict)
    mates: dict[tuple[str, ...], Mate] = field(default_factory=dict)
    tensor: Reg | None = None
    pair: Pair | None = None
    head: Pair | None = None
    loaded: dict[str, tuple[TensorTile, tuple[Reg, ...]]] = field(default_factory=dict)
