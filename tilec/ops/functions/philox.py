"""Philox 4x32-10, the generator behind T.rng_rand, in numpy: the reference of tile IR's call `philox`."""

from __future__ import annotations

from typing import Any

FACTORS = (0xD2511F53, 0xCD9E8D57)
STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
"""Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (2011)."""


def compute_philox(key: Any, sequence: Any, position: Any) -> Any:
    """Return the uint32 random number of each key, sequence and position, arrays of uint64, by Philox 4x32-10. A
    counter gives four numbers; the last two bits of `position` select one. As in cuRAND, its other bits are the
    counter's lower half, `sequence` is the upper half."""
    import numpy as np

    low = np.uint64(0xFFFFFFFF)
    key, sequence, position = (np.asarray(part, np.uint64) for part in (key, sequence, position))
    keys = [key & low, key >> np.uint64(32)]
    block = position >> np.uint64(2)
    x, y, z, w = block & low, block >> np.uint64(32), sequence & low, sequence >> np.uint64(32)
    for _ in range(ROUNDS):
        first, second = x * np.uint64(FACTORS[0]), z * np.uint64(FACTORS[1])
        x, y, z, w = (
            second >> np.uint64(32) ^ y ^ keys[0],
            second & low,
            first >> np.uint64(32) ^ w ^ keys[1],
            first & low,
        )
        keys = [part + np.uint64(step) & low for part, step in zip(keys, STEPS, strict=True)]
    which = (position & np.uint64(3)).astype(np.int64)
    return np.choose(which, np.broadcast_arrays(x, y, z, w)).astype(np.uint32)
