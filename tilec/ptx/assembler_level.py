"""Chooses the assembler's optimisation level: the requested one, unless that would take minutes."""

from __future__ import annotations

MAX_CONSECUTIVE_WAITS = 64
"""The most consecutive waits for wgmma, without a branch between, that are assembled at the full level."""
REDUCED_LEVEL = 1
"""The level for more."""


def count_consecutive_waits(ptx: str) -> int:
    """Return the largest number of `wgmma.wait_group` in a row of a PTX text, without a branch or label between.

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


def choose_assembler_level(ptx: str, opt_level: int, asked: int | None) -> int:
    """Return the level `asked` for, or else that of the compilation, reduced if consecutive waits would take
    minutes."""
    if asked is not None:
        return asked
    return opt_level if count_consecutive_waits(ptx) <= MAX_CONSECUTIVE_WAITS else min(opt_level, REDUCED_LEVEL)
