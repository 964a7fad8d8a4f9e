"""Global, shared, local and parameter memory, and the instructions that load, store and combine there one by one.
Copies of whole boxes are in `tma`.
"""
