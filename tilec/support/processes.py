"""What processes that tilec starts have to do with the one that started them."""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # man 2 prctl


def end_with_parent(parent: int) -> None:
    """End this process as soon as its parent has ended, however that was: nobody would take what it makes. Elsewhere
    than on Linux it goes on until it notices."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)
