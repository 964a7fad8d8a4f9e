"""What the compiler emits, on hostile machines: right on all of them, and noticed when a barrier is taken away."""

from __future__ import annotations

import re

import pytest
from harness import HERE, SAMPLES, built

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.emu import Fault, launch
from tilec.support.options import Value

GEMM: dict[str, Value] = {"M": 128, "N": 128, "K": 640}
LARGE: dict[str, Value] = {"M": 256, "N": 192, "K": 128, "block_M": 256, "block_N": 192, "num_stages": 2}
"""More accumulators than an equal share of the registers holds."""


def compute(made: Build, ptx: str, adversary: int | None) -> bool:
    """Run this text in place of the kernel's own; whether the numbers are right."""
    manifest = made.manifest
    found = emulate.draw_arguments(made.kernel, manifest, 0)
    expected = found.copy()
    launch(
        ptx,
        manifest.entry,
        manifest.grid,
        manifest.block,
        emulate.build_launch_arguments(manifest, found),
        cluster=manifest.cluster,
        dynamic_smem=manifest.dynamic_smem,
        adversary=adversary,
    )
    emulate.run_reference(made.kernel, expected)
    return all(result.matches for result in emulate.compare_arguments(made.kernel, manifest, found, expected))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["gemm", "attention"])
def test_right_on_every_machine(name: str, target: str) -> None:
    path, defines = (SAMPLES / "gemm.tl", GEMM) if name == "gemm" else (HERE / "attention.tl", {"S": 256})
    _, made = built(path, target, **defines)
    assert all(compute(made, made.ptx, adversary) for adversary in range(4))


@pytest.mark.parametrize(
    ("target", "pattern"),
    [
        ("sm_80", r"bar\.sync 0"),
        ("sm_80", r"cp\.async\.wait_group"),
        ("sm_90a", r"bar\.sync 0"),
        ("sm_90a", r"wgmma\.wait_group"),
        ("sm_90a", r"mbarrier\.arrive\.expect_tx"),
    ],
)
def test_each_barrier_is_needed(target: str, pattern: str) -> None:
    _, made = built(SAMPLES / "gemm.tl", target, **GEMM)
    each_is_needed(made, pattern)


def test_registers_are_given_up_before_others_have_them() -> None:
    _, made = built(SAMPLES / "gemm.tl", "sm_90a", **LARGE)
    each_is_needed(made, r"setmaxnreg\.dec")


def each_is_needed(made: Build, pattern: str) -> None:
    lines = made.ptx.split("\n")
    places = [place for place, line in enumerate(lines) if re.search(pattern, line)]
    assert places
    for place in places:
        mutant = "\n".join([*lines[:place], "", *lines[place + 1 :]])
        with pytest.raises(Fault):
            compute(made, mutant, None)
