"""Clusters: tiles that blocks load together are right for any trip count, on hostile machines too, and each barrier that
makes them so is noticed when it is taken away."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import HERE, SAMPLES

from tilec import emulate
from tilec.driver import Build, Observer, build
from tilec.emu import Fault, launch
from tilec.ir.warp_text import show_program
from tilec.options import CompileOptions, Value
from tilec.source import SourceFile

GEMM = SAMPLES / "gemm" / "cluster.tl"
STEPS = HERE / "cluster_gemm.tl"
SMALL: dict[str, Value] = {"M": 256, "N": 256, "block_M": 128, "block_N": 128, "dtype": "float16", "num_stages": 3}


def made(path: Path, *, multicast: bool = True, target: str = "sm_90a", **defines: Value) -> Build:
    source = SourceFile(str(path), path.read_text(encoding="utf-8"))
    options = CompileOptions(target=target, defines=tuple(defines.items()), multicast=multicast)
    return build(source, options, Observer())


def is_right(built: Build, ptx: str, adversary: int | None = None, steps: int | None = None) -> bool:
    found = emulate.random_arguments(built.kernel, built.manifest, 0)
    if steps is not None:
        found.scalars["steps"] = steps
    expected = found.copy()
    manifest = built.manifest
    launch(
        ptx,
        manifest.entry,
        manifest.blocks({}),
        manifest.block,
        emulate.launch_arguments(manifest, found),
        cluster=manifest.cluster,
        dynamic_smem=manifest.dynamic_smem,
        adversary=adversary,
    )
    emulate.reference(built.kernel, expected)
    return all(result.matches for result in emulate.compare(built.kernel, manifest, found, expected))


@pytest.mark.parametrize("cluster", [(2, 1), (1, 2), (2, 2)])
def test_any_trip_count(cluster: tuple[int, int]) -> None:
    """None, one, two, and around the depth of the ring."""
    x, y = cluster
    built = made(STEPS, cluster_x=x, cluster_y=y)
    (ring,) = built.program.rings
    assert built.manifest.cluster == (x, y, 1) and ring.shared
    for steps in sorted({0, 1, 2, ring.depth - 1, ring.depth, ring.depth + 1}):
        assert is_right(built, built.ptx, adversary=steps, steps=steps), steps


@pytest.mark.parametrize(
    "pattern",
    [
        r"barrier\.cluster\.arrive",
        r"barrier\.cluster\.wait",
        r"fence\.mbarrier_init",
        r"mbarrier\.arrive\.release\.cluster",
        r"mbarrier\.arrive\.expect_tx",
        r"mapa",
    ],
)
def test_each_barrier_is_needed(pattern: str) -> None:
    built = made(STEPS)
    lines = built.ptx.split("\n")
    places = [place for place, line in enumerate(lines) if re.search(pattern, line)]
    assert places
    for place in places:
        mutant = "\n".join([*lines[:place], "", *lines[place + 1 :]])
        with pytest.raises(Fault):
            assert not any(is_right(built, mutant, adversary, steps=5) for adversary in (None, 1, 2, 3))


def test_nobody_leaves_while_others_signal_it() -> None:
    built = made(STEPS)
    assert "drain" in show_program(built.program)
    lines = built.ptx.split("\n")
    waits = [n for n, line in enumerate(lines) if "try_wait.parity.acquire.cluster" in line]
    (ring,) = built.program.rings
    without = {n + k for n in waits[-ring.depth :] for k in range(2)}
    mutant = "\n".join(line for n, line in enumerate(lines) if n not in without)
    with pytest.raises(Fault):
        for adversary in (None, *range(8)):
            is_right(built, mutant, adversary, steps=5)
