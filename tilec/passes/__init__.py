"""Tile IR to warp IR. Folders from the ground up, each importing its own and those before it:

analysis     what holds for tile IR, asked everywhere
layouts      where tiles lie, and what moves them
reading      from the syntax tree to tile IR
pipelining   from a loop to a scheduling problem
grid         which blocks run when, and what they do together
hand         kernels that share their work out themselves
code         from verified schedules to warp IR
"""
