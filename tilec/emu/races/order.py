"""Happens-before order: vector clocks over the threads of one cluster.

Every access to memory is an event with a number that grows over the whole launch. A clock holds, for each actor, the
event up to which its accesses are known. Actors are the threads of the cluster, the matrix unit of each warpgroup (a
wait for its wgmma makes its reads known) and each mbarrier (for the copies that it reports). Synchronisation of two
threads - a barrier, an mbarrier's phase, a flag - joins the clock of one into the other's.
"""

from __future__ import annotations

from array import array

import numpy as np

from tilec.emu.numbers import Array
from tilec.emu.races.flags import Flags

Actors = slice | Array
"""Some threads of the cluster, as rows of the clocks."""

FOREVER = int(np.iinfo(np.int32).max)
MOST_THREADS = 4096
"""Clocks are square: a cluster with more threads runs without race detection."""
WARP = 32
WARPGROUP = 128
_SPARE_COLUMNS = 32


class EventLog:
    """Numbers the events of a launch and records the step of each. `pc` is the running step."""

    def __init__(self) -> None:
        self.pc = 0
        self.now = 0
        self._steps = array("i", [0])

    def tick(self, pc: int = -1) -> int:
        """Number a new event, of the running step or of step `pc`, and return its number."""
        self.now += 1
        self._steps.append(self.pc if pc < 0 else pc)
        return self.now

    def find_step(self, event: int) -> int:
        """Return the number of the step that made an event."""
        return self._steps[event]


