"""`tilec check` finds what is wrong before anything is solved, in a long kernel too, and makes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilec.cli.main import main

ROOT = Path(__file__).parents[2]
LAYER = ROOT / "benchmarks" / "kernels" / "layer.tl"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_the_long_kernel_is_legal(target: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(LAYER.read_text(encoding="utf-8").splitlines()) >= 200
    assert main(["check", "--target", target, str(LAYER)]) == 0
    assert capfd.readouterr() == ("", "")


def test_layouts_that_conflict_are_found(capfd: pytest.CaptureFixture[str]) -> None:
    kernel = str(ROOT / "tests" / "errors" / "annotate_layout_wgmma.tl")
    assert main(["check", kernel]) == 1
    assert "error[layout-conflict]" in capfd.readouterr().err
    assert main(["check", kernel, "-O1"]) == 0, "tile IR has no layouts yet"


def test_pipelines_that_cannot_be_are_found(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kernel = tmp_path / "k.tl"
    text = (ROOT / "samples" / "gemm.tl").read_text(encoding="utf-8")
    kernel.write_text(text.replace("num_stages=num_stages", "order=[0, 1, 2], stage=[1, 1, 0]"), encoding="utf-8")
    assert main(["check", str(kernel)]) == 1
    assert "error[" in capfd.readouterr().err


@pytest.mark.weekly
def test_the_benchmark_runs() -> None:
    benchmark = ROOT / "benchmarks" / "check.py"
    ran = subprocess.run([sys.executable, benchmark, "--repeat", "1"], capture_output=True, text=True)
    assert ran.stderr == ""
    assert ran.stdout.startswith("layer.tl, ")
