"""Rewriting of tile IR that is right for any kernel: constants, names, substitution, contraction. What needs an
analysis, a layout or a schedule is in `passes`.
"""
