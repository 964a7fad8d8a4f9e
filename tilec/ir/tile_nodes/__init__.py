"""The nodes of tile IR: a kernel, its statements and expressions. `ir.tile` names them all; operations on whole tiles
are in `ops`.
"""
