"""The roles of a kernel, and the whole program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace

from tilec.ir.layout import Fragment
from tilec.ir.tile import Buffer, Extent, Var
from tilec.ir.warp_nodes import memory
from tilec.ir.warp_nodes.memory import MBARRIER_BYTES, BarrierArray, Ring, SharedTile, TensorMap, TensorTile
from tilec.ir.warp_nodes.operations import Operation, TensorCopy, TensorMma
from tilec.ir.warp_nodes.waits import Arrive, NamedBarrier
from tilec.ir.warp_nodes.walk import walk_operations
from tilec.support.options import Arrivals
from tilec.support.records import dataclass
from tilec.support.source import NOWHERE, Span


@dataclass(frozen=True, slots=True)
class Role:
    """Warps first_warp … first_warp + warps − 1. `registers` is the setmaxnreg count (None: as launched), the same for
    roles that share a warpgroup. `single_thread` roles run their body in one elected thread of their first warp. In
    ping-pong, `ping_pong_barrier` is the named barrier of the first warpgroup, which has the turn before the body, and
    again after it."""

    name: str
    first_warp: int
    warps: int
    body: tuple[Operation, ...]
    registers: int | None = None
    single_thread: bool = False
    ping_pong_barrier: int | None = None

    @property
    def threads(self) -> int:
        """Return the number of threads in the role's warps."""
        return self.warps * 32

    def arrivals(self, by: Arrivals) -> int:
        """Return how often the role arrives at an mbarrier for one event: 1 for a single-thread role, else per warp or
        thread."""
        return 1 if self.single_thread else memory.count_arrivals(self.warps, by)

    @property
    def ping_pong_barriers(self) -> tuple[int, ...]:
        """Return the named barriers at which the role's warpgroups wait for their turns; empty without ping-pong."""
        first = self.ping_pong_barrier
        return () if first is None else tuple(range(first, first + self.warps // 4))


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel ready to be written as PTX.

    `smem_bytes` is dynamic shared memory, `barriers_at` the offset of the rings' mbarriers in it: for each ring in turn
    `depth` full barriers, then `depth` empty ones. The kernel's own `barriers` follow, then the address of the
    allocation for the tiles in `tensor` memory, and with `tells_peer` one more mbarrier.

    `common` is the code of all warps before they take up their roles. With `explicit_roles` the roles are the kernel's
    own, and each counts its threads from 0. `later` are the sections that follow `roles`: in each of them, roles of
    its own divide the block's warps, or one role has all of them. Each section but the last ends with a barrier of the
    block. A program that `begins_early` may overlap the grid before it, and accesses
    no tensor until it has waited for that grid.
    """

    name: str
    params: tuple[Buffer | Var, ...]
    maps: tuple[TensorMap, ...]
    grid: tuple[Extent, Extent, Extent]
    block_vars: tuple[Var, ...]
    roles: tuple[Role, ...]
    shared: tuple[SharedTile, ...]
    fragments: tuple[tuple[Buffer, Fragment], ...]
    rings: tuple[Ring, ...]
    smem_bytes: int = 0
    barriers_at: int = 0
    span: Span = field(default=NOWHERE, compare=False)
    barriers: tuple[BarrierArray, ...] = ()
    common: Role | None = None
    cluster: tuple[int, int, int] = (1, 1, 1)
    explicit_roles: bool = False
    tensor: tuple[TensorTile, ...] = ()
    begins_early: bool = False
    later: tuple[tuple[Role, ...], ...] = ()

    @property
    def sections(self) -> tuple[tuple[Role, ...], ...]:
        """Return the roles of each section, in the order in which the sections run."""
        return (*(() if self.common is None else ((self.common,),)), self.roles, *self.later)

    @property
    def all_roles(self) -> tuple[Role, ...]:
        """Return the roles of all sections, the common one too."""
        return tuple(role for section in self.sections for role in section)

    def isolate_section(self, roles: tuple[Role, ...]) -> Program:
        """Return a program of this section alone."""
        return replace(self, roles=roles, common=None, later=())

    def map_roles(self, change: Callable[[Role], Role]) -> Program:
        """Return the program with each role of each section changed."""
        common = None if self.common is None else change(self.common)
        roles, later = tuple(map(change, self.roles)), tuple(tuple(map(change, section)) for section in self.later)
        return replace(self, common=common, roles=roles, later=later)

    @property
    def threads(self) -> int:
        """Return the number of threads of a block: those of all roles."""
        return sum(r.threads for r in self.roles)

    @property
    def paired(self) -> bool:
        """Return whether the tensor cores of two blocks work together, so that each of their signals goes to both."""
        asked = (isinstance(op, TensorMma) and op.paired for op in self.operations())
        return any(ring.paired for ring in self.rings) or (self.explicit_roles and any(asked))

    @property
    def signals_blocks(self) -> bool:
        """Return whether roles that the kernel itself made signal barriers of other blocks; False without explicit
        roles."""
        signals = (isinstance(op, Arrive) and op.block is not None for op in self.operations())
        return self.explicit_roles and (self.paired or any(signals))

    @property
    def hands_tiles_to_peer(self) -> bool:
        """Return whether the tensor cores of a pair of blocks read tiles that threads of either block have written."""
        return self.paired and any(isinstance(op, TensorCopy) for op in self.operations())

    @property
    def barrier_bytes(self) -> int:
        """Return the bytes of all mbarriers: two for each version of a ring that has them, and the kernel's own."""
        return MBARRIER_BYTES * (
            sum(2 * r.depth for r in self.rings if r.has_barriers) + sum(len(b.counts) for b in self.barriers)
        )

    @property
    def tensor_columns(self) -> int:
        """Return the columns of tensor memory to allocate: a power of two, at least 32; 0 without tiles there. Source:
        PTX ISA, tcgen05.alloc."""
        last = max((t.offset + t.columns * t.depth for t in self.tensor), default=0)
        return max(32, 1 << (last - 1).bit_length()) if last else 0

    @property
    def tensor_address_at(self) -> int:
        """Return the offset in dynamic shared memory, behind the mbarriers, at which the tensor memory's address is
        kept."""
        return self.barriers_at + self.barrier_bytes

    @property
    def tells_peer(self) -> bool:
        """Return whether each block of a pair signals the other when it has finished with its tensor memory. The memory
        is freed for both together. Explicit roles need no signal: they synchronise at a barrier anyway."""
        return bool(self.tensor) and self.paired and not self.explicit_roles

    @property
    def peer_barrier_at(self) -> int:
        """Return the offset in dynamic shared memory of the mbarrier by which a pair's blocks signal that they have
        finished."""
        return self.tensor_address_at + MBARRIER_BYTES

    @property
    def tensor_bytes(self) -> int:
        """Return the bytes of shared memory kept for tensor memory: its address, and the pair's mbarrier if there is
        one."""
        return MBARRIER_BYTES * (bool(self.tensor) + self.tells_peer)

    def named_barrier(self, role: int) -> int:
        """Return the number of the named barrier for a role's threads: 0 for the only role, else one that the kernel
        leaves free."""
        if len(self.roles) == 1:
            return 0
        taken = {op.id for r in self.roles for op in walk_operations(r.body) if isinstance(op, NamedBarrier)}
        return [number for number in range(1, 16) if number not in taken][role]

    def operations(self) -> Iterator[Operation]:
        """Yield the operations of all roles of all sections, nested ones included."""
        for role in self.all_roles:
            yield from walk_operations(role.body)
