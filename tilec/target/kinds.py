"""The instruction kinds that target files price."""

from __future__ import annotations

from typing import Literal

InstructionKind = Literal[
    "barrier",
    "cp.async",
    "elementwise",
    "integer",
    "ld.global",
    "ld.shared",
    "ldmatrix",
    "mbarrier",
    "mma.sync",
    "mufu",
    "reduce",
    "st.global",
    "st.shared",
    "tcgen05.cp",
    "tcgen05.ld",
    "tcgen05.mma.ss",
    "tcgen05.mma.ss.pair",
    "tcgen05.mma.ts",
    "tcgen05.mma.ts.pair",
    "tcgen05.st",
    "tma.load",
    "tma.store",
    "wgmma.rs",
    "wgmma.ss",
]
"""A closed set: every target that has a kind's feature prices the kind."""
