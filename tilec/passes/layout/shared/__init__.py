"""Tiles in shared memory: byte order, views, versions, and the addresses that lanes access. Which instruction moves
them is in `mechanisms`."""
