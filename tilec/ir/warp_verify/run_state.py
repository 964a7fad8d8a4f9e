"""The state of a run of `warp_verify`: of each version of a ring, each access to a tile and each role."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from tilec.ir.tile import Var
from tilec.ir.warp import Operation, Ring, Role
from tilec.ir.warp_verify.barrier_machine import Barrier
from tilec.ir.warp_verify.effects import op_name
from tilec.support.records import dataclass

Range = tuple[int, int, frozenset[Var], frozenset[int] | None]
"""The first and the last index along a dimension, the variables fixed in the block that it depends on, and each index
if they are few."""

Reached = tuple[tuple[tuple[Range | None, ...], ...], ...]
"""For each sample of the values fixed in the block, the boxes that an operation reaches, as a range for each dimension,
if known; empty where they are not simple."""


@dataclass(slots=True)
class RingVersion:
    """A version of a ring, with its full and its empty barrier."""

    full: Barrier
    empty: Barrier

    @classmethod
    def of(cls, ring: Ring) -> RingVersion:
        """Return a new version of a ring: its full barrier counts `fills` arrivals, its empty barrier `arrivals`."""
        return cls(Barrier(ring.fills), Barrier(ring.arrivals))


@dataclass(slots=True)
class Access:
    """An access to a version of a shared tile, by the barrier interval in which it was complete, or the group in which
    it still is in flight. `part` also counts the barriers of each warpgroup. `reached` is the part of a tensor."""

    by: Operation
    write: bool
    async_proxy: bool
    queue: str | None
    group: int
    interval: int
    part: int
    atomic: bool = False
    own_rows: bool = False  # each warpgroup reaches only the rows of its part of the product
    fenced: bool = False
    reached: Reached = ()

    @property
    def op(self) -> str:
        """Return the class name of the operation that makes the access."""
        return op_name(self.by)


@dataclass(slots=True)
class RoleState:
    """The progress of a role, and its accesses that others may still have to wait for."""

    role: Role
    steps: Iterator[Operation]
    waiting: Operation | None = None
    done: bool = False
    executed: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    acquired: dict[str, int] = field(default_factory=dict)  # the number of versions, by ring
    waited: dict[str, int] = field(default_factory=dict)  # likewise
    left: dict[str, int] = field(default_factory=dict)  # likewise, those handed on or released
    missing: dict[tuple[str, int], set[str]] = field(default_factory=dict)  # tiles of an acquired version, to be filled
    given: set[tuple[str, int]] = field(default_factory=set)  # versions that the tensor cores hold
    groups: dict[str, int] = field(default_factory=dict)
    number: int = 0  # of the warpgroup in ping-pong
    has_tensor_cores: bool = False
    has_released: bool = False  # to the cluster, in the operation before
    interval: int = 0
    part: int = 0
    accesses: dict[tuple[str, int], list[Access]] = field(default_factory=dict)
    spent: dict[tuple[str, int], list[Access]] = field(default_factory=dict)  # accesses of released versions
    moved: str = ""  # its last access to tensor memory that is not fenced before a barrier
    entered: str = ""  # its last wait for accesses of others to tensor memory that is not fenced since
    index: int = 0  # among all roles, or warpgroups, that run independently
    mates: tuple[RoleState, ...] = ()  # the other warpgroups of the role in ping-pong
