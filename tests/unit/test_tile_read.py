"""Tile IR read back from its text is the tile IR that was written."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings, strategies as st

from tilec.driver import build as driver
from tilec.ir import tile
from tilec.ir.read import read_kernel
from tilec.ir.text import print_kernel
from tilec.ir.tile import Binary, Bind, Buffer, Call, Cast, Const, Expr, Kernel, Load, Select, Unary, Var
from tilec.ir.tile_verify.verify import verify_tile
from tilec.ir.types import BOOL, FLOAT16, FLOAT32, INT32, INT64
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TESTS = Path(__file__).parents[1]
KERNELS = sorted([*(TESTS.parent / "samples").glob("*.tl"), *(TESTS / "kernels").glob("*.tl")])


@pytest.mark.some(40)
@pytest.mark.parametrize("path", KERNELS, ids=lambda p: p.stem)
def test_every_kernel_reads_back_identically(path: Path) -> None:
    for kernel in driver.load_kernels(SourceFile(str(path), path.read_text()), CompileOptions(), driver.Observer()):
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
    if dtype in (FLOAT32, INT32):
        made.append(
            _grow(INT32 if dtype is FLOAT32 else FLOAT32, depth - 1).map(lambda a: Call("reinterpret", (a,), dtype))
        )
    if dtype is FLOAT32:
        made.append(same.map(lambda a: Call("exp2", (a,), FLOAT32)))
        made.append(_grow(INT32, depth - 1).map(lambda i: Load(TILE, (i,))))
    return st.one_of(made)


@settings(max_examples=40, deadline=None)
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


EVERYTHING = """\
kernel all_of_it(A, B, C, n, x), blocks bx < 4, by < max((n + 7) // 8, 1), 128 threads
  global A: float16[64, 8]
  global B: int32[n]
  global C: float32[n, 64, 8], strides (n * 8 + 4, 8, 1)
  scalar n: int32
  scalar x: float32
  shared s: float16[8, 8]
  shared t: float16[8, 8]
  shared u: int32[4]
  fragment f: float32[8, 8]
  local own: int32[2]
  tmem sum: float32[64, 8]
  reducer parts: int32[8]
  barrier full: uint64[2]
  layout s: swizzle(32)
  layout t: placement([8, 8], 71, lambda %0, %1: %0 * 9 + %1)
  layout u: placement([4], 7, lambda %0: %0 * 2)
  layout f: fragment([8, 8], lambda %0, %1: (%0 * 8 + %1, 0))
  subtile f: 1, 2
  subtile s: 1, 1
  cluster 2, 1, 1
  raster panels(4, columns)
  blocks-of-a-multiprocessor 2
  returns B, A
  asks fast-math, unspecialised, without-tma

  row: int32 = bx * 8 + by
  wide: int64 = int64(n) // int64(2) % int64(3)
  bits: int32 = (n & 1 | n ^ 2) << 3 >> n - 1
  device_assert condition=n < 1, message='100\\x25 \\x23 it'
  fill f[:, :], value=float32('-inf')
  fill own[:], value=select(n < 1, 2, n)
  copy A[row:+8, 0:+4], s[:, 1:+4]
  for k in pipelined(1, n, num_stages=2, stage=[0, 1], order=[1, 0], scheduling_hints={}):
    copy A[k, :], s[0, :]
    copy s[0, :], A[k, :]
  for k_1 in pipelined(0, n, stage=[0], order=[0], \
scheduling_hints={'asynchronous': [True], 'groups': [-1], 'sync': [[0]]}):
    copy A[k_1, :], s[0, :]
  for k_2 in serial(int64(0), wide, 2, distinct_by=['p', 'q'], dynamically_scheduled=True):
    if k_2 < wide and not k_2 == int64(7) or k_2 != int64(1):
      copy A[0, :], s[0, :]
    else:
      break
  for k_3 in unroll(0, 8, factor=4):
    if k_3 >= 2:
      copy A[k_3, :], s[0, :]
  while B[0] <= n:
    if B[0] > 5:
      break
    else:
      fill s[:, :], value=float16(0.0)
  while True:
    break
  for i, j in parallel(8, 8, width=4, layout=fragment([8, 8], lambda %0, %1: (%0 * 8 + %1, 0))):
    y: float32 = max(exp2(x), min(pow(x, -2.0), neg(1.0))) / -x
    f[i, j] = select(i == j, cast(1.0, float32), y - float32(s[i, j]))
    old: int32 = atomic_add B[0], reinterpret[int32](y), acq_rel
    atomic_min B[0], old
    atomic_max B[0], bits, acquire
    atomic_bitor B[0], 1, release
    atomic_store B[0], 0, seq_cst
    relaxed: int32 = atomic_load B[0]
    now: int32 = atomic_load B[0], acquire
    atomic_add B[0], relaxed
  for once in parallel(4, layout=fragment([4], lambda %0: (%0, %0 % 2))):
    B[once] = int32(bool(once) == True)
  for first in parallel(4, layout=fragment([4], lambda %0: (%0 // 2, None))):
    B[first] = first
  for both in parallel(4, layout=fragment([4], lambda %0, %1: (%0 * 2 + %1, 0), 2)):
    B[both] = both
  for each in parallel(4, asynchronous=True):
    B[each] = each
  for of_two in parallel(4, versions={s: bits % 2, t: 1}):
    s[of_two, 0] = t[0, of_two]
  reducer_init parts[:], everywhere=False, kind='bitand', value=None
  for part in parallel(8):
    atomic_bitand parts[part], 7
    atomic_xor parts[part], part
  for %tid, k_4 in parallel(128, 2):
    own[k_4] = %tid + B[0]
    print '\\x25d\\n', own[k_4]
    print 'here'
"""


GOOD = """\
kernel k(A), blocks bx < 4, 32 threads
  global A: float32[64]
  fragment x: float32[8]

  fill x[:], value=float32(0.0)
  for k in serial(0, 4):
    copy A[k * 8:+8], x[:]
"""


IN_ORDER = GOOD.replace("\n\n", "\n  raster none\n\n")


def _nodes(what: Any) -> list[Any]:
    """Everything below a node that is tile IR itself, with it."""
    if isinstance(what, tuple):
        return [node for member in what for node in _nodes(member)]
    if type(what).__module__ != tile.__name__ and not isinstance(what, tile.TileOp):
        return []
    return [what, *(node for f in fields(what) if f.compare for node in _nodes(getattr(what, f.name)))]


def _kinds(hint: Any) -> set[object]:
    """What a field of this type may hold: the names of a Literal, None and the plain types; for the rest, nodes."""
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    if isinstance(hint, UnionType) or get_origin(hint) is not None:
        return {kind for member in get_args(hint) if member is not ... for kind in _kinds(member)}
    return {hint} if hint in (int, float, bool, str, NoneType) else {"a node"}


def _held(value: object, names: set[object]) -> set[object]:
    if isinstance(value, tuple):
        return {kind for member in value for kind in _held(member, names)}
    if isinstance(value, str) and value in names:
        return {value}
    return {type(value)} if isinstance(value, int | float | str | NoneType) else {"a node"}


CLASSES: list[Any] = [
    c for c in vars(tile).values() if isinstance(c, type) and c.__module__ == tile.__name__ and c is not tile.TileOp
]


def test_the_text_says_everything() -> None:
    """Each field of each class takes two values at least, one of each kind that its type allows, and all of them come
    from the text alone; so a field that is not written cannot hide."""
    nodes = [node for text in (EVERYTHING, GOOD, IN_ORDER) for node in _nodes(read_kernel(text))]
    values, held = defaultdict(set), defaultdict(set)
    for node in nodes:
        hints = get_type_hints(type(node))
        for f in fields(node):
            value = getattr(node, f.name)
            values[type(node), f.name].add(value)
            held[type(node), f.name] |= _held(value, _kinds(hints[f.name]))
    for cls in CLASSES:
        hints = get_type_hints(cls)
        for f in fields(cls):
            if f.compare:
                assert len(values[cls, f.name]) > 1, (
                    f"{cls.__name__}.{f.name} is never anything but {values[cls, f.name]}"
                )
                missing = _kinds(hints[f.name]) - held[cls, f.name]
                assert not missing, f"{cls.__name__}.{f.name} is never {missing}"
    assert {type(node) for node in nodes if not isinstance(node, tile.TileOp)} == set(CLASSES)


def test_everything_reads_back_identically() -> None:
    kernel = read_kernel(EVERYTHING)
    # That a loop is dynamically scheduled is decided later: it is part of the text, and of no kernel that begins.
    assert [said.split(": ")[1] for said in verify_tile(kernel)] == [
        "the values of k_2 are dynamically scheduled, which only a pass may set"
    ]
    assert print_kernel(kernel) == EVERYTHING
    assert read_kernel(print_kernel(kernel)) == kernel


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
        ("x[:], value", "x, value", "'x' is not a region of a buffer"),
        ("fill x[:]", "fill x[:, :]", "x has 1 dimensions, here are 2"),
        ("serial(0, 4)", "serial(0, 4, colour=3)", "serial has no 'colour'"),
        ("    copy", "      copy", "unexpected indentation"),
        ("  fill", "fill", "no text may follow the kernel"),
        ("value=float32(0.0)", "value=", "is not an expression"),
        ("value=float32(0.0)", "value=k @ 2", "'k @ 2' is not an expression of tile IR"),
        ("value=float32(0.0)", "value=float32('many')", "'many' is not a number"),
        ("fill x[:], value", "fill x[:]) + (value", "is not an expression"),
        ("fill x[:], value=float32(0.0)", "fill x[:]) + (x[:]", "is not a list of arguments"),
        (
            "fill x[:], value=float32(0.0)",
            "atomic_add x[0]",
            "atomic_add takes an element, a value and perhaps an order",
        ),
        ("fill x[:], value=float32(0.0)", "atomic_add x[0], 1.0, now", "there is no order 'now'"),
        ("serial(0, 4)", "parallel(4, layout=[4])", "a layout is written fragment("),
        ("serial(0, 4)", "parallel(4, height=4)", "parallel has no 'height'"),
        ("serial(0, 4)", "pipelined(0, 4, scheduling_hints={'colour': 3})", "scheduling_hints has no 'colour'"),
        ("serial(0, 4)", "pipelined(0, 4, scheduling_hints={'groups': [True]})", "groups is a list of int"),
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
