"""Tiles in shared memory: what loads and stores them, which blocks share them, who has a copy, what may lie where."""
