"""Expressions: values known at compile time, typed expressions elsewhere, reads of tiles and views. No statement is
made here.
"""
