"""Verifier of calls and constants of tile IR: the known functions, their numbers of operands, their types."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from tilec.ir import tile
from tilec.ir.text import show_expr
from tilec.ir.types import BOOL, FLOAT32, INT32, UINT32, UINT64, DType

_UNARY = frozenset(
    {"exp", "exp2", "exp10", "log", "log2", "log10", "sqrt", "rsqrt", "sinh", "cosh", "tanh", "sigmoid", "erf", "abs",
     "sin", "cos", "tan", "atan", "floor", "ceil", "trunc", "round", "nearbyint"}
)  # fmt: skip
_OTHERS = {"pow": 2, "fmod": 2, "fma": 3}
_FAST = frozenset(f"fast_{fn}" for fn in ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "rcp"))
_IEEE = re.compile(r"ieee_(add|sub|mul|fmaf|frcp|fsqrt|fdiv|frsqrt)_(rn|rz|ru|rd)")
_IEEE_OPERANDS = {"add": 2, "sub": 2, "mul": 2, "fdiv": 2, "fmaf": 3}
_SHUFFLES = ("shfl_xor", "shfl_up", "shfl_down", "shfl_sync")
_FOLDS = ("warp_sum", "warp_max", "warp_min", "warp_and", "warp_or")
_VOTES = {
    "vote_any": BOOL,
    "vote_all": BOOL,
    "ballot": UINT32,
    "block_count": INT32,
    "block_and": BOOL,
    "block_or": BOOL,
}
_MATCHES = ("match_any", "match_all")


def find_call_error(call: tile.Call) -> str | None:
    """Return what is wrong with a call whose operands are valid; None if nothing is."""
    fn, types = call.fn, tuple(a.dtype for a in call.args)
    fits = _call_predicate(fn)
    if fits is None:
        return f"there is no function '{fn}'"
    if fits(call, types):
        return None
    return f"{show_expr(call)} is {call.dtype} of {', '.join(map(str, types))}"


def _call_predicate(fn: str) -> Callable[[tile.Call, tuple[DType, ...]], bool] | None:
    if fn == "reinterpret":
        return lambda call, types: [t.bits for t in types] == [call.dtype.bits]
    if fn in tile.BIT_COUNTS:
        return lambda call, types: call.dtype == INT32 and len(types) == 1 and types[0] in (UINT32, UINT64)
    if fn in tile.INTEGER_CALLS:
        return lambda call, types: (types, call.dtype) == tile.INTEGER_CALLS[fn]
    if fn == tile.PHASE_DONE:
        return _is_phase
    if fn in _SHUFFLES:
        return _is_shuffle
    if fn in _FOLDS:
        integers = fn in ("warp_and", "warp_or")
        return lambda call, types: (
            types == (call.dtype,) and call.dtype.bits == 32 and not (integers and call.dtype.is_float)
        )
    if fn in _VOTES:
        return lambda call, types: types == (BOOL,) and call.dtype == _VOTES[fn]
    if fn in _MATCHES:
        return lambda call, types: (
            len(types) == 1 and types[0].bits in (32, 64) and not types[0].is_float and call.dtype == UINT32
        )
    if fn in _FAST:
        return lambda call, types: (*types, call.dtype) == (FLOAT32, FLOAT32)
    if found := _IEEE.fullmatch(fn):
        count = _IEEE_OPERANDS.get(found[1], 1)
        return lambda call, types: types == (FLOAT32,) * count and call.dtype == FLOAT32
    count = 1 if fn in _UNARY else _OTHERS.get(fn, 0)
    return (lambda call, types: types == (call.dtype,) * count and call.dtype.is_float) if count else None


def _is_phase(call: tile.Call, types: tuple[DType, ...]) -> bool:
    at = call.args[0] if call.args else None
    return call.dtype == BOOL and isinstance(at, tile.Load) and at.buffer.scope == "barrier" and types[1:] == (INT32,)


def _is_fold(call: tile.Call, types: tuple[DType, ...]) -> bool:
    is_bitwise = call.fn in ("warp_and", "warp_or")
    return types == (call.dtype,) and call.dtype.bits == 32 and not (is_bitwise and call.dtype.is_float)


def _is_match(call: tile.Call, types: tuple[DType, ...]) -> bool:
    return call.dtype == UINT32 and len(types) == 1 and types[0].bits in (32, 64) and not types[0].is_float


def _is_shuffle(call: tile.Call, types: tuple[DType, ...]) -> bool:
    if len(types) != 3 or types[0] != call.dtype or types[0].bits != 32 or types[1:] != (INT32, INT32):
        return False
    width = call.args[2]
    return isinstance(width, tile.Const) and width.value in (2, 4, 8, 16, 32)


def find_constant_error(const: tile.Const) -> str | None:
    """Return what is wrong with a constant; None if its type holds its value."""
    value, dtype = const.value, const.dtype
    if dtype == BOOL or dtype.is_float:
        wanted: type = bool if dtype == BOOL else float
        fits = type(value) is wanted
    else:
        low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
        fits = type(value) is int and low <= value < low + (1 << dtype.bits)
    if fits:
        return None
    shown = f"{value!r:.40}" if isinstance(value, float) or math.fabs(value.bit_length()) < 200 else "a long number"
    return f"{shown} is not a value of {dtype}"
