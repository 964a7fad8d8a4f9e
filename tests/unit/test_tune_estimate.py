"""What the tuner's model says of a variant before it is compiled: near what it says afterwards, and what cannot fit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tilec.driver import build as driver
from tilec.passes.cost.estimate import DoesNotFit, StageOption, estimate_cycles, predict_by_stages
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile
from tilec.tune import trial

SAMPLES = Path(__file__).parents[2] / "samples"
TEXT = (SAMPLES / "alcop" / "matmul.tl").read_text(encoding="utf-8")


def options(target: str, **constants: Value) -> CompileOptions:
    return CompileOptions(target=target, defines=tuple(constants.items()))


def cycles(target: str, **constants: Value) -> int:
    return estimate_cycles(*driver.assign_kernel_layouts(SourceFile("matmul.tl", TEXT), options(target, **constants)))


def test_more_stages_never_cost_time() -> None:
    taken = [cycles("sm_80", M=512, N=768, K=3072, num_stages=stages) for stages in (1, 2, 3, 4)]
    assert taken == sorted(taken, reverse=True)
    assert taken[0] > taken[2]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_near_what_is_said_of_the_kernel_once_it_is_built(target: str) -> None:
    built = trial.try_variant(trial.Variant("matmul.tl", TEXT, options(target)))
    assert not built.refusal and built.intervals
    assert cycles(target) == pytest.approx(built.by_levels, rel=0.25)


def test_what_does_not_seem_to_fit_is_told_and_comes_last() -> None:
    def rooms(**constants: Value) -> tuple[StageOption, ...]:
        return predict_by_stages(
            *driver.assign_kernel_layouts(SourceFile("matmul.tl", TEXT), options("sm_80", **constants))
        )

    with pytest.raises(DoesNotFit, match="bytes of shared memory; the limit is 166912"):
        rooms(block_M=256, block_N=256, block_K=256, threads=512, num_stages=1)
    with pytest.raises(DoesNotFit, match="registers a thread; the limit is 255"):
        rooms(block_M=256, block_N=256, threads=128)
    assert cycles("sm_80", block_M=256, block_N=256, threads=128) > 100 * cycles("sm_80")


WIDE = """
import tilelang.language as T

threads = 384


@T.prim_func
def wide(A: T.Tensor((384, 1024), "float32"), B: T.Tensor((384, 1024), "float32"), C: T.Tensor((384, 1024), "float32")):
    with T.Kernel(4, threads=threads) as bx:
        a = T.alloc_fragment((192, 256), "float32")
        b = T.alloc_fragment((192, 256), "float32")
        for half in T.serial(2):
            T.copy(A[half * 192, bx * 256], a)
            T.copy(B[half * 192, bx * 256], b)
            for i, j in T.Parallel(192, 256):
                a[i, j] = a[i, j] * b[i, j]
            T.copy(a, C[half * 192, bx * 256])
"""


def test_what_the_compiler_builds_is_predicted() -> None:
    """More registers by the estimate than a thread may have: the assembler makes do with fewer."""
    variant = trial.Variant("wide.tl", WIDE, options("sm_80"))
    with pytest.raises(DoesNotFit, match="registers"):
        predict_by_stages(*driver.assign_kernel_layouts(variant.source(), variant.options))
    assert isinstance(trial.predict_variant(variant), int)
    assert not trial.try_variant(variant).refusal


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_predictions_begin_as_builds_do(target: str) -> None:
    """Every kernel of a file can be predicted where it can be built, sums in tensor memory too."""
    path = Path(__file__).parents[1] / "kernels" / "tensor_sums.tl"
    for entry in re.findall(r"^def (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
        variant = trial.Variant(str(path), path.read_text(encoding="utf-8"), replace(options(target), entry=entry))
        try:
            driver.plan_kernel(variant.source(), variant.options, driver.Observer())
        except CompileError as error:
            assert trial.predict_variant(variant) == trial.format_first_error(error)
        else:
            assert isinstance(trial.predict_variant(variant), int), entry


def test_a_variant_that_is_refused_says_why() -> None:
    assert trial.predict_variant(trial.Variant("k.tl", "import\n", options("sm_80"))) != 0
    refused = trial.try_variant(trial.Variant("matmul.tl", TEXT, options("sm_80", block_M=63)))
    assert refused.refusal.startswith("line ") and refused.refusal.endswith("]")
    several = TEXT + TEXT[TEXT.index("@T.prim_func") :].replace("def matmul", "def other")
    found = trial.predict_variant(trial.Variant("several.tl", several, options("sm_80")))
    assert isinstance(found, str) and "entry" in found
