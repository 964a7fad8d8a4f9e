"""Evaluates integer tile expressions on Python integers or numpy arrays, independently of every pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilec.ir.tile import Binary, Cast, Const, Expr, Select, Unary, Var

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "floormod": lambda a, b: a % b,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def evaluate(expr: Expr, values: Mapping[str, Any]) -> Any:
    """The value without regard to overflow, except that a cast to fewer than 64 bits wraps."""
    match expr:
        case Const(value=value):
            return value
        case Var(name=name):
            return values[name]
        case Unary(op="neg", a=a):
            return -evaluate(a, values)
        case Unary(a=a):
            return np.logical_not(evaluate(a, values))
        case Binary(op=op, a=a, b=b):
            return _BINARY[op](evaluate(a, values), evaluate(b, values))
        case Select(condition=c, then=a, orelse=b):
            return np.where(evaluate(c, values), evaluate(a, values), evaluate(b, values))
        case Cast(a=a, dtype=dtype) if dtype.bits == 64:
            return evaluate(a, values)
        case Cast(a=a, dtype=dtype):
            low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
            return (evaluate(a, values) - low) % (1 << dtype.bits) + low
        case _:
            raise AssertionError(f"{expr} is not an integer expression of variables")
