"""Elaboration of the syntax tree to tile IR: resolves names, computes constants, checks operations, reads annotations.

Parsing belongs to `syntax`, and transformations of whole kernels to the passes.
"""
