"""How far the assembler is to optimise: as far as is asked for, unless that would take it minutes."""

from __future__ import annotations

MOST_WAITS = 64
"""Times in a row that a warpgroup waits for wgmma, without a branch between, for which everything is optimised."""

LEVEL = 1
"""At which more are assembled."""


def waits_in_a_row(ptx: str) -> int:
    """Return how often in a row, at most, a warpgroup waits for wgmma without a branch between.

    What ptxas 13.0 takes at -O2 and -O3 for a line of products, each with loads of its own and a wait, grows with their
    third power: 3.6 seconds for 50, 11.5 for 75, 28 for 100, with registers spilt from 75 on. At -O1 100 take it 3.2
    seconds and no spill.
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
    """Return what is `asked` of the assembler, else as much as of the whole compilation, where that takes it
    seconds."""
    if asked is not None:
        return asked
    return opt_level if waits_in_a_row(ptx) <= MOST_WAITS else min(opt_level, LEVEL)
