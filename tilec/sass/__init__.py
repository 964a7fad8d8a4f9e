"""Reads the machine code of a cubin without a disassembler: its instructions, the assembler's schedule of them, and the
cycles that one warp's iteration of a loop takes by that schedule. Comparisons belong to the callers."""
