"""`tilec explain pipeline FILE`: what runs ahead in a kernel that says nothing about it, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import GEMM, VECTOR_ADD, tilec

LOAD_USE = str(Path(__file__).parents[1] / "kernels" / "load_use.tl")


def test_each_level_of_a_product(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", "pipeline", LOAD_USE, "--entry", "plain", "--target", "sm_80") == 0
    shown = capfd.readouterr().out
    assert shown.startswith("plain on sm_80: tiles that are loaded and used\n")
    rows = [line.split() for line in shown.splitlines()[2:6]]
    assert [(row[0], row[1]) for row in rows[:2]] == [("18", "a"), ("19", "b")]
    assert "asynchronous, by cp.async; 4 × 4,096 bytes" in shown
    assert shown.count("shared → registers") == 2 and "ldmatrix" in shown
    assert "loop at line 17: pipelined, by the compiler: it loads tiles for a product" in shown


def test_fragments_that_are_loaded_ahead(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", "pipeline", GEMM, "--target", "sm_80") == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert (
        "A_shared.registers A_shared shared → registers 25 2 prefetched a step before its use; "
        "the last steps of an iteration load for the first steps of the next" in shown
    )
    assert "register stages: 2, by the compiler: without prefetching each iteration would wait 224 cycles" in shown
    assert tilec("explain", "pipeline", GEMM, "--target", "sm_80", "--register-stages", "1") == 0
    assert "register stages: 1, by the command line: --register-stages 1" in capfd.readouterr().out


def test_a_switch_leaves_loops_as_they_are_written(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", "pipeline", LOAD_USE, "--entry", "plain", "--no-auto-pipeline") == 0
    assert "loop at line 17: as it is written, by the command line: --no-auto-pipeline" in capfd.readouterr().out


def test_products_that_read_shared_memory_need_no_fragments(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", "pipeline", GEMM) == 0
    assert "wgmma reads shared memory itself" in capfd.readouterr().out


def test_a_kernel_that_loads_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", "pipeline", VECTOR_ADD) == 0
    assert capfd.readouterr().out == "vector_add: no tile is loaded to or from shared memory\n"


def test_without_a_file(capfd: pytest.CaptureFixture[str]) -> None:
    assert tilec("explain", "pipeline") == 2
    assert "missing argument 'FILE.tl'" in capfd.readouterr().err
