"""Tells threads that go round for nothing from threads that are slow.

A group of threads that polls memory is caught in a state - registers, stack, step - in which it was before, while
memory is what it was before: what it does next is what it did then, for ever. When that holds of every group that is
not waiting, nothing will ever happen again. A loop that counts or reads a clock is in a new state each time round, and
so is never taken for one that hangs; `step_limit` ends those.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tilec.emu.cluster import Cluster
    from tilec.emu.machine import Cta, Group

_PATIENCE = 64
"""Quanta of a hostile machine, which are short, and naps, after which a group's state is looked at."""
_EVERY = 8


def note(cta: Cta, group: Group) -> None:
    """The group has used up a quantum, or sleeps."""
    if not _is_due(group.time_slice, cta.launch.random is not None):
        return
    key = _state_of(cta, group)
    seen = cta.seen_states
    if key not in seen:
        seen[key] = None
        return
    memory = memory_state(cta.cluster)
    group.spins_at = memory if seen[key] == memory else None
    seen[key] = memory


def _is_due(time_slice: int, is_hostile: bool) -> bool:
    """Whether to look now: quanta are long unless a group sleeps, and short on a hostile machine."""
    if time_slice < _PATIENCE:
        return time_slice > 1 and not is_hostile
    return time_slice % _EVERY == 0


def _state_of(cta: Cta, group: Group) -> int:
    """Everything that decides what the group does next, but for memory."""
    threads = group.threads
    value = hash((group.pc, group.indices.tobytes()))
    for block in (*cta.blocks.values(), cta.calls.depth[None, :], cta.local.T):
        value = hash((value, zlib.crc32(np.ascontiguousarray(block[:, threads]).data)))
    return value


def memory_state(cluster: Cluster) -> int:
    """All that threads may wait for: memory, barriers, and other threads."""
    parts: list[object] = [cluster.launch.memory.digest(), cluster.barrier.generation, cluster.barrier.arrived]
    for cta in cluster.ctas:
        parts.append(cta.shared.digest())
        parts.extend((barrier.generation, barrier.arrived) for barrier in cta.barriers.values())
        parts.extend((barrier.phase, barrier.pending, barrier.tx) for barrier in cta.asynchronous.barriers.values())
        parts.append(tuple(sorted(group.pc for group in cta.groups if group.ready is not None)))
        parts.append(cta.exited_count)
    return hash(tuple(parts))


def is_stuck(cluster: Cluster) -> bool:
    """Whether every group of the cluster that is not waiting goes round for nothing, and one does."""
    running = [group for cta in cluster.ctas for group in cta.groups if group.ready is None]
    if not running or any(group.spins_at is None for group in running):
        return False
    now = memory_state(cluster)
    return all(group.spins_at == now for group in running)
