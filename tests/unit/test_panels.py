"""The order of blocks that the compiler chooses: each tile comes once, and its waves touch the bytes that the model
says, and no more than the plain one."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import pytest

from tilec.analysis.box_starts import Coordinates
from tilec.driver import build as driver
from tilec.ir.tile import Raster, Var, walk_statements
from tilec.ir.warp_verify.boxes import Definitions, _BoundsAnalysis
from tilec.ops.copies.copy import Copy
from tilec.passes.grid.rasterisation_order import GridWalk, find_best_raster
from tilec.passes.grid.rasterise import AS_NUMBERED, locate_tile, scale_to_clusters
from tilec.passes.memory.load_footprints import LoadFootprint
from tilec.rewriting.fold_constants import compute_expr
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

SAMPLES = Path(__file__).parents[2] / "samples"
Tile = tuple[int, int, int]
NUMBER = Var("number")


def walked(walk: GridWalk, raster: Raster) -> list[Tile]:
    """Column, row and layer of each tile, as the code that is emitted computes them."""
    column, row = locate_tile(NUMBER, walk.width, walk.depth, raster)
    found = []
    for layer, number in itertools.product(range(walk.height), range(walk.width * walk.depth)):
        x, y = (compute_expr(index, {NUMBER: number}) for index in (column, row))
        assert isinstance(x, int) and isinstance(y, int)
        found.append((x, y, layer))
    return found


def counted(walk: GridWalk, order: list[Tile]) -> int:
    """The bytes of the distinct strips in each wave, tile by tile."""
    total = 0
    for first in range(0, len(order), walk.at_once):
        wave = order[first : first + walk.at_once]
        for footprint in walk.footprints:
            of = ["xyz".index(axis) for axis in footprint.axes]
            total += footprint.bytes * len({tuple(tile[axis] for axis in of) for tile in wave})
    return total


def product(
    rows: int = 128, columns: int = 128, axes: tuple[str, str] = ("y", "x")
) -> tuple[LoadFootprint, LoadFootprint]:
    """Of a product by tiles of so many rows and columns."""
    return LoadFootprint("A_shared", axes[0], rows * 8192), LoadFootprint("B_shared", axes[1], columns * 8192)


GRIDS = (
    *((w, d, 1, 132, product()) for w, d in ((8, 8), (16, 32), (32, 16), (31, 33), (64, 8), (8, 64), (3, 200))),
    (200, 3, 1, 132, product()),
    *((w, d, 1, 66, product(256, 256)) for w, d in ((16, 16), (32, 8), (17, 40))),
    *((w, d, 1, 132, product(128, 256)) for w, d in ((16, 32), (32, 64), (12, 25))),
    (64, 64, 1, 132, product(64, 256)),
    (13, 17, 5, 132, product(axes=("yz", "xz"))),
    (13, 17, 5, 132, product(axes=("yz", "x"))),
    (9, 7, 20, 132, product(axes=("yz", "xz"))),
    (64, 32, 1, 108, (LoadFootprint("A", "y", 100), LoadFootprint("B", "xy", 10))),
    (64, 32, 1, 108, (LoadFootprint("A", "xy", 100), LoadFootprint("B", "x", 10))),
    (64, 32, 1, 108, (LoadFootprint("A", "xy", 100), LoadFootprint("B", "", 10))),
)  # fmt: skip


@pytest.mark.parametrize(("width", "depth", "height", "at_once", "of"), GRIDS)
def test_the_model_counts_what_the_code_does(
    width: int, depth: int, height: int, at_once: int, of: tuple[LoadFootprint, ...]
) -> None:
    walk = GridWalk(width, depth, height, at_once, of)
    best = find_best_raster(walk)
    for raster in (AS_NUMBERED, best, Raster(3), Raster(5, by_rows=False)):
        order = walked(walk, raster)
        assert sorted(order) == sorted(itertools.product(range(width), range(depth), range(height)))
        assert walk.count_bytes_of_waves(raster) == counted(walk, order)
    assert walk.count_bytes_of_waves(best) <= walk.count_bytes_of_waves(AS_NUMBERED)


@pytest.mark.parametrize("raster", [AS_NUMBERED, Raster(3), Raster(11), Raster(5, by_rows=False)])
@pytest.mark.parametrize("extents", [(32, 32), (31, 33), (Var("w"), 32), (32, Var("d")), (Var("w"), Var("d"))])
def test_no_tile_begins_below_0(extents: tuple[int | Var, int | Var], raster: Raster) -> None:
    """TMA stores a tile only where that is proven, by selection and again by the verifier."""
    known = {e: (1.0, math.inf) for e in extents if isinstance(e, Var)}  # of a grid with blocks
    tiles = [e for e in extents if isinstance(e, int)]
    known[NUMBER] = (0.0, math.prod(tiles) - 1 if len(tiles) == 2 else math.inf)
    for index in locate_tile(NUMBER, *extents, raster):
        assert Coordinates({}, {}, known).is_never_negative(index)
        assert _BoundsAnalysis(Definitions({}), dict(known)).find_bounds(index)[0] >= 0


@pytest.mark.parametrize("seed", range(4))
def test_no_grid_is_walked_worse_than_plainly(seed: int) -> None:
    generator = random.Random(seed)
    for _ in range(40):
        width, depth, height = generator.randint(1, 90), generator.randint(1, 90), generator.choice([1, 1, 1, 2, 7])
        of = product(generator.choice([64, 128, 192, 256]), generator.choice([32, 64, 128, 256]))
        walk = GridWalk(width, depth, height, generator.choice([132, 66, 108, 30]), of)
        best = find_best_raster(walk)
        plain, chosen = walk.count_bytes_of_waves(AS_NUMBERED), walk.count_bytes_of_waves(best)
        assert chosen <= plain, (walk, best)
        assert best == AS_NUMBERED or chosen * 100 <= plain * 99


def test_a_wave_of_a_wide_grid_becomes_square() -> None:
    """4096 × 4096 in tiles of 128 × 256: 32 rows of 16 columns. 132 tiles stand best in about 16 rows, of half the
    bytes of a column."""
    walk = GridWalk(16, 32, 1, 132, product(128, 256))
    best = find_best_raster(walk)
    assert best.panel and walk.count_bytes_of_waves(best) < 0.9 * walk.count_bytes_of_waves(AS_NUMBERED)
    wide = GridWalk(128, 128, 1, 132, product())
    assert wide.count_bytes_of_waves(find_best_raster(wide)) < 0.25 * wide.count_bytes_of_waves(AS_NUMBERED)


def hilbert(side: int) -> list[Tile]:
    """The tiles of a square along Hilbert's curve."""

    def place(number: int) -> Tile:
        x = y = 0
        step = 1
        while step < side:
            right = 1 & (number // 2)
            up = 1 & (number ^ right)
            if not up:
                if right:
                    x, y = step - 1 - x, step - 1 - y
                x, y = y, x
            x, y = x + step * right, y + step * up
            number //= 4
            step *= 2
        return x, y, 0

    return [place(number) for number in range(side * side)]


@pytest.mark.parametrize("side", [8, 16, 32, 64])
@pytest.mark.parametrize("at_once", [132, 66, 108])
def test_hilbert_s_curve_is_no_better(side: int, at_once: int) -> None:
    for of in (product(), product(128, 256), product(256, 128)):
        walk = GridWalk(side, side, 1, at_once, of)
        order = hilbert(side)
        assert len(set(order)) == side * side
        assert walk.count_bytes_of_waves(find_best_raster(walk)) <= counted(walk, order)


@pytest.mark.parametrize(
    "walk",
    [
        GridWalk(1, 500, 1, 132, product()),
        GridWalk(11, 12, 1, 132, product()),
        GridWalk(64, 64, 1, 132, (LoadFootprint("Q", "xy", 100), LoadFootprint("K", "y", 1000))),
        GridWalk(64, 64, 1, 132, (LoadFootprint("X", "xy", 100),)),
        GridWalk(64, 64, 1, 132, ()),
    ],
    ids=["a line", "one wave", "rows that x walks along", "nothing in common", "nothing"],
)
def test_the_plain_order_stays(walk: GridWalk) -> None:
    assert find_best_raster(walk) == AS_NUMBERED


def test_columns_that_blocks_above_each_other_share() -> None:
    """Attention with the blocks of queries along y: those of a head run together, so that a wave has few heads."""
    walk = GridWalk(64, 64, 1, 132, (LoadFootprint("K", "x", 1000),))
    whole = 64 * 64 // 132
    assert walk.count_bytes_of_waves(AS_NUMBERED) > 64 * 1000 * whole
    assert walk.count_bytes_of_waves(find_best_raster(walk)) <= 4 * 1000 * (whole + 1)


def test_panels_of_clusters_are_one_cluster_high_at_least() -> None:
    assert [scale_to_clusters(Raster(panel), (1, 2)).panel for panel in (0, 1, 2, 4, 5)] == [0, 1, 1, 2, 2]
    assert [scale_to_clusters(Raster(panel, by_rows=False), (2, 1)).panel for panel in (0, 1, 4)] == [0, 1, 2]


@pytest.mark.parametrize(("sample", "sizes"), [("gemm", {"M": 4096}), ("gemm/dynamic", {})])
def test_panels_keep_stores_by_tma(sample: str, sizes: dict[str, int]) -> None:
    """The last panel of such a grid has another height: a computed one."""
    path = SAMPLES / f"{sample}.tl"
    options = CompileOptions(target="sm_90a", defines=tuple({**sizes, "N": 4096, "K": 4096}.items()))
    kernel, _ = driver.assign_kernel_layouts(SourceFile(path.name, path.read_text(encoding="utf-8")), options)
    copies = [s for s in walk_statements(kernel.kernel.body) if isinstance(s, Copy)]
    stores = [copy for copy in copies if copy.regions[1].buffer.name == "C"]
    assert {store.via for store in stores} == {"tma_store"}
