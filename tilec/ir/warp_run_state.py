"""What a run of `warp_verify` keeps of each version of a ring, each access to a tile and each role."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from tilec.ir.barrier_machine import Barrier
from tilec.ir.tile import Var
from tilec.ir.warp import Operation, Ring, Role
from tilec.ir.warp_effects import name_of
from tilec.support.records import dataclass

Range = tuple[int, int, frozenset[Var]]
"""The first and the last index along a dimension, and what it depends on that the block never changes."""

Reached = tuple[tuple[tuple[Range | None, ...], ...], ...]
"""For each of several values of what the block never changes the boxes that an operation reaches, with a range for each
dimension, if it is known; nothing where that is not so simple."""


@dataclass(slots=True)
class Version:
    """Of a ring, with the barrier that says that it is full and the one that says that it is empty."""

    full: Barrier
    empty: Barrier

    @classmethod
    def of(cls, ring: Ring) -> Version:
        return cls(Barrier(ring.fills), Barrier(ring.arrivals))


@dataclass(slots=True)
class Access:
    """Who touched a version of a shared tile: in which barrier interval it was complete, or in which group it still
    is. `part` counts the barriers of each warpgroup too. `reached` is the part of a tensor.
    """

    by: Operation
    write: bool
    async_proxy: bool
    queue: str | None
    group: int
    interval: int
    part: int
    atomic: bool = False
    own_rows: bool = False  # whether each warpgroup reaches those of its part of the product alone
    fenced: bool = False
    reached: Reached = ()

    @property
    def op(self) -> str:
        return name_of(self.by)


@dataclass(slots=True)
class RoleState:
    """How far a role has come, and what it has done that others may still have to wait for."""

    role: Role
    steps: Iterator[Operation]
    waiting: Operation | None = None
    done: bool = False
    executed: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    acquired: dict[str, int] = field(default_factory=dict)  # how many versions of each ring
    waited: dict[str, int] = field(default_factory=dict)  # likewise
    left: dict[str, int] = field(default_factory=dict)  # likewise, those handed on or released
    missing: dict[tuple[str, int], set[str]] = field(default_factory=dict)  # tiles of an acquired version, to be filled
    given: set[tuple[str, int]] = field(default_factory=set)  # versions of rings that the tensor cores work on
    groups: dict[str, int] = field(default_factory=dict)
    number: int = 0  # of the warpgroup, where the role's take turns
    has_tensor_cores: bool = False
    has_released: bool = False  # to the cluster, in the operation before
    interval: int = 0
    part: int = 0
    accesses: dict[tuple[str, int], list[Access]] = field(default_factory=dict)
    spent: dict[tuple[str, int], list[Access]] = field(default_factory=dict)  # those of versions since released
    moved: str = ""  # what it has done to tensor memory, and not fenced before a barrier
    entered: str = ""  # where it waited for what others have done to tensor memory, and has not fenced since
    index: int = 0  # among all that go on by themselves
    mates: tuple[RoleState, ...] = ()  # the other warpgroups of the role, where they go on by themselves
