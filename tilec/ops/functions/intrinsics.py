"""Functions of float32 that name an instruction: hardware approximations, and IEEE operations with a rounding mode.

In tile IR they are calls of `fast_exp`, `ieee_add_rz` and the like.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tilec.ir.expr import cast_expr
from tilec.ir.tile import Call, Expr
from tilec.ir.types import FLOAT32, FLOAT64, DType
from tilec.ops.functions.scalar import FUNCTIONS, ScalarFunction
from tilec.ops.language.signature import Call as Arguments, Parameter, Signature, as_expr
from tilec.ops.language.values import Value
from tilec.support.diagnostics import raise_error

ROUNDINGS = ("rn", "rz", "ru", "rd")
"""To nearest even, towards 0, up, down."""


def _read_operands(call: Arguments, names: str) -> tuple[Expr, ...]:
    """Return the arguments of these one-letter names converted to float32; raises an error for float64."""
    operands = []
    for name in names:
        operand = as_expr(call[name])
        if operand.dtype.is_float and operand.dtype.bits > 32:
            raise_error(
                "wrong-dtype",
                f"{call.name} works on float32",
                call[name].span,
                f"this is {operand.dtype}",
                help="convert it with T.cast",
            )
        operands.append(cast_expr(operand, FLOAT32))
    return tuple(operands)


def _make_ieee(fn: str, names: str) -> Callable[[Arguments], Value]:
    """Make a function that builds the float32 call `ieee_FN_MODE` of a call's operands `names` in its rounding mode."""

    def build_ieee_call(call: Arguments) -> Value:
        """Build the float32 call of the operation with the call's rounding mode, rn by default; refuses other modes."""
        mode = call["rounding_mode"].value if "rounding_mode" in call.arguments else "rn"
        if mode not in ROUNDINGS:
            call.refuse("rounding_mode", '"rn", "rz", "ru" or "rd"')
        return Call(f"ieee_{fn}_{mode}", _read_operands(call, names), FLOAT32)

    return build_ieee_call


def _make_approximate(name: str, fn: str, doc: str) -> ScalarFunction:
    """Make the row of the function table for T.NAME, which builds the float32 call `fast_FN`."""
    signature = Signature(f"T.{name}", (Parameter("x"),))
    return ScalarFunction(signature, doc, lambda call: Call(f"fast_{fn}", _read_operands(call, "x"), FLOAT32))


def _make_rounded(name: str, names: str, doc: str, *modes: Parameter) -> ScalarFunction:
    """Make the row of the function table for an IEEE operation T.NAME with operands of these one-letter names."""
    parameters = tuple(Parameter(n) for n in names)
    fn = name.removeprefix("ieee_")
    return ScalarFunction(Signature(f"T.{name}", (*parameters, *modes)), doc, _make_ieee(fn, names))


_MODE = Parameter("rounding_mode", "rn")

FUNCTIONS |= {
    f.signature.name: f
    for f in (
        _make_approximate("__exp", "exp", "e to the power x, approximately"),
        _make_approximate("__exp10", "exp10", "10 to the power x, approximately"),
        _make_approximate("__log", "log", "natural logarithm, approximately"),
        _make_approximate("__log2", "log2", "logarithm to base 2, approximately"),
        _make_approximate("__log10", "log10", "logarithm to base 10, approximately"),
        _make_approximate("__sin", "sin", "sine, approximately"),
        _make_approximate("__cos", "cos", "cosine, approximately"),
        _make_approximate("__tan", "tan", "tangent, approximately"),
        _make_approximate("fast_rcp", "rcp", "1 / x, approximately"),
        _make_rounded("ieee_add", "xy", "x + y, rounded by `rounding_mode`", _MODE),
        _make_rounded("ieee_sub", "xy", "x - y, rounded by `rounding_mode`", _MODE),
        _make_rounded("ieee_mul", "xy", "x * y, rounded by `rounding_mode`", _MODE),
        _make_rounded("ieee_fmaf", "xyz", "x * y + z, rounded once, as `rounding_mode` says", _MODE),
        _make_rounded("ieee_frcp", "x", "1 / x, rounded by `rounding_mode`", _MODE),
        _make_rounded("ieee_fsqrt", "x", "square root, rounded by `rounding_mode`", _MODE),
        _make_rounded("ieee_fdiv", "xy", "x / y, rounded by `rounding_mode`", _MODE),
        _make_rounded("ieee_frsqrt", "x", "1 / sqrt(x), rounded to nearest"),
    )
}


# ---- references ------------------------------------------------------------------------------------------------------


def _round_directed(mode: str, nearest: Any, excess: Any) -> Any:
    """Return a result in rounding mode `mode`, from the one rounded to nearest and `excess`, exact minus nearest.
    It is the nearest one's neighbour above or below where the mode asks for it.
    """
    import numpy as np

    up, down = np.nextafter(nearest, np.float32(math.inf)), np.nextafter(nearest, np.float32(-math.inf))
    if mode == "rn":
        return nearest
    raised, lowered = np.where(excess > 0, up, nearest), np.where(excess < 0, down, nearest)
    if mode == "rz":
        return np.where(nearest > 0, lowered, np.where(nearest < 0, raised, nearest))
    return raised if mode == "ru" else lowered


