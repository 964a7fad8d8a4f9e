"""Explicit roles, pipelines and waits, with the checks that each stage is acquired and released. How roles are made of
a kernel without them is a pass.
"""
