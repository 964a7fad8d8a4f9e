"""What the model takes a loop to cost: how often it runs, how far ahead it loads, what blocks share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tilec.analysis.trip_count import UNKNOWN_TRIP_COUNT
from tilec.driver.build import Observer, build_library, build_reports
from tilec.ir.tile import Bind, Stmt, Var
from tilec.passes.cost.kernel import BlockCost, BlockWalk, read_clock, sample_blocks
from tilec.passes.cost.known_values import Contents
from tilec.passes.cost.model import Clock
from tilec.passes.cost.report import Report
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.target.table import load_target

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


# ---- contents of tensors ---------------------------------------------------------------------------------------------

SPLIT = """
import tilelang.language as T
@T.prim_func
def k(lengths: T.Tensor((4,), "int32"), A: T.Tensor((4, 4096, 128), "float32"), B: T.Tensor((4, 8, 128), "float32")):
    with T.Kernel(8, 4, threads=128) as (part, b):
        tile = T.alloc_shared((32, 128), "float32")
        sums = T.alloc_fragment((128,), "float32")
        T.clear(sums)
        blocks = T.ceildiv(lengths[b], 32)
        share = T.ceildiv(blocks, 8)
        for i in T.Pipelined(part * share, T.min((part + 1) * share, blocks), num_stages=2):
            T.copy(A[b, i * 32, 0], tile)
            T.reduce_sum(tile, sums, dim=0, clear=False)
        T.copy(sums, B[b, part, 0])
"""


def report_contents(text: str, contents: Contents, **options: Any) -> Report:
    library = build_library(SourceFile("k.tl", text), CompileOptions(**options), Observer())
    (report,) = build_reports(library, None, contents)
    return report


def list_trip_counts(report: Report) -> set[int]:
    return {time.level.trip_count for loop in report.loops for time in loop.levels}


def test_a_part_of_a_loaded_length_counts_as_a_part() -> None:
    """Half of the 4,096 rows that the loop could index, divided among eight blocks."""
    found = reported(SPLIT, target="sm_90a")
    assert list_trip_counts(found) == {4096 // 2 // 32 // 8}
    assert found.assumed == (("lengths", 2048),) and found.assumption == ", if all lengths = 2,048"


@pytest.mark.parametrize(("lengths", "most"), [(4096, 16), ((64, 1000, 4096, 0), 16), ((0, 0, 0, 320), 2), (0, 0)])
def test_given_contents_say_how_often_a_loop_runs(lengths: int | tuple[int, ...], most: int) -> None:
    found = report_contents(SPLIT, {"lengths": lengths}, target="sm_90a")
    assert list_trip_counts(found) == {most} and found.assumption == ""


def test_scalars_that_a_loop_looks_up_decide_which_blocks_have_work() -> None:
    text = (SAMPLES / "gemm" / "grouped.tl").read_text(encoding="utf-8")
    options: dict[str, Any] = {"target": "sm_90a", "defines": (("rows", 4096), ("groups", 4))}
    full, one = (report_contents(text, {"sizes": sizes}, **options) for sizes in ((1024,) * 4, (128, 0, 0, 0)))
    assert one.compute < full.compute / 20


@pytest.mark.parametrize(
    ("contents", "why"), [({"A": 3}, "no tensor of integers"), ({"lengths": (1, 2)}, "4 elements, and 2 are given")]
)
def test_contents_of_no_such_tensor_are_refused(contents: Contents, why: str) -> None:
    with pytest.raises(CompileError, match=why):
        report_contents(SPLIT, contents)


# ---- blocks and machines ---------------------------------------------------------------------------------------------


def test_samples_of_a_grid_meet_all_of_its_columns() -> None:
    places = list(sample_blocks((128, 32, 1), 64))
    assert len({x for x, _, _ in places}) > 32 and len({y for _, y, _ in places}) > 24
    assert list(sample_blocks((4, 3, 1), 64)) == [(x, y, 0) for y in range(3) for x in range(4)]


def test_shared_memory_has_one_port_for_operands_and_loads() -> None:
    """Two products of 128 x 64 read as many bytes as one of 128 x 128 and 64 x 64 more; TMA writes twice as fast."""
    text = (SAMPLES / "gemm" / "swiglu.tl").read_text(encoding="utf-8").replace("128, 128, 64", "128, 64, 64")
    (loop,) = reported(text, target="sm_90a").loops
    operands, loads = 2 * 2 * 4 * (64 + 64) * 32 // 128, (128 * 64 + 2 * 64 * 64) * 2 // 256
    assert loop.levels[0].use == operands + loads > 2 * 2 * 4 * 64 // 2


@pytest.mark.parametrize(("share", "mhz"), [(0, 1970), (0.01, 1970), (0.1, 1815), (0.45, 1815), (1, 1500)])
def test_the_clock_falls_with_the_use_of_tensor_cores(share: float, mhz: int) -> None:
    assert read_clock(load_target("sm_90a")).under_load(share) == mhz


def test_a_clock_with_two_points_falls_in_proportion() -> None:
    assert [Clock(1800, 1600).under_load(share) for share in (0, 0.5, 1)] == [1800, 1700, 1600]
    assert Clock(1500, 1600, 1700, 1900).under_load(1) == 1500


BOUNDED = """
import tilelang.language as T
@T.prim_func
def k(n: T.Tensor((9,), "int32"), A: T.Tensor((4096, 128), "float32"), B: T.Tensor((8, 128), "float32")):
    with T.Kernel(8, threads=128) as b:
        tile = T.alloc_shared((32, 128), "float32")
        sums = T.alloc_fragment((128,), "float32")
        seen = T.alloc_fragment((1,), "{dtype}")
        T.clear(sums)
        {before}
        for i in T.Pipelined({bounds}, num_stages=2):
            T.copy(A[i * 32, 0], tile)
            T.reduce_sum(tile, sums, dim=0, clear=False)
        T.copy(sums, B[b, 0])
