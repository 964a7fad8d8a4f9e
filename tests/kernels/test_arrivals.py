"""Who arrives at the barriers of rings when warps are done with a tile: one thread of each warp, or every thread."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import SAMPLES

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.ir import warp
from tilec.support.options import ARRIVALS, Arrivals, CompileOptions, Value
from tilec.support.source import SourceFile

GEMM = SAMPLES / "gemm.tl"
SMALL: dict[str, Value] = {"M": 256, "N": 256, "K": 192, "num_stages": 2}


def compiled(file: Path, arrivals: Arrivals, constants: dict[str, Value], target: str = "sm_90a") -> Build:
    source = SourceFile(file.name, file.read_text(encoding="utf-8"))
    asked = CompileOptions(target=target, defines=tuple(constants.items()), arrivals=arrivals, cluster=(1, 1, 1))
    return build_kernel(source, asked, Observer())


def agrees(made: Build, adversary: int | None) -> bool:
    found = emulate.draw_arguments(made.kernel, made.manifest, seed=1)
    expected = found.copy()
    emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=adversary))
    emulate.run_reference(made.kernel, expected)
    return all(r.matches for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected))


@pytest.mark.parametrize("arrivals", ARRIVALS)
@pytest.mark.parametrize("adversary", [None, 1, 2])
def test_the_tiles_of_a_product_are_given_back(arrivals: Arrivals, adversary: int | None) -> None:
    made = compiled(GEMM, arrivals, SMALL)
    counts = {ring.arrivals for ring in made.program.rings if ring.has_barriers}
    assert counts == {8 if arrivals == "warp" else 256}
    assert agrees(made, adversary)


@pytest.mark.parametrize("arrivals", ARRIVALS)
@pytest.mark.parametrize("adversary", [None, 1])
def test_tiles_are_handed_to_a_role_that_stores_them(arrivals: Arrivals, adversary: int | None) -> None:
    made = compiled(Path(__file__).parent / "streaming.tl", arrivals, {})
    rings = {ring.name: ring for ring in made.program.rings}
    assert [role.name for role in made.program.roles] == ["consumer", "producer", "store"]
    assert (rings["y"].fills, rings["y"].arrivals) == (4 if arrivals == "warp" else 128, 1)
    assert agrees(made, adversary)


@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_sums_in_tensor_memory_are_given_back(arrivals: Arrivals) -> None:
    made = compiled(GEMM, arrivals, SMALL, "sm_100a")
    (sums,) = (r for r in made.program.rings if r.name.endswith(".tmem"))
    consumer = made.program.roles[0]
    assert sums.arrivals == (consumer.warps if arrivals == "warp" else consumer.threads)
    assert agrees(made, 1)


def test_blocks_that_share_a_ring_hear_from_one_thread_of_each_warp() -> None:
    source = SourceFile(GEMM.name, GEMM.read_text(encoding="utf-8"))
    defines = tuple({**SMALL, "M": 512}.items())
    made = build_kernel(source, CompileOptions(defines=defines, arrivals="thread", cluster=(1, 2, 1)), Observer())
    (ring,) = (r for r in made.program.rings if r.shared)
    assert (ring.by, ring.arrivals) == ("warp", 16)
    assert any(isinstance(op, warp.RingRelease) for op in made.program.operations())
    assert agrees(made, 1)
