"""Statements other than loops: allocations, assignments, branches, jumps, stores. Calls of operations are in
`operations`.
"""
