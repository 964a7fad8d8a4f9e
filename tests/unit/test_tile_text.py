from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tilec.ir.text import print_kernel, show_expr
from tilec.ir.tile import (
    THREAD,
    Binary,
    Bind,
    Const,
    Expr,
    If,
    Kernel,
    Parallel,
    Select,
    Store,
    TileOp,
    Unary,
    Var,
    int32_const,
)
from tilec.ir.tile_verify.verify import verify_tile
from tilec.ir.types import BOOL, FLOAT16, FLOAT32, INT32

X, Y, Z = Var("x"), Var("y"), Var("z")

EVERYTHING = """
s = T.alloc_shared((8, 8), "float16")
t = T.alloc_shared((8, 8), "float32")
x = T.alloc_fragment((8, 8), "float32")
row = bx * 8
T.fill(x, alpha)
for k in T.Pipelined(1, n, num_stages=2, order=[0, 1], stage=[0, 1]):
    T.async_copy(A[row + k * 8, 0], s)
    if k % 2 == 0 and alpha > 0.5:
        for i, j in T.Parallel(8, 8):
            v = T.exp2(s[i, j])
            x[i, j] = T.max(x[i, j], v) if i < j else -(x[i, j] + 1)
    else:
        T.reduce_sum(x, x[0, :], dim=0, clear=False)
T.copy(x, A[row : row + 8, 0:8])
T.async_copy(A[0, 0], s)
T.ptx_commit_group()
T.ptx_wait_group(1)
T.fence_proxy_async()
T.sync_threads()
T.im2col(X, s, row, 1, 3, 1, 2, pad=2)
T.transpose(s, t)
T.cummax(x, s, dim=-1, reverse=True)
r = T.alloc_reducer((8,), "float32", op="max")
T.reducer_init(r, alpha)
for i, j in T.Parallel(8, 8):
    T.reducer_update(r[i], x[i, j])
T.finalize_reducer(r)
T.atomic_add(A[row, 0], x, memory_order="release")
T.device_assert(n > 0, "too few")
T.print(s, "50%  # done")
T.copy_cluster(s[0:4, :], s[4:8, :], dst_block=n)
T.sync_grid()
for i, j in T.Parallel(8, 2):
    T.atomic_addx4(A[row + i, j * 4], s[i, j * 4])
    u = T.atomic_load(A[i, j])
    T.atomic_max(A[0, 0], u)
"""


def test_everything_once(body: Callable[..., Kernel], golden: Callable[[str, str, str], None]) -> None:
    images = 'X: T.Tensor((2, 5, 5, 8), "float16")'
    built = body(EVERYTHING, f'A: T.Tensor((64, 8), "float16"), alpha: T.float32, n: T.int32, {images}')
    assert list(verify_tile(built)) == []
    golden("tile", "everything", print_kernel(built))


def test_notes_are_comments(body: Callable[..., Kernel]) -> None:
    text = print_kernel(body('x = T.alloc_fragment((8,), "float32")\nT.clear(x)'), note=lambda s: f"line {s.span.line}")
    assert "  fill x[:], value=float32(0.0)  # line 7\n" in text


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (Binary("mul", Binary("add", X, Y, INT32), Z, INT32), "(x + y) * z"),
        (Binary("add", Binary("mul", X, Y, INT32), Z, INT32), "x * y + z"),
        (Binary("sub", X, Binary("sub", Y, Z, INT32), INT32), "x - (y - z)"),
        (Binary("sub", Binary("sub", X, Y, INT32), Z, INT32), "x - y - z"),
        (Unary("neg", Binary("add", X, Y, INT32), INT32), "-(x + y)"),
        (Unary("not", Binary("lt", X, Y, BOOL), BOOL), "not x < y"),
        (Binary("and", Binary("or", X, Y, BOOL), Z, BOOL), "(x or y) and z"),
        (Binary("min", X, Binary("add", Y, Z, INT32), INT32), "min(x, y + z)"),
        (Select(Binary("lt", X, Y, BOOL), X, Y, INT32), "select(x < y, x, y)"),
        (Const(1.5, FLOAT16), "float16(1.5)"),
        (Const(1.5, FLOAT32), "1.5"),
        (Const(True, BOOL), "True"),
    ],
)
def test_expressions(expr: Expr, text: str) -> None:
    assert show_expr(expr) == text


# ---- the verifier ----------------------------------------------------------------------------------------------------


def broken(built: Kernel, **changes: Any) -> str:
    return "\n".join(verify_tile(replace(built, **changes)))


def test_the_verifier_finds_what_is_broken(body: Callable[..., Kernel]) -> None:
    built = body('x = T.alloc_fragment((8,), "float32")\ny = bx + 1\nT.clear(x)\nfor i in T.Parallel(8):\n    x[i] = 0')
    bind, clear, nest = built.body
    (x,) = built.buffers
    assert isinstance(bind, Bind) and isinstance(clear, TileOp) and isinstance(nest, Parallel)
    assert list(verify_tile(built)) == []
    assert "used twice" in broken(built, body=(bind, bind))
    assert "used twice" in broken(built, buffers=(x, x))
    assert "not declared" in broken(built, buffers=())
    assert "not visible" in broken(built, block_vars=(Var("other"),))
    assert "0 grid extents" in broken(built, grid=())
    assert "a block of 0 threads" in broken(built, threads=0)
    every = replace(nest, vars=(THREAD,), extents=(built.threads + 1,), body=())
    assert "a nest of every thread has" in broken(built, body=(every,))
    assert "outside Parallel" in broken(built, body=(Store(x, (int32_const(0),), Const(0.0, FLOAT32)),))
    assert "inside Parallel" in broken(built, body=(replace(nest, body=(clear,)),))
    assert "which holds float32" in broken(
        built, body=(replace(nest, body=(Store(x, (int32_const(0),), int32_const(0)),)),)
    )
    assert "its value is float32" in broken(built, body=(Bind(Var("z"), Const(0.0, FLOAT32)),))
    assert "2 indices for x" in broken(built, body=(replace(nest, body=(Store(x, (X, X), Const(0.0, FLOAT32)),)),))
    assert "the condition 1 is int32" in broken(built, body=(If(int32_const(1), ()),))
    wide = replace(clear.regions[0], extent=(9,))
    assert "extent 9 in a dimension of 8" in broken(built, body=(clear.with_regions((wide,)),))
    mixed = Binary("add", int32_const(1), Const(1.0, FLOAT32), INT32)
    assert "int32 of int32 and float32" in broken(built, body=(Bind(Var("z"), mixed),))
    halves = Binary("div", int32_const(1), int32_const(2), INT32)
    assert "divides integers" in broken(built, body=(Bind(Var("z"), halves),))
