"""The section on lints of docs/extending.md, done literally: one file more and one explanation are a lint."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fenced import ROOT, blocks

pytestmark = pytest.mark.weekly

PAGE = "docs/extending.md"
EXPLAINED = """
one-warp
    A block of one warp keeps one of the four schedulers of a multiprocessor busy at most.
"""
KERNEL = """import tilelang.language as T

@T.prim_func
def k(A: T.Tensor((1024,), "float32"), B: T.Tensor((1024,), "float32")):
    with T.Kernel(8, threads={threads}) as bx:
        for i in T.Parallel(128):
            B[bx * 128 + i] = A[bx * 128 + i]
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The compiler, with what the section adds to it."""
    shutil.copytree(ROOT / "tilec", tmp_path / "tilec", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("grammar", "targets", "cmake"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (block,) = (block for block in blocks(PAGE) if block.title == "one_warp.py")
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    (place,) = re.findall(r"a whole one, for `(tilec/[\w/]*/)`", page)
    (tmp_path / place / "one_warp.py").write_text(block.text, encoding="utf-8")
    with (tmp_path / "tilec/driver/explanations.txt").open("a", encoding="utf-8") as file:
        file.write(EXPLAINED)
    for threads in (32, 128):
        (tmp_path / f"k{threads}.tl").write_text(KERNEL.format(threads=threads), encoding="utf-8")
    return tmp_path


def tilec(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy), "TILEC_CACHE_DIR": str(copy / "cache")}
    command = [sys.executable, "-m", "tilec", *arguments]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)


def test_one_file_is_a_lint(copy: Path) -> None:
    warned = tilec(copy, "k32.tl", "-o", "a.cubin")
    assert warned.returncode == 0 and (copy / "a.cubin").exists()
    assert "warning[one-warp]: k runs on one warp" in warned.stderr and "k32.tl:4:" in warned.stderr
    assert "help: use threads=128" in warned.stderr
    refused = tilec(copy, "k32.tl", "-o", "b.cubin", "--lint=error")
    assert refused.returncode == 1 and "error[one-warp]" in refused.stderr and not (copy / "b.cubin").exists()
    assert tilec(copy, "k32.tl", "-o", "c.cubin", "--lint=off").stderr == ""
    assert tilec(copy, "k128.tl", "-o", "d.cubin", "--lint=error").stderr == ""
    assert "four schedulers" in tilec(copy, "explain", "one-warp").stdout


def test_a_check_looks_at_tile_ir_too(copy: Path) -> None:
    """There without what only later stages look at."""
    assert "warning[one-warp]" in tilec(copy, "check", "k32.tl").stderr
    assert tilec(copy, "check", "k32.tl", "--lint=error").returncode == 1
