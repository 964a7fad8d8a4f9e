"""The table of passes: it says what decisions there may be, and which options leave nothing to decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.cli.commands.build import build as command
from tilec.driver.build import Observer, plan_kernel
from tilec.driver.pipeline import PIPELINE, Choice, Pass
from tilec.driver.pipeline_text import describe_row
from tilec.support.files import read_source
from tilec.support.options import STAGES, CompileOptions

SAMPLES = Path(__file__).parents[2] / "samples"
DECIDED = {what for row in PIPELINE if isinstance(row, Choice | Pass) for what in row.decides}
KERNELS = ["gemm.tl", "attention/causal.tl", "gemm/gemm_sm100.tl", "rows/softmax.tl", "gemm/pipeline_objects.tl"]


def test_names_are_unique_and_stages_in_order() -> None:
    names = [row.name for row in PIPELINE]
    assert len(set(names)) == len(names)
    assert tuple(row.gives for row in PIPELINE if row.gives) == STAGES


@pytest.mark.parametrize("row", PIPELINE, ids=lambda row: row.name)
def test_every_pass_says_what_it_does(row: Pass) -> None:
    assert describe_row(row).endswith(".")


def test_switches_are_options_of_the_command() -> None:
    known = {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}
    asked = {switch for row in PIPELINE if isinstance(row, Choice) for switch in row.switches}
    assert asked <= known


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("kernel", [k for k in KERNELS if (SAMPLES / k).exists()])
def test_every_decision_is_announced_by_a_row(kernel: str, target: str) -> None:
    if kernel.endswith(("gemm_sm100.tl", "pipeline_objects.tl")) and target != "sm_100a":
        kernel = "gemm.tl"
    made = plan_kernel(read_source(str(SAMPLES / kernel)), CompileOptions(target=target), Observer())
    assert made.decisions
    for decision in made.decisions:
        assert any(decision.what == what or decision.what.startswith(f"{what} ") for what in DECIDED), decision.what


def test_prices_of_alternatives_are_in_the_decision() -> None:
    attention = plan_kernel(read_source(str(SAMPLES / "flash_attention.tl")), CompileOptions(), Observer())
    found = {decision.what: decision for decision in attention.decisions}
    weighed = {each.answer: each.price for each in found["ping-pong"].alternatives}
    assert weighed["2 warpgroups"] < weighed["no"]
    alone = CompileOptions(defines=(("block_M", 64), ("threads", 128)))
    attention = plan_kernel(read_source(str(SAMPLES / "flash_attention.tl")), alone, Observer())
    (subtile,) = (decision for decision in attention.decisions if decision.what == "subtile")
    (price,) = (each.price for each in subtile.alternatives if each.answer == subtile.chosen)
    assert price == attention.loops[0].solution.schedule.ii


def test_the_cost_of_exploring_is_that_of_exploring() -> None:
    observer = Observer()
    made = plan_kernel(read_source(str(SAMPLES / "attention/causal.tl")), CompileOptions(), observer)
    seconds = dict(observer.seconds)
    explored = {name for name in seconds if name.startswith("exploring: ")}
    assert explored == {"exploring: choose-subtile"} and made.loops
    assert seconds["exploring: choose-subtile"] > seconds["choose-subtile"]
