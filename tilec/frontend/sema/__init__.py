"""Elaboration of the syntax tree to tile IR: names resolved, constants evaluated, operations checked, hints kept.
Nothing here optimises; folders call each other through the tables of `dispatch`.
"""
