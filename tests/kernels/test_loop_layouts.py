"""Nests whose layout a person gives: any map of iterations to threads that gives no two of them one place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.kernels.harness import agrees
from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation.emulate import draw_arguments, emulate_build
from tilec.ir.placement import evaluate_index
from tilec.ir.read import read_kernel
from tilec.ir.text import print_kernel
from tilec.ir.tile import Expr, If, Kernel, LoopLayout, Parallel, Store, walk_statements
from tilec.passes.layout.fragments.irregular_loops import regularise_nest
from tilec.passes.layout.fragments.loop_layout import build_iteration_table, is_regular
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

ROWS, COLUMNS, THREADS = 24, 40, 96
FORMS = {
    "permuted": "T.Fragment((M, N), forward_fn=lambda i, j: ((j * 7) % 40, i))",
    "exclusive or": "T.Fragment((M, N), forward_fn=lambda i, j: (j ^ (i % 8) * 4, i))",
    "rotated": "T.Fragment((M, N), forward_fn=lambda i, j: ((i + j) % 24, j))",
    "flat": "T.Fragment((M, N), forward_fn=lambda i, j: ((i * 40 + j) % 96, (i * 40 + j) // 96))",
    "flat by columns": "T.Fragment((M, N), forward_fn=lambda i, j: ((j * 24 + i) % 96, (j * 24 + i) // 96))",
    "flat, a number short": "T.Fragment((M, N), forward_fn=lambda i, j: ((i * 40 + j) % 77, (i * 40 + j) // 77))",
    "few threads": "T.Fragment((M, N), forward_fn=lambda i, j: (j, i))",
    "blocks": "T.Fragment((M, N), forward_fn=lambda i, j: (i // 4 * 5 + j // 8, i % 4 * 8 + j % 8))",
    "backwards": "T.Fragment((M, N), forward_fn=lambda i, j: (23 - i, 39 - j))",
    "by cases": "T.Fragment((M, N), forward_fn=lambda i, j: (T.if_then_else(i < 7, j, 50 + j), (i + 17) % 24))",
    "counted": "T.Fragment((M, N), forward_thread_fn=lambda i, j: (i * i + j) % 31)",
    "gaps": "T.Fragment((M, N), forward_fn=lambda i, j: (i * 3, j * 2))",
    "copies": "T.Fragment((M, N), forward_fn=lambda i, j, copy: (j + copy * 45, i), replicate=2)",
    "copies in one place": "T.Fragment((M, N), forward_fn=lambda i, j: (i, j), replicate=2)",
    "copies side by side": "T.Fragment((M, N), lambda i, j, copy: (i * 2 + copy, j), None, 2)",
    "repeated": "T.Fragment((1, N), forward_fn=lambda i, j: (j, 0)).repeat([M, 1])",
    "repeated in threads": "T.Fragment((12, 10), forward_fn=lambda i, j: (i, j)).repeat([2, 4], repeat_on_thread=True)",
    "repeated, first first": "T.Fragment((12, 10), lambda i, j: (i, j)).repeat([2, 4], True, lower_dim_first=False)",
    "replicated": "T.Fragment((M, N), forward_fn=lambda i, j: (i, j)).replicate(3)",
}
BODIES = {
    "tensors": "for i, j in T.Parallel(M, N, loop_layout=layout):\n    Y[i, j] = X[i, j] + 1.0",
    "in place": """
s = T.alloc_shared((M, N), "float32")
T.copy(X, s)
for step in T.serial(2):
    for i, j in T.Parallel(M, N, loop_layout=layout):
        if j > step:
            s[i, j] = s[i, j] * 2.0
T.copy(s, Y)""",
    "fragments": """
x = T.alloc_fragment((M, N), "float32")
r = T.alloc_fragment((M,), "float32")
T.copy(X, x)
T.reduce_max(x, r, dim=1)
for i, j in T.Parallel(M, N, loop_layout=layout):
    x[i, j] = x[i, j] + r[i] * X[i, j]
T.copy(x, Y)""",
    "reducers": """
r = T.alloc_reducer((M,), "float32", op="sum")
sums = T.alloc_fragment((M,), "float32")
T.reducer_init(r)
for i, j in T.Parallel(M, N, loop_layout=layout):
    T.reducer_update(r[i], X[i, j])