"""


def bounded(bounds: str, before: str = "seen[0] = 0", dtype: str = "int32") -> str:
    return BOUNDED.format(bounds=bounds, before=before, dtype=dtype)


@pytest.mark.parametrize(
    ("bounds", "assumed"),
    [
        ("n[b], n[b + 1]", ()),  # nothing lies between offsets that are all alike
        ("0, n[b + 1] - n[b]", ()),
        ("0, n[b] * 5", (("n", 12),)),  # 128 // 5, halved
        ("0, n[b] * 64", (("n", 1),)),
        ("0, n[b] // 64", (("n", 4127),)),
        ("0, T.min(n[b], 7)", ()),  # no value exceeds what the loop indexes
    ],
)
def test_contents_are_assumed_where_they_say_something(bounds: str, assumed: tuple[tuple[str, int], ...]) -> None:
    found = reported(bounded(bounds), target="sm_90a")
    assert found.assumed == assumed and 0 not in list_trip_counts(found)


@pytest.mark.parametrize(
    ("before", "most"),
    [
        ("seen[0] = n[b]", 10),
        ("T.fill(seen, 20)", 64),  # what is not followed is not known: a guess
        ("seen[0] = 1\n        T.fill(seen, 20)", 64),
        ("seen[0] = 1\n        T.copy(n[b : b + 1], seen)", 64),
    ],
)
def test_scalars_that_are_written_otherwise_are_not_known(before: str, most: int) -> None:
    found = report_contents(bounded("0, seen[0]", before), {"n": 10}, target="sm_90a")
    assert list_trip_counts(found) == {most}


def test_scalars_that_are_no_whole_numbers_decide_nothing() -> None:
    text = bounded("0, n[b]", 'seen[0] = -T.infinity("float32")', "float32")
    assert list_trip_counts(report_contents(text, {"n": 3}, target="sm_90a")) == {3}


def test_a_loop_of_any_length_is_walked_in_a_moment() -> None:
    text = bounded("0, seen[0]", "for j in T.serial(n[b]):\n            seen[0] = j % 7")
    assert list_trip_counts(report_contents(text, {"n": 2_000_000_000}, target="sm_90a")) <= {*range(129)}


@pytest.mark.parametrize("elements", [1 << 31, (1,) * 8 + (-(1 << 31) - 1,)])
def test_contents_beyond_their_type_are_refused(elements: int | tuple[int, ...]) -> None:
    with pytest.raises(CompileError, match="n of k is of int32, which does not hold"):
        report_contents(bounded("0, n[b]"), {"n": elements})
