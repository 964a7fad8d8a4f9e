"""Mechanisms of copies and products, and layouts of tiles: registers, byte order in shared memory, tensor memory. What
blocks and schedules need does not belong here."""
