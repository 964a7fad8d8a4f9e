"""Approximate functions, by option."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.tile import Kernel


def mark_fast_math(kernel: Kernel) -> Kernel:
    """Return the kernel with "fast-math" among its requests, so that it uses approximate functions."""
    return replace(kernel, asks=tuple(sorted({*kernel.asks, "fast-math"})))
