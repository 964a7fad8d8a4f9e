"""Tiles in shared memory: how they are loaded and stored, shared between blocks, copied for warpgroups, and overlaid.
Where their elements lie is decided in `layout`."""
