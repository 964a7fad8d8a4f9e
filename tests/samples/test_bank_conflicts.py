"""Shared memory is reached without bank conflicts: every access that the emulator sees, counted as the machine does it.

A warp's access is served in phases of at most 128 bytes: 32 threads of 4 bytes or fewer, 16 of 8, 8 of 16. A phase takes
as many turns as the most different words that one of the 32 banks must give.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from references import SAMPLES, Sample
from test_every_sample import TARGETS, arguments_of, made

from tilec import emulate
from tilec.emu.memory import Memory
from tilec.target import load

Array = np.ndarray[Any, np.dtype[Any]]

BLOCKS = 2  # the others do the same

ALLOWED = {
    # Butterflies at a distance of a power of two, and sums that reach back by one, for which no layout serves all steps.
    "elementwise/hadamard": {("load", 4): 2.0},
    "rows/prefix_sum": {("load", 4): 4.0},
    # Accumulators of float32 on their way out: TMA wants 128-byte rows, of which neighbours share two chunks.
    "gemm/tf32": {("store", 8): 2.0},
    "gemm/split_k": {("store", 8): 2.0},
    "gemm/stream_k": {("store", 8): 2.0},
    "attention/backward_atomic": {("store", 8): 2.0},
    "models/linear_attention": {("store", 8): 2.0},
    "models/mamba_chunk_state": {("store", 8): 2.0},
    "models/gated_delta_rule": {("store", 8): 2.0, ("store", 4): 3.5},  # also columns of a triangular solve
    # The two elements that are kept of four, by every thread that writes one of the four.
    "gemm/sparse_2_4": {("load", 4): 2.0},
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


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int, str]]:
    """Turns by the kind of access and its width in bytes, taken and needed."""
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

    monkeypatch.setattr(Memory, "load", counted_load)
    monkeypatch.setattr(Memory, "store", counted_store)
    return counts


def test_turns_are_counted() -> None:
    lanes = np.arange(32)
    assert turns(4 * lanes, 4, lanes) == (1, 1)
    assert turns(128 * lanes, 4, lanes) == (32, 1)
    assert turns(16 * lanes, 16, lanes) == (4, 4)
    assert turns(0 * lanes, 4, lanes) == (1, 1), "one word is given to all"
    assert turns(64 * lanes, 8, lanes) == (16, 2)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("known", SAMPLES, ids=lambda known: known.path)
def test_no_conflicts(known: Sample, target: str, seen: Counter[tuple[str, int, str]]) -> None:
    if known.feature is not None and not load(target).has(known.feature):
        return  # tests/samples/test_every_sample.py runs it where it can be built
    built = made(known.path, target, dict(known.constants))
    emulate.run(built, arguments_of(known, built), options=emulate.RunOptions(sample=BLOCKS))
    for kind, width in {key[:2] for key in seen}:
        allowed = ALLOWED.get(known.path, {}).get((kind, width), 1.0)
        assert seen[kind, width, "taken"] <= allowed * seen[kind, width, "needed"], (kind, width)
