"""What the tuner's model says of a variant before it is compiled: near what it says afterwards, and what cannot fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec import driver, trial
from tilec.options import CompileOptions, Value
from tilec.source import SourceFile
from tilec.tune.estimate import estimate
from tilec.tune.rank import Refused

SAMPLES = Path(__file__).parents[2] / "samples"
TEXT = (SAMPLES / "alcop" / "matmul.tl").read_text(encoding="utf-8")


def options(target: str, **constants: Value) -> CompileOptions:
    return CompileOptions(target=target, defines=tuple(constants.items()))


def cycles(target: str, **constants: Value) -> int:
    return estimate(*driver.laid(SourceFile("matmul.tl", TEXT), options(target, **constants))).cycles


def test_more_stages_never_cost_time() -> None:
    taken = [cycles("sm_80", M=512, N=768, K=3072, num_stages=stages) for stages in (1, 2, 3, 4)]
    assert taken == sorted(taken, reverse=True)
    assert taken[0] > taken[2]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_near_what_is_said_of_the_kernel_once_it_is_built(target: str) -> None:
    built = trial.carried_out(trial.Variant("matmul.tl", TEXT, options(target)))
    assert not built.refusal and built.intervals
    assert cycles(target) == pytest.approx(built.by_levels, rel=0.25)


def test_what_does_not_fit() -> None:
    with pytest.raises(Refused, match="bytes of shared memory, of 166912"):
        cycles("sm_80", block_M=256, block_N=256, block_K=256, threads=512, num_stages=1)
    with pytest.raises(Refused, match="registers a thread, of 255"):
        cycles("sm_80", block_M=256, block_N=256, threads=128)


def test_a_variant_that_is_refused_says_why() -> None:
    assert trial.predicted(trial.Variant("k.tl", "import\n", options("sm_80"))) != 0
    refused = trial.carried_out(trial.Variant("matmul.tl", TEXT, options("sm_80", block_M=63)))
    assert refused.refusal.startswith("line ") and refused.refusal.endswith("]")
    several = TEXT + TEXT[TEXT.index("@T.prim_func") :].replace("def matmul", "def other")
    found = trial.predicted(trial.Variant("several.tl", several, options("sm_80")))
    assert isinstance(found, str) and "entry" in found
