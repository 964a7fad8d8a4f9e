"""Detection of threads that poll for ever, as opposed to slow ones.

If a polling group comes back to an earlier state (registers, stack, step) while memory is unchanged, it repeats itself
for ever. When that holds for every group that is not waiting, the cluster is stuck. A loop that counts or reads a clock
reaches a new state in each iteration and is not detected; `step_limit` ends such loops.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tilec.emu.machine.cluster import Cluster
    from tilec.emu.machine.machine import Cta, Group

_PATIENCE = 64
"""Quanta of an adversary, which are short, and sleeps, before a group's state is first checked."""
_CHECK_PERIOD = 8


def check_for_spinning(cta: Cta, group: Group) -> None:
    """Set the group's `spin_state` if its registers and memory repeat an earlier state, clear it if only registers do.
    It looks only at some quanta."""
    if not _is_check_due(group.time_slice, cta.launch.random is not None):
        return
    key = _hash_group_state(cta, group)
    seen = cta.seen_states
    if key not in seen:
        seen[key] = None
        return
    memory = hash_memory_state(cta.cluster)
    group.spin_state = memory if seen[key] == memory else None
    seen[key] = memory


def _is_check_due(time_slice: int, has_adversary: bool) -> bool:
    """Return whether to check a group at this time slice: early ones without an adversary, then every eighth."""
    if time_slice < _PATIENCE:
        return time_slice > 1 and not has_adversary
    return time_slice % _CHECK_PERIOD == 0


def _hash_group_state(cta: Cta, group: Group) -> int:
    """Return a hash of all state that decides what the group does next, except memory."""
    threads = group.threads
    value = hash((group.pc, group.indices.tobytes()))
    for block in (*cta.blocks.values(), cta.calls.depth[None, :], cta.local.T):
        value = hash((value, zlib.crc32(np.ascontiguousarray(block[:, threads]).data)))
    return value


def hash_memory_state(cluster: Cluster) -> int:
    """Return a hash of everything that threads of a cluster may wait for: memory, barriers and other threads."""
    parts: list[object] = [cluster.launch.memory.digest(), cluster.barrier.generation, cluster.barrier.arrived]
    for cta in cluster.ctas:
        parts.append(cta.shared.digest())
        parts.extend((barrier.generation, barrier.arrived) for barrier in cta.barriers.values())
        parts.extend((barrier.phase, barrier.pending, barrier.tx) for barrier in cta.asynchronous.barriers.values())
        parts.append(tuple(sorted(group.pc for group in cta.groups if group.ready is not None)))
        parts.append(cta.exited_count)
    return hash(tuple(parts))


def is_cluster_stuck(cluster: Cluster) -> bool:
    """Return whether some groups are not waiting, and memory is as it was when each of those was found to repeat
    itself."""
    running = [group for cta in cluster.ctas for group in cta.groups if group.ready is None]
    if not running or any(group.spin_state is None for group in running):
        return False
    now = hash_memory_state(cluster)
    return all(group.spin_state == now for group in running)
