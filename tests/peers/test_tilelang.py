"""TileLang itself reads the kernels of this project: it accepts what we accept, and they take the same parameters.

The interpreter is the one that TILEC_TILELANG_PYTHON names, or this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from peers import HERE

from tilec import driver
from tilec.ir.tile import Buffer, Var
from tilec.options import CompileOptions
from tilec.source import SourceFile

ROOT = HERE.parents[1]
KERNELS = sorted([*(ROOT / "samples").rglob("*.tl"), *(ROOT / "benchmarks" / "kernels").glob("*.tl")])


@lru_cache(maxsize=1)
def tilelang_python() -> str | None:
    for python in (os.environ.get("TILEC_TILELANG_PYTHON"), sys.executable):
        if (
            python
            and subprocess.run([python, "-c", "import tilelang"], capture_output=True, check=False).returncode == 0
        ):
            return python
    return None


pytestmark = [
    pytest.mark.peers,
    pytest.mark.slow,
    pytest.mark.skipif(tilelang_python() is None, reason="no interpreter here imports tilelang"),
]


@pytest.fixture(scope="module")
def read() -> dict[str, list[list[object]] | str]:
    """What TileLang says of every kernel, by path."""
    python = tilelang_python()
    assert python is not None
    command = [python, HERE / "tilelang_read.py", *KERNELS]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    # It may say something of its own before.
    found: dict[str, list[list[object]] | str] = json.loads(ran.stdout[ran.stdout.index("{") :])
    return found


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_parameters_agree(path: Path, read: dict[str, list[list[object]] | str]) -> None:
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    kernel = driver.check(source, CompileOptions(), driver.Observer())
    extents = {e for p in kernel.params if isinstance(p, Buffer) for e in p.extents}
    # An extent known at launch is a parameter here; TileLang takes it from the tensors.
    given = [p for p in kernel.params if isinstance(p, Buffer) or p not in extents]
    assert read[str(path)] == [[p.name, p.dtype.name, shape(p) if isinstance(p, Buffer) else None] for p in given]


def shape(tensor: Buffer) -> list[object]:
    return [extent.name if isinstance(extent, Var) else extent for extent in tensor.extents]
