"""The names that target files list: instruction kinds and features of machines."""

from __future__ import annotations

from typing import Literal

InstructionKind = Literal[
    "barrier", "cp.async", "elementwise", "integer", "ld.global", "ld.shared", "ldmatrix", "mbarrier", "mma.sync",
    "mufu", "reduce", "st.global", "st.shared", "tcgen05.cp", "tcgen05.ld", "tcgen05.mma.ss", "tcgen05.mma.ss.pair",
    "tcgen05.mma.ts", "tcgen05.mma.ts.pair", "tcgen05.st", "tma.load", "tma.store", "wgmma.rs", "wgmma.ss",
]  # fmt: skip
"""A closed set: every target that has a kind's feature prices the kind."""


Feature = Literal[
    "atom.bf16", "bf16", "cluster", "cluster.launch_control", "cp.async", "dependent_launch", "fp4", "fp8", "ldmatrix",
    "max3.f32", "mbarrier", "mma.sync", "red.vector", "setmaxnreg", "stmatrix", "tcgen05", "tcgen05.i8", "tma",
    "tma.gather4", "wgmma",
]  # fmt: skip

UNIVERSAL_FEATURES: tuple[Feature, ...] = ("bf16", "ldmatrix", "mbarrier", "mma.sync")
"""Features of every supported machine: compute capability 8.0 and above (PTX ISA, the notes on each instruction)."""
