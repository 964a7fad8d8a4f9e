"""Whole launches: what clusters share, tiles that are dealt out while the kernel runs, and blocks that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilec.driver import build as driver, simulate
from tilec.emu.tma.tensormap import MapLayout
from tilec.simulate.grid import (
    Simulation,
    _count_rounds,
    _find_dram_fractions,
    _find_steady_loop,
    _measure_wave,
    measure_tensor_share,
)  # fmt: skip
from tilec.simulate.record import BlockTrace, count_bytes_inside
from tilec.simulate.state import ReplayResult
from tilec.support import files
from tilec.support.options import CompileOptions
from tilec.target.table import load_target

SAMPLES = Path(__file__).parents[2] / "samples"


def simulated(sample: str, defines: dict[str, int], target: str = "sm_90a", **asked: Any) -> Simulation:
    source = files.read_source(str(SAMPLES / sample))
    build = driver.build_kernel(
        source, CompileOptions(target=target, defines=tuple(defines.items()), **asked), driver.Observer()
    )
    return simulate.simulate_build(build, load_target(target))


def test_multicast_loads_once_what_a_cluster_shares() -> None:
    sizes = {"M": 2048, "N": 2048, "K": 512}
    alone = simulated("gemm.tl", sizes, cluster=(2, 1), multicast=False)
    shared = simulated("gemm.tl", sizes, cluster=(2, 1))
    # Tiles of A and of B are as large as each other; one of the two is loaded by halves.
    assert shared.loaded / alone.loaded == pytest.approx(0.75, abs=0.01)
    assert shared.flops == alone.flops == 2 * 2048 * 2048 * 512
    assert shared.cycles < alone.cycles


def test_the_clock_is_that_of_the_load() -> None:
    target = load_target("sm_90a")
    free, light, tensor = (target.limit(f"{load}_clock_mhz") for load in ("free", "light", "tensor"))
    assert simulated("vector_add.tl", {"N": 1 << 16}).clock_mhz == free
    short = simulated("gemm.tl", {"M": 256, "N": 256, "K": 256})
    assert measure_tensor_share(short) < 0.02 and short.clock_mhz == free
    busy = simulated("gemm.tl", {"M": 1408, "N": 1536, "K": 4096})
    assert tensor < busy.clock_mhz < light
    assert busy.seconds == pytest.approx(busy.cycles / busy.clock_mhz / 1e6)


def test_no_wave_passes_more_bytes_than_memory_does() -> None:
    """Three tensors of 64 MiB: DRAM moves so many bytes a second, whatever the clock of multiprocessors."""
    target, found = load_target("sm_90a"), simulated("vector_add.tl", {"N": 1 << 24})
    least = 3 * 4 * (1 << 24) / (target.limit("dram_bytes_per_cycle") * target.limit("clock_mhz") * 1e6)
    assert found.waves > 4 and found.clock_mhz > target.limit("clock_mhz")
    assert least < found.seconds < 1.1 * least


def test_a_third_of_what_an_addition_moves_is_written() -> None:
    source = files.read_source(str(SAMPLES / "vector_add.tl"))
    options = CompileOptions(target="sm_90a", defines=(("N", 1 << 22),), gpu="H200")
    build = driver.build_kernel(source, options, driver.Observer())
    found = simulate.simulate_build(build, load_target("sm_90a", gpu="H200"))
    assert found.stored == pytest.approx((found.stored + found.missed) / 3)
    assert 1 < found.shares.write_price == pytest.approx(found.costs.price_written_byte(1 / 3))


def test_a_wave_is_measured_once_its_blocks_are_no_longer_in_step() -> None:
    """Waves of the top 8 of 256 on an H200, replayed: 53,103 cycles, 43,667, and then 41,600 each; the last one, whose
    blocks end alone, is shorter."""
    ends = [53_103.0, 96_770.0, 138_370.0, 179_970.0, 221_570.0, 257_342.0]
    rounds = _count_rounds(waves=18, instructions=101_000)
    assert _measure_wave(ReplayResult(ends=ends[:rounds]), 1, rounds) == 41_600


def test_a_loop_that_has_ended_says_nothing_of_what_follows() -> None:
    """Of a block whose beginning is recorded: five of five passes by one branch, six of a hundred by another."""
    warp = [(1, None)] * 5 + [(2, None)] * 6
    block = BlockTrace((0, 0, 0), [warp], passes={(0, 1): 5, (0, 2): 100})
    assert _find_steady_loop(block, frozenset({1, 2})) == (0, 2, 4, 100.0)


def test_each_step_has_its_own_share_of_dram() -> None:
    """Two blocks: step 1 loads what both need, step 2 rows of their own, step 3 a row that step 2 has loaded."""
    blocks = [
        BlockTrace(
            (number, 0, 0), [], watched={1: 64, 2: 128, 3: 32},
            pieces={(0,): (64, 1), (10 + number,): (96, 2), (20 + number,): (32, 2)},
        )
        for number in range(2)
    ]  # fmt: skip
    overall, by_step = _find_dram_fractions([[block] for block in blocks])
    assert by_step == {1: 0.5, 2: 1.0, 3: 0.0}
    assert overall == (64 + 2 * 128) / (2 * (64 + 128 + 32))
    assert _find_dram_fractions([[BlockTrace((0, 0, 0), [])]]) == (1.0, {})


def test_what_lies_outside_of_a_tensor_is_not_moved() -> None:
    """A box of 64 rows of 128 bytes; the tensor has 16 rows."""
    box = MapLayout(0, "float16", 128, "zero", (8192, 16), (16384,), (64, 64), (1, 1))
    assert box.box_bytes == 64 * 128
    assert count_bytes_inside(box, (0, 0)) == count_bytes_inside(box, (128, 0)) == 16 * 128
    assert count_bytes_inside(box, (8160, 8)) == 8 * 64
    assert count_bytes_inside(box, (0, -4)) == 16 * 128
    assert count_bytes_inside(box, (0, 16)) == 0


@pytest.mark.some(1)
@pytest.mark.parametrize("size", [2048, 4096])
def test_tiles_that_are_asked_for_are_all_done(size: int) -> None:
    """Pairs of blocks on Blackwell, by cluster launch control."""
    sizes = {"M": size, "N": size, "K": 256}
    found = simulated("gemm.tl", sizes, target="sm_100a")
    places = found.active // found.launch.cluster[0] // found.launch.cluster[1]
    tiles = -(-found.blocks // 2 // places)
    assert any(f"dynamic tile scheduler: {tiles} tiles for each of {places} places" in note for note in found.notes)
    assert found.flops == pytest.approx(2 * size * size * 256, rel=1e-6)
    assert not found.follows_numbers
    # Neighbours load the same rows and columns.
    assert found.missed < 0.5 * found.loaded
    one = simulated("gemm.tl", {**sizes, "M": 256, "N": 256}, target="sm_100a")
    assert found.cycles < tiles * one.cycles


@pytest.mark.weekly
def test_blocks_that_walk_over_tiles_of_different_length() -> None:
    sizes = {"S": 2048}
    by_stride = simulated("attention/causal.tl", sizes, tile_scheduler="static", rasterisation=0)
    one_each = simulated("attention/causal.tl", sizes, persistent=False)
    assert by_stride.blocks < one_each.blocks
    # 16 heads, blocks of 128 queries: 2, 4, … 32 blocks of 64 keys, two products of 128 × 64 × 128 for each.
    products = 16 * sum(range(2, 33, 2)) * 2 * 2 * 128 * 64 * 128
    assert one_each.flops == pytest.approx(products, rel=0.03)
    assert by_stride.flops == pytest.approx(products, rel=0.03)
    assert by_stride.tail > 0.1 * by_stride.cycles
