"""What the model takes a loop to cost: how often it runs, how far ahead it loads, what blocks share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tilec.analysis.trip_count import UNKNOWN_TRIP_COUNT
from tilec.driver.build import Observer, build_library, build_reports
from tilec.ir.tile import Bind, Stmt, Var
from tilec.passes.cost.kernel import BlockCost, BlockWalk
from tilec.passes.cost.report import Report
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

SAMPLES = Path(__file__).parents[2] / "samples"
COUNTED = """
import tilelang.language as T
@T.prim_func
def k(counts: T.Tensor((64,), "int32"), A: T.Tensor(({rows}, 128), "float32"), B: T.Tensor((64, 128), "float32")):
    with T.Kernel(64, threads=128) as bx:
        tile = T.alloc_shared((32, 128), "float32")
        sums = T.alloc_fragment((128,), "float32")
        T.clear(sums)
        for i in T.Pipelined(counts[bx], num_stages=2):
            T.copy(A[i * 32, 0], tile)
            T.reduce_sum(tile, sums, dim=0, clear=False)
        T.copy(sums, B[bx, 0])
"""


def reported(text: str, **options: Any) -> Report:
    (report,) = build_reports(build_library(SourceFile("k.tl", text), CompileOptions(**options), Observer()))
    return report


@pytest.mark.parametrize("rows", [64, 1000, 4096])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_count_in_the_data_is_half_of_what_the_tensor_allows(rows: int, target: str) -> None:
    (loop,) = reported(COUNTED.format(rows=rows), target=target).loops
    assert {time.level.trip_count for time in loop.levels} == {-(-rows // 32) // 2}


def test_a_count_without_a_bound_is_a_guess() -> None:
    text = COUNTED.format(rows="n").replace("@T.prim_func", 'n = T.dynamic("n")\n@T.prim_func')
    (loop,) = reported(text).loops
    assert {time.level.trip_count for time in loop.levels} == {UNKNOWN_TRIP_COUNT}


def test_blocks_do_not_share_each_others_warps() -> None:
    """Two blocks of a multiprocessor issue side by side: schedules say what levels say, give or take a fifth."""
    text = (SAMPLES / "alcop" / "matmul.tl").read_text(encoding="utf-8")
    defines = (("M", 4096), ("N", 4096), ("K", 4096))
    found = reported(text, target="sm_80", defines=defines)
    assert found.together == 2
    assert found.by_schedule.cycles == pytest.approx(found.by_levels.cycles, rel=0.2)


def test_tiles_that_are_computed_do_not_shorten_what_is_loaded_ahead() -> None:
    """`squares` has one version in a loop that loads three iterations ahead."""
    text = """
import tilelang.language as T
@T.prim_func
def k(A: T.Tensor((4096, 128), "float32"), B: T.Tensor((128, 32), "float32")):
    with T.Kernel(1, threads=128) as bx:
        tile = T.alloc_shared((32, 128), "float32")
        squares = T.alloc_shared((32, 128), "float32")
        sums = T.alloc_fragment((128, 32), "float32")
        T.clear(sums)
        for i in T.Pipelined(128, num_stages=3):
            T.copy(A[i * 32, 0], tile)
            for r, c in T.Parallel(32, 128):
                squares[r, c] = tile[r, c] * tile[r, c]
            for c, r in T.Parallel(128, 32):
                sums[c, r] += squares[31 - r, 127 - c]
        T.copy(sums, B)
"""
    (loop,) = reported(text, target="sm_80").loops
    assert {time.level.stages for time in loop.levels} == {3}


PERSISTENT = """
import tilelang.language as T
@T.prim_func
def k(A: T.Tensor((4096, 64), "float32"), B: T.Tensor((64, 64), "float32")):
    with T.Kernel(8, threads=128) as block:
        tile = T.alloc_shared((32, 64), "float32")
        sums = T.alloc_fragment((64,), "float32")
        for number in T.serial(block, 61, 8):
            bx = number % 16
            by = number // 16
            T.clear(sums)
            for i in T.serial(bx + 1):
                T.copy(A[(by * 16 + i) * 32, 0], tile)
                T.reduce_sum(tile, sums, dim=0, clear=False)
            if bx > 2:
                T.copy(sums, B[number, 0])
"""


def test_tiles_of_a_persistent_block_are_walked_once_for_each_path() -> None:
    """A path has one of the 16 values on which the length of the inner loop and the condition depend."""
    (plan,) = build_library(SourceFile("k.tl", PERSISTENT), CompileOptions(), Observer()).plans
    walked: list[object] = []

    class CountingWalk(BlockWalk):
        def walk_body(self, body: Sequence[Stmt], values: dict[Var, int], found: BlockCost) -> None:
            walked.extend([body] if any(isinstance(stmt, Bind) for stmt in body) else [])
            super().walk_body(body, values, found)

    walk = CountingWalk(plan.assignment, plan.target, ())
    blocks = [walk.walk_block((block, 0, 0)) for block in range(8)]
    assert sum(block.loaded for block in blocks) == 32 * 64 * 4 * sum(number % 16 + 1 for number in range(61))
    assert len(walked) == 16
