"""What docs/numerics.md promises of each function, by default and with --fast-math, against float64.

Approximate instructions are emulated as exact ones, rounded once: to what is found here their own error comes on top,
which the PTX ISA bounds and the document names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.interp.run import _CALL_FUNCTIONS
from tilec.ir.tile import BIT_COUNTS, INTEGER_CALLS
from tilec.ops.functions.intrinsics import make_references
from tilec.support.options import CompileOptions
from tilec.support.records import dataclass
from tilec.support.source import SourceFile

DOCUMENT = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text(encoding="utf-8")
COUNT = 4096

Array = np.ndarray[Any, np.dtype[Any]]
Exact = Callable[..., Array]


def around(low: float, high: float) -> Array:
    """Arguments of either sign, of all sizes from 2^low to 2^high."""
    generator = np.random.default_rng(7)
    sizes = np.exp2(generator.uniform(low, high, COUNT))
    return (sizes * generator.choice((-1.0, 1.0), COUNT)).astype(np.float32)


EVERYWHERE = around(-126, 127)
MODERATE = around(-20, 6)
ANGLES = around(-20, np.log2(1e5))
HYPERBOLIC = around(-20, np.log2(89.4))
TURN = around(-20, np.log2(np.pi))
LARGE = around(-2, 24)
POSITIVE = np.abs(EVERYWHERE)


@dataclass(frozen=True, slots=True)
class Promise:
    """`expression` of x (and y) is `exact` but for `ulps` units in the last place by default, and with fast math for
    `relative` of the result plus `absolute`."""

    expression: str
    exact: Exact
    x: Array
    ulps: float
    fast_x: Array
    relative: float = 0.0
    absolute: float = 0.0
    y: Array | None = None


def promise(
    expression: str,
    exact: Exact,
    x: Array,
    ulps: float,
    relative: float = 0.0,
    absolute: float = 0.0,
    fast_x: Array | None = None,
    y: Array | None = None,
) -> Promise:
    return Promise(expression, exact, x, ulps, x if fast_x is None else fast_x, relative, absolute, y)


HALF = 2.0**-24
OTHER = np.roll(MODERATE, 1)
PROMISES = {
    "add": promise("x + y", np.add, MODERATE, 0.5, HALF, y=OTHER),
    "sub": promise("x - y", np.subtract, MODERATE, 0.5, HALF, y=OTHER),
    "mul": promise("x * y", np.multiply, MODERATE, 0.5, HALF, y=OTHER),
    "div": promise("x / y", np.divide, MODERATE, 0.5, 2.0**-22, y=OTHER),
    "sqrt": promise("T.sqrt(x)", np.sqrt, POSITIVE, 0.5, 2.0**-22),
    "rsqrt": promise("T.rsqrt(x)", lambda x: 1 / np.sqrt(x), POSITIVE, 1, 2.0**-22),
    "exp2": promise("T.exp2(x)", np.exp2, MODERATE, 1, 2.0**-22),
    "exp": promise("T.exp(x)", np.exp, MODERATE, 1, 2.0**-17),
    "exp10": promise("T.exp10(x)", lambda x: np.power(10.0, x), around(-20, 5), 1, 2.0**-17),
    "log2": promise("T.log2(x)", np.log2, POSITIVE, 2, 2.0**-22, 2.0**-22),
    "log": promise("T.log(x)", np.log, POSITIVE, 1, 2.0**-22, 2.0**-22),
    "log10": promise("T.log10(x)", np.log10, POSITIVE, 2, 2.0**-22, 2.0**-22),
    "sin": promise("T.sin(x)", np.sin, ANGLES, 1.5, 0, 2.0**-20, TURN),
    "cos": promise("T.cos(x)", np.cos, ANGLES, 1.5, 0, 2.0**-20, TURN),
    "tan": promise("T.tan(x)", np.tan, ANGLES, 2.5, 2.0**-19, 2.0**-20, around(-20, 0)),
    "sinh": promise("T.sinh(x)", np.sinh, HYPERBOLIC, 1.5, 2.0**-17),
    "cosh": promise("T.cosh(x)", np.cosh, HYPERBOLIC, 1.5, 2.0**-17),
    "atan": promise("T.atan(x)", np.arctan, EVERYWHERE, 1, 2.0**-21),
    "fmod": promise("T.fmod(x, y)", np.fmod, EVERYWHERE, 0, y=np.roll(EVERYWHERE, 1)),
    "tanh": promise("T.tanh(x)", np.tanh, MODERATE, 2, 2.0**-11),
    "sigmoid": promise("T.sigmoid(x)", lambda x: 1 / (1 + np.exp(-x)), MODERATE, 2.5, 2.0**-17),
    # 2^-20 on a GPU: the error of its ex2.approx, 2^-22 of a number of at most 1, comes on top of what is found here.
    "erf": promise("T.erf(x)", _CALL_FUNCTIONS["erf"], MODERATE, 1.5, 0, 2.0**-20 - 2.0**-22, EVERYWHERE),
    "pow": promise("T.pow(T.abs(x), y)", lambda x, y: np.abs(x) ** y, around(-8, 8), 0, 1e-4, y=around(-4, 2)),
    "abs": promise("T.abs(x)", np.abs, EVERYWHERE, 0),
    "floor": promise("T.floor(x)", np.floor, LARGE, 0),
    "ceil": promise("T.ceil(x)", np.ceil, LARGE, 0),
    "trunc": promise("T.trunc(x)", np.trunc, LARGE, 0),
    "round": promise("T.round(x)", np.rint, LARGE, 0),
    "round_away": promise(
        'T.round(x, "ties-away-from-zero")', lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), LARGE, 0
    ),
    "nearbyint": promise("T.nearbyint(x)", np.rint, LARGE, 0),
    "min": promise("T.min(x, y)", np.minimum, EVERYWHERE, 0, y=np.roll(EVERYWHERE, 1)),
    "max": promise("T.max(x, y)", np.maximum, EVERYWHERE, 0, y=np.roll(EVERYWHERE, 1)),
}

KERNEL = f"""
import tilelang.language as T
@T.prim_func
def kernel(X: T.Tensor(({COUNT},), "float32"), Y: T.Tensor(({COUNT},), "float32"), Z: T.Tensor(({COUNT},), "float32")):
    with T.Kernel(1, threads=128) as bx:
        for i in T.Parallel({COUNT}):
            x = X[i]
            y = Y[i]
            Z[i] = EXPRESSION
