"""Kernels drawn at random as text, by number: what stands in them, and with which options they are compiled.

Not drawn, beside the names of `left_out.py`: tuples on both sides of `=`, macros that change what they are given, and
conditions of one element that leave a loop in T.Parallel, which tests/order draws; variables and bounds that differ
from thread to thread (tests/kernels/test_thread_bounds.py); atomic operations to the right of `and` or `or`; stores of
several elements to one place, which mean nothing that can be told.
"""
