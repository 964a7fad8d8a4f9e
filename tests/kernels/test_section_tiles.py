"""Tiles of a section have the memory of tiles of the roles before it, once nothing accesses these any more."""

from __future__ import annotations

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.support.diagnostics import CompileError

KERNELS = HERE / "section_tiles.tl"


def run_kernel(made: Build, adversary: int | None) -> dict[str, np.ndarray]:
    found = emulate.draw_arguments(made.kernel, made.manifest, 1)
    emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=adversary))
    return found.tensors


def sharing(made: Build) -> dict[str, tuple[str, ...]]:
    """Return the tiles whose memory a tile has, by its name."""
    tiles = made.program.shared
    met = {tile.buffer.name: [other for other in tiles if other is not tile and other.meets(tile)] for tile in tiles}
    return {name: tuple(sorted(other.buffer.name for other in others)) for name, others in met.items() if others}


@pytest.mark.parametrize("trips", [1, 2, 5, 6, 7])
def test_an_epilogue_has_the_memory_of_the_stages(trips: int) -> None:
    _, made = built(KERNELS, "sm_100a", entry="tensor_cores", trips=trips)
    assert sharing(made)["S"] == ("A_s", "B_s")
    t = run_kernel(made, trips)
    a, b = (t[name].astype(np.float32) for name in ("A", "B"))
    np.testing.assert_allclose(t["C"], a @ b.T + t["R"], rtol=1e-4, atol=1e-3)


def test_products_may_still_read_their_operands() -> None:
    """The section does not wait for the last of them before it writes: the tiles stay apart, and do not fit."""
    with pytest.raises(CompileError, match="shared-memory-overflow"):
        built(KERNELS, "sm_100a", entry="tensor_cores", waits=False)
    _, made = built(KERNELS, "sm_100a", entry="tensor_cores", waits=False, stages=2)
    assert sharing(made) == {}


@pytest.mark.parametrize("trips", [1, 6, 7])
def test_a_pair_of_blocks(trips: int) -> None:
    """Products of the first block read the tiles of the second: both wait for them."""
    _, made = built(KERNELS, "sm_100a", entry="pair_of_blocks", trips=trips, stages=8)
    assert sharing(made)["S"] == ("A_s", "B_s")
    t = run_kernel(made, trips)
    a, b = (t[name].astype(np.float32) for name in ("A", "B"))
    np.testing.assert_allclose(t["C"], a @ b.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_tiles_that_threads_fill(target: str) -> None:
    """What the section still reads keeps its memory."""
    stages = 3 if target == "sm_80" else 6
    _, made = built(KERNELS, target, entry="warps_multiply", stages=stages)
    assert set(sharing(made)["S"]) == ({"A_s", "B_s"} if target == "sm_80" else {"B_s"})
    t = run_kernel(made, 1)
    a, b = (t[name].astype(np.float32) for name in ("A", "B"))
    np.testing.assert_allclose(t["C"], a @ b + t["R"], rtol=1e-3, atol=1e-2)
