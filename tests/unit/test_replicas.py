"""Loops of which several threads have a copy of each element, and that both read and set memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.ir import tile, warp
from tilec.ir.layout import Axis, Fragment, row_major_fragment, unswizzled_layout
from tilec.ir.tile import Buffer, Load, Parallel, Store, Var
from tilec.ir.types import FLOAT32, DType
from tilec.ir.warp_verify.verify import program_violations
from tilec.passes.lower.nests import split_replicated_nest
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

Array = np.ndarray[Any, np.dtype[Any]]
Function = Callable[[Array], Array]

HEAD = """import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((6,), "float32"), O: T.Tensor((6,), "float32"), P: T.Tensor((6,), "float32")):
    with T.Kernel(1, threads=96):
        held = T.alloc_shared((6,), "float32")
        mine = T.alloc_fragment((6,), "float32")
        T.copy(A, held)
        for i in T.Parallel(6):
"""
TAIL = """
        T.copy(mine, O)
        T.copy(held, P)
"""
ROW = Var("i")
HELD, MINE = Buffer("held", (32,), FLOAT32, "shared"), Buffer("mine", (32,), FLOAT32, "fragment")
READ, SET = Store(MINE, (ROW,), Load(HELD, (ROW,))), Store(HELD, (ROW,), Load(MINE, (ROW,)))
BY_FOUR = replace(row_major_fragment((32,), 128, 1), threads=(Axis(32, 0, 1), Axis(4, -1, 0)), registers=())


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    ("lines", "mine", "held"),
    [
        (("mine[i] = held[i]", "held[i] = 7"), lambda a: a, lambda a: a * 0 + 7),
        (("mine[i] = held[i]", "held[i] = mine[i] + 1"), lambda a: a, lambda a: a + 1),
        (("mine[i] = held[i]", "held[i] = 3", "mine[i] += held[i]"), lambda a: a + 3, lambda a: a * 0 + 3),
        (("x = held[i]", "mine[i] = x", "held[i] = 5"), lambda a: a, lambda a: a * 0 + 5),
        (("x = held[i] + 1", "held[i] = x * 2", "mine[i] = x"), lambda a: a + 1, lambda a: (a + 1) * 2),
        (("x = held[i]", "y = x + 1", "held[i] = y", "mine[i] = x + y"), lambda a: a + (a + 1), lambda a: a + 1),
        (
            ("x = T.cast(held[i], 'float16')", "held[i] = 1", "mine[i] = x"),
            lambda a: a.astype(np.float16).astype(np.float32),
            lambda a: a * 0 + 1,
        ),
        (
            ("if held[i] > 0:", "    held[i] = 1", "    mine[i] = 2", "else:", "    mine[i] = held[i]"),
            lambda a: np.where(a > 0, 2, a),
            lambda a: np.where(a > 0, 1, a),
        ),
        (
            (
                "mine[i] = 4",
                "if held[i] > 0:",
                "    x = held[i]",
                "    held[i] = 1",
                "    if mine[i] > x:",
                "        mine[i] = x",
                "        held[i] = x + 3",
            ),
            lambda a: np.where(a > 0, np.minimum(a, 4), 4),
            lambda a: np.where(a > 0, np.where(a < 4, a + 3, 1), a),
        ),
        (
            (
                "mine[i] = 4",
                "if T.atomic_add(held[i], mine[i], return_prev=True) < 5:",
                "    held[i] = 1",
                "held[i] = held[i] + mine[i]",
            ),
            lambda a: a * 0 + 4,
            lambda a: np.where(a < 5, 5, a + 8),
        ),
        (
            ("x = T.atomic_add(held[i], 2, return_prev=True)", "mine[i] = x * 2"),
            lambda a: a * 2,
            lambda a: a + 2,
        ),
        (
            ("mine[i] = held[i]", "if i > 2:", "    held[i] = 0", "    mine[i] = held[i] - 1"),
            lambda a: np.where(np.arange(6) > 2, -1, a),
            lambda a: np.where(np.arange(6) > 2, 0, a),
        ),
    ],
)
def test_every_copy_reads_before_one_of_them_sets(
    lines: tuple[str, ...], mine: Function, held: Function, target: str
) -> None:
    source = SourceFile("kernel.tl", HEAD + "\n".join(f"            {line}" for line in lines) + TAIL)
    made = build_kernel(source, CompileOptions(target=target, scheduler="heuristic"), Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, 3)
    given = found.tensors["A"].copy()
    for adversary in (None, 1):
        emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=adversary))
        assert np.array_equal(found.tensors["O"], mine(given))
        assert np.array_equal(found.tensors["P"], held(given))


def nest(*body: Store) -> Parallel:
    return Parallel((ROW,), (32,), body)


def no_tile(name: str, dtype: DType, scope: str) -> Buffer:
    raise AssertionError(f"{name} of type {dtype} is kept in a {scope} tile")


def violations(layout: Fragment, *nests: Parallel) -> list[str]:
    sweeps: list[warp.Operation] = [warp.BarSync(0, 128)]
    for one in nests:
        sweeps += [warp.Elementwise(one, layout), warp.BarSync(0, 128)]
    role = warp.Role("all", 0, 4, tuple(sweeps))
    shared = (warp.SharedTile(HELD, unswizzled_layout((32,), 4), 1, offset=0),)
    program = warp.Program("kernel", (), (), (1, 1, 1), (), (role,), shared, ((MINE, layout),), (), 128)
    return list(program_violations(program))


def test_the_verifier_finds_a_nest_that_does_both() -> None:
    both = nest(READ, SET)
    (found,) = violations(BY_FOUR, both)
    assert "sets registers in every replica from held, which only one replica stores" in found
    apart = split_replicated_nest(both, BY_FOUR, no_tile)
    assert violations(BY_FOUR, *apart) == []
    assert len(apart) == 2


def test_the_verifier_finds_a_value_that_one_thread_knows() -> None:
    before = Var("before", FLOAT32)
    swap = Store(HELD, (ROW,), tile.Const(1.0, FLOAT32), atomic="add", previous=before)
    (found,) = violations(BY_FOUR, nest(swap, Store(MINE, (ROW,), before)))
    assert "sets registers in every replica from held, which only one replica stores" in found


def test_without_copies_a_nest_stays_whole() -> None:
    alone = row_major_fragment((32,), 32, 1)
    assert split_replicated_nest(nest(READ, SET), alone, no_tile) == (nest(READ, SET),)
    assert split_replicated_nest(nest(READ), BY_FOUR, no_tile) == (nest(READ),)