def _compute_rounded(fn: str, mode: str, *operands: Any) -> Any:
    """Compute a function of float32 in a rounding mode with one rounding, by exact float64 steps. In float64, products
    of float32 and the remainders of quotients and roots are exact. For sums the rounding error of float64 is computed
    separately (Knuth's TwoSum). `frsqrt` is always rounded to nearest."""
    import numpy as np

    x, *others = (np.asarray(o, np.float64) for o in operands)
    y = others[0] if others else x
    if fn in ("add", "sub", "mul", "fmaf"):
        parts: dict[str, Any] = {"add": (x, y), "sub": (x, -y), "mul": (x * y, -0.0), "fmaf": (x * y, others[-1])}
        a, b = parts[fn]
        total = a + b
        lost = (a - (total - (total - a))) + (b - (total - a))
        # Halfway between two float32, the error of float64 decides.
        total = np.where(lost == 0, total, np.nextafter(total, np.copysign(math.inf, lost)))
        nearest = total.astype(np.float32)
        return _round_directed(mode, nearest, total - nearest)
    if fn == "fsqrt":
        nearest = np.sqrt(x).astype(np.float32)
        return _round_directed(mode, nearest, x - nearest.astype(np.float64) ** 2)
    if fn == "frsqrt":
        return (1 / np.sqrt(x)).astype(np.float32)
    above, below = (np.ones_like(x), x) if fn == "frcp" else (x, y)
    nearest = (above / below).astype(np.float32)
    return _round_directed(mode, nearest, (above - nearest * below) * np.sign(below))


def compute_fma(x: Any, y: Any, z: Any, dtype: DType) -> Any:
    """Compute x * y + z with one rounding, as float64 or float32; for a smaller type as float32 rounded to odd.
    Rounding that to the smaller type gives the correctly rounded result (Boldo, Melquiond: Emulation of FMA and
    correctly rounded sums, 2008)."""
    import numpy as np

    if dtype == FLOAT64:
        return _compute_double_fma(x, y, z)
    if dtype == FLOAT32:
        return _compute_rounded("fmaf", "rn", x, y, z)
    down, up = (_compute_rounded("fmaf", mode, x, y, z) for mode in ("rd", "ru"))
    is_odd = np.asarray(down).view(np.uint32) & 1 == 1
    return np.where(is_odd, down, up)


def _compute_double_fma(x: Any, y: Any, z: Any) -> Any:
    """Compute x * y + z of float64 with one rounding; very large or small operands are rounded twice. As Boldo and
    Melquiond do, product and sum have two parts each, and the smaller parts are added with rounding to odd. Operands
    rounded twice are those whose parts could underflow or overflow."""
    import numpy as np

    x, y, z = np.broadcast_arrays(x, y, z)
    with np.errstate(all="ignore"):
        plain = x * y + z
        sizes = np.abs([x, y, z, x * y])
        inside = (sizes[3] > 2.0**-900) & (sizes.max(axis=0) < 2.0**900)
        x, y, z = (np.where(inside, each, 1.0) for each in (x, y, z))
        product, low = x * y, _compute_product_error(x, y)
        small, smallest = _compute_two_sum(z, low)
        total, rest = _compute_two_sum(product, small)
        tail, lost = _compute_two_sum(rest, smallest)
        is_even = tail.view(np.int64) & 1 == 0
        odd = np.where((lost != 0) & is_even, np.nextafter(tail, np.copysign(math.inf, lost)), tail)
        return np.where(inside, total + odd, plain)


def _compute_product_error(x: Any, y: Any) -> Any:
    """Return the exact rounding error of the float64 product x * y (Dekker)."""
    a, b = ((each * 134217729.0 - (each * 134217729.0 - each)) for each in (x, y))
    return (x - a) * (y - b) - (x * y - a * b - (x - a) * b - a * (y - b))


def _compute_two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the rounded sum a + b of float64, and its exact rounding error (Knuth)."""
    total = a + b
    added = total - a
    return total, (a - (total - added)) + (b - added)


def make_references() -> dict[str, Callable[..., Any]]:
    """Return the numpy reference of each approximate and IEEE function, by the name of its call in tile IR."""
    import numpy as np

    fast: dict[str, Callable[..., Any]] = {
        "exp": np.exp, "log": np.log, "log2": np.log2, "log10": np.log10, "sin": np.sin, "cos": np.cos, "tan": np.tan,
        "exp10": lambda x: np.power(10.0, x.astype(np.float64)), "rcp": lambda x: 1 / x,
    }  # fmt: skip
    names = ("add", "sub", "mul", "fmaf", "frcp", "fsqrt", "fdiv", "frsqrt")
    rounded = {f"ieee_{fn}_{mode}": partial(_compute_rounded, fn, mode) for fn in names for mode in ROUNDINGS}
    return {**{f"fast_{fn}": function for fn, function in fast.items()}, **rounded}
