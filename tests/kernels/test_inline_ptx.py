"""T.ptx: what is written between {0} and {1} computes what the PTX ISA says, wherever a value may stand; by numpy."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilec.driver.build import Build, Observer, build_kernel, build_library
from tilec.driver.emulation import emulate
from tilec.ir.read import read_kernel
from tilec.ir.text import print_kernel
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
COUNT = 512
Arrays = dict[str, Any]


def compiled(text: str, target: str) -> Build:
    source = SourceFile("k.tl", f"import tilelang.language as T\n\n{text}")
    return build_kernel(source, CompileOptions(target=target), Observer())


def run(text: str, target: str, **tensors: Any) -> Arrays:
    """The tensors afterwards; the tile program must come to the same."""
    made = compiled(text, target)
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    given.tensors.update({name: stored(array) for name, array in tensors.items()})
    by_tiles = given.copy()
    emulate.emulate_build(made, given)
    emulate.run_reference(made.kernel, by_tiles)
    for name, found in given.tensors.items():
        np.testing.assert_array_equal(found, by_tiles.tensors[name], err_msg=name)
    return given.tensors


def stored(array: Any) -> Any:
    """As tensors hold it: numpy has no bfloat16 of its own, so its numbers are given as their bits."""
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def elementwise(value: str, inputs: tuple[str, ...], dtype: str) -> str:
    names = "XYZ"[: len(inputs)]
    given = "".join(f'{n}: T.Tensor(({COUNT},), "{t}"), ' for n, t in zip(names, inputs, strict=True))
    return f"""
