"""The layouts that the schedule trace lists: every candidate of each tile, with the three terms of its score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilec.driver import build as driver
from tilec.support.options import CompileOptions, EnvironmentSwitches
from tilec.support.source import SourceFile

ROOT = Path(__file__).parents[2]
GEMM = ROOT / "samples" / "gemm.tl"
SWIZZLED = """
@T.prim_func
def main(A: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((64, 64), "float32")
        t = T.alloc_shared((64, 64), "float32")
        {layout}
        T.copy(A, s)
        T.copy(A, t)
        for i, j in T.Parallel(64, 64):
            A[i, j] = s[j, i] + t[i, j]
"""


def list_layouts(source: SourceFile, options: CompileOptions) -> dict[str, dict[str, Any]]:
    """The trace's layouts, by tile."""
    trace = json.loads(driver.plan_kernel(source, options, driver.Observer()).trace)["tilec"]
    return {entry["tile"]: entry for entry in trace["layouts"]}


def layouts_of(path: Path, target: str) -> dict[str, dict[str, Any]]:
    return list_layouts(SourceFile(path.name, path.read_text()), CompileOptions(target=target))


def test_every_swizzle_of_a_loaded_tile() -> None:
    """128 rows of 128 bytes, by TMA in boxes of the swizzle's width, a transaction for each of their rows and one for
    each box; and 128 transactions by wgmma, which takes eight times as many and is impossible without a swizzle."""
    tile = layouts_of(GEMM, "sm_90a")["A_shared"]
    assert (tile["scope"], tile["loops"], tile["by"]) == ("shared", ["gemm.ko"], "the compiler")
    found = [(one["layout"], one["allowed"], one["chosen"], one["smem_transactions"]) for one in tile["candidates"]]
    assert found == [
        ("swizzle 0", False, False, 128 + 1 + 8 * 128),
        ("swizzle 128", True, True, 128 + 1 + 128),
        ("swizzle 64", True, False, 2 * 128 + 2 + 128),
        ("swizzle 32", True, False, 4 * 128 + 4 + 128),
    ]
    assert [one["score"] for one in tile["candidates"]] == ["1153", "257", "386", "644"]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_the_terms_differ_between_tiles_and_candidates(target: str) -> None:
    """Registers of threads that swizzle their addresses or hold a sum; tensor memory where there is one."""
    tiles = layouts_of(GEMM, target)
    every = [one for tile in tiles.values() for one in tile["candidates"]]
    terms = {name: {one[name] for one in every} for name in ("smem_transactions", "tmem_cycles", "live_registers")}
    assert len(terms["smem_transactions"]) > 4
    assert terms["live_registers"] >= {0, 1, 64}  # a sum of 128 × 128 in 256 threads
    # 64 KiB are read at 123 bytes a cycle.
    assert terms["tmem_cycles"] == ({0, 533} if target == "sm_100a" else {0})
    for one in every:
        score = one["smem_transactions"] + 4 * one["tmem_cycles"] + 0.25 * one["live_registers"]
        assert float(one["score"]) == score


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("sample", ["gemm", "flash_attention", "softmax"])
def test_the_cheapest_that_is_allowed_is_chosen(sample: str, target: str) -> None:
    for tile in layouts_of(ROOT / "samples" / f"{sample}.tl", target).values():
        (chosen,) = (one for one in tile["candidates"] if one["chosen"])
        allowed = [float(one["score"]) for one in tile["candidates"] if one["allowed"]]
        assert chosen["allowed"] and float(chosen["score"]) == min(allowed)


def test_who_chose() -> None:
    def chosen(layout: str = "pass", switches: EnvironmentSwitches | None = None) -> dict[str, tuple[str, str]]:
        options = CompileOptions(target="sm_90a", switches=switches or EnvironmentSwitches())
        found = list_layouts(SourceFile("swizzled.tl", SWIZZLED.format(layout=layout)), options)
        return {
            name: (next(one["layout"] for one in found[name]["candidates"] if one["chosen"]), found[name]["by"])
            for name in ("s", "t")
        }

    assert chosen() == {"s": ("swizzle 128", "the compiler"), "t": ("swizzle 0", "the compiler")}
    given = "T.annotate_layout({t: tilelang.layout.make_swizzled_layout(t)})"
    assert chosen(given) == {"s": ("swizzle 128", "the compiler"), "t": ("swizzle 128", "the kernel")}
    always = EnvironmentSwitches(always_swizzle=True)
    assert set(chosen(switches=always).values()) == {("swizzle 128", "the command line")}
