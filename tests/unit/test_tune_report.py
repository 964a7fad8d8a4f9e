"""What `--report` says of kernels: levels from their statements, occupancy, waves and the roofline."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilec.cli.main import main
from tilec.driver import build as driver
from tilec.passes.cost.model import overlap_times
from tilec.passes.cost.report import Report
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile
from tilec.target.table import load_target

ROOT = Path(__file__).parents[2]
GEMM = ROOT / "samples" / "gemm.tl"


def reported(path: Path, target: str, register_stages: int | None = None, **defines: Any) -> Report:
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    options = CompileOptions(target=target, defines=tuple(defines.items()), register_stages=register_stages)
    (report,) = driver.build_reports(driver.build_library(source, options, driver.Observer()))
    return report


def test_a_product_on_hopper_is_one_level() -> None:
    found = reported(GEMM, "sm_90a")
    (loop,) = found.loops
    (time,) = loop.levels
    # 128 x 128 x 64: 8 m64n128k16 of 64 cycles, each of which reads 6 KiB of shared memory at 128 bytes a cycle while
    # 32 KiB are written there at 256, which takes as long as the products; 32 KiB at the 107 bytes a cycle that one
    # multiprocessor takes. L2 delivers faster to 64 blocks that read the same tiles: 7065 bytes a cycle of 1755 MHz,
    # 8266 of the 1500 that products leave.
    assert (time.use, time.level.transfer, time.level.trip_count, time.level.stages) == (8 * 64, 306, 16, 4)
    assert time.level.latency == 1031  # of tma.load, without what its bytes take
    assert (time.cycles, time.bound) == (1031 + 306 + 16 * 512, "use")
    assert loop.ii == 512
    assert found.bound == "what the loop at line 25 computes"
    assert (found.ctas, found.by_levels.waves, found.together) == (64, 1, 1)
    # All 64 blocks' products, and the clears of their accumulators, shared among 132 multiprocessors.
    assert found.roofline == (64 * 16 * 512) // 132 and found.limit == "compute"
    assert found.achieved == found.roofline / found.predicted.cycles


def test_the_longer_of_two_times_is_the_prediction_and_the_gap_is_told() -> None:
    levels, schedules = (reported(GEMM, target, M=m, N=m, K=4096) for target, m in (("sm_90a", 2048), ("sm_80", 1024)))
    assert levels.predicted is levels.by_levels
    assert re.fullmatch(r"[\d.]+ µs if only the loops' schedules counted; what binds adds [\d.]+", levels.gap)
    assert schedules.predicted is schedules.by_schedule
    assert re.fullmatch(r"[\d.]+ µs if only the levels counted; the loops' schedules add [\d.]+", schedules.gap)
    assert not levels.is_a_bound and not schedules.is_a_bound


def test_a_prediction_that_is_a_bound_is_not_called_achieved() -> None:
    said = reported(ROOT / "samples" / "vector_add.tl", "sm_90a", N=10_000_000)
    assert said.is_a_bound and said.gap == ""


def test_a_product_on_ampere_reads_fragments_at_a_level_of_its_own() -> None:
    (loop,) = reported(GEMM, "sm_80", register_stages=1).loops
    outer, inner = loop.levels
    assert (outer.level.name, inner.level.name) == ("global → shared", "shared → registers")
    # 4 steps of 16 columns: 128 products m16n8k16 of 2 cycles each and a quarter of 96 KiB at 128 bytes a cycle.
    assert (inner.level.trip_count, inner.use, inner.level.transfer) == (4, 256, 192)
    assert (inner.level.latency, inner.level.parts, inner.cycles) == (32, 2, 32 + 192 + 4 * 256)
    assert outer.use == inner.cycles + outer.level.issue
    assert outer.level.latency == 496 and outer.level.transfer == 512


def test_fragments_that_are_loaded_in_the_iteration_before_are_waited_for_once() -> None:
    (before,), (loop,) = (reported(GEMM, "sm_80", register_stages=stages).loops for stages in (1, None))
    outer, inner = loop.levels
    assert inner.level.carried and inner.cycles == 4 * 256 and outer.use == inner.cycles + outer.level.issue
    # What the schedules say: the wait is in the one's interval, and some issue slots of the loads in the other's.
    assert before.ii is not None and loop.ii is not None
    assert before.ii >= before.levels[0].use and outer.use <= loop.ii <= outer.use + 4 * 12


def test_waves_and_occupancy() -> None:
    found = reported(GEMM, "sm_80", M=2048, N=2048, num_stages=1)
    assert dict(found.fits)["shared memory"] == 167936 // (32 * 1024 + 1024)
    assert (found.ctas, found.together) == (256, dict(found.fits)["registers"])
    assert found.by_levels.waves == -(-256 // (108 * found.together))


def test_a_kernel_that_only_moves_bytes_is_bound_by_them() -> None:
    found = reported(ROOT / "samples" / "softmax.tl", "sm_90a")
    assert (found.bound, found.limit, found.loops) == ("DRAM bandwidth", "DRAM", ())
    assert found.is_a_bound


HORNER = """\
import tilelang.language as T

