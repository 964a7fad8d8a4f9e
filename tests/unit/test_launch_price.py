"""Parts of a predicted launch: what blocks read from DRAM in their order, loads in flight together, blocks of unlike
length that begin where others end, and one more block that fewer versions of tiles leave room for."""

from __future__ import annotations

import heapq
from pathlib import Path

import pytest

from tilec.driver.build import Build, Observer, build_kernel, build_report
from tilec.ir.tile import Raster
from tilec.passes.cost.count_dram_reads import count_missed_bytes, count_repeated_bytes
from tilec.passes.cost.model import Launch, Machine, overlap_times, predict_blocks
from tilec.passes.grid.rasterisation_order import GridWalk
from tilec.passes.grid.rasterise import AS_NUMBERED
from tilec.passes.memory.load_footprints import LoadFootprint
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile


def build(text: str) -> Build:
    """Build a kernel for an H200."""
    return build_kernel(SourceFile("k.tl", text), CompileOptions(gpu="H200"), Observer())


ROWS, COLUMNS = LoadFootprint("A", "y", 10), LoadFootprint("B", "x", 1)


@pytest.mark.parametrize(
    ("cache_bytes", "missed"),
    [
        # Each of 6 waves is a row of 8 blocks: it reads its own part of A, and 8 parts of B that the last one read 18
        # bytes ago.
        (1 << 20, 6 * 10 + 8),
        (0, 6 * (10 + 8)),
        (9, 6 * 10 + 8 + 5 * 4),
    ],
)
def test_a_wave_reads_anew_what_the_cache_has_lost(cache_bytes: int, missed: int) -> None:
    walk = GridWalk(8, 6, 1, 8, (ROWS, COLUMNS))
    assert count_missed_bytes(walk, AS_NUMBERED, cache_bytes) == missed


def test_panels_read_less_than_a_wide_grid_by_rows() -> None:
    walk = GridWalk(64, 64, 1, 132, (LoadFootprint("A", "y", 1 << 21), LoadFootprint("B", "x", 1 << 21)))
    plain, panels = (count_missed_bytes(walk, raster, 60 << 20) for raster in (AS_NUMBERED, Raster(11)))
    assert 2 * 64 << 21 <= panels < plain / 2


PARTS = """
import tilelang.language as T

@T.prim_func
def parts(X: T.Tensor((64, 4096), "float16"), Y: T.Tensor((64, 64), "float16")):
    with T.Kernel(64, threads=128) as bx:
        first = T.alloc_fragment((64,), "float16")
        second = T.alloc_fragment((64,), "float16")
        total = T.alloc_fragment((64,), "float16")
        T.clear(total)
        for k in range(32):
            T.copy(X[bx, k * 128], first)
            T.copy(X[bx, SECOND], second)
            for i in T.Parallel(64):
                total[i] += first[i] + second[i]
        AGAIN
        T.copy(total, Y[bx, 0])
"""
AGAIN = """for j in range(32):
            T.copy(X[bx, j * 128], first)
            for i in T.Parallel(64):
                total[i] -= first[i]"""


@pytest.mark.parametrize(
    ("second", "again", "times"),
    [("k * 128 + 64", "pass", 0), ("k * 128", "pass", 1), ("k * 128 + 64", AGAIN, 1), ("k * 128", AGAIN, 2)],
)
def test_copies_of_one_part_repeat_each_other(second: str, again: str, times: int) -> None:
    """Not those of two parts of a tensor, however alike they are."""
    kernel = build(PARTS.replace("SECOND", second).replace("AGAIN", again)).kernel
    assert count_repeated_bytes(kernel, 64, 64, 0) == times * 64 * 4096


def test_times_that_overlap_take_as_long_as_the_longest_and_little_more() -> None:
    assert overlap_times(7, 0) == 7 == overlap_times(0, 7)
    assert overlap_times(100, 50) == pytest.approx(100.3, abs=0.1)
    assert 100 < overlap_times(100, 100) < 113
    assert 100 < overlap_times(100, 0, 50) < 108


LENGTHS = (5, 1, 1, 1, 9, 2, 2, 8)


@pytest.mark.parametrize("lengths", [LENGTHS, tuple(sorted(LENGTHS)), tuple(sorted(LENGTHS, reverse=True))])
def test_a_block_begins_where_another_has_ended(lengths: tuple[int, ...]) -> None:
    """Of two multiprocessors the one that is free first takes the next block."""
    free = [0, 0]
    for length in lengths:
        heapq.heappush(free, heapq.heappop(free) + length)
    blocks = [lambda _, length=length: length for length in lengths]
    found = predict_blocks(blocks, Launch(len(lengths)), Machine(sms=2))
    assert found.compute == max(free)


TWO_LOADS = """
import tilelang.language as T
@T.prim_func
def k(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        {first}
        T.gemm(a, a, c)
        {second}
        T.gemm(a, b, c)
        T.copy(c, C)
"""


def test_loads_that_follow_each_other_wait_together() -> None:
    load_a, load_b = "T.copy(A, a)", "T.copy(B, b)"
    apart = TWO_LOADS.format(first=load_a, second=load_b)
    together = TWO_LOADS.format(first=f"{load_a}\n        {load_b}", second="")
    waiting, ahead = (build_report(build(text)).by_levels.compute for text in (apart, together))
    assert 500 < waiting - ahead < 1200


@pytest.mark.parametrize(
    ("depth", "limits", "versions", "blocks"),
    [
        (8192, True, 2, 2),
        (8192, False, 3, 1),
        (16384, True, 3, 1),  # its scales alone take more than half of the shared memory
    ],
)
def test_a_version_of_a_tile_makes_room_for_a_block(depth: int, limits: bool, versions: int, blocks: int) -> None:
    """The product is asynchronous: without a limit, its tile of A has a version more than the loop has stages."""
    sample = Path(__file__).parents[2] / "samples" / "gemm" / "dequant_fp4.tl"
    options = CompileOptions(
        gpu="H200", defines=(("M", 4096), ("N", 8192), ("K", depth)), stages_by_occupancy=limits,
        pipeline_strategy="unspecialize",
    )  # fmt: skip
    whole = sample.read_text(encoding="utf-8").replace("T.annotate_subtile({B_local: (1, 2)})", "pass")
    built = build_kernel(SourceFile("k.tl", whole), options, Observer())
    (loop,) = built.work.loops
    depths = {ring.name: each for ring, each in zip(loop.loop.problem.rings, loop.solution.schedule.depth, strict=True)}
    assert depths["A_shared"] == versions
    assert 232448 // (built.manifest.dynamic_smem + 1024) == blocks
    assert [each.chosen for each in built.work.decisions if each.what == "versions"] == (
        ["as many as leave room for 2 blocks"] if blocks == 2 else []
    )