class HappensBeforeOrder:
    """The clocks of one cluster. A thread knows its own events and those of earlier clusters. It knows the events of
    the previous grid, where the grid `begins_early`, only after a wait for that grid, its own or of a thread that it
    has synchronised with."""

    def __init__(
        self, log: EventLog, blocks: int, threads_per_block: int, cluster: int = 0, begins_early: bool = False
    ) -> None:
        self.log = log
        self.blocks, self.cluster = blocks, cluster
        # Blocks start at whole warpgroups, so that lanes and matrix units are found by division.
        self.stride = -(-threads_per_block // WARPGROUP) * WARPGROUP
        self.threads = blocks * self.stride
        self.engines = self.threads // WARPGROUP
        self.warps = self.threads // WARP
        self._before = self.threads + self.engines
        """The column of the previous grid."""
        self._columns = self._before + 1
        self.begins_early = begins_early
        self.know: Array = np.full((self.threads, self._columns + _SPARE_COLUMNS), log.now, np.int32)
        self.know[:, self._before] = 0 if begins_early else FOREVER
        everyone = np.arange(self.threads)
        self.know[everyone, everyone] = FOREVER
        absent = everyone % self.stride >= threads_per_block
        # Threads that do not exist count as known.
        self.know[:, : self.threads][:, absent] = FOREVER
        self.floor: Array = np.full(self.threads, log.now, np.int32)
        """The event up to which a thread knows every thread of the cluster: a cheap first test."""
        self.start = log.now
        """The last event before this cluster."""
        self.fenced: Array | None = None
        """The clock that `fence.proxy.async` covers: writes of each actor to global memory."""
        self.maps_released: Array | None = None
        self.maps_acquired: dict[int, Array] = {}
        """The clocks that `fence.proxy.tensormap` covers: releases, and acquires by address."""
        self.flags = Flags(self)
        self.version = 0
        self._absent = np.flatnonzero(absent)
        self._united: dict[int, tuple[int, Array]] = {}

    def add_column(self) -> int:
        """Add a clock column for a new actor, which every thread knows up to now, and return its number."""
        column = self._columns
        self._columns += 1
        if column == self.know.shape[1]:
            more = np.full((self.threads, _SPARE_COLUMNS), self.log.now, np.int32)
            self.know = np.concatenate([self.know, more], axis=1)
        return column

    def release(self, actors: Actors) -> Array:
        """Return the joint clock that these threads publish, after they acquire what their relaxed reads have seen."""
        if self.flags.pending:
            self.flags.acquire_pending(actors)
        return self.build_clock(actors)

    def build_clock(self, actors: Actors) -> Array:
        """Return the joint clock of these threads: the most that any of them knows, and their own events until now."""
        clock: Array = self.know[actors].max(axis=0)
        clock[actors] = self.log.now
        return clock

    def join_clocks(self, first: Array | None, second: Array) -> Array:
        """Return the maximum of two clocks, actor by actor; of None and a clock, the clock. Either may lack the newest
        columns."""
        if first is None:
            return second
        if len(first) < len(second):
            first, second = second, first
        result = first.copy()
        np.maximum(result[: len(second)], second, out=result[: len(second)])
        return result

    def acquire(self, actors: Actors, clock: Array | None) -> None:
        """Raise these threads' clocks to at least `clock`; None changes nothing."""
        if clock is None:
            return
        self.version += 1
        width = len(clock)
        rows = self.know[actors]
        np.maximum(rows[:, :width], clock, out=rows[:, :width])
        if not isinstance(actors, slice):
            self.know[actors] = rows
        lowest = int(clock[: self.threads].min())
        self.floor[actors] = np.maximum(self.floor[actors], lowest)

    def acquire_everything(self) -> None:
        """Let all threads know all events until now, except the previous grid's. Other clusters, whose actors share
        these columns, have run in between."""
        self.version += 1
        before = self.know[:, self._before].copy()
        np.maximum(self.know, self.log.now, out=self.know)
        self.know[:, self._before] = before
        self.floor[:] = self.start = self.log.now

    def sync_warps(self, actors: Array) -> None:
        """Let the lanes of each warp among these threads know what each other knows."""
        warps = actors // WARP
        for warp in np.unique(warps).tolist():
            lanes = actors[warps == warp]
            self.acquire(lanes, self.release(lanes))

    def acquire_engine(self, actors: Actors, column: int) -> None:
        """Let these threads know everything that the engine with this clock column did: they have waited for it."""
        self.version += 1
        self.know[actors, column] = self.log.now

    def await_grid(self, actors: Actors) -> None:
        """Let these threads know all events of the previous grid: they have waited for it."""
        self.version += 1
        self.know[actors, self._before] = FOREVER

    def find_without_grid_wait(self, actors: Array) -> int | None:
        """Return the first of these threads that knows nothing of the previous grid, or None if all know of it."""
        strangers = actors[self.know[actors, self._before] == 0]
        return int(strangers[0]) if len(strangers) else None

    def fence_async(self, actors: Actors) -> None:
        """Make global writes that these threads made or know visible to the asynchronous proxy."""
        self.fenced = self.join_clocks(self.fenced, self.build_clock(actors))

    def fence_maps(self, actors: Actors, addresses: set[int] | None) -> None:
        """Record a tensor map fence by these threads: an acquire of the maps at these addresses, or with None a
        release."""
        clock = self.build_clock(actors)
        if addresses is None:
            self.maps_released = self.join_clocks(self.maps_released, clock)
            return
        for address in sorted(addresses):
            self.maps_acquired[address] = self.join_clocks(self.maps_acquired.get(address), clock)

    def clock_of_warpgroup(self, first: int) -> Array:
        """Return the clock of events that every warp of a warpgroup knows by some lane; `first` is its first thread.
        The result is kept until a clock changes."""
        version, clock = self._united.get(first, (-1, self.floor))
        if version != self.version:
            rows = self.know[first : first + WARPGROUP]
            clock = rows.reshape(WARPGROUP // WARP, WARP, -1).max(axis=1).min(axis=0)
            self._united[first] = (self.version, clock)
        return clock

    def clock_of_any(self, actors: Actors) -> Array:
        """Return the clock of events that at least one of these threads knows."""
        clock: Array = self.know[actors].max(axis=0)
        return clock

    def clock_of_warps(self, actors: Array) -> Array:
        """Return, for each thread, the event up to which it knows some lane of each warp, and each engine."""
        rows = self.know[actors]
        lanes = rows[:, : self.threads].reshape(len(actors), self.warps, WARP).copy()
        # Threads that do not exist count as known, so they must not represent their warp.
        lanes.reshape(len(actors), -1)[:, self._absent] = 0
        engines = rows[:, self.threads : self.threads + self.engines]
        return np.concatenate([lanes.max(axis=2), engines], axis=1)
