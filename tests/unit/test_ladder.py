"""The ablation's rungs: one kernel, each by one decision more, up to what the compiler does by itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import gpu_cases
import pytest

from tilec.driver.build import Observer, Plan, plan_kernel
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

ADDS = {
    "pipelined, one role": {"roles", "stages"},  # weighed where no role takes the multiprocessor whole
    "a producer warp": {"roles", "overlap", "stages", "consumer warpgroups", "loads"},
    "tile 128×256, two consumers": {"consumer warpgroups"},
    "persistent": {"persistent grid"},
    "one arrival a warp": {"arrivals"},
    "clusters of two": {"cluster"},
    "multicast": {"multicast"},
    "asynchronous stores": set(),
    "rasterisation": {"rasterisation"},
    "stmatrix": set(),
    "as the compiler decides": {"programmatic dependent launch", "cluster", "multicast"},
}
"""What is decided otherwise than on the rung before; the first is compared with nothing. Pairs save nothing of a large
product, so the compiler leaves them out."""


@pytest.fixture(scope="module")
def rungs() -> dict[str, Plan]:
    return {rung.name: plan_rung(rung) for rung in gpu_cases.LADDER}


def plan_rung(rung: gpu_cases.Rung) -> Plan:
    file = gpu_cases.KERNELS / "matmul.tl"
    source = SourceFile(file.name, file.read_text(encoding="utf-8"))
    options = CompileOptions(defines=tuple(rung.constants.items()), **rung.options)
    return plan_kernel(source, options, Observer())


def test_each_rung_adds_one_decision(rungs: dict[str, Plan]) -> None:
    assert {rung.kernel for rung in gpu_cases.LADDER} == {"matmul"}
    chosen = {
        name: {d.what: d.chosen for d in made.decisions if d.chosen not in ("no", "none")}
        for name, made in rungs.items()
    }
    added = {
        name: {what for what in {**before, **now} if before.get(what) != now.get(what)}
        for (_, before), (name, now) in zip(chosen.items(), list(chosen.items())[1:], strict=False)
    }
    assert added == ADDS


def test_the_last_rung_is_what_the_compiler_does_by_itself(rungs: dict[str, Plan]) -> None:
    (stored,) = (rung for rung in gpu_cases.LADDER if rung.name == "stmatrix")
    alone = plan_rung(replace(stored, options={**stored.options, "cluster": (1, 1, 1)}))
    assert rungs["as the compiler decides"].assignment == alone.assignment
    without = ("multicast", "asynchronous stores", "rasterisation", "stmatrix")
    for before, after in pairwise(without):
        assert rungs[before].assignment != rungs[after].assignment
