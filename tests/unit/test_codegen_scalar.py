"""Random scalar expressions of every type, as compiled and emulated, bit for bit against the numpy reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from stages import advanced, work_on

from tilec.codegen.scalar.integers import find_reciprocal
from tilec.driver.emulation import emulate
from tilec.interp import run as interp
from tilec.ir.elements import decode_values, encode_values
from tilec.ir.expr import make_constant
from tilec.ir.manifest import manifests_in_module
from tilec.ir.tile import (
    BIT_COUNTS,
    COMPARISONS,
    INTEGER_CALLS,
    Binary,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Kernel,
    Load,
    Parallel,
    Select,
    Store,
    Unary,
    Var,
    walk_expr,
)
from tilec.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, NARROW_TYPES, TYPES_BY_NAME, DType
from tilec.ops.functions.intrinsics import make_references
from tilec.ptx.isa import check_instruction
from tilec.ptx.module import Instruction
from tilec.ptx.text import print_module

N = 32
LANE = Var("i")
TYPES = tuple(t for t in dict.fromkeys(TYPES_BY_NAME.values()) if t not in NARROW_TYPES)  # which test_narrow tries
INPUTS = {
    dtype: (Buffer(f"{dtype}_a", (N,), dtype, "global"), Buffer(f"{dtype}_b", (N,), dtype, "global")) for dtype in TYPES
}

Array = np.ndarray[Any, Any]


def compiled(expr: Expr, target: str) -> tuple[Kernel, str, Any]:
    """A kernel that computes the expression in each of 32 lanes; its PTX, every instruction checked."""
    loaded = tuple(dict.fromkeys(e.buffer for e in walk_expr(expr) if isinstance(e, Load)))
    out = Buffer("out", (N,), expr.dtype, "global")
    body = Parallel((LANE,), (N,), (Store(out, (LANE,), expr),))
    kernel = Kernel("scalar", (*loaded, out), (1,), (Var("bx"),), N, (), (body,))
    module = advanced(work_on(kernel, target), "emit-ptx").module
    for item in module.entries[0].body:
        if isinstance(item, Instruction):
            assert check_instruction(item, module.target, module.version) is None, item
    (manifest,) = manifests_in_module(module)
    return kernel, print_module(module), manifest


def values(dtype: DType, generator: np.random.Generator) -> Array:
    """Small numbers, extremes, and anything."""
    if dtype == BOOL:
        return generator.integers(0, 2, N).astype(np.bool_)
    if dtype.is_float:
        some = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 3e-8, 65504.0, -1e30], np.float64)
        drawn = np.concatenate([some, generator.normal(0, 10, N - len(some))])
        return encode_values(drawn.astype(np.float32), dtype)
    info = np.iinfo(dtype.name)
    some = np.array([0, 1, 2, info.min, info.max, info.max - 1], dtype.name)
    near = generator.integers(max(info.min, -9), 10, 16).astype(dtype.name)
    anything = generator.integers(info.min, info.max, N - 22, dtype.name, endpoint=True)
    return np.concatenate([some, near, anything])


def agree(expr: Expr, target: str = "sm_90a", seed: int = 0, tolerance: float = 0.0) -> None:
    with np.errstate(all="ignore"):
        kernel, ptx, manifest = compiled(expr, target)
        generator = np.random.default_rng(seed)
        arguments = emulate.KernelArguments({}, {})
        for param in kernel.params:
            assert isinstance(param, Buffer)
            drawn = values(param.dtype, generator)
            arguments.tensors[param.name] = drawn if param.name.endswith("_a") else generator.permutation(drawn)
        arguments.tensors["out"] = emulate.make_poisoned_array(Buffer("out", (N,), expr.dtype, "global"))
        expected = arguments.copy()
        emulate.launch(ptx, "scalar", 1, N, emulate.build_launch_arguments(manifest, arguments))
        interp.run_kernel(kernel, expected.tensors)
        found, wanted = (decode_values(a.tensors["out"], expr.dtype) for a in (arguments, expected))
        if tolerance:
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(found, wanted)


# ---- expressions -----------------------------------------------------------------------------------------------------


def leaf(dtype: DType) -> st.SearchStrategy[Expr]:
    loads = st.sampled_from(INPUTS[dtype]).map(lambda b: Load(b, (LANE,)))
    numbers: st.SearchStrategy[Any] = st.integers(-7, 9)
    if dtype == BOOL:
        numbers = st.booleans()
    elif dtype.kind == "uint":
        numbers = st.integers(0, 9)
    elif dtype.is_float:
        numbers = st.sampled_from([0.0, 1.0, -2.5, 0.1, 1e5])
    return loads | numbers.map(lambda n: make_constant(n, dtype))


def of_type(dtype: DType, depth: int) -> st.SearchStrategy[Expr]:
    if depth == 0:
        return leaf(dtype)
    inner = st.deferred(lambda: of_type(dtype, depth - 1))
    other = st.sampled_from(TYPES).flatmap(lambda source: of_type(source, depth - 1))
    conditions = st.deferred(lambda: of_type(BOOL, depth - 1))

    def binary(*ops: str) -> st.SearchStrategy[Expr]:
        return st.builds(lambda op, a, b: Binary(op, a, b, dtype), st.sampled_from(ops), inner, inner)

    shared: list[st.SearchStrategy[Expr]] = [
        leaf(dtype),
        st.builds(lambda a: Cast(a, dtype), other),
        st.builds(lambda c, a, b: Select(c, a, b, dtype), conditions, inner, inner),
    ]
    if dtype == BOOL:
        return st.one_of(
            *shared, binary("and", "or"), st.builds(lambda a: Unary("not", a, BOOL), inner), comparisons(depth)
        )
    if dtype.is_float:
        calls = st.builds(lambda fn, a: Call(fn, (a,), dtype), st.sampled_from(["abs", "floor", "ceil"]), inner)
        whole = [] if dtype == FLOAT64 else [calls]
        negated = st.builds(lambda a: Unary("neg", a, dtype), inner)
        return st.one_of(*shared, *whole, negated, binary("add", "sub", "mul", "div", "min", "max"))
    # A divisor that cannot be zero, a shift that stays inside the word.
    odd = st.builds(lambda a: Binary("bitor", a, Const(1, dtype), dtype), inner)
    divisors = st.sampled_from([1, 2, 3, 7, 16]).map(lambda n: Const(n, dtype)) | odd
    divided = st.builds(
        lambda op, a, b: Binary(op, a, b, dtype), st.sampled_from(["floordiv", "floormod"]), inner, divisors
    )
    amounts = st.integers(0, dtype.bits - 1).map(lambda n: Const(n, dtype))
    shifted = st.builds(lambda op, a, b: Binary(op, a, b, dtype), st.sampled_from(["shl", "shr"]), inner, amounts)
    plain = binary("add", "sub", "mul", "min", "max", "bitand", "bitor", "xor")
    negated = st.builds(lambda a: Unary("neg", a, dtype), inner) if dtype.kind == "int" else plain
    return st.one_of(*shared, plain, divided, shifted, negated)


def comparisons(depth: int) -> st.SearchStrategy[Expr]:
    def of(dtype: DType) -> st.SearchStrategy[Expr]:
        side = of_type(dtype, depth - 1)
        return st.builds(lambda op, a, b: Binary(op, a, b, BOOL), st.sampled_from(COMPARISONS), side, side)

    return st.sampled_from(TYPES).flatmap(of)


@pytest.mark.some(8)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_random_expressions(dtype: DType) -> None:
    @given(of_type(dtype, 3), st.integers(0, 1000))
    @settings(max_examples=8, deadline=None, derandomize=True, database=None)
    def run(expr: Expr, seed: int) -> None:
        agree(expr, seed=seed)

    run()


# ---- one at a time ---------------------------------------------------------------------------------------------------


@pytest.mark.some(8)
@pytest.mark.parametrize("source", TYPES, ids=str)
def test_casts(source: DType) -> None:
    """To every type: integers wrap around, floats are cut off towards zero and kept within the range."""
    for target in TYPES:
        agree(Cast(Load(INPUTS[source][0], (LANE,)), target))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("divisor", [1, 2, 8, 3, 7, -1, -2, -5])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_division_rounds_down(dtype: str, divisor: int, target: str) -> None:
    numerator = Load(INPUTS[TYPES_BY_NAME[dtype]][0], (LANE,))
    for op in ("floordiv", "floormod"):
        agree(Binary(op, numerator, make_constant(divisor, numerator.dtype), numerator.dtype), target)


POSITIVE = Call("abs", (Load(INPUTS[FLOAT32][0], (LANE,)),), FLOAT32)
ABOVE = Binary("max", Load(INPUTS[FLOAT32][1], (LANE,)), Const(-9.0, FLOAT32), FLOAT32)
SMALL = Binary("min", ABOVE, Const(9.0, FLOAT32), FLOAT32)
BOUNDED = (
    *("exp", "exp2", "exp10", "sinh", "cosh", "tanh", "sigmoid", "erf", "sin", "cos", "tan", "atan"),
    *("abs", "floor", "ceil", "trunc", "round", "nearbyint"),
)
UNBOUNDED = ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal")


ULPS = {"tan": 8, "exp10": 4, "log2": 4, "log10": 4}


def test_bits_are_reinterpreted() -> None:
    for one, other in ((FLOAT32, "int32"), (FLOAT32, "uint32"), (FLOAT16, "int16"), (BFLOAT16, "uint16")):
        agree(Call("reinterpret", (Load(INPUTS[one][0], (LANE,)),), TYPES_BY_NAME[other]))
    for one, other in (("uint32", "float32"), ("int16", "float16"), ("uint64", "int64"), ("int8", "uint8")):
        agree(Call("reinterpret", (Load(INPUTS[TYPES_BY_NAME[one]][0], (LANE,)),), TYPES_BY_NAME[other]))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("fn", "argument"), [*((fn, SMALL) for fn in BOUNDED), *((fn, POSITIVE) for fn in UNBOUNDED)])
def test_functions(fn: str, argument: Expr, target: str) -> None:
    """To a few units in the last place; in 16 bits through float32."""
    agree(Call(fn, (argument,), FLOAT32), target, tolerance=ULPS.get(fn, 2) * 2.0**-23)
    for short, tolerance in ((FLOAT16, 2e-3), (BFLOAT16, 1e-2)):
        agree(Call(fn, (Cast(argument, short),), short), target, tolerance=tolerance)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_remainders_are_exact(target: str) -> None:
    x, y = (Load(INPUTS[FLOAT32][n], (LANE,)) for n in (0, 1))
    agree(Call("fmod", (x, y), FLOAT32), target)
    for divisor in (0.3, -7.0, 2.0**-149, 3e38, math.inf, 0.0, math.nan):
        agree(Call("fmod", (x, Const(divisor, FLOAT32)), FLOAT32), target)
    for dividend in (math.inf, -0.0, 2.0**-130, 3.4e38):
        agree(Call("fmod", (Const(dividend, FLOAT32), y), FLOAT32), target)
    for short in (FLOAT16, BFLOAT16):
        agree(Call("fmod", (Cast(x, short), Cast(y, short)), short), target)


def test_every_function_is_tried() -> None:
    others = {*make_references(), *BIT_COUNTS, *INTEGER_CALLS}  # which test_simt and test_scalar_names try
    assert {*BOUNDED, *UNBOUNDED, "pow", "fmod"} == set(interp._CALL_FUNCTIONS) - others


def test_powers() -> None:
    agree(Call("pow", (POSITIVE, Const(1.5, FLOAT32)), FLOAT32), tolerance=1e-4)


@given(st.integers(2, (1 << 32) - 1), st.integers(0, (1 << 32) - 1), st.data())
def test_a_reciprocal_divides_every_number_up_to_the_most(divisor: int, most: int, data: st.DataObject) -> None:
    found = find_reciprocal(divisor, most)
    if found is None:
        assert most >= 1 << 31, "every divisor of numbers of 31 bits has one"
        return
    factor, shift = found
    assert factor < 1 << 32
    near = {0, most, most // divisor * divisor, max(most // divisor * divisor - 1, 0)}
    for x in (*near, data.draw(st.integers(0, most))):
        assert (x * factor >> 32) >> shift == x // divisor
