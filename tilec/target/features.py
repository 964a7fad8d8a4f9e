"""The features of machines, by the names that target files list under `features`."""

from __future__ import annotations

from typing import Literal

Feature = Literal[
    "atom.bf16",
    "bf16",
    "cluster",
    "cluster.launch_control",
    "cp.async",
    "dependent_launch",
    "fp4",
    "fp8",
    "ldmatrix",
    "mbarrier",
    "mma.sync",
    "red.vector",
    "setmaxnreg",
    "stmatrix",
    "tcgen05",
    "tcgen05.i8",
    "tma",
    "tma.gather4",
    "wgmma",
]

UNIVERSAL_FEATURES: tuple[Feature, ...] = ("bf16", "ldmatrix", "mbarrier", "mma.sync")
"""Features of every supported machine: compute capability 8.0 and above (PTX ISA, the notes on each instruction)."""
