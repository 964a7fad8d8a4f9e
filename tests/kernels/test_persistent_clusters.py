"""A persistent grid of clusters: blocks of a cluster run blocks of one of the grid asked for, in tail waves too, and a
number of tiles that only the launch knows is walked to its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import SAMPLES

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.ir.warp import TmaLoad
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = Path(__file__).parent / "persistent_grid.tl"
AT_ONCE = 8


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that runs eight blocks at once."""

    def at_once(_: object, cluster: int) -> int:
        return AT_ONCE // cluster * cluster

    for name in ("choose_persistent_grid", "choose_tile_scheduler", "choose_rasterisation"):
        monkeypatch.setattr(f"tilec.passes.choices.{name}.blocks_at_once", at_once)
    monkeypatch.setattr("tilec.passes.choices.choose_persistent_grid.estimate_residency", lambda *_: 1)


def made(path: Path, cluster: tuple[int, int, int] | None, **defines: int | str) -> Build:
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    return build_kernel(source, CompileOptions(defines=tuple(defines.items()), cluster=cluster), Observer())


def is_right(made: Build, seed: int | None = None, sizes: dict[str, int] | None = None) -> bool:
    found = emulate.draw_arguments(made.kernel, made.manifest, seed or 0, sizes)
    expected = found.copy()
    emulate.emulate_build(made, found, options=RunOptions(adversary=seed))
    emulate.run_reference(made.kernel, expected)
    return all(result.matches for result in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


def shared(made: Build) -> dict[str, str]:
    return {op.destination.name: op.shared for op in made.program.operations() if isinstance(op, TmaLoad)}


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("cluster", "grid", "axes"),
    [
        ((2, 1, 1), (8, 1, 1), {"A_s": "x", "B_s": ""}),
        ((1, 2, 1), (4, 2, 1), {"A_s": "", "B_s": "y"}),
        ((2, 2, 1), (4, 2, 1), {"A_s": "x", "B_s": "y"}),
        ((1, 1, 2), (4, 1, 2), {"A_s": "", "B_s": ""}),
        ((3, 1, 1), (6, 1, 1), {"A_s": "", "B_s": ""}),  # 64 rows make no three slices
    ],
    ids=str,
)
@pytest.mark.parametrize("panel", [0, 2])
def test_clusters_walk_over_clusters(
    cluster: tuple[int, int, int], grid: tuple[int, int, int], axes: dict[str, str], panel: int
) -> None:
    """6 × 6 × 2 blocks: the clusters of no shape have equally many."""
    built = made(KERNEL, cluster, rank=3, batch=2, M=384, N=384, panel=panel)
    assert built.manifest.grid == grid and built.manifest.cluster == cluster
    assert shared(built) == axes
    for seed in (None, 1, 2):
        assert is_right(built, seed)


@pytest.mark.parametrize("trips", [1, 3, 4])
def test_iterations(trips: int) -> None:
    built = made(KERNEL, (2, 2, 1), rank=3, batch=1, M=384, N=384, trips=trips)
    assert built.manifest.grid == (4, 2, 1)
    assert is_right(built, trips)


def test_a_number_of_tiles_that_the_launch_knows() -> None:
    """Fewer than blocks, more, and such as hang over."""
    built = made(SAMPLES / "gemm" / "dynamic.tl", None, N=256, K=128)
    assert built.manifest.grid == (AT_ONCE, 1, 1)
    for rows in (1, 128, 512, 600, 1025):
        assert is_right(built, rows, {"M": rows}), rows


def test_clusters_along_an_extent_that_the_launch_knows_are_counted_by_the_launch() -> None:
    built = made(SAMPLES / "gemm" / "dynamic.tl", (1, 2, 1), N=256, K=128, block_N=128)
    assert built.manifest.grid[0] == 2 and not isinstance(built.manifest.grid[1], int)
    along_the_other = made(SAMPLES / "gemm" / "dynamic.tl", (2, 1, 1), N=256, K=128, block_N=128)
    assert along_the_other.manifest.grid == (AT_ONCE, 1, 1)
    assert shared(along_the_other) == {"A_shared": "x", "B_shared": ""}
    for rows in (100, 900):  # one pair of tiles for four pairs of blocks, and several for each
        assert is_right(along_the_other, 1, {"M": rows})
