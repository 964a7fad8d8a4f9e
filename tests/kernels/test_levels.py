"""What -O3 decides and -O2 leaves as it is: what `options.DECIDED` lists, and nothing else of a schedule or a grid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilec.driver import build as driver
from tilec.sched.schedule import Schedule
from tilec.support.option_fields import spell_undecided
from tilec.support.options import DECISION_OPTIONS, CompileOptions
from tilec.support.source import SourceFile

ROOT = Path(__file__).parents[2]
SERIAL = """
import tilelang.language as T


@T.prim_func
def product(A: T.Tensor((256, 384), "float16"), B: T.Tensor((384, 256), "float16"), C: T.Tensor((256, 256), "float16")):
    with T.Kernel(2, 2, threads=128) as (bx, by):
        left = T.alloc_shared((128, 64), "float16")
        right = T.alloc_shared((64, 128), "float16")
        total = T.alloc_fragment((128, 128), "float32")
        T.clear(total)
        for step in T.serial(6):
            T.copy(A[by * 128, step * 64], left)
            T.copy(B[step * 64, bx * 128], right)
            T.gemm(left, right, total)
        T.copy(total, C[by * 128, bx * 128])
"""
KERNELS = {
    "serial": SERIAL,
    "gemm": (ROOT / "samples" / "gemm.tl").read_text(encoding="utf-8"),
    "causal": (ROOT / "samples" / "attention" / "causal.tl").read_text(encoding="utf-8"),
}


def planned(text: str, options: CompileOptions) -> tuple[list[Schedule], Any]:
    plan = driver.plan_kernel(SourceFile("k.tl", text), options, driver.Observer())
    return [loop.solution.schedule for loop in plan.loops], plan.assignment.kernel.grid


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", KERNELS)
def test_without_what_it_decides_the_third_level_schedules_as_the_second(name: str, target: str) -> None:
    off = {field: stated.undecided for field, stated in DECISION_OPTIONS.items()}
    options = CompileOptions(target=target, lint="off", scheduler="heuristic")
    second = planned(KERNELS[name], replace(options, opt_level=2))
    assert planned(KERNELS[name], replace(options, opt_level=3, **off)) == second


def test_it_does_decide_something() -> None:
    options = CompileOptions(target="sm_80", scheduler="heuristic")
    assert planned(SERIAL, options) != planned(SERIAL, replace(options, opt_level=2))


def test_the_table_of_levels_names_every_switch() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| `-O3`"))
    for stated in DECISION_OPTIONS.values():
        assert f"{stated.decides} (" in row and f"`{spell_undecided(stated)}`" in row
