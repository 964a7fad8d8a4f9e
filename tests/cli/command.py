"""The command line within the process, and what the tests of it are given to compile."""

from __future__ import annotations

from pathlib import Path

from tilec.cli.main import main

SAMPLES = Path(__file__).parents[2] / "samples"
VECTOR_ADD = str(SAMPLES / "vector_add.tl")
GEMM = str(SAMPLES / "gemm.tl")
SMALL = ["-D", "N=2048"]


def tilec(*arguments: str) -> int:
    return main(list(arguments))
