"""Fragments that change their layout through shared memory hold what the reference says, and the change is reported."""

from __future__ import annotations

import pytest
from harness import HERE

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions, Strategy
from tilec.support.source import SourceFile

KERNEL = HERE / "conversions.tl"

# For each entry, the fragments that are moved, as often as they are.
MOVED = {
    ("moved", "sm_80"): "xxxxyyzz",
    ("moved", "sm_90a"): "xxxxyyzz",
    ("left_open", "sm_80"): "",
    ("left_open", "sm_90a"): "",
    ("products", "sm_80"): "s",
    ("products", "sm_90a"): "",  # one warpgroup has all rows, whatever the policy
    ("small_floats", "sm_90a"): "p",
    ("ordered", "sm_80"): "x",
    ("ordered", "sm_90a"): "x",
    ("given", "sm_80"): "c",
    ("given", "sm_90a"): "c",
}


def made(entry: str, target: str, strategy: Strategy = "auto") -> Build:
    source = SourceFile(KERNEL.name, KERNEL.read_text(encoding="utf-8"))
    options = CompileOptions(target=target, entry=entry, pipeline_strategy=strategy, defines=())
    return build_kernel(source, options, Observer())


@pytest.mark.parametrize(("entry", "target"), MOVED)
def test_what_is_moved_is_reported(entry: str, target: str) -> None:
    built = made(entry, target)
    titles = [w.title.split()[0] for w in built.warnings if w.code == "layout-conversion"]
    assert "".join(sorted(titles)) == MOVED[entry, target]
    # Where two tiles are turned in one nest, no layout of theirs serves both ways to reach them.
    assert {w.code for w in built.warnings} - {"layout-conversion", "assembled-interval"} <= (
        {"bank-conflict"} if entry == "moved" else set()
    )


@pytest.mark.parametrize("policy", ["FullRow", "FullCol", "Square"])
def test_a_product_shares_itself_out_as_its_neighbours_do(policy: str) -> None:
    """Where the text leaves it open, nothing has to be moved."""
    text = KERNEL.read_text(encoding="utf-8").replace("GemmWarpPolicy.FullCol\n", f"GemmWarpPolicy.{policy}\n")
    options = CompileOptions(target="sm_80", entry="left_open")
    built = build_kernel(SourceFile(KERNEL.name, text), options, Observer())
    assert [w.title for w in built.warnings if w.code == "layout-conversion"] == []


@pytest.mark.parametrize("strategy", ["auto", "none"])
@pytest.mark.parametrize(("entry", "target"), MOVED)
def test_results(entry: str, target: str, strategy: Strategy) -> None:
    built = made(entry, target, strategy)
    found = emulate.draw_arguments(built.kernel, built.manifest, 3)
    expected = found.copy()
    emulate.emulate_build(built, found, options=emulate.RunOptions(adversary=1))
    emulate.run_reference(built.kernel, expected)
    for r in emulate.compare_arguments(built.kernel, built.manifest, found, expected):
        assert r.matches, f"{r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"
