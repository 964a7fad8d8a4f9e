"""Whole launches: what clusters share, tiles that are dealt out while the kernel runs, and blocks that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilec.driver import build as driver, simulate
from tilec.simulate.grid import Simulation, _find_steady_loop, measure_tensor_share
from tilec.simulate.record import BlockTrace
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


def test_a_loop_that_has_ended_says_nothing_of_what_follows() -> None:
    """Of a block whose beginning is recorded: five of five passes by one branch, six of a hundred by another."""
    warp = [(1, None)] * 5 + [(2, None)] * 6
    block = BlockTrace((0, 0, 0), [warp], passes={(0, 1): 5, (0, 2): 100})
    assert _find_steady_loop(block, frozenset({1, 2})) == (0, 2, 4, 100.0)


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
    assert found.shares.missing < 0.5
    one = simulated("gemm.tl", {**sizes, "M": 256, "N": 256}, target="sm_100a")
    assert found.cycles < tiles * one.cycles


@pytest.mark.weekly
def test_blocks_that_walk_over_tiles_of_different_length() -> None:
    sizes = {"S": 2048}
    by_stride = simulated("attention/causal.tl", sizes, tile_scheduler="static")
    one_each = simulated("attention/causal.tl", sizes, persistent=False)
    assert by_stride.blocks < one_each.blocks
    # 16 heads, blocks of 128 queries: 2, 4, … 32 blocks of 64 keys, two products of 128 × 64 × 128 for each.
    products = 16 * sum(range(2, 33, 2)) * 2 * 2 * 128 * 64 * 128
    assert one_each.flops == pytest.approx(products, rel=0.03)
    assert by_stride.flops == pytest.approx(products, rel=0.03)
    assert by_stride.tail > 0.1 * by_stride.cycles
