"""A grid with more blocks than multiprocessors, run by as many as there are: right, and only where it may be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import agrees, built

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.ir import warp
from tilec.passes.grid.persistent import make_persistent, why_not_persistent
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = Path(__file__).parent / "persistent_grid.tl"
SMS = 132  # of sm_90a


@pytest.fixture(autouse=True)
def one_block_a_multiprocessor(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many tiles of this size as fit would all run at once."""
    monkeypatch.setattr("tilec.passes.choices.choose_persistent_grid.estimate_residency", lambda *_: 1)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_equals_the_reference(rank: int) -> None:
    """147 blocks: the last wave has 15 of them."""
    assert agrees(KERNEL, "sm_90a", rank=rank).manifest.grid == (SMS, 1, 1)


@pytest.mark.parametrize("trips", [1, 2, 3, 4, 5])
def test_iterations(trips: int) -> None:
    assert agrees(KERNEL, "sm_90a", trips=trips).manifest.grid == (SMS, 1, 1)


@pytest.mark.parametrize("trips", [0, 1, 3, 4])
def test_iterations_at_run_time(trips: int) -> None:
    _, made = built(KERNEL, "sm_90a", at_run_time=True)
    assert made.manifest.grid == (SMS, 1, 1)
    check(made, seed=1, sizes={"k": trips})


def check(made: Build, seed: int, sizes: dict[str, int] | None = None) -> None:
    found = emulate.draw_arguments(made.kernel, made.manifest, seed, sizes)
    expected = found.copy()
    emulate.emulate_build(made, found, options=RunOptions(adversary=seed))
    emulate.run_reference(made.kernel, expected)
    assert all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


@pytest.mark.weekly
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("m", "n"), [(704, 768), (450, 440)])
def test_in_any_order(m: int, n: int, seed: int) -> None:
    """Exactly so many blocks as two waves have, 11 × 12 × 2, and tiles that hang over."""
    _, made = built(KERNEL, "sm_90a", batch=2 if m == 704 else 3, M=m, N=n, trips=3)
    check(made, seed)


@pytest.mark.weekly
def test_in_panels() -> None:
    assert agrees(KERNEL, "sm_90a", panel=3).manifest.grid == (SMS, 1, 1)


@pytest.mark.weekly
def test_iterations_that_depend_on_the_block() -> None:
    """None at all for every third block, in the middle of those that one multiprocessor runs; a second loop too."""
    text = KERNEL.read_text(encoding="utf-8").replace("T.ceildiv(K, tile)", "(bx + by + bz) % 3")
    head, loop, rest = text.partition("        for k in T.Pipelined")
    body, store, end = rest.partition("        T.copy(C_l")
    again = loop + body.replace("(bx + by + bz) % 3", "(bx + 2 * by + bz) % 3")
    source = SourceFile("k.tl", head + loop + body + again + store + end)
    made = build_kernel(source, CompileOptions(target="sm_90a", tile_scheduler="static"), Observer())
    assert made.manifest.grid == (SMS, 1, 1)
    check(made, seed=1)


def test_numbers_of_blocks_fit_an_int32() -> None:
    kernel = built(KERNEL, "sm_90a")[1].kernel
    most = 2**31 - SMS
    assert make_persistent(replace(kernel, grid=(most, 1, 1)), SMS).grid == (SMS,)
    assert why_not_persistent(replace(kernel, grid=(most + 1, 1, 1)), SMS) is not None


def test_stores_go_by_tma_and_wait_when_the_tile_is_needed_again() -> None:
    """Blocks of a grid have no order, so the tensor that each of them writes a part of needs none."""
    _, made = built(KERNEL, "sm_90a")
    consumer, producer = made.program.roles
    stores = [op for op in warp.walk_operations(consumer.body) if isinstance(op, warp.TmaStore)]
    waits = [op for op in warp.walk_operations(consumer.body) if isinstance(op, warp.BulkWait)]
    assert stores and waits
    assert not any(isinstance(op, warp.BarSync) for op in warp.walk_operations(producer.body))


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, {"persistent": False}),
        ({}, {"pipeline_strategy": "unspecialize"}),
        ({"batch": 2}, {}),  # 98 blocks
        ({}, {"target": "sm_80"}),
    ],
)
def test_the_grid_stays(changes: dict[str, int], options: dict[str, Any]) -> None:
    source = SourceFile(KERNEL.name, KERNEL.read_text(encoding="utf-8"))
    asked = CompileOptions(**{"target": "sm_90a", "defines": tuple(changes.items()), **options})
    assert build_kernel(source, asked, Observer()).manifest.grid == (7, 7 * changes.get("batch", 3), 1)


def test_barriers_of_the_kernel_s_own_are_not_reused() -> None:
    text = KERNEL.read_text(encoding="utf-8").replace(
        "        T.clear(C_l)\n", "        T.sync_threads()\n        T.clear(C_l)\n"
    )
    assert build_kernel(SourceFile("k.tl", text), CompileOptions(target="sm_90a"), Observer()).manifest.grid == (
        7,
        21,
        1,
    )
