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
    fitting = [
        t
        for t in targets
        if parse_capability(t) == device or (is_portable(t) and _is_older(parse_capability(t), device))
    ]
    return sorted(fitting, key=preference_key, reverse=True)


def _is_older(code: tuple[int, int], device: tuple[int, int]) -> bool:
    """Return whether code runs on a device: of the same generation, and no newer."""
    return code[0] == device[0] and code[1] <= device[1]
