"""Functions of scalars: `T.exp2`, `T.max`, `T.ceildiv`, casts, and T.dynamic. One row each; they give a value and touch
no buffer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace

from tilec.ir.expr import SMALL_FLOATS, cast_expr, integer_range, make_constant
from tilec.ir.tile import Binary, Call as MathCall, Expr, Var
from tilec.ir.types import BOOL, FLOAT8_E8M0, FLOAT32, INT32, INT64, DType
from tilec.ops.language import vectors
from tilec.ops.language.arithmetic import Operator, apply_binary, apply_negation, apply_select
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_dtype, as_element_type, as_expr
from tilec.ops.language.values import Lanes, Value, VectorType
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass


def make_signature(name: str) -> Signature:
    """Return the signature of T.dynamic or T.symbolic: a name, and a dtype that is int32 by default."""
    return Signature(name, (Parameter("name"), Parameter("dtype", "int32")))


def build_sizes(call: Call) -> Value:
    """Return the int32 size variable of `T.dynamic("m")`, or a tuple for "m, n"; raises errors for other types and
    names."""
    text = call["name"].value
    dtype = call.read_dtype("dtype")
    if dtype == INT64:
        raise_error(
            "wrong-argument",
            f"{call.name}: a size is int32, not int64",
            call["dtype"].span,
            "a dimension has at most 2147483647 elements, which is checked at launch",
            help="remove the dtype; write T.cast(size, 'int64') where the kernel needs 64 bits",
        )
    if dtype != INT32:
        call.refuse("dtype", '"int32"')
    names = [part.strip() for part in text.split(",")] if isinstance(text, str) else []
    if not names or not all(name.isidentifier() for name in names):
        call.refuse("name", 'a string of names, as in "m" or "m, n"')
    if len(set(names)) < len(names):
        raise_error("duplicate-definition", f"{call.name} names a size twice", call["name"].span)
    sizes = tuple(Var(name, INT32) for name in names)
    return sizes[0] if len(sizes) == 1 else sizes


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A function that makes a value. With `is_guarded` an argument is evaluated only where a condition holds, so that
    it may index out of range."""

    signature: Signature
    doc: str
    build: Callable[[Call], Value]
    is_guarded: bool = False


def convert_to_dtype(argument: Argument, dtype: DType) -> Expr:
    """Return a value as an expression of `dtype`, as `T.float32(x)` does; a Python number, or "inf", becomes a
    constant. A number may be truncated, unlike a literal in the program."""
    value = argument.value
    if isinstance(value, str) and dtype.is_float and value.lower() in ("inf", "-inf", "nan"):
        return make_constant(float(value), dtype)
    if isinstance(value, int | float):
        return make_constant(value, dtype)
    return cast_expr(as_expr(argument), dtype)


def build_cast(call: Call) -> Value:
    """Build the conversion of `value` to `dtype`, of a scalar, or of a vector if either is one."""
    dtype, lanes = as_element_type(call["dtype"])
    if lanes > 1 or isinstance(call["value"].value, Lanes):
        return vectors.convert_vector(call["value"], VectorType(dtype, lanes))
    return convert_to_dtype(call["value"], dtype)


_CAST_SIGNATURE = Signature(
    "T.cast",
    (Parameter("value"), Parameter("dtype"), Parameter("round", ""), Parameter("sat", True), Parameter("rbits", None)),
)
_CAST_ROUNDINGS = ("", "rn", "rz", "rp", "rm", "rs")
"""What `round` may be in TileLang, which carries out "" and, on sm_100a, "rs"."""
_STOCHASTIC_BFLOAT16 = 'T.reinterpret((T.reinterpret(x, "uint32") + (rbits & 0xFFFF)) & 0xFFFF0000, "float32")'
"""A float32 rounded stochastically to what bfloat16 holds, by 16 random bits added to those that are cut off."""


