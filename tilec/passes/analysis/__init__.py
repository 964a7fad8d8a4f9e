"""Analyses of tile IR for every pass and the front end: reads and writes, rings, trip counts, facts on variables. Also
the rewriting that needs no more. Nothing here knows a layout, or decides."""
