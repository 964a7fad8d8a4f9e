"""The state that the emitters of one role share."""

from __future__ import annotations

from dataclasses import field

from tilec.codegen.address import Addresses
from tilec.codegen.builder import Builder
from tilec.codegen.scalar.scalar import Scalars
from tilec.ir.layout import Fragment
from tilec.ir.tile import Var
from tilec.ir.warp import Program, Role, TensorTile
from tilec.ptx.module import Reg
from tilec.support.records import dataclass
from tilec.target.table import Target


@dataclass(frozen=True, slots=True)
class MulticastShare:
    """This block's part of a multicast load: the number of its slice, and the mask of the blocks that get it."""

    slice: Var
    mask: Reg


@dataclass(frozen=True, slots=True)
class RingMate:
    """The block that a lane signals, if one `exists`: the address of its shared memory."""

    exists: Reg
    base: Reg


@dataclass(frozen=True, slots=True)
class LeaderBlock:
    """The first block of a pair or cluster: the offset from this block's shared memory to that of the first block, and
    whether this block is the first."""

    away: Reg
    is_first: Reg


@dataclass(slots=True)
class State:
    """The emitters, and the registers and addresses of the role.

    Fragments: `fragments` has the registers of each fragment, one per element; `words` those of fragments that only
    tensor cores read (see `codegen.tensor_cores.words`); `pairs` those of float16 accumulators, two elements to a
    register, of which `fragments` holds copies during operations other than products. `loaded` are words in flight from
    tensor memory; `unit_fragments` have elements that the program sets to 1 or another value. Predicates: `leader` is
    true in the role's first thread, `lane_zero` in the first lane of each warp (None: the role is one thread),
    `first_lanes` in the first thread of each warpgroup (None: no warpgroup stores by itself). Memory: `barriers` has
    the shared offset of each ring's first full barrier; `written` are the tensors that the kernel stores to,
    `partly_written` the shared tiles of which some elements may never be; `touched` are the tiles that threads read or
    write themselves, unlike wgmma; `tensor` is the start of the block's tensor memory. Other threads:
    `ping_pong_barriers` are the named barriers of the thread's warpgroup and of the next one; `shares` and `mates` are
    the loads and rings shared along some axes of the cluster; `pair` and `head` are the first block of the pair and of
    the cluster, if the role uses their barriers."""

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
    unit_fragments: frozenset[str] = frozenset()
    shares: dict[str, MulticastShare] = field(default_factory=dict)
    mates: dict[tuple[str, ...], RingMate] = field(default_factory=dict)
    tensor: Reg | None = None
    pair: LeaderBlock | None = None
    head: LeaderBlock | None = None
    loaded: dict[str, tuple[TensorTile, tuple[Reg, ...]]] = field(default_factory=dict)
