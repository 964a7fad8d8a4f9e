"""When it is said that the roles of a pipeline acquire differently many stages, and when that is for a run to know."""

from __future__ import annotations

import pytest

from tilec.driver import build as driver
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = """
import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16"), L: T.Tensor((8,), "int32"),
           n: T.int32, m: T.int32):
    with T.Kernel(4, threads=256) as bx:
        tile = T.alloc_shared((64, 64), "float16")
        pipe = T.InputTilePipeline(tile, stages=2)
        with T.ws(0):
            for i in T.serial({filled}):
                with pipe.producer().acquire() as tiles:
                    T.copy(A, tiles.tile)
        with T.ws(1):
            for i in T.serial({taken}):
                with pipe.consumer().acquire() as tiles:
                    T.copy(tiles.tile, C)
"""
SAME = [
    ("n", "n"),
    ("n + bx", "bx + n"),
    ("T.ceildiv(n, 64)", "(n + 63) // 64"),
    ("n // 64", "n // 128 * 2"),  # sizes may be taken for multiples of what tiles are
]
UNKNOWN = [("n", "m"), ("n // 2", "m"), ("n", "8"), ("n * m", "n"), ("L[bx]", "n"), ("T.max(n, 9000)", "n")]
DIFFERENT = [
    ("n", "n + 1"),
    ("2 * n", "n"),
    ("n + m", "n + m + 4"),
    ("n // 64", "n // 128"),
    ("4", "3"),
    ("bx + 1", "1"),
]


def said(filled: str, taken: str) -> list[str]:
    """The codes of what `tilec check` says."""
    source = SourceFile("k.tl", KERNEL.format(filled=filled, taken=taken))
    try:
        driver.check_file(source, CompileOptions(target="sm_90a"), driver.Observer())
    except CompileError as error:
        return [d.code for d in error.diagnostics]
    return []


@pytest.mark.parametrize(("one", "other"), SAME + UNKNOWN)
def test_counts_that_may_be_equal_are_right(one: str, other: str) -> None:
    assert said(one, other) == said(other, one) == []


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_counts_that_are_never_equal_are_not(one: str, other: str) -> None:
    assert said(one, other) == said(other, one) == ["unbalanced-acquires"]
