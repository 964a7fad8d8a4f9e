"""The section on passes of docs/extending.md, done literally: one file and one row are a pass."""

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
KERNEL = """import tilelang.language as T

@T.prim_func
def k(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        tile = T.alloc_fragment((64, 64), "float32")
        T.copy(A, tile)
        T.copy(tile, tile)
        T.copy(tile, B)
"""


def compiler_in(folder: Path, file: str, text: str, row: str) -> None:
    """A copy of the compiler with one more file of its passes, and a row for it behind `fold-constants`."""
    shutil.copytree(ROOT / "tilec", folder / "tilec", ignore=shutil.ignore_patterns("__pycache__"))
    for shared in ("grammar", "targets", "cmake"):
        (folder / shared).symlink_to(ROOT / shared)
    (folder / f"tilec/passes/{file}").write_text(text, encoding="utf-8")
    table = folder / "tilec/driver/pipeline.py"
    lines = table.read_text(encoding="utf-8")
    before = next(line for line in lines.splitlines() if 'Pass("fold-constants"' in line)
    table.write_text(lines.replace(before, f"{before}\n    {row}"), encoding="utf-8")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The compiler, with what the section adds to it."""
    (block,) = (block for block in blocks(PAGE) if block.title == "drop_copies.py")
    (row,) = re.findall(r"`(Pass\(.*?\),)`", (ROOT / PAGE).read_text(encoding="utf-8"))
    compiler_in(tmp_path, "loop/drop_copies.py", block.text, row)
    (tmp_path / "k.tl").write_text(KERNEL, encoding="utf-8")
    return tmp_path


def tilec(copy: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(copy), "TILEC_CACHE_DIR": str(copy / "cache")}
    command = [sys.executable, "-m", "tilec", *arguments]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_one_file_and_one_row_are_a_pass(copy: Path) -> None:
    before, after = (tilec(copy, "k.tl", "--stop-after", name) for name in ("fold-constants", "drop-copies"))
    assert len(before.splitlines()) == len(after.splitlines()) + 1
    assert "drop-copies" in tilec(copy, "k.tl", "--print-pipeline")
    assert "drop-copies" in tilec(copy, "k.tl", "--time", "-o", "k.cubin")
