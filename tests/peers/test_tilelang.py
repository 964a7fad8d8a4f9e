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

from tilec.driver import build as driver
from tilec.ir.text import show_expr
from tilec.ir.tile import Buffer, Expr, Extent, Kernel, walk_expr
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

ROOT = HERE.parents[1]
FOLDERS = ("samples", "samples/*", "benchmarks/kernels", "tests/kernels")
KERNELS = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.tl"))

# What we accept and TileLang 0.1.15 does not, each with its word for it.
DIFFERENT = {
    "carried_copy.tl": "Expected `int` but got `None`",  # num_stages=None leaves the depth to the schedule
    "manual.tl": "Expected `int` but got `None`",
    "streaming.tl": "Expected `int` but got `None`",
    "views.tl": "must preserve the logical bit count",  # T.view finds the shape that the other dtype gives
    "grid.tl": "'_InlineMethod' object is not callable",  # T.inline is for methods alone
    "roles.tl": "unexpected keyword argument 'wg_wait'",
    "tile_scheduler.tl": "got multiple values for argument 'num_workers'",  # no name may stand first
    "waits.tl": "unexpected keyword argument 'sync'",  # `sync` and `group` are gone there
    "reductions_all.tl": "StructuralEqual check failed",  # T.copy of a whole (4, 1, 40) to a whole (4, 40)
    "upstream.tl": "too many statically nested blocks",  # it writes a Python function around each block
}
WITH_ARGUMENTS = {"styles.tl"}  # made by functions that need them: nothing there to compare


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
    pytest.mark.skipif(tilelang_python() is None, reason="no interpreter here imports tilelang"),
]


Parameters = list[list[object]]


@pytest.fixture(scope="module")
def read() -> dict[str, dict[str, Parameters] | str]:
    """What TileLang says of the kernels of each file, by path."""
    python = tilelang_python()
    assert python is not None
    command = [python, HERE / "tilelang_read.py", *KERNELS]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    # It may say something of its own before.
    found: dict[str, dict[str, Parameters] | str] = json.loads(ran.stdout[ran.stdout.index('{"') :])
    return found


@pytest.mark.parametrize(
    "path", [p for p in KERNELS if p.name not in WITH_ARGUMENTS], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_parameters_agree(path: Path, read: dict[str, dict[str, Parameters] | str]) -> None:
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    kernels = driver.load_kernels(source, CompileOptions(), driver.Observer())
    theirs = read[str(path)]
    if path.name in DIFFERENT:
        assert isinstance(theirs, str) and DIFFERENT[path.name] in theirs
        return
    assert theirs == {kernel.name: parameters(kernel) for kernel in kernels}


def parameters(kernel: Kernel) -> Parameters:
    sizes = {e for p in kernel.params if isinstance(p, Buffer) for extent in p.extents for e in walk_expr_of(extent)}
    # An extent known at launch is a parameter here; TileLang takes it from the tensors.
    given = [p for p in kernel.params if isinstance(p, Buffer) or p not in sizes]
    return [[p.name, p.dtype.name, shape(p) if isinstance(p, Buffer) else None] for p in given]


def walk_expr_of(extent: Extent) -> list[Expr]:
    return [] if isinstance(extent, int) else list(walk_expr(extent))


def shape(tensor: Buffer) -> list[object]:
    return [extent if isinstance(extent, int) else show_expr(extent).replace(" ", "") for extent in tensor.extents]
