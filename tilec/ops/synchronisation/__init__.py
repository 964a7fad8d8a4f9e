"""Statements that order others: barriers, fences, waits of warpgroups, clusters and grids. They touch no tile."""
