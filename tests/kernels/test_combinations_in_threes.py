"""Reductions of a thread's registers as trees of threes, where the machine combines three operands at once."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from sass import disassembled
from test_scalar_names import compiled, run

ROW = """
@T.prim_func
def k(X: T.Tensor((1, 1024), "TYPE"), Y: T.Tensor((1,), "TYPE")):
    with T.Kernel(1, threads=32):
        x = T.alloc_fragment((1, 1024), "TYPE")
        y = T.alloc_fragment((1,), "TYPE")
        T.copy(X, x)
        T.reduce_KIND(x, y, dim=1)
        T.copy(y, Y)
"""
"""32 elements a thread: 31 combinations, and 5 of the lanes' results."""


@pytest.mark.parametrize(
    ("kind", "dtype", "target", "of_three", "of_two"),
    [
        ("max", "int32", "sm_90a", "VIMNMX3", "VIMNMX"),
        ("min", "uint32", "sm_90a", "VIMNMX3", "VIMNMX"),
        ("max", "float32", "sm_100a", "FMNMX3", "FMNMX"),
    ],
)
def test_a_tree_of_threes_has_half_of_the_instructions(
    kind: str, dtype: str, target: str, of_three: str, of_two: str, tmp_path: Path
) -> None:
    text = ROW.replace("TYPE", dtype).replace("KIND", kind)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled(text, target).cubin)
    names = [i.stem for i in disassembled(cubin).instructions]
    assert (names.count(of_three), names.count(of_two)) == (15, 1 + 5)


def test_floats_keep_pairs_where_maxima_have_two_operands() -> None:
    """A tree of threes is deeper: 8 instructions from an element to the result where pairs have 5."""
    ptx = compiled(ROW.replace("TYPE", "float32").replace("KIND", "max"), "sm_90a").ptx
    results = dict(re.findall(r"max\.f32 (%f\d+), (%f\d+), %f\d+;", ptx))
    depth, last = 0, list(results)[30]
    while last in results:
        depth, last = depth + 1, results[last]
    assert depth == 5


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kind", ["max", "min", "sum", "bitxor"])
def test_they_give_what_numpy_does(kind: str, target: str) -> None:
    found = run(ROW.replace("TYPE", "int32").replace("KIND", kind), target)
    compute = {"max": np.max, "min": np.min, "sum": np.sum, "bitxor": np.bitwise_xor.reduce}[kind]
    np.testing.assert_array_equal(found["Y"], compute(found["X"], axis=1).astype(np.int32))
