"""Lints of the assembler's log and of machine code."""
