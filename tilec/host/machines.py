"""Compatibility of code and GPUs, by the names of machines (`sm_90a`) and compute capabilities."""

from __future__ import annotations

import re
from collections.abc import Iterable


def parse_capability(target: str) -> tuple[int, int]:
    """Return the compute capability in a target's name: (9, 0) for `sm_90a`."""
    digits = re.sub(r"\D", "", target)
    return int(digits[:-1]), int(digits[-1])


def is_portable(target: str) -> bool:
    """Return whether its cubin runs on newer GPUs of the same generation, and its PTX on all newer ones. Code for
    `sm_90a` has instructions that no other machine supports."""
    return target[-1:].isdigit()


def newest_portable(targets: Iterable[str]) -> str | None:
    """Return the target whose PTX a fat binary contains for future GPUs."""
    return max(filter(is_portable, targets), key=parse_capability, default=None)


def preference_key(target: str) -> tuple[bool, int, int]:
    """Return the sort key of a target on one GPU: exact matches above portable ones, newer above older."""
    return not is_portable(target), *parse_capability(target)


def find_compatible_targets(device: tuple[int, int], targets: Iterable[str]) -> list[str]:
    """Return the targets whose cubins run on a GPU of this compute capability, the best first."""

    def runs_there(target: str) -> bool:
        major, minor = parse_capability(target)
        is_older = is_portable(target) and major == device[0] and minor <= device[1]
        return is_older or (major, minor) == device

    return sorted(filter(runs_there, targets), key=preference_key, reverse=True)
