"""Synchronisation through flags in memory: clocks that strong writes publish and strong reads acquire.

A release publishes everything that its thread knows, and an acquire at that address takes it over. A relaxed write
publishes only what a fence covers, and a relaxed read acquires at the next fence or barrier of its thread. The scope
`.cta` reaches no other block. Volatile accesses, which old code uses as flags, count as release and acquire.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from tilec.emu.numbers import Array

_RELEASES = frozenset(("release", "acq_rel", "sc", "volatile"))
_ACQUIRES = frozenset(("acquire", "acq_rel", "sc", "volatile"))


class AccessOrder(NamedTuple):
    """The memory order and scope of a strong access, from its opcode."""

    releases: bool
    acquires: bool
    is_narrow: bool


def parse_access_order(stem: str, opcode: str) -> AccessOrder:
    """Return whether an opcode's order releases and acquires, and whether its scope is only `.cta`."""
    words = opcode.split(".")
    is_narrow = "cta" in words and stem.startswith(("ld", "st", "atom", "red"))
    return AccessOrder(not _RELEASES.isdisjoint(words), not _ACQUIRES.isdisjoint(words), is_narrow)


class Clocks(Protocol):
    """The vector clocks of a cluster (`emu.races.order`). `stride` is the number of actors of a block."""

    stride: int

    def build_clock(self, actors: slice | Array) -> Array: ...
    def join_clocks(self, first: Array | None, second: Array) -> Array: ...
    def acquire(self, actors: slice | Array, clock: Array | None) -> None: ...


class Flags:
    """The published clocks of one cluster, by address."""

    def __init__(self, order: Clocks) -> None:
        self._order = order
        self._wide: dict[tuple[str, int], Array] = {}
        self._narrow: dict[tuple[str, int, int], Array] = {}
        """Clocks published with scope `.cta`, by address and block."""
        self._fenced: Array | None = None
        self._fenced_narrowly: Array | None = None
        self.pending: dict[int, Array] = {}
        """The clocks that relaxed reads have seen, by thread, until a fence."""

    def publish_writes(self, access: AccessOrder, actors: Array, memory: str, offsets: Array) -> None:
        """Publish the clock of each thread that makes a strong write at its offset; a relaxed one only as far as fences
        cover. A `.cta` scope publishes within the block only."""
        order = self._order
        for actor, offset in zip(actors.tolist(), offsets.tolist(), strict=True):
            clock = order.build_clock(slice(actor, actor + 1))
            key, block = (memory, offset), actor // order.stride
            narrow = clock if access.releases else _minimum_clock(clock, self._fenced_narrowly)
            wide = clock if access.releases else _minimum_clock(clock, self._fenced)
            if narrow is not None:
                self._narrow[*key, block] = order.join_clocks(self._narrow.get((*key, block)), narrow)
            if wide is not None and not access.is_narrow:
                self._wide[key] = order.join_clocks(self._wide.get(key), wide)

    def observe_reads(self, access: AccessOrder, actors: Array, memory: str, offsets: Array) -> None:
        """Let threads that make strong reads acquire the clocks published at their offsets; a relaxed read keeps them
        for a fence."""
        order = self._order
        for actor, offset in zip(actors.tolist(), offsets.tolist(), strict=True):
            clock = self._narrow.get((memory, offset, actor // order.stride))
            wide = None if access.is_narrow else self._wide.get((memory, offset))
            if wide is not None:
                clock = order.join_clocks(clock, wide)
            if clock is None:
                continue
            if access.acquires:
                order.acquire(slice(actor, actor + 1), clock)
            else:
                self.pending[actor] = order.join_clocks(self.pending.get(actor), clock)

    def fence(self, actors: Array, *, is_narrow: bool) -> None:
        """Record a fence by these threads: they acquire what relaxed reads saw, and later relaxed writes publish what
        they know."""
        order = self._order
        if self.pending:
            self.acquire_pending(actors)
        known = order.build_clock(actors)
        self._fenced_narrowly = order.join_clocks(self._fenced_narrowly, known)
        if not is_narrow:
            self._fenced = order.join_clocks(self._fenced, known)

    def find_fenced_clock(self, actors: Array) -> Array | None:
        """Return the joint clock of these threads, limited to what fences of a scope beyond `.cta` cover; None if none
        did."""
        return _minimum_clock(self._order.build_clock(actors), self._fenced)

    def acquire_pending(self, actors: slice | Array) -> None:
        """Let these threads acquire, and then forget, the clocks that their relaxed reads have seen."""
        members = range(actors.start, actors.stop) if isinstance(actors, slice) else actors.tolist()
        for actor in members:
            clock = self.pending.pop(actor, None)
            if clock is not None:
                self._order.acquire(slice(actor, actor + 1), clock)


def _minimum_clock(clock: Array, fenced: Array | None) -> Array | None:
    """Return the elementwise minimum of a clock and the one that fences cover; None if no fence ran."""
    if fenced is None:
        return None
    covered: Array = np.minimum(clock[: len(fenced)], fenced)
    return covered