@T.prim_func
def horner(X: T.Tensor((8192, 512), "float32"), Y: T.Tensor((8192, 512), "float32")):
    with T.Kernel(8192, threads=64) as row:
        x = T.alloc_fragment((512,), "float32")
        y = T.alloc_fragment((512,), "float32")
        T.copy(X[row, 0], x)
        T.clear(y)
        for n in T.serial(200):
            for i in T.Parallel(512):
                y[i] = y[i] * x[i] + 1.0
        T.copy(y, Y[row, 0])
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_90a", "sm_100a"])
def test_blocks_that_share_a_multiprocessor_compute_in_turns(target: str, tmp_path: Path) -> None:
    (tmp_path / "horner.tl").write_text(HORNER, encoding="utf-8")
    found = reported(tmp_path / "horner.tl", target)
    assert found.together > 4 and found.limit == "compute"
    assert 0.8 < found.achieved <= 1
    assert 0 < found.roofline <= min(found.by_levels.cycles, found.by_schedule.cycles)


def test_more_stages_are_never_slower() -> None:
    times = [reported(GEMM, "sm_90a", num_stages=stages).by_levels.cycles for stages in (1, 2, 4)]
    assert times == sorted(times, reverse=True) and times[0] > times[-1]


def test_a_grid_known_at_launch_is_one_full_wave() -> None:
    found = reported(ROOT / "tests" / "kernels" / "dynamic_gemm.tl", "sm_90a")
    assert found.is_one_wave
    assert found.ctas == load_target("sm_90a").limit("sms") * found.together


def test_sizes_of_a_launch_give_a_prediction_for_them() -> None:
    path = ROOT / "samples" / "gemm" / "dynamic.tl"
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    library = driver.build_library(source, CompileOptions(target="sm_90a"), driver.Observer())
    (unknown,), (small,), (large,) = (driver.build_reports(library, sizes) for sizes in (None, {"M": 256}, {"M": 4096}))
    assert unknown.assumption == ", whatever the sizes" and small.assumption == large.assumption == ""
    known = reported(path, "sm_90a", M=4096)
    assert large.roofline == known.roofline > small.roofline > 0
    assert 1 <= large.at(large.predicted) / known.at(known.predicted) < 1.5
    assert small.at(small.predicted) < large.at(large.predicted) < unknown.at(unknown.predicted)
    with pytest.raises(CompileError, match="has no size N"):
        driver.build_reports(library, {"N": 64})


def test_sizes_that_give_no_blocks_are_refused() -> None:
    source = SourceFile("add.tl", (ROOT / "tests" / "kernels" / "dynamic_add.tl").read_text(encoding="utf-8"))
    library = driver.build_library(source, CompileOptions(target="sm_80"), driver.Observer())
    with pytest.raises(CompileError, match="no blocks for these sizes"):
        driver.build_reports(library, {"n": 0})


def test_roles_by_hand_run_beside_each_other() -> None:
    found = reported(ROOT / "samples" / "gemm" / "pipeline_objects.tl", "sm_90a")
    assert found.loops == () and found.roofline < found.by_levels.cycles < 3 * found.roofline


def test_the_report_shown_is_that_of_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    shown = text.split("```text\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    assert main([str(GEMM), "--target", "sm_80", "--report"]) == 0
    assert capfd.readouterr().out.strip() == shown.strip()


def test_what_a_block_does_around_its_loops_counts_once_a_tile_like_they() -> None:
    """132 blocks walk over 1,024 tiles of the product: the sums around all loops are no more than all of the loops."""
    found = reported(GEMM, "sm_90a", M=4096, N=4096, K=512)
    assert found.ctas == 132
    assert "the loop at line 25" in found.bound


@pytest.mark.parametrize("entry", ["three_roles", "in_branches"])
def test_of_a_kernel_whose_roles_wait_at_barriers(entry: str) -> None:
    """Of a barrier a nest has the address: nothing is loaded."""
    path = Path(__file__).parents[1] / "kernels" / "pipeline_objects.tl"
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    options = CompileOptions(target="sm_90a", entry=entry)
    (report,) = driver.build_reports(driver.build_library(source, options, driver.Observer()))
    assert report.by_levels.cycles > 0


def test_busy_tensor_cores_bring_the_clock_down() -> None:
    target = load_target("sm_90a")
    product = reported(GEMM, "sm_90a", M=2048, N=2048, K=4096)
    assert target.limit("tensor_clock_mhz") < product.loaded_clock_mhz < target.limit("clock_mhz")
    busy = product.roofline / product.by_levels.cycles
    assert product.tensor_share == pytest.approx(busy, rel=0.01)
    compute, memory = product.by_levels.compute / product.loaded_clock_mhz, product.by_levels.memory / product.clock_mhz
    assert product.at(product.by_levels) == overlap_times(compute, memory)
    assert product.scale_to_clock(product.by_levels) > product.by_levels.cycles
    copied = reported(ROOT / "samples" / "vector_add.tl", "sm_90a")
    assert (copied.tensor_share, copied.loaded_clock_mhz) == (0, target.limit("free_clock_mhz"))


def test_a_clock_that_was_measured_under_load_is_not_raised() -> None:
    found = reported(GEMM, "sm_90a")
    slow = replace(found, clock=replace(found.clock, nominal=1400))
    assert slow.clock.tensor > 1400 and slow.loaded_clock_mhz == slow.clock_mhz == 1400