def _build_checked_cast(call: Call) -> Value:
    """Build T.cast; refuses any `round` or `sat` other than what all conversions do."""
    rounding = call["round"].value
    if not isinstance(rounding, str) or rounding not in _CAST_ROUNDINGS:
        call.refuse("round", " or ".join(f'"{each}"' for each in _CAST_ROUNDINGS))
    if rounding == "rs" and call["rbits"].value is None:
        raise_error("missing-argument", 'T.cast with round="rs" needs `rbits`', call.span, "the random bits to add")
    if rounding != "rs" and call["rbits"].value is not None:
        call.refuse("rbits", 'left out, except with round="rs"')
    if rounding == "rs":
        raise_error(
            "unsupported-keyword",
            'T.cast: round="rs" is not available',
            call["round"].span,
            "only sm_100a has an instruction that rounds stochastically, and tilec does not generate it",
            help=f"add the random bits by hand; to bfloat16, cast {_STOCHASTIC_BFLOAT16}",
        )
    if rounding:
        title, note = f'T.cast: round="{rounding}" is not available', "conversions round to the nearest, half to even"
        raise_error("unsupported-keyword", title, call["round"].span, note, help="leave `round` out")
    if not call.read_boolean("sat") and (dtype := as_element_type(call["dtype"])[0]).is_float and dtype.bits <= 8:
        title, note = "T.cast: sat=False is not available here", f"a conversion to {dtype} saturates"
        raise_error("unsupported-keyword", title, call["sat"].span, note, help="leave `sat` out")
    return build_cast(call)


def _make_math(fn: str) -> Callable[[Call], Value]:
    """Make a function that builds the call of the mathematical function `fn` from a call's arguments."""

    def build_math_call(call: Call) -> Value:
        """Build the call on the widest type of the operands; integers and numbers become float32, as in TileLang."""
        operands = []
        for name in call.arguments:
            operand = as_expr(call[name])
            operands.append(operand if operand.dtype.is_float else cast_expr(operand, FLOAT32))
        dtype = max((o.dtype for o in operands), key=lambda d: d.bits)
        return MathCall(fn, tuple(cast_expr(o, dtype) for o in operands), dtype)

    return build_math_call


_ROUNDING_FUNCTIONS = {None: "nearbyint", "ties-to-even": "nearbyint", "ties-away-from-zero": "round"}
"""By the rounding mode of T.round."""


def _build_round(call: Call) -> Value:
    """Build T.round by its rounding mode, half to even for None; refuses unknown modes."""
    mode = call["rounding_mode"].value
    if not isinstance(mode, str | None) or mode not in _ROUNDING_FUNCTIONS:
        call.refuse("rounding_mode", '"ties-to-even" or "ties-away-from-zero"')
    return _make_math(_ROUNDING_FUNCTIONS[mode])(replace(call, arguments={"x": call["x"]}))


def _make_operator(op: Operator) -> Callable[[Call], Value]:
    """Make a function that builds `a op b` from a call's arguments `a` and `b`."""
    return lambda call: apply_binary(op, call["a"], call["b"], call.span)


def _build_abs(call: Call) -> Value:
    """Build T.abs: a number for a Python number, a call for a float, max(x, -x) for a signed integer, x for an unsigned
    one."""
    argument = call["x"]
    if isinstance(argument.value, int | float):
        return abs(argument.value)
    expr = as_expr(argument)
    if expr.dtype.is_float:
        return MathCall("abs", (expr,), expr.dtype)
    if expr.dtype.kind == "uint":
        return expr
    negative = as_expr(Argument(apply_negation(argument), argument.span))
    return Binary("max", cast_expr(expr, negative.dtype), negative, negative.dtype)


