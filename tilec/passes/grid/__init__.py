"""Grids of kernels: the order of blocks, persistent blocks, pairs that load or multiply together. Rewriting only;
decisions are in `choices`."""
