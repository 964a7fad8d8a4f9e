"""Elaboration of the syntax tree to tile IR: names resolved, constants evaluated, operations checked, hints kept. Later
passes over tile IR do not belong here."""