"""


def made(expression: str, fast: bool) -> Build:
    source = SourceFile("k.tl", KERNEL.replace("EXPRESSION", expression))
    return build_kernel(source, CompileOptions(fast_math=fast, defines=()), Observer())


def errors(name: str, fast: bool) -> tuple[Array, Array]:
    """Of each argument, how far the result is off, and the result."""
    asked = PROMISES[name]
    x = asked.fast_x if fast else asked.x
    y = np.ones(COUNT, np.float32) if asked.y is None else asked.y
    arguments = emulate.KernelArguments({"X": x.copy(), "Y": y.copy(), "Z": np.zeros(COUNT, np.float32)}, {})
    emulate.emulate_build(made(asked.expression, fast), arguments)
    with np.errstate(all="ignore"):
        wide = (x.astype(np.float64), *([] if asked.y is None else [y.astype(np.float64)]))
        exact = asked.exact(*wide)
        error = np.abs(arguments.tensors["Z"] - exact)
    shown = np.isfinite(exact) & (np.abs(exact) <= np.finfo(np.float32).max) & (np.abs(exact) >= 2.0**-126)
    assert shown.sum() > COUNT // 3
    return error[shown], np.abs(exact[shown])


@pytest.mark.parametrize("name", [name for name in PROMISES if name != "pow"])
def test_by_default(name: str) -> None:
    error, size = errors(name, fast=False)
    ulp = np.exp2(np.floor(np.log2(size)) - 23)
    assert np.max(error / ulp) <= PROMISES[name].ulps * (1 + 2.0**-20)  # float64 is rounded too


FAST_ERF = """
import tilelang.language as T
N = 1
@T.prim_func
def kernel(X: T.Tensor((N,), "float32"), Z: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 4096), threads=128) as bx:
        for i in T.Parallel(4096):
            if bx * 4096 + i < N:
                Z[bx * 4096 + i] = T.erf(X[bx * 4096 + i])
"""


def compute_fast_erf(x: Array) -> Array:
    options = CompileOptions(fast_math=True, defines=(("N", len(x)),))
    built = build_kernel(SourceFile("k.tl", FAST_ERF), options, Observer())
    arguments = emulate.KernelArguments({"X": x, "Z": np.zeros(len(x), np.float32)}, {})
    emulate.emulate_build(built, arguments)
    return arguments.tensors["Z"]


@pytest.mark.parametrize("numbers", ["float16", "float32"])
def test_fast_erf_of_all_sizes(numbers: str) -> None:
    """Of each float16 number, and of float32 numbers between them and where erf bends."""
    if numbers == "float16":
        halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
        x = halves[~np.isnan(halves)].astype(np.float32)
    else:
        x = np.concatenate([np.linspace(-6, 6, 1 << 15, dtype=np.float32), EVERYWHERE])
    found, exact = compute_fast_erf(x), _CALL_FUNCTIONS["erf"](x.astype(np.float64))
    assert np.max(np.abs(found - exact)) <= PROMISES["erf"].absolute
    assert np.array_equal(np.signbit(found), np.signbit(x))


def test_fast_erf_at_the_ends() -> None:
    found = compute_fast_erf(np.array([0.0, -0.0, np.inf, -np.inf, 3e38, np.nan], np.float32))
    np.testing.assert_array_equal(found, np.array([0.0, 0.0, 1.0, -1.0, 1.0, np.nan], np.float32))


def test_powers() -> None:
    """As exact as the product of exponent and logarithm."""
    for fast in (False, True):
        error, size = errors("pow", fast)
        assert np.max(error / size) <= PROMISES["pow"].relative


@pytest.mark.parametrize("name", PROMISES)
def test_with_fast_math(name: str) -> None:
    asked = PROMISES[name]
    error, size = errors(name, fast=True)
    assert np.max(error - asked.relative * size) <= asked.absolute


def test_every_function_is_promised() -> None:
    """In the table of the document, and here."""
    # A reciprocal is made of a quotient and has no name in the language.
    functions = set(_CALL_FUNCTIONS) - {*make_references(), *BIT_COUNTS, *INTEGER_CALLS, "reciprocal"}
    assert set(PROMISES) == functions | {"add", "sub", "mul", "div", "min", "max", "round_away"}
    rows = [line for line in DOCUMENT.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`T\.(\w+)`", " ".join(row.split(" | ")[0] for row in rows)))
    assert named == functions | {"min", "max"}
