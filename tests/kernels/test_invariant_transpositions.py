"""Operands that wgmma needs transposed: once before a loop that does not change them, else in each iteration."""

from __future__ import annotations

import numpy as np
import pytest
from test_scalar_names import compiled, run

from tilec.ir import warp
from tilec.ir.elements import encode_values
from tilec.ir.types import FLOAT8_E4M3

PRODUCTS = """
@T.prim_func
def k(X: T.Tensor((256, 64), "float8_e4m3fn"), W: T.Tensor((64, 64), "float8_e4m3fn"),
      Y: T.Tensor((256, 64), "float32")):
    with T.Kernel(1, threads=128):
        x = T.alloc_shared((64, 64), "float8_e4m3fn")
        w = T.alloc_shared((64, 64), "float8_e4m3fn")
        y = T.alloc_fragment((64, 64), "float32")
        T.copy(W, w)
        for k in LOOP:
            T.copy(X[k * 64 : (k + 1) * 64, :], x)
            T.gemm(x, w, y, clear_accum=True)
            T.copy(y, Y[k * 64 : (k + 1) * 64, :])
CHANGE"""
CHANGE = """            for i, j in T.Parallel(64, 64):
                w[i, j] = T.cast(0.5 * T.cast(w[i, j], "float32"), "float8_e4m3fn")
"""
LOOPS = ["T.serial(4)", "T.Pipelined(4, num_stages=2)"]


def count_repeated(program: warp.Program) -> tuple[int, int]:
    """Return the numbers of transpositions outside of loops and inside."""
    every = [op for role in program.roles for op in warp.walk_operations(role.body)]
    loops = [op for op in every if isinstance(op, warp.Loop)]
    inside = {id(op) for loop in loops for op in warp.walk_operations(loop.body)}
    turns = [op for op in every if isinstance(op, warp.TransposeMatrix)]
    return sum(id(op) not in inside for op in turns), sum(id(op) in inside for op in turns)


@pytest.mark.parametrize("loop", LOOPS)
def test_an_operand_that_no_iteration_changes_is_transposed_before_the_loop(loop: str) -> None:
    made = compiled(PRODUCTS.replace("LOOP", loop).replace("CHANGE", ""), "sm_90a")
    assert count_repeated(made.program) == (1, 0)


def test_a_changed_operand_is_transposed_again() -> None:
    made = compiled(PRODUCTS.replace("LOOP", LOOPS[0]).replace("CHANGE", CHANGE), "sm_90a")
    assert count_repeated(made.program)[1] == 1


@pytest.mark.parametrize("change", ["", CHANGE])
@pytest.mark.parametrize("loop", LOOPS)
def test_products_equal_numpy(loop: str, change: str) -> None:
    """Numbers so small that the sums of the tensor cores are exact; the reference of `run` follows the changes, too."""
    generator = np.random.default_rng(1)
    x, w = (generator.integers(-4, 5, shape).astype(np.float32) for shape in ((256, 64), (64, 64)))
    given = {"X": encode_values(x, FLOAT8_E4M3), "W": encode_values(w, FLOAT8_E4M3)}
    found = run(PRODUCTS.replace("LOOP", loop).replace("CHANGE", change), "sm_90a", **given)
    factors = np.repeat(0.5 ** np.arange(4) if change else np.ones(4), 64)
    np.testing.assert_array_equal(found["Y"], x @ w * factors[:, None])


ROLES = """
@T.prim_func
def k(X: T.Tensor((64, 192), "float8_e4m3fn"), W: T.Tensor((192, 64), "float8_e4m3fn"),
      Y: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=256):
        x = T.alloc_shared((64, 64), "float8_e4m3fn")
        w = T.alloc_shared((64, 64), "float8_e4m3fn")
        full = T.alloc_barrier(128)
        empty = T.alloc_barrier(128)
        with T.ws(1):
            for k in T.serial(3):
                T.barrier_wait(empty, (k + 1) % 2)
                T.copy(X[:, k * 64 : (k + 1) * 64], x)
                T.copy(W[k * 64 : (k + 1) * 64, :], w)
                T.barrier_arrive(full)
        with T.ws(0):
            y = T.alloc_fragment((64, 64), "float32")
            T.clear(y)
            for k in T.serial(3):
                T.barrier_wait(full, k % 2)
                T.gemm(x, w, y)
                T.barrier_arrive(empty)
            T.copy(y, Y)
"""


def test_what_another_role_writes_is_transposed_in_the_loop() -> None:
    generator = np.random.default_rng(2)
    x, w = (generator.integers(-4, 5, shape).astype(np.float32) for shape in ((64, 192), (192, 64)))
    given = {"X": encode_values(x, FLOAT8_E4M3), "W": encode_values(w, FLOAT8_E4M3)}
    np.testing.assert_array_equal(run(ROLES, "sm_90a", **given)["Y"], x @ w)


@pytest.mark.parametrize("around", ["if k > 0:", "for other in T.serial(1):"])
def test_a_nested_change_counts(around: str) -> None:
    nested = "".join(f"    {line}\n" for line in CHANGE.splitlines())
    made = compiled(PRODUCTS.replace("LOOP", LOOPS[0]).replace("CHANGE", f"            {around}\n{nested}"), "sm_90a")
    assert count_repeated(made.program)[1] == 1


TWO_ORDERS = """
@T.prim_func
def k(A: T.Tensor((64, 64), "int8"), B: T.Tensor((64, 64), "int8"), D: T.Tensor((64, 64), "int32"),
      E: T.Tensor((64, 64), "int32")):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "int8")
        c = T.alloc_shared((64, 64), "int8")
        f = T.alloc_fragment((64, 64), "int8")
        d = T.alloc_fragment((64, 64), "int32")
        e = T.alloc_fragment((64, 64), "int32")
        T.copy(A, a)
        T.copy(B, c)
        T.copy(a, f)
        T.clear(d)
        T.clear(e)
        for k in T.serial(3):
            T.gemm(f, c, e)
            T.gemm(a, c, d)
        T.copy(d, D)
        T.copy(e, E)
"""


def test_one_operand_in_two_orders_is_in_two_tiles() -> None:
    """Factors in registers have the order along k of accumulators, those in shared memory the plain one."""
    generator = np.random.default_rng(3)
    a, b = (generator.integers(-9, 10, (64, 64)).astype(np.int8) for _ in range(2))
    found = run(TWO_ORDERS, "sm_90a", A=a, B=b)
    wanted = 3 * (a.astype(np.int32) @ b.astype(np.int32))
    np.testing.assert_array_equal(found["D"], wanted)
    np.testing.assert_array_equal(found["E"], wanted)
