"""The front end: `syntax` parses kernel text to a syntax tree, `sema` elaborates the tree to tile IR.

Schedules and generated code do not belong here.
"""
