"""The decision whether iterations of a loop overlap: by machine code, where versions of tiles keep a block out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness import SAMPLES

from tilec.driver.build import Observer, Plan, build_kernel, plan_kernel
from tilec.driver.stages import format_trace
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

SCAN = "models/mamba_chunk_scan"
LARGE = {"batch": 4, "chunks": 32, "heads": 64}
OPTIONS = CompileOptions(target="sm_90a", gpu="H200", defines=tuple(LARGE.items()))


def read_sample(sample: str) -> SourceFile:
    path = SAMPLES / f"{sample}.tl"
    return SourceFile(path.name, path.read_text(encoding="utf-8"))


def plan(sample: str, constants: dict[str, int], **options: object) -> Plan:
    asked = CompileOptions(target="sm_90a", gpu="H200", defines=tuple(constants.items()), **options)
    return plan_kernel(read_sample(sample), asked, Observer())


def test_a_block_more_is_worth_more_than_overlap() -> None:
    """An H200 takes 427 µs for one iteration after the other, 499 with overlap."""
    made = plan(SCAN, LARGE)
    (decision,) = (each for each in made.decisions if each.what == "iterations")
    prices = {each.answer: each.price for each in decision.alternatives}
    assert decision.chosen == "one after the other" and prices[decision.chosen] < 0.9 * prices["overlapped"]
    assert made.assignment.form == "serial" and not made.loops
    whats = [each.what for each in made.decisions]
    assert len(whats) == len(set(whats))


@pytest.mark.parametrize(
    ("sample", "constants", "options"),
    [
        (SCAN, LARGE, {"pipeline_strategy": "unspecialize"}),
        (SCAN, LARGE, {"stages_by_occupancy": False}),
        (SCAN, {"batch": 1, "chunks": 2, "heads": 4}, {}),  # as many blocks as fit in any case
        ("rows/rmsnorm", {"M": 65536, "N": 4096}, {}),  # memory takes the time
        ("gemm", {"M": 4096, "N": 4096, "K": 4096}, {}),  # a producer warp
    ],
)
def test_iterations_overlap_without_a_question(
    sample: str, constants: dict[str, int], options: dict[str, object]
) -> None:
    made = plan(sample, constants, **options)
    assert made.loops and "iterations" not in {each.what for each in made.decisions}


def test_it_is_built_as_the_command_line_would_ask_for() -> None:
    asked = OPTIONS, replace(OPTIONS, pipeline_strategy="none")
    by_choice, by_option = (build_kernel(read_sample(SCAN), each, Observer()).ptx for each in asked)
    assert by_choice == by_option


def test_its_own_trace_makes_it_again() -> None:
    made = build_kernel(read_sample(SCAN), OPTIONS, Observer())
    again = build_kernel(read_sample(SCAN), replace(OPTIONS, schedule=format_trace(made.work)), Observer())
    assert made.ptx == again.ptx


def test_a_trace_of_a_kernel_without_loops_is_refused() -> None:
    other = build_kernel(read_sample("vector_add"), CompileOptions(target="sm_90a"), Observer())
    with pytest.raises(CompileError, match="bad-schedule"):
        plan(SCAN, LARGE, schedule=format_trace(other.work))
