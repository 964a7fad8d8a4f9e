"""The kernels of docs/memory.md are right, and become what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import agrees, built

from tilec.driver.build import Observer, PipelineStopped, build_kernel
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

DOCUMENT = (Path(__file__).parents[2] / "docs" / "memory.md").read_text(encoding="utf-8")
KERNELS = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def written(number: int, folder: Path) -> Path:
    path = folder / "kernel.tl"
    path.write_text(KERNELS[number], encoding="utf-8")
    return path


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("number", range(len(KERNELS)))
def test_it_is_right(number: int, target: str, tmp_path: Path) -> None:
    made = agrees(written(number, tmp_path), target)
    assert len(made.schedules) == ("T.Pipelined" in KERNELS[number])
    assert len(made.program.roles) == 1


def test_the_layout_shown() -> None:
    (shown,) = re.findall(r"^```text\n(.*?)\n```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    observer = Observer(keep={"layout"}, stop_after="layout")
    with pytest.raises(PipelineStopped):
        build_kernel(SourceFile("kernel.tl", KERNELS[0]), CompileOptions(), observer)
    assert shown in observer.texts["layout"].decode().splitlines()


def test_runs_are_loaded_twice_and_stored_once(tmp_path: Path) -> None:
    _, made = built(written(0, tmp_path), "sm_90a")
    assert made.ptx.count("ld.global.nc.v4.b32") == 2 * made.ptx.count("st.global.v4.b32") == 4


def test_rows_are_gathered_by_16_bytes(tmp_path: Path) -> None:
    _, made = built(written(1, tmp_path), "sm_90a")
    runs = 8 * 256 // 64 // 8
    assert made.ptx.count("ld.global.nc.v4.b32") == made.ptx.count("st.global.v4.b32") == runs


def test_pieces_are_under_way(tmp_path: Path) -> None:
    """More than one, and none by way of registers."""
    _, made = built(written(2, tmp_path), "sm_90a")
    assert max(made.schedules[0].depth) > 2 and "ld.global" not in made.ptx