def _build_ceildiv(call: Call) -> Value:
    """Build T.ceildiv, the quotient rounded up: a number for two numbers, else `(a + (b - 1)) // b`; an error for b =
    0."""
    a, b = call["a"], call["b"]
    if isinstance(a.value, int) and isinstance(b.value, int):
        if b.value == 0:
            raise_error("static-arithmetic", "T.ceildiv by zero", b.span)
        return -(-a.value // b.value)
    raised = apply_binary("+", a, Argument(apply_binary("-", b, Argument(1, b.span), b.span), b.span), call.span)
    return apply_binary("//", Argument(raised, call.span), b, call.span)


def _make_classifier(what: str) -> Callable[[Call], Value]:
    """Make a function that builds T.isnan, T.isinf or T.isfinite from a call."""

    def build_classification(call: Call) -> Value:
        """Build isnan, isinf or isfinite of a float expression as a comparison; a bool for numbers and integer
        expressions."""
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
        return Binary("eq" if what == "isinf" else "lt", size, make_constant(math.inf, expr.dtype), BOOL)

    return build_classification


def _build_reinterpret(call: Call) -> Value:
    """Build T.reinterpret; raises an error unless both types have equally many bits and neither is bool. The arguments
    may come in either order, as in TileLang."""
    value, dtype = call["value"], call["dtype"]
    if isinstance(value.value, DType | VectorType | str):
        value, dtype = dtype, value
    if isinstance(value.value, Lanes) or as_element_type(dtype)[1] > 1:
        return vectors.reinterpret_value(call, value, dtype)
    target, expr = as_dtype(dtype), as_expr(value)
    if target.bits != expr.dtype.bits or BOOL in (target, expr.dtype):
        raise_error(
            "wrong-dtype",
            "T.reinterpret keeps the bits",
            call.span,
            f"{expr.dtype} has {expr.dtype.bits}, {target} has {target.bits}",
            help="T.cast converts the value",
        )
    return expr if target == expr.dtype else MathCall("reinterpret", (expr,), target)


def _build_infinity(call: Call) -> Value:
    """Build T.infinity of a float type; raises an error for integers and floats of 8 bits or fewer, which have none."""
    dtype = call.read_dtype("dtype")
    if not dtype.is_float or dtype.bits <= 8:  # conversions to 8-bit floats saturate
        raise_error(
            "wrong-dtype", f"{dtype} has no infinity", call["dtype"].span, help=f"use T.max_value({dtype.name!r})"
        )
    return make_constant(math.inf, dtype)


_LARGEST_FLOAT = {
    **{dtype.name: form.largest for dtype, form in SMALL_FLOATS.items()},
    "float4_e2m1fn": 6.0,
    "float8_e8m0fnu": 2.0**127,
    "float16": 65504.0,
    "bfloat16": (2 - 2**-7) * 2.0**127,
    "float32": (2 - 2**-23) * 2.0**127,
    "float64": sys.float_info.max,
}


def _make_extreme(sign: int) -> Callable[[Call], Value]:
    """Make a function that builds T.max_value (sign 1) or T.min_value (sign -1) from a call."""

    def build_extreme(call: Call) -> Value:
        """Build the largest or smallest finite constant of the call's type."""
        dtype = call.read_dtype("dtype")
        if dtype.is_float:
            smallest = 0.0 if dtype == FLOAT8_E8M0 else -_LARGEST_FLOAT[dtype.name]
            return make_constant(_LARGEST_FLOAT[dtype.name] if sign > 0 else smallest, dtype)
        return make_constant(integer_range(dtype)[0 if sign < 0 else 1], dtype)

    return build_extreme


def _make_row(
    name: str, parameters: str, doc: str, build: Callable[[Call], Value], is_guarded: bool = False
) -> ScalarFunction:
    """Return a row of the function table; `parameters` are names separated by blanks."""
    return ScalarFunction(Signature(name, tuple(Parameter(p) for p in parameters.split())), doc, build, is_guarded)


def _build_if_then_else(call: Call) -> Value:
    """Build the selection of `then` or `orelse` by the call's condition."""
    return apply_select(call["condition"], call["then"], call["orelse"], call.span)


FUNCTIONS: dict[str, ScalarFunction] = {
    f.signature.name: f
    for f in (
        _make_row("T.exp", "x", "e to the power x", _make_math("exp")),
        _make_row("T.exp2", "x", "2 to the power x", _make_math("exp2")),
        _make_row("T.log", "x", "natural logarithm", _make_math("log")),
        _make_row("T.log2", "x", "logarithm to base 2", _make_math("log2")),
        _make_row("T.sqrt", "x", "square root", _make_math("sqrt")),
        _make_row("T.rsqrt", "x", "1 / sqrt(x)", _make_math("rsqrt")),
        _make_row("T.tanh", "x", "hyperbolic tangent", _make_math("tanh")),
        _make_row("T.sigmoid", "x", "1 / (1 + exp(-x))", _make_math("sigmoid")),
        _make_row("T.sin", "x", "sine", _make_math("sin")),
        _make_row("T.cos", "x", "cosine", _make_math("cos")),
        _make_row("T.floor", "x", "the largest integer not above x, as a float", _make_math("floor")),
        _make_row("T.ceil", "x", "the smallest integer not below x, as a float", _make_math("ceil")),
        _make_row("T.tan", "x", "tangent", _make_math("tan")),
        _make_row("T.sinh", "x", "hyperbolic sine", _make_math("sinh")),
        _make_row("T.cosh", "x", "hyperbolic cosine", _make_math("cosh")),
        _make_row("T.atan", "x", "arc tangent, between -pi / 2 and pi / 2", _make_math("atan")),
        _make_row(
            "T.fmod", "x y", "the remainder of x / y rounded towards 0; exact, with the sign of x", _make_math("fmod")
        ),
        _make_row("T.exp10", "x", "10 to the power x", _make_math("exp10")),
        _make_row("T.log10", "x", "logarithm to base 10", _make_math("log10")),
        _make_row("T.erf", "x", "error function", _make_math("erf")),
        _make_row("T.trunc", "x", "x rounded towards 0, as a float", _make_math("trunc")),
        ScalarFunction(
            Signature("T.round", (Parameter("x"), Parameter("rounding_mode", "ties-to-even"))),
            'the nearest integer, half to even, as a float; half away from 0 with "ties-away-from-zero"',
            _build_round,
        ),
        _make_row("T.nearbyint", "x", "the nearest integer, half to even, as a float", _make_math("nearbyint")),
        _make_row("T.isnan", "x", "True if x is not a number", _make_classifier("isnan")),
        _make_row("T.isinf", "x", "True if x is infinite", _make_classifier("isinf")),
        _make_row("T.isfinite", "x", "True if x is neither infinite nor NaN", _make_classifier("isfinite")),
        _make_row("T.pow", "x y", "x to the power y", _make_math("pow")),
        _make_row("T.abs", "x", "absolute value", _build_abs),
        _make_row("T.max", "a b", "the larger", _make_operator("max")),
        _make_row("T.min", "a b", "the smaller", _make_operator("min")),
        *(_make_row(f"T.{name}", parameters, doc, build) for name, parameters, doc, build in vectors.PAIR_FUNCTIONS),
        _make_row("T.reinterpret", "value dtype", "the bits of value as dtype, of the same size", _build_reinterpret),
        _make_row("T.ceildiv", "a b", "a / b, rounding up", _build_ceildiv),
        _make_row("T.dtype", "name", "a dtype by its name", lambda call: call.read_dtype("name")),
        ScalarFunction(_CAST_SIGNATURE, "value converted to dtype", _build_checked_cast),
        _make_row("T.Cast", "dtype value", "value converted to dtype", build_cast),
        _make_row("T.infinity", "dtype", "plus infinity", _build_infinity),
        _make_row("T.max_value", "dtype", "the largest finite value", _make_extreme(1)),
        _make_row("T.min_value", "dtype", "the smallest finite value", _make_extreme(-1)),
        _make_row(
            "T.if_then_else", "condition then orelse", "`then` where the condition holds", _build_if_then_else, True
        ),
        _make_row("T.Select", "condition then orelse", "`then` where the condition holds", _build_if_then_else, True),
        _make_row(
            "T.tma_gather4_bytes",
            "K_box dtype",
            "the bytes of four rows of so many elements",
            lambda call: 4 * call.read_integer("K_box") * call.read_dtype("dtype").bits // 8,
        ),
        *(
            ScalarFunction(make_signature(name), "a size known at launch, by its name", build_sizes)
            for name in ("T.dynamic", "T.symbolic")
        ),
        _make_row("tilelang.cdiv", "a b", "a / b, rounding up", _build_ceildiv),
        _make_row(
            "tilelang.next_power_of_2",
            "n",
            "the smallest power of two that is not below n",
            lambda call: 1 << (max(call.read_integer("n"), 1) - 1).bit_length(),
        ),
    )
}
