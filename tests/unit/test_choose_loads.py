"""Which threads load where no role only loads: the model weighs both ways by their machine code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tilec.driver import build as driver
from tilec.sched.decision import Decision
from tilec.support.files import read_source
from tilec.support.options import CompileOptions

SAMPLES = Path(__file__).parents[2] / "samples"
OPTIONS = CompileOptions(target="sm_90a")


def build_sample(name: str, options: CompileOptions) -> driver.Build:
    return driver.build_kernel(read_source(str(SAMPLES / f"{name}.tl")), options, driver.Observer())


def find_loads(made: driver.Build) -> Decision | None:
    return next((each for each in made.work.decisions if each.what == "loads"), None)


def test_a_direct_convolution_is_loaded_by_all_threads() -> None:
    """Check the decision, its prices, that no tile comes by TMA, and that the trace leads to the same code."""
    made = build_sample("models/conv2d", OPTIONS)
    decided = find_loads(made)
    assert decided is not None and (decided.chosen, decided.by) == ("by all threads", "the compiler")
    prices = {each.answer: each.price or 0 for each in decided.alternatives}
    assert 0 < prices["by all threads"] < prices["by TMA"]
    assert "cp.async.bulk.tensor.2d.shared" not in made.ptx and "cp.async.cg.shared" in made.ptx
    again = build_sample("models/conv2d", replace(OPTIONS, schedule=made.trace))
    assert again.ptx == made.ptx


def test_whoever_asks_for_a_form_keeps_its_loads() -> None:
    decided = find_loads(build_sample("models/conv2d", replace(OPTIONS, pipeline_strategy="unspecialize")))
    assert decided is not None and decided.chosen == "by TMA" and not decided.alternatives
