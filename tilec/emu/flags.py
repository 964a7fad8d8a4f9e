"""Flags in memory: what threads that meet at an address by strong accesses hand to each other.

A release hands on what its thread knows, to whoever acquires at that address. A relaxed access does so only with a
fence: it hands on what some fence covers, and what it sees is known after a fence, or a barrier, of its thread. A scope
of `.cta` reaches nobody in other blocks. Volatile accesses, which old code uses as flags, count as ordering.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_RELEASES = frozenset(("release", "acq_rel", "sc", "volatile"))
_ACQUIRES = frozenset(("acquire", "acq_rel", "sc", "volatile"))


class Access(NamedTuple):
    """What the opcode of a strong access promises."""

    releases: bool
    acquires: bool
    is_narrow: bool


def access(stem: str, opcode: str) -> Access:
    """The order and scope of a step, whatever it does."""
    words = opcode.split(".")
    return Access(
        not _RELEASES.isdisjoint(words),
        not _ACQUIRES.isdisjoint(words),
        "cta" in words and stem.startswith(("ld", "st", "atom", "red")),
    )


class Clocks(Protocol):
    """What each actor of a cluster has done and knows (`emu.order`). `stride` is how many actors a block has."""

    stride: int

    def past(self, actors: slice | Array) -> Array: ...

    def joined(self, first: Array | None, second: Array) -> Array: ...

    def acquire(self, actors: slice | Array, clock: Array | None) -> None: ...


class Flags:
    """What was handed on, by address, in one cluster."""

    def __init__(self, order: Clocks) -> None:
        self._order = order
        self._wide: dict[tuple[str, int], Array] = {}
        self._narrow: dict[tuple[str, int, int], Array] = {}
        """What threads of one block only may take."""
        self._fenced: Array | None = None
        self._fenced_narrowly: Array | None = None
        self.pending: dict[int, Array] = {}
        """What relaxed reads have seen, by thread, until a fence."""

    def publish(self, access: Access, actors: Array, memory: str, offsets: Array) -> None:
        """Threads make strong writes at these offsets."""
        order = self._order
        for actor, offset in zip(actors.tolist(), offsets.tolist(), strict=True):
            clock = order.past(slice(actor, actor + 1))
            key, block = (memory, offset), actor // order.stride
            narrow = clock if access.releases else _least(clock, self._fenced_narrowly)
            wide = clock if access.releases else _least(clock, self._fenced)
            if narrow is not None:
                self._narrow[*key, block] = order.joined(self._narrow.get((*key, block)), narrow)
            if wide is not None and not access.is_narrow:
                self._wide[key] = order.joined(self._wide.get(key), wide)

    def observe(self, access: Access, actors: Array, memory: str, offsets: Array) -> None:
        """Threads make strong reads at these offsets."""
        order = self._order
        for actor, offset in zip(actors.tolist(), offsets.tolist(), strict=True):
            clock = self._narrow.get((memory, offset, actor // order.stride))
            wide = None if access.is_narrow else self._wide.get((memory, offset))
            if wide is not None:
                clock = order.joined(clock, wide)
            if clock is None:
                continue
            if access.acquires:
                order.acquire(slice(actor, actor + 1), clock)
            else:
                self.pending[actor] = order.joined(self.pending.get(actor), clock)

    def fence(self, actors: Array, *, is_narrow: bool) -> None:
        """Threads order what they did, and what they know of, before what they do next."""
        order = self._order
        if self.pending:
            self.settle(actors)
        known = order.past(actors)
        self._fenced_narrowly = order.joined(self._fenced_narrowly, known)
        if not is_narrow:
            self._fenced = order.joined(self._fenced, known)

    def covered(self, actors: Array) -> Array | None:
        """What these threads did and know of, as far as fences that reach other blocks cover it."""
        return _least(self._order.past(actors), self._fenced)

    def settle(self, actors: slice | Array) -> None:
        """These threads know from now on what their relaxed reads have seen."""
        members = range(actors.start, actors.stop) if isinstance(actors, slice) else actors.tolist()
        for actor in members:
            clock = self.pending.pop(actor, None)
            if clock is not None:
                self._order.acquire(slice(actor, actor + 1), clock)


def _least(clock: Array, fenced: Array | None) -> Array | None:
    """What the thread knows and a fence covers."""
    if fenced is None:
        return None
    covered: Array = np.minimum(clock[: len(fenced)], fenced)
    return covered
