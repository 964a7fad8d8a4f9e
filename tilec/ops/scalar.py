"""Functions of scalars: `T.exp2`, `T.max`, `T.ceildiv`, casts. One row each; they give a value and touch no buffer."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from tilec.ir.expr import SMALL_FLOATS, cast, constant, integer_range
from tilec.ir.tile import Binary, Call as MathCall, Expr
from tilec.ir.types import BOOL, FLOAT8_E8M0, FLOAT32, DType
from tilec.ops import dynamic, vectors
from tilec.ops.arithmetic import Operator, binary, negate, select
from tilec.ops.signature import Argument, Call, Parameter, Signature, as_dtype, as_element, as_expr
from tilec.ops.values import Lanes, Value, VectorType
from tilec.support.diagnostics import fail
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A function that makes a value. With `is_guarded` an argument is evaluated only where a condition holds, so that
    it may index out of range."""

    signature: Signature
    doc: str
    build: Callable[[Call], Value]
    is_guarded: bool = False


def convert(argument: Argument, dtype: DType) -> Expr:
    """Convert a value to `dtype`, as `T.float32(x)` does; a Python number becomes a typed constant."""
    value = argument.value
    if isinstance(value, str) and dtype.is_float and value.lower() in ("inf", "-inf", "nan"):
        return constant(float(value), dtype)
    if isinstance(value, int | float):
        # Unlike a literal in the program, a cast may truncate.
        return constant(value, dtype)
    return cast(as_expr(argument), dtype)


def _cast(call: Call) -> Value:
    dtype, lanes = as_element(call["dtype"])
    if lanes > 1 or isinstance(call["value"].value, Lanes):
        return vectors.converted(call["value"], VectorType(dtype, lanes))
    return convert(call["value"], dtype)


def _math(fn: str) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        operands = []
        for name in call.arguments:
            # Python numbers and integers become float32, as TileLang has it.
            operand = as_expr(call[name])
            operands.append(operand if operand.dtype.is_float else cast(operand, FLOAT32))
        dtype = max((o.dtype for o in operands), key=lambda d: d.bits)
        return MathCall(fn, tuple(cast(o, dtype) for o in operands), dtype)

    return build


def _operator(op: Operator) -> Callable[[Call], Value]:
    return lambda call: binary(op, call["a"], call["b"], call.span)


def _abs(call: Call) -> Value:
    argument = call["x"]
    if isinstance(argument.value, int | float):
        return abs(argument.value)
    expr = as_expr(argument)
    if expr.dtype.is_float:
        return MathCall("abs", (expr,), expr.dtype)
    if expr.dtype.kind == "uint":
        return expr
    negative = as_expr(Argument(negate(argument), argument.span))
    return Binary("max", cast(expr, negative.dtype), negative, negative.dtype)


