"""`tilec report --tiles`: a tile edge that is predicted to be faster, and the nearest kernels without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.cli.main import main
from tilec.driver import build as driver
from tilec.frontend.syntax.parse import parse_file
from tilec.support.diagnostics import Diagnostic
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.tune import auto, tiles

BIASED = """
import tilelang.language as T

rows, wide, deep = 4096, 4096, 2048
tile_rows, tile_wide, threads = 64, 128, 128

@T.prim_func
def kernel(
    A: T.Tensor((rows, deep), "float16"),
    B: T.Tensor((deep, wide), "float16"),
    bias: T.Tensor((wide,), "float32"),
    C: T.Tensor((rows, wide), "float16"),
):
    with T.Kernel(wide // tile_wide, rows // tile_rows, threads=threads) as (bx, by):
        As = T.alloc_shared((tile_rows, 64), "float16")
        Bs = T.alloc_shared((64, tile_wide), "float16")
        acc = T.alloc_fragment((tile_rows, tile_wide), "float32")
        T.clear(acc)
        for k in T.Pipelined(deep // 64, num_stages=4):
            T.copy(A[by * tile_rows, k * 64], As)
            T.copy(B[k * 64, bx * tile_wide], Bs)
            T.gemm(As, Bs, acc)
        for i, j in T.Parallel(tile_rows, tile_wide):
            acc[i, j] = T.max(acc[i, j] + bias[bx * tile_wide + j], 0)
        T.copy(acc, C[by * tile_rows, bx * tile_wide])
"""


def advise(target: str = "sm_90a", **defines: int) -> Diagnostic | None:
    source = SourceFile("kernel.tl", BIASED)
    options = CompileOptions(target=target, defines=tuple(defines.items()))
    written = driver.build_reports(driver.build_library(source, options, driver.Observer()))[0]
    return tiles.find_faster_tile(source, options, written, lambda library: driver.build_reports(library)[0])


def test_a_tile_that_loads_too_much_for_what_it_computes() -> None:
    """With the edge that the warning names it is gone."""
    found = advise()
    assert found is not None and found.code == "slow-tile" and found.help == "use tile_rows=128"
    assert found.primary is not None and found.primary.span.line == 5 and found.primary.text == "tile_rows is 64"
    assert advise(tile_rows=128) is None


def test_a_target_that_has_not_been_measured_has_no_advice() -> None:
    assert advise("sm_80") is None


def test_edges_that_are_tried() -> None:
    """Half and twice each, and one half as large again with its threads; no edge below 16 or above 256."""
    module = parse_file(SourceFile("kernel.tl", BIASED))
    roles = auto.find_tunable_roles(module)
    assert roles == {"tile_rows": "tile", "tile_wide": "tile", "threads": "threads"}
    rows, threads = "tile_rows", "threads"
    for edge, points in {
        64: [((rows, 32),), ((rows, 128),), ((rows, 96), (threads, 192))],
        16: [((rows, 32),), ((rows, 24), (threads, 192))],
        256: [((rows, 128),)],
        63: [],
    }.items():
        values = {**auto.find_constants(module), rows: edge}
        assert list(tiles.list_other_edges(rows, values, roles)) == points


def test_the_report_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kernel.tl").write_text(BIASED)
    assert main(["report", "kernel.tl", "--target", "sm_90a", "--tiles"]) == 0
    shown = capfd.readouterr()
    assert "warning[slow-tile]: with tile_rows=128" in shown.err and "predicted for" in shown.out
    assert main(["report", "kernel.tl", "--target", "sm_90a", "--tiles", "-Wno-slow-tile"]) == 0
    assert capfd.readouterr().err == ""
