"""Analyses of tile IR for the front end and every pass: reads and writes, rings, trip counts, facts on variables.
Nothing here knows a layout, or decides.
"""