def _ceildiv(call: Call) -> Value:
    a, b = call["a"], call["b"]
    if isinstance(a.value, int) and isinstance(b.value, int):
        if b.value == 0:
            fail("static-arithmetic", "T.ceildiv by zero", b.span)
        return -(-a.value // b.value)
    raised = binary("+", a, Argument(binary("-", b, Argument(1, b.span), b.span), b.span), call.span)
    return binary("//", Argument(raised, call.span), b, call.span)


def _classify(what: str) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        value = call["x"].value
        if isinstance(value, int | float):
            found: bool = getattr(math, what)(value)
            return found
        expr = as_expr(call["x"])
        if not expr.dtype.is_float:
            return what == "isfinite"
        if what == "isnan":
            return Binary("ne", expr, expr, BOOL)
        size = MathCall("abs", (expr,), expr.dtype)
        return Binary("eq" if what == "isinf" else "lt", size, constant(math.inf, expr.dtype), BOOL)

    return build


def _reinterpret(call: Call) -> Value:
    """Build T.reinterpret. The arguments may come in either order, as in TileLang."""
    value, dtype = call["value"], call["dtype"]
    if isinstance(value.value, DType | VectorType | str):
        value, dtype = dtype, value
    if isinstance(value.value, Lanes) or as_element(dtype)[1] > 1:
        return vectors.reinterpret(call, value, dtype)
    target, expr = as_dtype(dtype), as_expr(value)
    if target.bits != expr.dtype.bits or BOOL in (target, expr.dtype):
        fail(
            "wrong-dtype",
            "T.reinterpret keeps the bits",
            call.span,
            f"{expr.dtype} has {expr.dtype.bits}, {target} has {target.bits}",
            help="T.cast converts the value",
        )
    return expr if target == expr.dtype else MathCall("reinterpret", (expr,), target)


def _infinity(call: Call) -> Value:
    dtype = call.dtype("dtype")
    if not dtype.is_float or dtype.bits <= 8:  # conversions to 8-bit floats saturate
        fail("wrong-dtype", f"{dtype} has no infinity", call["dtype"].span, help=f"use T.max_value({dtype.name!r})")
    return constant(math.inf, dtype)


_LARGEST_FLOAT = {
    **{dtype.name: form.largest for dtype, form in SMALL_FLOATS.items()},
    "float4_e2m1fn": 6.0,
    "float8_e8m0fnu": 2.0**127,
    "float16": 65504.0,
    "bfloat16": (2 - 2**-7) * 2.0**127,
    "float32": (2 - 2**-23) * 2.0**127,
    "float64": sys.float_info.max,
}


def _extreme(sign: int) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        dtype = call.dtype("dtype")
        if dtype.is_float:
            smallest = 0.0 if dtype == FLOAT8_E8M0 else -_LARGEST_FLOAT[dtype.name]
            return constant(_LARGEST_FLOAT[dtype.name] if sign > 0 else smallest, dtype)
        return constant(integer_range(dtype)[0 if sign < 0 else 1], dtype)

    return build


def _next_power_of_2(call: Call) -> Value:
    return 1 << (max(call.integer("n"), 1) - 1).bit_length()


def _gathered_bytes(call: Call) -> Value:
    return 4 * call.integer("K_box") * call.dtype("dtype").bits // 8


def _row(
    name: str, parameters: str, doc: str, build: Callable[[Call], Value], is_guarded: bool = False
) -> ScalarFunction:
    return ScalarFunction(Signature(name, tuple(Parameter(p) for p in parameters.split())), doc, build, is_guarded)


def _if_then_else(call: Call) -> Value:
    return select(call["condition"], call["then"], call["orelse"], call.span)


FUNCTIONS: dict[str, ScalarFunction] = {
    f.signature.name: f
    for f in (
        _row("T.exp", "x", "e to the power x", _math("exp")),
        _row("T.exp2", "x", "2 to the power x", _math("exp2")),
        _row("T.log", "x", "natural logarithm", _math("log")),
        _row("T.log2", "x", "logarithm to base 2", _math("log2")),
        _row("T.sqrt", "x", "square root", _math("sqrt")),
        _row("T.rsqrt", "x", "1 / sqrt(x)", _math("rsqrt")),
        _row("T.tanh", "x", "hyperbolic tangent", _math("tanh")),
        _row("T.sigmoid", "x", "1 / (1 + exp(-x))", _math("sigmoid")),
        _row("T.sin", "x", "sine", _math("sin")),
        _row("T.cos", "x", "cosine", _math("cos")),
        _row("T.floor", "x", "the largest integer not above x, as a float", _math("floor")),
        _row("T.ceil", "x", "the smallest integer not below x, as a float", _math("ceil")),
        _row("T.tan", "x", "tangent", _math("tan")),
        _row("T.sinh", "x", "hyperbolic sine", _math("sinh")),
        _row("T.cosh", "x", "hyperbolic cosine", _math("cosh")),
        _row("T.atan", "x", "arc tangent, between -pi / 2 and pi / 2", _math("atan")),
        _row("T.fmod", "x y", "what x / y, rounded towards 0, leaves; exact, with the sign of x", _math("fmod")),
        _row("T.exp10", "x", "10 to the power x", _math("exp10")),
        _row("T.log10", "x", "logarithm to base 10", _math("log10")),
        _row("T.erf", "x", "error function", _math("erf")),
        _row("T.trunc", "x", "x rounded towards 0, as a float", _math("trunc")),
        _row("T.round", "x", "the nearest integer, half away from 0, as a float", _math("round")),
        _row("T.nearbyint", "x", "the nearest integer, half to even, as a float", _math("nearbyint")),
        _row("T.isnan", "x", "whether x is not a number", _classify("isnan")),
        _row("T.isinf", "x", "whether x is infinite", _classify("isinf")),
        _row("T.isfinite", "x", "whether x is neither infinite nor NaN", _classify("isfinite")),
        _row("T.pow", "x y", "x to the power y", _math("pow")),
        _row("T.abs", "x", "absolute value", _abs),
        _row("T.max", "a b", "the larger", _operator("max")),
        _row("T.min", "a b", "the smaller", _operator("min")),
        *(_row(f"T.{name}", parameters, doc, build) for name, parameters, doc, build in vectors.PAIRS),
        _row("T.reinterpret", "value dtype", "the bits of value as dtype, of the same size", _reinterpret),
        _row("T.ceildiv", "a b", "a / b, rounding up", _ceildiv),
        _row("T.dtype", "name", "a dtype by its name", lambda call: call.dtype("name")),
        _row("T.cast", "value dtype", "value converted to dtype", _cast),
        _row("T.Cast", "dtype value", "value converted to dtype", _cast),
        _row("T.infinity", "dtype", "plus infinity", _infinity),
        _row("T.max_value", "dtype", "the largest finite value", _extreme(1)),
        _row("T.min_value", "dtype", "the smallest finite value", _extreme(-1)),
        _row("T.if_then_else", "condition then orelse", "`then` where the condition holds", _if_then_else, True),
        _row("T.Select", "condition then orelse", "`then` where the condition holds", _if_then_else, True),
        _row("T.tma_gather4_bytes", "K_box dtype", "the bytes of four rows of so many elements", _gathered_bytes),
        *(
            ScalarFunction(dynamic.signature(name), "a size known at launch, by its name", dynamic.build)
            for name in ("T.dynamic", "T.symbolic")
        ),
        _row("tilelang.cdiv", "a b", "a / b, rounding up", _ceildiv),
        _row("tilelang.next_power_of_2", "n", "the smallest power of two that is not below n", _next_power_of_2),
    )
}