T.finalize_reducer(r, sums)
for i, j in T.Parallel(M, N):
    Y[i, j] = sums[i]""",
    "once": "T.copy(X, Y)\nfor i, j in T.Parallel(M, N, loop_layout=layout):\n    T.atomic_add(Y[i, j], 1.0)",
}


def source(form: str, body: str, threads: int = THREADS) -> SourceFile:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    text = f"""\
import tilelang.language as T
M, N = {ROWS}, {COLUMNS}
@T.prim_func
def kernel(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    with T.Kernel(1, threads={threads}) as bx:
        layout = {FORMS[form]}
{lines}"""
    return SourceFile("kernel.tl", text)


def expected(body: str, x: np.ndarray) -> np.ndarray:
    match body:
        case "in place":
            return np.asarray(x * np.array([1, 2] + [4] * (COLUMNS - 2), np.float32))
        case "fragments":
            return np.asarray(x + x.max(axis=1, keepdims=True) * x)
        case "reducers":
            return np.broadcast_to(x.sum(axis=1, keepdims=True, dtype=np.float64), x.shape)
        case _:
            return x + 1


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("form", FORMS)
def test_results_are_those_of_any_layout(form: str, body: str) -> None:
    made = build_kernel(source(form, BODIES[body]), CompileOptions(target="sm_80"), Observer())
    given = draw_arguments(made.kernel, made.manifest, 0)
    x = given.tensors["X"].copy()
    emulate_build(made, given)
    np.testing.assert_allclose(given.tensors["Y"], expected(body, x), rtol=1e-4, atol=1e-4)


def nest_of(kernel: Kernel) -> tuple[Parallel, LoopLayout]:
    (nest,) = (s for s in walk_statements(kernel.body) if isinstance(s, Parallel) and s.layout is not None)
    assert nest.layout is not None
    return nest, nest.layout


@pytest.mark.parametrize("form", FORMS)
def test_each_thread_runs_its_iterations(form: str) -> None:
    """What a nest over threads and numbers does in each of them, against the map as it is written."""
    kernel = build_kernel(source(form, BODIES["tensors"]), CompileOptions(target="sm_80"), Observer()).kernel
    nest, layout = nest_of(kernel)
    if is_regular(layout, THREADS):
        return
    again = regularise_nest(nest, THREADS)
    assert again.layout is not None and is_regular(again.layout, THREADS)
    stmt, exists = again.body[0], [1] * (again.extents[0] * again.extents[1])
    if isinstance(stmt, If):
        exists = evaluate_index(stmt.condition, again.extents, again.vars)
        stmt = stmt.then[0]
    assert isinstance(stmt, Store)
    coordinates = [values_of(index, again) for index in stmt.indices]
    met: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for n, here in enumerate(exists):
        if here:
            thread, number = divmod(n, again.extents[1])
            met.setdefault(tuple(c[n] for c in coordinates), []).append((thread, number))
    first: dict[tuple[int, ...], tuple[int, int]] = {}
    for place, element in sorted(build_iteration_table(layout).items()):
        first.setdefault(element, place)
    assert {element: [thread for thread, _ in at] for element, at in met.items()} == {
        element: [thread] for element, (thread, _) in first.items()
    }
    for thread in range(THREADS):  # in the order of their numbers
        mine = sorted((number, element) for element, (t, number) in first.items() if t == thread)
        run_as = sorted((at[0][1], element) for element, at in met.items() if at[0][0] == thread)
        assert [element for _, element in mine] == [element for _, element in run_as]


def values_of(index: Expr, nest: Parallel) -> list[int]:
    return evaluate_index(index, nest.extents, nest.vars)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_beside_products(target: str, tmp_path: Path) -> None:
    """In a pipelined loop with roles, on what a product leaves and what the loop has loaded."""
    text = """\
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((64, 128), "float16"), B: T.Tensor((128, 64), "float16"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        sums = T.alloc_shared((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * 32], a)
            T.copy(B[k * 32, 0], b)
            T.gemm(a, b, c)
        T.copy(c, sums)
        for i, j in T.Parallel(64, 64, loop_layout=T.Fragment((64, 64), forward_fn=lambda i, j: (i ^ j, j))):
            C[i, j] = sums[i, j] + T.cast(A[i, j], "float32")
"""
    path = tmp_path / "kernel.tl"
    path.write_text(text)
    agrees(path, target, strict=False)


def test_written_and_read() -> None:
    """Tile IR keeps the number of copies."""
    kernel = build_kernel(source("copies", BODIES["tensors"]), CompileOptions(target="sm_80"), Observer()).kernel
    again = read_kernel(print_kernel(kernel))
    assert nest_of(again)[1] == nest_of(kernel)[1] and nest_of(again)[1].copies == 2
