"""Lints of the assembler's log and of machine code. What the PTX alone shows is not here but in the stages before."""
