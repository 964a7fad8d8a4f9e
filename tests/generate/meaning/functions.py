"""Functions of scalars, each as numpy has it, and how exact the language says that it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meaning.numbers import BOOL, FLOAT32, FORMATS, INT32, Array, Format, wrapped
from meaning.quantity import (
    Operand,
    Q,
    add,
    bitwise,
    convert,
    exact,
    floor_divide,
    larger,
    modulo,
    multiply,
    named,
    quantity,
    select,
    settled,
    smaller,
    subtract,
)

LOOSE = 2.0**-10
"""Relative, of what is said to be approximate: as `T.tanh` is in fast math. Most are much better."""


def _floats(*given: Any) -> tuple[list[Q], Format]:
    """Operands as a function of floats takes them: numbers and integers are float32, the widest decides."""
    operands = [quantity(x, FLOAT32) for x in given]
    operands = [x if x.format.is_float else convert(x, FLOAT32) for x in operands]
    form = max((x.format for x in operands), key=lambda f: f.bits)
    return [convert(x, form) for x in operands], form


def _smooth(function: Callable[[Array], Array], loose: float = 0.0) -> Callable[[Any], Q]:
    def call(x: Any) -> Q:
        (q,), form = _floats(x)
        with np.errstate(all="ignore"):
            v = function(q.v)
            moved = np.zeros(())
            if np.any(q.e):
                moved = np.maximum(np.abs(function(q.v + q.e) - v), np.abs(function(q.v - q.e) - v))
                moved = np.where(q.e > 0, np.where(np.isnan(moved), np.inf, moved), 0.0)
            slack = (loose or 2.0**-16) * np.abs(np.where(np.isfinite(v), v, 0.0)) + 2.0**-19
            return settled(v, form, moved + slack, 4)

    return call


def _stepped(function: Callable[[Array], Array]) -> Callable[[Any], Q]:
    def call(x: Any) -> Q:
        (q,), form = _floats(x)
        with np.errstate(all="ignore"):
            v = function(q.v)
            apart = np.maximum(np.abs(function(q.v + q.e) - v), np.abs(function(q.v - q.e) - v))
        return Q(v, form, np.where(q.e > 0, np.where(np.isnan(apart), np.inf, np.maximum(apart, q.e)), 0.0))

    return call


def _about(test: Callable[[Array], Array]) -> Callable[[Any], Q]:
    def call(x: Any) -> Q:
        (q,), _ = _floats(x)
        return exact(test(q.v), BOOL, Q(q.v, q.format, np.where(np.isinf(q.e), 1.0, 0.0)))

    return call


def power(x: Any, y: Any) -> Q:
    (a, b), form = _floats(x, y)
    with np.errstate(all="ignore"):
        v = np.power(a.v, b.v)
        e = np.where((a.e > 0) | (b.e > 0), np.inf, 1e-3 * np.abs(v) + 1e-6)
        return settled(v, form, e, 4)


def remainder(x: Any, y: Any) -> Q:
    (a, b), form = _floats(x, y)
    with np.errstate(all="ignore"):
        return exact(np.fmod(a.v, b.v), form, a, b)


def absolute(x: Any) -> Q:
    q = quantity(x)
    if q.format.is_float:
        return Q(np.abs(q.v), q.format, q.e)
    return q if q.format.kind == "uint" else larger(q, subtract(0, q))


def ceildiv(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return (a + (b - 1)) // b


def _truncated(a: Any, b: Any) -> tuple[Q, Q, Q]:
    x, y = quantity(a), quantity(b, quantity(a).format)
    down, left = floor_divide(x, y), modulo(x, y)
    differs = (left.v != 0) & ((x.v < 0) != (y.v < 0))
    return exact(wrapped(down.v + differs.astype(down.v.dtype), down.format), down.format, down), x, y


def truncdiv(a: Any, b: Any) -> Q:
    return _truncated(a, b)[0]


def truncmod(a: Any, b: Any) -> Q:
    quotient, x, y = _truncated(a, b)
    return subtract(x, multiply(quotient, y))


def reinterpret(first: Any, second: Any) -> Q:
    value, to = (first, second) if isinstance(first, Operand | float | int) else (second, first)
    q, form = quantity(value), named(to)
    bits = q.v.astype(q.format.storage) if q.format.name != "bool" else q.v.view(np.uint8)
    return exact(bits.view(form.storage).astype(form.type), form, q)


def _bits(q: Q) -> Array:
    width = max(q.format.bits, 8)
    return np.unpackbits(
        np.ascontiguousarray(q.v).reshape(-1).astype(f">u{width // 8}").view(np.uint8).reshape(-1, width // 8), axis=-1
    ).reshape(*q.v.shape, width)


def popcount(x: Any) -> Q:
    q = quantity(x)
    return exact(_bits(q).sum(axis=-1).astype(q.format.type), q.format, q)


def clz(x: Any) -> Q:
    q = quantity(x)
    bits = _bits(q)
    return exact(np.where(bits.any(axis=-1), bits.argmax(axis=-1), bits.shape[-1]), INT32, q)


def ffs(x: Any) -> Q:
    q = quantity(x)
    bits = _bits(q)[..., ::-1]
    return exact(np.where(bits.any(axis=-1), bits.argmax(axis=-1) + 1, 0), INT32, q)


def _ieee(function: Callable[..., Array], count: int) -> Callable[..., Q]:
    """Rounded once, in one direction or another: within one unit."""

    def call(*given: Any, rounding_mode: str = "rn") -> Q:
        if len(given) > count:
            *given, _rounding_mode = given
        operands = [convert(quantity(x, FLOAT32), FLOAT32) for x in given]
        with np.errstate(all="ignore"):
            v = function(*(x.v for x in operands))
            e = np.zeros(())
            if any(np.any(x.e) for x in operands):
                e = np.where(np.logical_or.reduce(np.broadcast_arrays(*(x.e > 0 for x in operands))), np.inf, 0.0)
            return settled(v, FLOAT32, e, 2)

    return call


def coordinates(index: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for extent in reversed(shape):
        found.insert(0, modulo(index, extent))
        index = floor_divide(index, extent)
    return tuple(found)


def linear_index(*given: Any) -> Any:
    count = (len(given) + 1) // 2
    total = given[0]
    for place, extent in zip(given[1:count], given[count:], strict=True):
        total = add(multiply(total, extent), place)
    return total


def extreme(name: Any, least: bool) -> Any:
    form = named(name)
    if form.is_float:
        return Q(-form.largest if least else form.largest, form)
    return Q(form.range[0 if least else 1], form)


def cast(value: Any, dtype: Any) -> Q:
    form = named(dtype)
    if not isinstance(value, Operand):
        if form.is_float:
            return quantity(float(value), form)
        return convert(quantity(float(value)), form) if isinstance(value, float) else quantity(int(value), form)
    return convert(quantity(value), form)


def _exp10(x: Array) -> Array:
    return np.power(10.0, x)


_APPROXIMATE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp, "exp10": _exp10, "log": np.log, "log2": np.log2, "log10": np.log10, "sin": np.sin, "cos": np.cos,
    "tan": np.tan,
}  # fmt: skip

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": _smooth(np.exp),
    "exp2": _smooth(np.exp2),
    "exp10": _smooth(_exp10),
    "log": _smooth(np.log),
    "log2": _smooth(np.log2),
    "log10": _smooth(np.log10),
    "sqrt": _smooth(np.sqrt),
    "rsqrt": _smooth(lambda x: 1 / np.sqrt(x)),
    "tanh": _smooth(np.tanh, LOOSE),
    "sigmoid": _smooth(lambda x: 1 / (1 + np.exp(-x))),
    "sin": _smooth(np.sin),
    "cos": _smooth(np.cos),
    "tan": _smooth(np.tan, LOOSE),
    "sinh": _smooth(np.sinh),
    "cosh": _smooth(np.cosh),
    "atan": _smooth(np.arctan),
    "erf": _smooth(np.vectorize(math.erf, otypes=[np.float64])),
    **{f"__{name}": _smooth(function, LOOSE) for name, function in _APPROXIMATE.items()},
    "fast_rcp": _smooth(lambda x: 1 / x),
    "floor": _stepped(np.floor),
    "ceil": _stepped(np.ceil),
    "trunc": _stepped(np.trunc),
    "nearbyint": _stepped(np.rint),
    "round": _stepped(lambda x: np.trunc(x) + np.where(np.abs(x - np.trunc(x)) >= 0.5, np.sign(x), 0.0)),
    "isnan": _about(np.isnan),
    "isinf": _about(np.isinf),
    "isfinite": _about(np.isfinite),
    "pow": power,
    "fmod": remainder,
    "abs": absolute,
    "max": larger,
    "min": smaller,
    "clamp": lambda x, low, high: smaller(larger(x, low), high),
    "floordiv": floor_divide,
    "floormod": modulo,
    "truncdiv": truncdiv,
    "truncmod": truncmod,
    "bitwise_and": lambda a, b: bitwise(np.bitwise_and, a, b),
    "bitwise_or": lambda a, b: bitwise(np.bitwise_or, a, b),
    "bitwise_xor": lambda a, b: bitwise(np.bitwise_xor, a, b),
    "bitwise_not": lambda a: ~quantity(a),
    "shift_left": lambda a, b: bitwise(np.left_shift, a, b),
    "shift_right": lambda a, b: bitwise(np.right_shift, a, b),
    "reinterpret": reinterpret,
    "ceildiv": ceildiv,
    "align_up": lambda a, b: multiply(ceildiv(a, b), b),
    "index_to_coordinates": coordinates,
    "linear_index": linear_index,
    "cast": cast,
    "Cast": lambda dtype, value: cast(value, dtype),
    "infinity": lambda dtype: Q(math.inf, named(dtype)),
    "max_value": lambda dtype: extreme(dtype, False),
    "min_value": lambda dtype: extreme(dtype, True),
    "if_then_else": select,
    "Select": select,
    "popcount": popcount,
    "clz": clz,
    "__ffs": ffs,
    "ieee_add": _ieee(np.add, 2),
    "ieee_sub": _ieee(np.subtract, 2),
    "ieee_mul": _ieee(np.multiply, 2),
    "ieee_fmaf": _ieee(lambda x, y, z: x * y + z, 3),
    "ieee_frcp": _ieee(lambda x: 1 / x, 1),
    "ieee_fsqrt": _ieee(np.sqrt, 1),
    "ieee_fdiv": _ieee(np.divide, 2),
    "ieee_frsqrt": _ieee(lambda x: 1 / np.sqrt(x), 1),
    "_and": lambda a, b: truth(np.logical_and, a, b),
    "_or": lambda a, b: truth(np.logical_or, a, b),
    "_not": lambda a: truth(lambda x, _: ~x, a, a),
}


def truth(op: Callable[[Array, Array], Array], a: Any, b: Any) -> Q:
    x, y = (convert(quantity(c), BOOL) for c in (a, b))
    e = np.maximum(x.e, y.e) if np.any(x.e) or np.any(y.e) else np.zeros(())
    return Q(op(x.v, y.v), BOOL, e)


def warp_function(name: str) -> Callable[..., Q]:
    """Of all lanes of each warp: 32 neighbours along the last dimension of a loop, or threads."""

    def call(value: Any, *given: Any, width: int = 32, **_: Any) -> Q:
        q = quantity(value)
        q = Q(np.broadcast_to(q.v, lanes_of(q)), q.format, np.broadcast_to(q.e, lanes_of(q)))
        v, e = q.v.reshape(-1, 32), q.e.reshape(-1, 32)
        made = _WARP[name](Q(v, q.format, e), *given)
        return Q(made.v.reshape(q.v.shape), made.format, np.broadcast_to(made.e, v.shape).reshape(q.v.shape))

    return call


SHAPE: list[tuple[int, ...]] = []
"""Of the loop that is run, or the threads of the block."""


def lanes_of(q: Q) -> tuple[int, ...]:
    return np.broadcast_shapes(q.v.shape, SHAPE[-1])


def _from(lane: Callable[[Array, int], Array]) -> Callable[[Q, Any], Q]:
    def call(q: Q, by: Any) -> Q:
        lanes = np.arange(32)
        at = lane(lanes, int(quantity(by)))
        at = np.where((at < 0) | (at > 31), lanes, at)
        return Q(q.v[:, at], q.format, q.e[:, at])

    return call


def _folded(op: Callable[[Any, Any], Q]) -> Callable[[Q], Q]:
    def call(q: Q) -> Q:
        parts = [Q(q.v[:, i : i + 1], q.format, q.e[:, i : i + 1]) for i in range(32)]
        total = parts[0]
        for part in parts[1:]:
            total = op(total, part)
        e = np.broadcast_to(total.e, total.v.shape)
        return Q(np.repeat(total.v, 32, axis=1), total.format, np.repeat(e, 32, axis=1))

    return call


def _voted(count: Callable[[Array], Array], form: str) -> Callable[[Q], Q]:
    def call(q: Q) -> Q:
        sure = q.certain() != 0
        return Q(np.repeat(count(sure)[:, None], 32, axis=1), FORMATS[form])

    return call


_WEIGHTS = np.left_shift(np.uint64(1), np.arange(32, dtype=np.uint64))
_WARP: dict[str, Callable[..., Q]] = {
    "shfl_xor": _from(lambda lanes, by: lanes ^ by),
    "shfl_up": _from(lambda lanes, by: lanes - by),
    "shfl_down": _from(lambda lanes, by: lanes + by),
    "shfl_sync": _from(lambda lanes, by: lanes * 0 + by),
    "warp_reduce_sum": _folded(add),
    "warp_reduce_max": _folded(larger),
    "warp_reduce_min": _folded(smaller),
    "warp_reduce_bitand": _folded(lambda a, b: bitwise(np.bitwise_and, a, b)),
    "warp_reduce_bitor": _folded(lambda a, b: bitwise(np.bitwise_or, a, b)),
    "any_sync": _voted(lambda sure: sure.any(axis=1), "int32"),
    "all_sync": _voted(lambda sure: sure.all(axis=1), "int32"),
    "ballot_sync": _voted(lambda sure: (sure * _WEIGHTS).sum(axis=1), "uint64"),
    "ballot": _voted(lambda sure: (sure * _WEIGHTS).sum(axis=1), "uint64"),
}
_WARP["match_any_sync"] = lambda q: Q(
    ((q.certain()[:, :, None] == q.v[:, None, :]) * _WEIGHTS).sum(axis=2).astype(np.uint64), FORMATS["uint64"]
)
_WARP["match_all_sync"] = lambda q: Q(
    np.repeat(np.where((q.certain() == q.v[:, :1]).all(axis=1), 0xFFFFFFFF, 0)[:, None], 32, axis=1), FORMATS["uint64"]
)
FUNCTIONS |= {name: warp_function(name) for name in _WARP}
