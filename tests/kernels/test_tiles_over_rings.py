"""Tiles in the memory of rings that are done with: how much that leaves, and right for any trip count, on hostile
machines too. That the barrier between the two is needed, `unit/test_sync.py` says."""

from __future__ import annotations

import pytest
from harness import HERE, SAMPLES, built

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.support.options import Value

SMALL: dict[str, Value] = {"M": 128, "N": 128, "K": 192, "num_stages": 3}


def over(made: Build) -> list[str]:
    return [tile.buffer.name for tile in made.program.shared if tile.over_rings]


def ring_bytes(made: Build) -> int:
    named = {name for ring in made.program.rings for name in ring.buffers}
    return sum(tile.bytes for tile in made.program.shared if tile.buffer.name in named)


def is_right(made: Build, adversary: int, size: int | None = None) -> bool:
    found = emulate.draw_arguments(made.kernel, made.manifest, adversary, None if size is None else {"k": size})
    expected = found.copy()
    emulate.emulate_build(made, found, options=RunOptions(adversary=adversary))
    emulate.run_reference(made.kernel, expected)
    return all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


@pytest.mark.parametrize("width", [128, 256])
def test_a_gemm_takes_what_its_ring_takes(width: int) -> None:
    """The tiles and columns that `benchmarks/static.py` compares."""
    _, made = built(SAMPLES / "gemm.tl", "sm_90a", block_N=width)
    assert over(made) == ["C_local.staging", *(f"C_local.staging.{k}" for k in range(1, width // 64))]
    assert made.manifest.dynamic_smem == 4 * (128 + width) * 64 * 2 + 4 * 2 * 8


def test_there_are_versions_instead() -> None:
    """Seven of 32 KiB, where a staging tile beside them would leave room for six."""
    _, made = built(SAMPLES / "gemm.tl", "sm_90a", num_stages=7)
    assert [ring.depth for ring in made.program.rings] == [7]


@pytest.mark.parametrize("trip_count", range(5))
def test_trip_counts_around_the_depth(trip_count: int) -> None:
    _, made = built(HERE / "dynamic_gemm_depth.tl", "sm_90a")
    (ring,) = made.program.rings
    assert over(made) and ring.depth == 2
    assert is_right(made, trip_count, 32 * trip_count)


@pytest.mark.parametrize("trip_count", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy", ["auto", "unspecialize"])
def test_static_trip_counts(trip_count: int, strategy: str) -> None:
    _, made = built(SAMPLES / "gemm.tl", "sm_90a", strategy, **{**SMALL, "K": 64 * trip_count})
    assert over(made)
    assert is_right(made, trip_count)


def test_a_tile_larger_than_the_ring_goes_beyond_it() -> None:
    _, made = built(SAMPLES / "gemm.tl", "sm_90a", **{**SMALL, "num_stages": 1, "block_K": 32, "dtype": "bfloat16"})
    staged = sum(tile.bytes for tile in made.program.shared if tile.over_rings)
    assert staged > ring_bytes(made)
    assert made.program.barriers_at == staged
    assert is_right(made, 1)


def test_a_grid_that_goes_on_has_tiles_of_their_own() -> None:
    """The ring is filled for the next tile while this one is stored."""
    _, made = built(HERE / "staged_store.tl", "sm_90a")
    assert over(made) == []
    _, once = built(HERE / "staged_store.tl", "sm_90a", tiles=1, N=256)
    assert over(once) == []  # a loop of one iteration is a loop
