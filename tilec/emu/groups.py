"""Groups: threads of a block that run one step together, or wait there together."""

from __future__ import annotations

from collections.abc import Callable

from tilec.emu.numbers import Array
from tilec.support.records import dataclass

Threads = slice | Array
"""Some threads of a block: a slice where they are neighbours, so that registers are viewed and not copied."""


def compact_threads(indices: Array) -> Threads:
    """Return sorted thread numbers as a slice where possible."""
    first, last = int(indices[0]), int(indices[-1])
    if last - first + 1 == len(indices):
        return slice(first, last + 1)
    return indices


@dataclass(slots=True, eq=False)
class Group:
    """Threads at one step. Of a parked group, `reason` describes its wait and `ready` tells when to look again."""

    pc: int
    indices: Array
    threads: Threads
    time_slice: int = 0
    ready: Callable[[], bool] | None = None
    reason: Callable[[], str] = str
    is_gathering: bool = False
    poll_count: int = 0
    """The number of times that `test_wait` has parked the group since it last succeeded."""
    since: int = -1
    """The timeline event at which the group began to wait."""
    refused: tuple[tuple[int, int], ...] = ()
    """The mbarrier states (address, version) at which an adversary has let `try_wait` fail."""
    must_fail_wait: bool = False
    """The next `test_wait` of the group must fail, because nothing else can run."""
    spin_state: int | None = None
    """The hash of memory with which the group repeats itself for ever (see `progress`)."""

    def park(self, reason: Callable[[], str], ready: Callable[[], bool]) -> bool:
        """Wait at this step until `ready`; returns False, as a control step does then."""
        self.reason = reason
        self.ready = ready
        return False


def make_group(pc: int, indices: Array, time_slice: int = 0) -> Group:
    return Group(pc, indices, compact_threads(indices), time_slice)
