"""The smallest kernels by which growth is measured are compiled, and the exponent is that of the line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import growth


def test_exponent() -> None:
    assert growth.exponent([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0)
    assert growth.exponent([1, 2], [0.0, 1.0]) is None


@pytest.mark.parametrize("dimension", growth.DIMENSIONS)
def test_smallest_is_compiled(dimension: str, tmp_path: Path) -> None:
    sizes, make, options = growth.DIMENSIONS[dimension]
    file = tmp_path / "kernel.tl"
    file.write_text(make(sizes[0]))
    command = [sys.executable, "-m", "tilec", str(file), "--target", "sm_90a", "--emit", "ptx", *options]
    subprocess.run([*command, "-o", str(tmp_path / "out")], check=True, capture_output=True)
