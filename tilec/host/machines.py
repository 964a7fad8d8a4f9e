"""Compatibility of code and GPUs, by the names of machines (`sm_90a`) and compute capabilities."""

from __future__ import annotations

import re
from collections.abc import Iterable


def parse_capability(target: str) -> tuple[int, int]:
    """Return the compute capability in a target's name: (9, 0) for `sm_90a`."""
    digits = re.sub(r"\D", "", target)
    return int(digits[:-1]), int(digits[-1])


def is_portable(target: str) -> bool:
    """Return whether a target's name ends in a digit, so that its code also runs on newer GPUs. Its cubin runs on those
    of the same generation, its PTX on all newer ones. Code for `sm_90a` has instructions that no other machine
    supports.
    """
    return target[-1:].isdigit()


def newest_portable(targets: Iterable[str]) -> str | None:
    """Return the newest of the portable targets, whose PTX serves future GPUs, or None without any."""
    return max(filter(is_portable, targets), key=parse_capability, default=None)


def preference_key(target: str) -> tuple[bool, int, int]:
    """Return a sort key by which targets that fit one GPU exactly come above portable ones, and newer above older."""
    return not is_portable(target), *parse_capability(target)


def find_compatible_targets(device: tuple[int, int], targets: Iterable[str]) -> list[str]:
    """Return the targets whose cubins run on a GPU of this compute capability, the best first."""

    def runs_there(target: str) -> bool:
        """Return whether a target's cubin runs on the GPU: the same capability, or portable, same major, older
        minor.
        """
        major, minor = parse_capability(target)
        is_older = is_portable(target) and major == device[0] and minor <= device[1]
        return is_older or (major, minor) == device

    return sorted(filter(runs_there, targets), key=preference_key, reverse=True)