@T.prim_func
def f({given}C: T.Tensor(({COUNT},), "{dtype}")):
    with T.Kernel({COUNT // 128}, threads=128) as b:
        for i in T.Parallel(128):
            C[b * 128 + i] = {value.replace("$", "b * 128 + i")}
"""


def drawn(dtype: str, seed: int) -> Any:
    generator = np.random.default_rng(seed)
    if "int" in dtype:
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, COUNT, dtype=dtype, endpoint=True)
    held = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return (generator.standard_normal(COUNT) * 8).astype(held)


def toward_zero(x: Any, y: Any) -> Any:
    exact = x.astype(np.float64) + y.astype(np.float64)
    near = exact.astype(np.float32)
    over = np.abs(near.astype(np.float64)) > np.abs(exact)
    return np.where(over, np.nextafter(near, np.float32(0)), near)


def brev(x: Any) -> Any:
    return np.array([int(f"{int(v):064b}"[::-1], 2) for v in x], np.uint64)


def mul_hi(x: Any, y: Any) -> Any:
    return np.array([int(a) * int(b) >> 64 for a, b in zip(x, y, strict=True)], np.int64)


def fused(x: Any, y: Any, z: Any) -> Any:
    exact = [Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) for a, b, c in zip(x, y, z, strict=True)]
    return np.array([e.numerator / e.denominator for e in exact], np.float64)


CASES = {
    "toward zero": ("add.rz.f32 {0}, {1}, {2};", ("float32", "float32"), "float32", toward_zero),
    "three inputs": (
        "lop3.b32 {0}, {1}, {2}, {3}, 0x96;", ("uint32", "uint32", "uint32"), "uint32", lambda x, y, z: x ^ y ^ z,
    ),
    "int64": ("mul.hi.s64 {0}, {1}, {2};", ("int64", "int64"), "int64", mul_hi),
    "uint64": ("brev.b64 {0}, {1};", ("uint64",), "uint64", brev),
    "float64": ("fma.rn.f64 {0}, {1}, {2}, {3};", ("float64", "float64", "float64"), "float64", fused),
    "float16": (
        "max.f16 {0}, {1}, {2};", ("float16", "float16"), "float16", np.maximum,
    ),
    "bfloat16": ("max.bf16 {0}, {1}, {2};", ("bfloat16", "bfloat16"), "bfloat16", np.maximum),
    "two types": ("mov.b32 {0}, {1};", ("float32",), "int32", lambda x: x.view(np.int32)),
    "registers of its own": (
        ".reg .pred p; .reg .f32 half; mul.rn.f32 half, {1}, 0f3F000000; setp.lt.f32 p, {1}, 0f00000000; "
        "mov.f32 {0}, {1}; @p mov.f32 {0}, half;",
        ("float32",), "float32", lambda x: np.where(x < 0, x * np.float32(0.5), x),
    ),
    "a block of its own": (
        "{ .reg .b32 t<2>; shr.u32 t0, {1}, 4; and.b32 t1, t0, 15; add.u32 {0}, t1, 1; }",
        ("uint32",), "uint32", lambda x: (x >> 4 & 15) + 1,
    ),
    "the result is read": (
        "mov.b32 {0}, {1}; add.s32 {0}, {0}, {1};", ("int32",), "int32", lambda x: x + x,
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_it_computes(name: str, target: str) -> None:
    text, inputs, dtype, expected = CASES[name]
    given = {n: drawn(t, k) for k, (n, t) in enumerate(zip("XYZ", inputs, strict=False))}
    places = ", ".join(f"{n}[$]" for n in given)
    value = f'T.ptx("{text}", ins=({places},), dtype="{dtype}")'
    found = run(elementwise(value, inputs, dtype), target, **given)["C"]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, stored(expected(*given.values())))


def test_a_truth_value_goes_in_and_out() -> None:
    value = (
        'T.if_then_else(T.ptx("xor.pred {0}, {1}, {2};", ins=(X[$] > 0, T.ptx("setp.lt.f32 {0}, {1}, {2};", '
        'ins=(X[$], Y[$]), dtype="bool"))), X[$], Y[$])'
    )
    x, y = drawn("float32", 1), drawn("float32", 2)
    found = run(elementwise(value, ("float32", "float32"), "float32"), "sm_90a", X=x, Y=y)["C"]
    np.testing.assert_array_equal(found, np.where((x > 0) ^ (x < y), x, y))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_each_thread_for_itself(target: str) -> None:
    """As statements with `out`: a variable that changes in a loop, then an element."""
    text = f"""
@T.prim_func
def f(X: T.Tensor(({COUNT},), "uint32"), C: T.Tensor(({COUNT},), "uint32")):
    with T.Kernel({COUNT // 128}, threads=128) as b:
        t = T.get_thread_binding()
        s = T.alloc_var("uint32")
        s = X[b * 128 + t]
        for k in T.serial(5):
            T.ptx("shf.l.wrap.b32 {{0}}, {{1}}, {{1}}, 3;", ins=(s,), out=s)
        T.ptx("popc.b32 {{0}}, {{1}};", out=C[b * 128 + t], ins=s)
"""
    x = drawn("uint32", 3) & np.uint32(0xFFFF)
    found = run(text, target, X=x)["C"]
    np.testing.assert_array_equal(found, [int(v).bit_count() for v in x])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4])
def test_behind_a_product(depth: int, target: str) -> None:
    text = f"""
@T.prim_func
def f(A: T.Tensor((64, {32 * max(depth, 1)}), "float16"), B: T.Tensor(({32 * max(depth, 1)}, 64), "float16"),
      C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as b:
        a_shared = T.alloc_shared((64, 32), "float16")
        b_shared = T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined({depth}, num_stages=3):
            T.copy(A[0, k * 32], a_shared)
            T.copy(B[k * 32, 0], b_shared)
            T.gemm(a_shared, b_shared, c)
        for i, j in T.Parallel(64, 64):
            T.ptx("cvt.rni.f32.f32 {{0}}, {{1}};", out=c[i, j], ins=(c[i, j],))
        T.copy(c, C)
"""
    generator = np.random.default_rng(7)
    a = generator.integers(-3, 4, (64, 32 * max(depth, 1))).astype(np.float16)
    b = (generator.integers(-3, 4, (32 * max(depth, 1), 64)) / 4).astype(np.float16)
    found = run(text, target, A=a, B=b)["C"]
    product = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(found, np.rint(product) if depth else np.zeros((64, 64)))


def test_nothing_goes_in() -> None:
    found = run(elementwise('T.ptx("mov.f32 {0}, 0f40490FDB;", dtype="float32")', (), "float32"), "sm_80")["C"]
    np.testing.assert_array_equal(found, np.full(COUNT, math.pi, np.float32))


def test_tile_ir_keeps_it() -> None:
    made = compiled(elementwise('T.ptx("brev.b32 {0}, {1};", ins=X[$])', ("uint32",), "uint32"), "sm_80")
    shown = print_kernel(made.kernel)
    assert "ptx[uint32](" in shown
    assert print_kernel(read_kernel(shown)) == shown


def interval(statement: str) -> int:
    """Of a loop that loads a tile and changes each element, cycles."""
    text = f"""
@T.prim_func
def f(X: T.Tensor((4096,), "float32"), C: T.Tensor((128,), "float32")):
    with T.Kernel(1, threads=128) as b:
        x = T.alloc_shared((128,), "float32")
        c = T.alloc_fragment((128,), "float32")
        T.clear(c)
        for k in T.Pipelined(32, num_stages=3):
            T.copy(X[k * 128], x)
            for i in T.Parallel(128):
                {statement}
        T.copy(c, C)
"""
    source = SourceFile("k.tl", f"import tilelang.language as T\n\n{text}")
    (plan,) = build_library(source, CompileOptions(target="sm_90a"), Observer()).plans
    return plan.loops[0].solution.schedule.ii


def test_it_costs_what_its_instructions_cost() -> None:
    one = interval('c[i] += T.ptx("mov.f32 {0}, {1};", ins=x[i])')
    text = "mov.f32 {0}, {1}; " + "ex2.approx.f32 {0}, {0}; " * 64
    assert interval(f'c[i] += T.ptx("{text}", ins=x[i])') > one + 64


def test_builds_of_strangers_kernels_refuse_it() -> None:
    kernel = elementwise('T.ptx("mov.f32 {0}, {1};", ins=X[$])', ("float32",), "float32")
    source = SourceFile("k.tl", f"import tilelang.language as T\n\n{kernel}")
    with pytest.raises(CompileError, match="inline-ptx-refused"):
        build_kernel(source, CompileOptions(refuse_inline_ptx=True), Observer())
