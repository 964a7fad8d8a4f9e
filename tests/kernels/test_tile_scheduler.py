"""T.PersistentTileScheduler: the order of its tiles, and products by blocks that stay."""

from __future__ import annotations

import numpy as np
import pytest
from harness import HERE, agrees, built

from tilec.driver.emulation import emulate
from tilec.ir.warp import TmaLoad

PATH = HERE / "tile_scheduler.tl"


def place(tile: int, rows: int, columns: int, panel: int, by_columns: bool) -> tuple[int, int]:
    """Along the fast axis within panels of the slow one, the last of which may be narrower."""
    primary, secondary = (rows, columns) if by_columns else (columns, rows)
    base = tile // (primary * panel) * panel
    width = min(panel, secondary - base)
    inside = tile % (primary * panel)
    fast, slow = inside // width, base + inside % width
    return (fast, slow) if by_columns else (slow, fast)


@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize("panel", [1, 2, 5, 8])
def test_the_order_of_tiles(panel: int, by_columns: bool) -> None:
    _, made = built(PATH, "sm_80", entry="decoded", swizzle=panel, columns=by_columns)
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    emulate.emulate_build(made, found)
    wanted = np.zeros((6, 5), np.int32)
    for tile in range(30):
        wanted[place(tile, 6, 5, panel, by_columns)] = tile
    np.testing.assert_array_equal(found.tensors["A"], wanted)
    np.testing.assert_array_equal(found.tensors["B"], np.arange(40) // 3)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("workers", "swizzle"), [(4, 1), (3, 2), (64, 8)])
def test_products(target: str, workers: int, swizzle: int) -> None:
    made = agrees(PATH, target, entry="scheduled", workers=workers, swizzle=swizzle)
    if target == "sm_90a":
        assert len(made.program.roles) == 2, "a producer warp loads the tiles"


def test_clusters_share_the_columns() -> None:
    made = agrees(PATH, "sm_90a", entry="scheduled", workers=2, swizzle=2, cluster=2)
    shared = {op.destination.name: op.shared for op in made.program.operations() if isinstance(op, TmaLoad)}
    assert shared == {"a": "", "b": "x"}
