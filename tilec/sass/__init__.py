"""The machine code of a cubin, read without a disassembler: its instructions, the assembler's schedule of them, and
what a warp's iteration of a loop takes by that schedule. What it is compared with is the callers' business."""
