"""Approximate functions, by option."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.tile import Kernel


def mark_fast_math(kernel: Kernel) -> Kernel:
    """Add "fast-math" to what the kernel asks for, so that later passes use approximate functions."""
    return replace(kernel, asks=tuple(sorted({*kernel.asks, "fast-math"})))
