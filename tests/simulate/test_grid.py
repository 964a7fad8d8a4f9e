"""Whole launches: what clusters share, tiles that are dealt out while the kernel runs, and blocks that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilec.driver import build as driver, simulate
from tilec.simulate.grid import Simulation
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
