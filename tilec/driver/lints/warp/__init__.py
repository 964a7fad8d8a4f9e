"""Lints of a warp program with its waits and barriers."""
