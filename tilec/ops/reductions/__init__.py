"""Reductions, reducers and scans of tiles. Atomics, which combine in memory, are not among them."""
