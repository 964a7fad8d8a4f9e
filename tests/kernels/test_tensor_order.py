"""Stores in loops go by TMA where each iteration writes a place of its own; where iterations meet, the last one
counts."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.emulation.emulate import RunOptions
from tilec.ir import warp
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

KERNEL = """
import tilelang.language as T

@T.prim_func
def k(A: T.Tensor((8 * 64, 64), "float16"), C: T.Tensor((8 * 64, 128), "float16")):
    with T.Kernel(1, threads=128) as bx:
        s = T.alloc_shared((64, 64), "float16")
        for i in T.Pipelined({trips}, num_stages=2):
            T.copy(A[i * 64, 0], s)
            {store}
"""


def made(store: str, trips: int = 8) -> Build:
    text = KERNEL.format(trips=trips, store=store.replace(";", "\n            "))
    return build_kernel(SourceFile("k.tl", text), CompileOptions(target="sm_90a"), Observer())


def by_tma(of: Build) -> bool:
    return any(isinstance(op, warp.TmaStore) for role in of.program.roles for op in warp.walk_operations(role.body))


@pytest.mark.parametrize(
    ("store", "is_tma"),
    [
        ("T.copy(s, C[i * 64, 0])", True),
        ("T.copy(s, C[(7 - i) * 64, 64])", True),
        ("row = i * 64;T.copy(s, C[row, 0])", True),
        ("T.copy(s, C[0, 0])", False),
        ("T.copy(s, C[i * 32, 0])", False),
        ("T.copy(s, C[i % 2 * 64, 0])", False),
        ("T.copy(s, C[i // 2 * 64, i % 2 * 64])", False),  # they do not meet, but that is not seen
        ("T.copy(s, C[i * 64, i % 2 * 64])", True),
        ("T.copy(s, C[bx * 64, 0])", False),
        ("T.copy(s, C[i * 64, 0]);T.copy(s, C[i * 64, 64])", False),  # two statements
    ],
)
def test_where_iterations_write(store: str, is_tma: bool) -> None:
    """In whatever order asynchronous stores land."""
    of = made(store)
    assert by_tma(of) == is_tma
    for seed in (1, 2):
        found = emulate.draw_arguments(of.kernel, of.manifest, seed)
        expected = found.copy()
        emulate.emulate_build(of, found, options=RunOptions(adversary=seed))
        emulate.run_reference(of.kernel, expected)
        np.testing.assert_array_equal(found.tensors["C"], expected.tensors["C"])


def test_nested_loops_are_digits() -> None:
    loop = "for j in T.serial({n}):;    T.copy(s, C[i * {a} + j * {b}, 0])"
    assert by_tma(made(loop.format(n=2, a=128, b=64), trips=4))
    assert not by_tma(made(loop.format(n=3, a=128, b=64), trips=3))
    assert not by_tma(made(loop.format(n=2, a=64, b=64), trips=3))
