"""Loops that share their rings: no version is lost or met too early, whatever the trip counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import HERE

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions, Strategy, TileScheduler, Value
from tilec.support.source import SourceFile

KERNEL = HERE / "one_after_another.tl"
CAUSAL = HERE / "causal_in_two.tl"
SMALL: dict[str, Value] = {"batch": 1, "heads": 1, "S": 256, "D": 64, "block_M": 64, "threads": 128}


def made(path: Path, target: str, entry: str | None = None, strategy: Strategy = "auto", **defines: Value) -> Build:
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    options = CompileOptions(target=target, entry=entry, pipeline_strategy=strategy, defines=tuple(defines.items()))
    return build_kernel(source, options, Observer())


def check(built: Build, **scalars: int) -> None:
    given = emulate.draw_arguments(built.kernel, built.manifest, 7)
    given.scalars.update(scalars)
    found, expected = given.copy(), given.copy()
    emulate.emulate_build(built, found, options=emulate.RunOptions(adversary=1))
    emulate.run_reference(built.kernel, expected)
    for r in emulate.compare_arguments(built.kernel, built.manifest, found, expected):
        assert r.matches, f"{scalars}: {r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("first", "second", "stages"), [(3, 2, 3), (1, 4, 2), (4, 1, 4)])
@pytest.mark.parametrize("entry", ["products", "scaled"])
def test_results(entry: str, first: int, second: int, stages: int, target: str) -> None:
    built = made(KERNEL, target, entry, first=first, second=second, stages=stages)
    assert {"a", "b"} <= {ring.name for ring in built.program.rings}
    for n in (0, 1, stages + 1):
        for on in (0, 2):
            check(built, n=n, on=on)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(("first", "second", "stages"), [(3, 2, 3), (1, 4, 2), (4, 5, 1)])
def test_schedules_by_hand_share_rings(first: int, second: int, stages: int, target: str) -> None:
    built = made(KERNEL, target, "by_hand", first=first, second=second, stages=stages)
    assert {b: ring.depth for ring in built.program.rings for b in ring.buffers if b in "ab"} == dict.fromkeys(
        "ab", max(stages, 1) + 1
    )
    for n in (0, 1, stages + 1):
        check(built, n=n, on=1)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_a_tile_that_two_loops_fill_by_different_means(target: str) -> None:
    """Who fills a ring is one: TMA counts bytes at its barrier, threads arrive."""
    built = made(KERNEL, target, "filled_otherwise", stages=3)
    assert {b for ring in built.program.rings for b in ring.buffers} >= ({"a", "b"} if target == "sm_80" else {"b"})
    for n in (0, 1, 4):
        check(built, n=n, on=1)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_causal_attention(target: str) -> None:
    built = made(CAUSAL, target, **SMALL)
    check(built)
    assert ("cp.async.bulk.tensor" in built.ptx and "wgmma" in built.ptx) == (target == "sm_90a")


@pytest.mark.weekly
@pytest.mark.parametrize("scheduler", ["auto", "static"])
def test_causal_attention_keeps_its_roles(scheduler: TileScheduler) -> None:
    """A block that walks over tiles of the grid loads the next Q while it works on this one."""
    source = SourceFile(CAUSAL.name, CAUSAL.read_text(encoding="utf-8"))
    built = build_kernel(source, CompileOptions(target="sm_90a", tile_scheduler=scheduler), Observer())
    assert "setmaxnreg" in built.ptx and not built.warnings
    queries = 2 if scheduler == "static" else 1
    assert {ring.name: ring.depth for ring in built.program.rings} == {
        "K_shared": 2,
        "V_shared": 2,
        "Q_shared": queries,
    }
