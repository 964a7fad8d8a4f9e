"""Arbitrary placements of the elements of a shared tile, evaluated for all elements."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from tilec.ir import tile

MAX_RUN = 16


@lru_cache(maxsize=64)
def element_slots(placement: tile.Placement) -> tuple[int, ...]:
    """Return the slot of each element of a placement, in row-major order, from a cache; may raise `NotArithmetic`. It
    does where an expression is something other than integer arithmetic on the placement's variables."""
    return tuple(evaluate_index(placement.place, placement.shape, placement.vars))


@lru_cache(maxsize=64)
def contiguous_run(placement: tile.Placement) -> int:
    """Return the longest run, at most 16 elements, such that all runs of a row are contiguous and aligned to its
    length."""
    found = element_slots(placement)
    length = math.gcd(placement.shape[-1], MAX_RUN)

    def is_run(first: int) -> bool:
        """Return whether the `length` elements from `first` on have consecutive slots from a multiple of `length`
        on."""
        return found[first] % length == 0 and all(found[first + k] == found[first] + k for k in range(1, length))

    while not all(is_run(first) for first in range(0, len(found), length)):
        length //= 2
    return length


class NotArithmetic(Exception):
    """An index is made of more than integers and variables."""


class NoValue(NotArithmetic):
    """An index divides by zero."""


def evaluate_index(expr: tile.Expr, shape: tuple[int, ...], variables: tuple[tile.Var, ...]) -> list[int]:
    """Return an expression's values over all indices of a shape, in row-major order; raises `NoValue` for a division by
    zero. Raises `NotArithmetic` for anything but arithmetic on integers."""
    import numpy as np

    values = {
        var: np.arange(extent, dtype=np.int64).reshape(-1, *(1,) * (len(shape) - d - 1))
        for d, (var, extent) in enumerate(zip(variables, shape, strict=True))
    }
    found: list[int] = np.broadcast_to(_evaluate_array(expr, values, np.True_), shape).ravel().tolist()
    return found


def _evaluate_array(expr: tile.Expr, values: dict[tile.Var, Any], counts: Any) -> Any:
    """Return an expression's values as an array; raises `NoValue` if a divisor is 0 at an index where `counts` is true.
    Raises `NotArithmetic` for any other kind of expression."""
    import numpy as np

    match expr:
        case tile.Const(value=value):
            return np.int64(value)
        case tile.Var() if expr in values:
            return values[expr]
        case tile.Unary(op=op, a=a):
            operand = _evaluate_array(a, values, counts)
            return np.logical_not(operand) if op == "not" else -operand
        case tile.Cast(a=a, dtype=dtype) if dtype.kind in ("int", "uint"):
            return _evaluate_array(a, values, counts)
        case tile.Select(condition=condition, then=then, orelse=orelse):
            holds = _evaluate_array(condition, values, counts)
            sides = (
                _evaluate_array(then, values, counts & holds),
                _evaluate_array(orelse, values, counts & np.logical_not(holds)),
            )
            return np.where(holds, *sides)
        case tile.Binary(op="floordiv" | "floormod" as op, a=a, b=b):
            dividend, divisor = _evaluate_array(a, values, counts), _evaluate_array(b, values, counts)
            is_zero = divisor == 0
            if np.any(is_zero & counts):
                raise NoValue
            divide = np.floor_divide if op == "floordiv" else np.mod
            return divide(dividend, np.where(is_zero, 1, divisor))
        case tile.Binary(op=op, a=a, b=b):
            combine = {
                "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
                "bitand": np.bitwise_and, "bitor": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift,
                "shr": np.right_shift, "and": np.logical_and, "or": np.logical_or, "lt": np.less,
                "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
            }.get(op)  # fmt: skip
            if combine is not None:
                return combine(_evaluate_array(a, values, counts), _evaluate_array(b, values, counts))
    raise NotArithmetic
