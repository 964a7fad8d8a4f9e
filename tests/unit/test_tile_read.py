"""Tile IR read back from its text is the tile IR that was written."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilec import driver
from tilec.diag import CompileError
from tilec.ir.read import read_kernel
from tilec.ir.text import print_kernel
from tilec.ir.tile import Binary, Bind, Buffer, Call, Cast, Const, Expr, Kernel, Load, Select, Unary, Var
from tilec.ir.types import BOOL, FLOAT16, FLOAT32, INT32, INT64
from tilec.options import CompileOptions
from tilec.source import SourceFile

TESTS = Path(__file__).parents[1]
KERNELS = sorted([*(TESTS.parent / "samples").glob("*.tl"), *(TESTS / "kernels").glob("*.tl")])


@pytest.mark.parametrize("path", KERNELS, ids=lambda p: p.stem)
def test_every_kernel_reads_back_identically(path: Path) -> None:
    kernel = driver.check(SourceFile(str(path), path.read_text()), CompileOptions(), driver.Observer())
    text = print_kernel(kernel)
    assert read_kernel(text) == kernel
    assert print_kernel(read_kernel(text)) == text


N, M, X, H = Var("n", INT64), Var("m"), Var("x", FLOAT32), Var("h", FLOAT16)
TILE = Buffer("t", (8,), FLOAT32, "global")


def _numbers(dtype: object) -> st.SearchStrategy[Expr]:
    if dtype is BOOL:
        return st.booleans().map(lambda b: Const(b, BOOL))
    if dtype in (INT32, INT64):
        return st.integers(-9, 9).map(lambda v: Const(v, dtype)) | st.just(M if dtype is INT32 else N)
    floats = st.sampled_from([-0.5, 0.0, 1.0, 1e30, math.inf, -math.inf])
    return floats.map(lambda v: Const(v, dtype)) | st.just(X if dtype is FLOAT32 else H)


def _grow(dtype: object, depth: int) -> st.SearchStrategy[Expr]:
    if depth == 0:
        return _numbers(dtype)
    same = st.deferred(lambda: _grow(dtype, depth - 1))
    other = st.sampled_from([BOOL, INT32, INT64, FLOAT32, FLOAT16]).flatmap(lambda d: _grow(d, depth - 1))
    made = [_numbers(dtype), other.map(lambda a: Cast(a, dtype)) if dtype is not BOOL else _numbers(dtype)]
    made.append(st.builds(lambda c, a, b: Select(c, a, b, dtype), _grow(BOOL, depth - 1), same, same))
    if dtype is BOOL:
        made.append(st.builds(lambda op, a, b: Binary(op, a, b, BOOL), st.sampled_from(["and", "or"]), same, same))
        ints = _grow(INT32, depth - 1)
        made.append(st.builds(lambda op, a, b: Binary(op, a, b, BOOL), st.sampled_from(["lt", "eq", "ge"]), ints, ints))
        made.append(same.map(lambda a: Unary("not", a, BOOL)))
    else:
        whole = ["floordiv", "floormod", "bitand", "xor", "shl"] if dtype in (INT32, INT64) else ["div"]
        ops = st.sampled_from(["add", "sub", "mul", "min", "max", *whole])
        made.append(st.builds(lambda op, a, b: Binary(op, a, b, dtype), ops, same, same))
        made.append(same.map(lambda a: Unary("neg", a, dtype)))
    if dtype is FLOAT32:
        made.append(same.map(lambda a: Call("exp2", (a,), FLOAT32)))
        made.append(_grow(INT32, depth - 1).map(lambda i: Load(TILE, (i,))))
    return st.one_of(made)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([BOOL, INT32, INT64, FLOAT32, FLOAT16]).flatmap(lambda d: _grow(d, 3)))
def test_every_expression_reads_back_identically(expr: Expr) -> None:
    body = (Bind(Var("v", expr.dtype), expr),)
    kernel = Kernel("k", (TILE, N, M, X, H), (1,), (Var("bx"),), 32, (), body)
    text = print_kernel(kernel)
    assert read_kernel(text) == kernel, text


def test_a_variable_may_be_called_inf(body: Callable[..., Kernel]) -> None:
    kernel = body(
        'x = T.alloc_fragment((8,), "float32")\ninf = bx + 1\nT.fill(x, -T.infinity("float32"))\nT.fill(x, inf)'
    )
    assert read_kernel(print_kernel(kernel)) == kernel


GOOD = """\
kernel k(A), blocks bx < 4, 32 threads
  global A: float32[64]
  fragment x: float32[8]

  fill x[:], value=float32(0.0)
  for k in serial(0, 4):
    copy A[k * 8:+8], x[:]
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (GOOD, "", "the file is empty"),
        ("kernel k", "kernal k", "expected 'kernel NAME(…), blocks …, N threads'"),
        ("blocks bx < 4", "blocks bx", "expected 'NAME < EXTENT', found 'bx'"),
        ("float32[64]", "float31[64]", "there is no type 'float31'"),
        ("k(A)", "k(B)", "the parameters B are not declared first, in this order"),
        ("k * 8:+8", "k * 8:16", "a region is written START:+EXTENT"),
        ("k * 8", "j * 8", "no variable is called 'j'"),
        ("fill x", "fill y", "no buffer is called 'y'"),
        ("x[:], value", "x, value", "'x' is no region of a buffer"),
        ("fill x[:]", "fill x[:, :]", "x has 1 dimensions, here are 2"),
        ("serial(0, 4)", "serial(0, 4, colour=3)", "serial has no 'colour'"),
        ("    copy", "      copy", "the line is indented further than its block"),
        ("  fill", "fill", "nothing may follow the kernel"),
        ("value=float32(0.0)", "value=", "is no expression"),
        ("value=float32(0.0)", "value=k @ 2", "'k @ 2' is no expression of tile IR"),
    ],
)
def test_what_is_no_tile_ir(old: str, new: str, says: str) -> None:
    assert read_kernel(GOOD).name == "k"
    assert old in GOOD
    with pytest.raises(CompileError) as caught:
        read_kernel(GOOD.replace(old, new))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "bad-tile-ir"
    assert says in diagnostic.title
