"""Why a product is left to mma.sync where tcgen05.mma exists: each reason is said, and what to change is enough."""

from __future__ import annotations

import pytest

from tilec.driver.build import Build, Observer, build_kernel
from tilec.support.options import CompileOptions, Strategy
from tilec.support.source import SourceFile

KERNEL = """
import tilelang.language as T

@T.prim_func
def kernel(
    A: T.Tensor((128, 256), "float16"), B: T.Tensor((64, 256), "float16"),
    C: T.Tensor((128, 64), "float32"),
):
    with T.Kernel(1, threads=128) as bx:
        X = T.alloc_shared((128, 32), "float16")
        Y = T.alloc_shared((64, 32), "float16")
        Z = T.alloc_fragment((128, 32), "float16")
        S = T.alloc_fragment((128, 64), "float32")
        T.clear(S)
        for k in T.Pipelined(8, num_stages=2):
            T.copy(A[0, k * 32], X)
            T.copy(B[0, k * 32], Y)
            T.gemm(X, Y, S, transpose_B=True)
        T.copy(S, C)
"""
LOAD_B = "            T.copy(B[0, k * 32], Y)\n"
PRODUCT = "            T.gemm(X, Y, S, transpose_B=True)\n"
SCALE = "            for i, j in T.Parallel(128, 64): S[i, j] = S[i, j] * 2.0\n"
AGAIN = f"""        for i, j in T.Parallel(128, 64): S[i, j] += 1.0
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * 32], X)
{LOAD_B}{PRODUCT}"""
LOOP = "for k in T.Pipelined(8, num_stages=2)"


def compiled(text: str, strategy: Strategy = "auto") -> tuple[Build, Observer]:
    observer = Observer()
    options = CompileOptions(target="sm_100a", pipeline_strategy=strategy)
    return build_kernel(SourceFile("kernel.tl", text), options, observer), observer


def changed(*changes: tuple[str, str]) -> str:
    text = KERNEL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def test_nothing_is_said_of_products_in_tensor_memory() -> None:
    made, _ = compiled(KERNEL)
    assert "tcgen05.mma" in made.ptx and not made.warnings


@pytest.mark.parametrize(
    ("text", "why", "remedy"),
    [
        (
            changed((LOAD_B, ""), ("        T.clear(S)\n", "        T.clear(S)\n        T.copy(B[0, 0], Y)\n")),
            "Y is not filled in its loop",
            "fill Y by T.copy in the loop, for the product only",
        ),
        (
            changed((LOOP, LOOP.replace("2)", "2, order=[0, 1, 2], stage=[0, 0, 1])"))),
            "its loop has a manual schedule",
            "stage=",
        ),
        (
            changed(("    C: T", "    n: T.int32, C: T"), (PRODUCT, "            if k < n:\n    " + PRODUCT)),
            "it is under a condition or in an inner loop of one",
            "directly into the body of a T.Pipelined loop",
        ),
        (changed(("        T.clear(S)\n", "        T.fill(S, 1)\n")), "S is not cleared directly before", "T.clear(S)"),
    ],
)
def test_what_stands_around_a_product(text: str, why: str, remedy: str) -> None:
    made, _ = compiled(text)
    assert "mma.sync" in made.ptx and "tcgen05.mma" not in made.ptx
    (said,) = [w for w in made.warnings if w.code == "mma-sync-fallback"]
    assert said.primary is not None and why in said.primary.text and remedy in (said.help or "")
    assert "T.gemm" in text.splitlines()[said.primary.span.line - 1]
    assert why in made.trace


def test_two_loops_that_load_the_same_tiles() -> None:
    """Of the first one the second one is the reason, not columns of tensor memory."""
    made, _ = compiled(changed(("        T.copy(S, C)", AGAIN + "        T.copy(S, C)")))
    first, second = made.warnings
    assert {first.code, second.code} == {"mma-sync-fallback"} and first.primary and second.primary
    assert first.primary.text == "the loop in line 20 loads the same tiles, and its products use mma.sync"
    assert second.primary.text == "S is not cleared directly before the loop"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (changed((PRODUCT, PRODUCT + SCALE)), "line 19 uses S in the loop, where only products may use it"),
        (
            changed(("S, transpose_B=True", "S, transpose_B=True, clear_accum=True")),
            "has clear_accum or an explicit wait",
        ),
        (changed(("T.gemm(X", "T.copy(X, Z)\n            T.gemm(Z")), "A and B must be shared tiles"),
        (
            changed(("128, 256", "96, 256"), ("(128, 64)", "(96, 64)"), ("(128, 32)", "(96, 32)")),
            "C has 96 rows",
        ),
    ],
)
def test_what_is_not_easily_changed(text: str, why: str) -> None:
    """What the machine cannot do, and sums of each iteration, are no warning, but written down."""
    made, _ = compiled(text)
    assert "mma.sync" in made.ptx and why in made.trace
    assert not [w for w in made.warnings if w.code == "mma-sync-fallback"]


def test_what_was_asked_for_is_not_warned_of() -> None:
    made, _ = compiled(KERNEL, "none")
    assert "mma.sync" in made.ptx and not made.warnings and "not tcgen05.mma" in made.trace
