"""Lints of a warp program with its waits and barriers. What the assembler makes of it is in `assembler`."""
