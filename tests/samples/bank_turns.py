"""Turns that accesses of shared memory take: every access that the emulator sees, counted as the machine does it.

A warp's access is served in phases of at most 128 bytes: 32 threads of 4 bytes or fewer, 16 of 8, 8 of 16. A phase
takes as many turns as the most different words that one of the 32 banks must give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tilec.emu.memory.memory import Memory

Array = np.ndarray[Any, np.dtype[Any]]

ALLOWED = {
    # Accumulators of float32 on their way out: TMA wants 128-byte rows, of which neighbours share two chunks.
    "gemm/tf32": {("store", 8): 2.0},
    "gemm/split_k": {("store", 8): 2.0},
    "gemm/stream_k": {("store", 8): 2.0},
    "attention/backward_atomic": {("store", 8): 2.0},
    "attention/mla_split": {("store", 8): 2.0},
    "models/linear_attention": {("store", 8): 2.0},
    "models/mamba_chunk_state": {("store", 8): 2.0},
    "models/kda_chunk": {("store", 8): 2.0},
    "models/kda_chunk_backward": {("store", 8): 2.0},
    "models/gated_delta_rule": {("store", 8): 2.0, ("store", 4): 3.5},  # also columns of a triangular solve
}
"""How many times longer than their bytes need the accesses of a kind take, where that is not once."""


def turns(addresses: Array, width: int, threads: Array) -> tuple[int, int]:
    """What the accesses take, and what their bytes need."""
    taken = needed = 0
    phases = threads // (32 if width <= 4 else 128 // width)
    for phase in np.unique(phases):
        reached = addresses[phases == phase].astype(np.int64)
        words = np.unique((reached[:, None] + np.arange(0, width, 4)) // 4)
        taken += int(np.bincount(words % 32).max())
        needed += -(-len(words) // 32)
    return taken, needed


@contextmanager
def counted() -> Iterator[Counter[tuple[str, int, str]]]:
    """Turns by the kind of access and its width in bytes, taken and needed, of what is emulated meanwhile."""
    counts: Counter[tuple[str, int, str]] = Counter()
    plain_load, plain_store = Memory.load, Memory.store

    def count(kind: str, memory: Memory, addresses: Array, width: int, by: Array | None) -> None:
        if memory.is_shared and by is not None and len(by):
            taken, needed = turns(addresses, width, by)
            counts[kind, width, "taken"] += taken
            counts[kind, width, "needed"] += needed

    def counted_load(self: Memory, addresses: Array, width: int, by: Array | None = None, **more: Any) -> Array:
        count("load", self, addresses, width, by)
        return plain_load(self, addresses, width, by, **more)

    def counted_store(self: Memory, addresses: Array, width: int, values: Array, by: Array | None = None) -> None:
        count("store", self, addresses, width, by)
        plain_store(self, addresses, width, values, by)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Memory, "load", counted_load)
        patched.setattr(Memory, "store", counted_store)
        yield counts


def conflicted(path: str, counts: Counter[tuple[str, int, str]]) -> dict[tuple[str, int], float]:
    """How many times longer than their bytes need the accesses of a kind take, where that is more than is allowed."""
    ways = {(kind, width): counts[kind, width, "taken"] / counts[kind, width, "needed"] for kind, width, _ in counts}
    return {key: way for key, way in ways.items() if way > ALLOWED.get(path, {}).get(key, 1.0)}
