"""Chooses the assembler's optimisation level: the requested one, unless that would take minutes."""

from __future__ import annotations

MOST_WAITS = 64
"""The most consecutive waits for wgmma, without a branch between, that are assembled at the full level."""

LEVEL = 1
"""The level for more."""


def waits_in_a_row(ptx: str) -> int:
    """Return the largest number of consecutive waits for wgmma without a branch between.

    The time of ptxas 13.0 at -O2 and -O3 for a sequence of products, each with loads of its own and a wait, grows with
    its third power: 3.6 seconds for 50, 11.5 for 75, 28 for 100, with registers spilt from 75 on. At -O1 100 take 3.2
    seconds without spills.
    """
    most = here = 0
    for line in ptx.splitlines():
        words = line.split()
        if words and words[0].startswith("@"):
            del words[0]
        if words and (words[0].endswith(":") or words[0].split(".")[0] == "bra" or ".entry" in words):
            here = 0
        elif words and words[0].startswith("wgmma.wait_group"):
            here += 1
            most = max(most, here)
    return most


def assembler_level(ptx: str, opt_level: int, asked: int | None) -> int:
    """Return the level `asked` for, else that of the compilation, reduced where the assembler would take too long."""
    if asked is not None:
        return asked
    return opt_level if waits_in_a_row(ptx) <= MOST_WAITS else min(opt_level, LEVEL)
