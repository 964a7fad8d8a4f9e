"""PTX of the tensor cores of sm_100a without one of its pieces: each must be missed."""

from __future__ import annotations

import re
from contextlib import suppress

from test_adversary import compute

from tilec.driver.build import Build
from tilec.emu import Fault

TENSOR_PIECES = (
    r"tcgen05\.alloc",
    r"tcgen05\.dealloc",
    r"tcgen05\.commit",
    r"tcgen05\.fence::after_thread_sync",
    r"tcgen05\.fence::before_thread_sync",
    r"tcgen05\.wait::ld",
    r"mbarrier\.arrive\.expect_tx",
    r"mbarrier\.try_wait",
)


def is_right(made: Build, lines: list[str]) -> bool:
    """Whether these lines compute what the kernel means, on an even-tempered machine and on two hostile ones."""
    with suppress(Fault):
        return all(compute(made, "\n".join(lines), adversary) for adversary in (None, 1, 2))
    return False


def not_missed(made: Build, pattern: str) -> list[str]:
    """The lines with the pattern without any one of which the kernel is still right. Of the fences those count that
    stand at mbarriers: what others order around allocation is not in tensor memory."""
    lines = made.ptx.split("\n")
    ends = [place for place, line in enumerate(lines) if "dealloc" in line or "ld.shared.b32" in line]
    places = [place for place, line in enumerate(lines) if re.search(pattern, line)]
    if "fence" in pattern:
        # The last meeting of the block, and of a pair of blocks the two's behind it, come before what is given back.
        last = max(place for place, line in enumerate(lines[: ends[-1]]) if "bar.sync" in line)
        places = [place for place in places if ends[0] < place < last - 1 or place > ends[-1]]
    assert places, pattern
    return [lines[place] for place in places if is_right(made, [*lines[:place], "", *lines[place + 1 :]])]
