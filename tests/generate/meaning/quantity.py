"""Numbers with what is known of their error: results of one rounding are exact where they need none, else within what
the language promises. So anything may be drawn, and what may differ is told from what must not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from meaning.numbers import BOOL, FLOAT32, FORMATS, INT32, Array, Format, rounded, wrapped


class NoMeaning(Exception):
    """The kernel means nothing that can be told: it reads what nobody has written, decides by an inexact number, or
    leaves a tile."""


class Operand(ABC):
    """What stands in expressions."""

    @abstractmethod
    def q(self) -> Q: ...

    def __add__(self, other: Any) -> Q:
        return add(self, other)

    def __radd__(self, other: Any) -> Q:
        return add(other, self)

    def __sub__(self, other: Any) -> Q:
        return subtract(self, other)

    def __rsub__(self, other: Any) -> Q:
        return subtract(other, self)

    def __mul__(self, other: Any) -> Q:
        return multiply(self, other)

    def __rmul__(self, other: Any) -> Q:
        return multiply(other, self)

    def __truediv__(self, other: Any) -> Q:
        return divide(self, other)

    def __rtruediv__(self, other: Any) -> Q:
        return divide(other, self)

    def __floordiv__(self, other: Any) -> Q:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Q:
        return floor_divide(other, self)

    def __mod__(self, other: Any) -> Q:
        return modulo(self, other)

    def __and__(self, other: Any) -> Q:
        return bitwise(np.bitwise_and, self, other)

    def __rand__(self, other: Any) -> Q:
        return bitwise(np.bitwise_and, other, self)

    def __or__(self, other: Any) -> Q:
        return bitwise(np.bitwise_or, self, other)

    def __ror__(self, other: Any) -> Q:
        return bitwise(np.bitwise_or, other, self)

    def __xor__(self, other: Any) -> Q:
        return bitwise(np.bitwise_xor, self, other)

    def __rxor__(self, other: Any) -> Q:
        return bitwise(np.bitwise_xor, other, self)

    def __lshift__(self, other: Any) -> Q:
        return bitwise(np.left_shift, self, other)

    def __rlshift__(self, other: Any) -> Q:
        return bitwise(np.left_shift, other, self)

    def __rshift__(self, other: Any) -> Q:
        return bitwise(np.right_shift, self, other)

    def __neg__(self) -> Q:
        return subtract(0, self) if not self.q().format.is_float else multiply(self, -1)

    def __invert__(self) -> Q:
        q = self.q()
        return exact(wrapped(~q.v, q.format), q.format, q)

    def __lt__(self, other: Any) -> Q:
        return compare(np.less, self, other)

    def __le__(self, other: Any) -> Q:
        return compare(np.less_equal, self, other)

    def __gt__(self, other: Any) -> Q:
        return compare(np.greater, self, other)

    def __ge__(self, other: Any) -> Q:
        return compare(np.greater_equal, self, other)

    def __eq__(self, other: object) -> Q:
        return compare(np.equal, self, other)

    def __ne__(self, other: object) -> Q:
        return compare(np.not_equal, self, other)

    __hash__ = None

    def __bool__(self) -> bool:
        return bool(self.certain().item())

    def __index__(self) -> int:
        return int(self.certain().item())

    __int__ = __index__

    def certain(self) -> Array:
        """Its values, which decide something."""
        q = self.q()
        if np.any(q.e):
            raise NoMeaning("something is decided by an inexact number")
        return q.v


class Q(Operand):
    """Values `v` of a type, each within `e` of what may be found."""

    __slots__ = ("e", "format", "v")
    __array_ufunc__ = None

    def __init__(self, v: Any, format: Format, e: Any = 0.0) -> None:
        self.v, self.format = np.asarray(v, format.type), format
        self.e = np.asarray(e, np.float64)

    def q(self) -> Q:
        return self


def quantity(x: Any, like: Format | None = None) -> Q:
    """An operand; a Python number takes the type of the other one, where that has such numbers."""
    if isinstance(x, Operand):
        return x.q()
    if isinstance(x, bool):
        return Q(x, BOOL)
    if isinstance(x, int):
        form = INT32 if like is None or like == BOOL else like
        return Q(rounded(np.asarray(float(x)), form) if form.is_float else wrapped(np.asarray(x), form), form)
    if isinstance(x, float):
        form = like if like is not None and like.is_float else FLOAT32
        return Q(rounded(np.asarray(x), form), form)
    raise TypeError(f"{x!r} is no operand")


def pair(a: Any, b: Any) -> tuple[Q, Q, Format]:
    """Both, in the type that they meet in."""
    if not isinstance(a, Operand) and isinstance(b, Operand):
        y = b.q()
        x = quantity(a, y.format)
    else:
        x = quantity(a)
        y = quantity(b, x.format)
    form = meeting(x.format, y.format)
    return convert(x, form), convert(y, form), form


def meeting(a: Format, b: Format) -> Format:
    if a == b:
        return a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    if a.is_float:
        raise NoMeaning("two floats of one width")
    return a if a.kind == "uint" else b


def unit(values: Array, form: Format) -> Array:
    """One in the last place, and no less than the smallest number."""
    finite = np.where(np.isfinite(values), np.abs(values), 0.0)
    return np.maximum(finite * 2.0 ** (1 - form.digits), form.smallest)


def settled(exact_values: Array, form: Format, e: Array, units: float = 1.0) -> Q:
    """A float result: rounded, and uncertain by some units where it had to be."""
    v = rounded(exact_values, form)
    with np.errstate(all="ignore"):
        is_rounded = ~((v == exact_values) | (np.isnan(v) & np.isnan(exact_values)))
        e = e + np.where(is_rounded, units * unit(exact_values, form), 0.0)
        # Near the end of the range an error decides between a number and infinity.
        e = np.where((e > 0) & ~(np.abs(exact_values) + e < form.largest), np.inf, e)
    return Q(v, form, np.where(np.isnan(e), np.inf, e))


def whole(v: Array, form: Format, e: Array) -> Q:
    """An integer result; one that is not sure may have gone over the end."""
    if np.any(e):
        low, high = form.range
        beyond = (e > 0) & ((v.astype(np.float64) - e < low) | (v.astype(np.float64) + e > high))
        e = np.where(beyond, np.inf, e)
    return Q(wrapped(v, form), form, e)


def exact(v: Array, form: Format, *of: Q) -> Q:
    """Nothing is known of the result where an operand is not sure."""
    e = np.zeros(np.shape(v))
    for operand in of:
        e = e + np.where(operand.e > 0, np.inf, 0.0)
    return Q(v, form, e)


def _arithmetic(op: Callable[[Array, Array], Array], error: Callable[[Q, Q], Array], a: Any, b: Any) -> Q:
    x, y, form = pair(a, b)
    if form == BOOL:
        x, y, form = convert(x, INT32), convert(y, INT32), INT32
    with np.errstate(all="ignore"):
        if form.is_float:
            return settled(op(x.v, y.v), form, error(x, y))
        return whole(op(x.v, y.v), form, error(x, y))


def add(a: Any, b: Any) -> Q:
    return _arithmetic(np.add, lambda x, y: x.e + y.e, a, b)


def subtract(a: Any, b: Any) -> Q:
    return _arithmetic(np.subtract, lambda x, y: x.e + y.e, a, b)


def _product_error(x: Q, y: Q) -> Array:
    if not (np.any(x.e) or np.any(y.e)):
        return np.zeros(())
    left, right = np.abs(x.v.astype(np.float64)), np.abs(y.v.astype(np.float64))
    found = np.where(x.e > 0, x.e * (right + y.e), 0.0) + np.where(y.e > 0, left * y.e, 0.0)
    return np.where(np.isnan(found), np.inf, found)


def multiply(a: Any, b: Any) -> Q:
    return _arithmetic(np.multiply, _product_error, a, b)


def divide(a: Any, b: Any) -> Q:
    x, y, form = pair(a, b)
    if not form.is_float:
        raise NoMeaning("a quotient of integers")
    with np.errstate(all="ignore"):
        least = np.abs(y.v) - y.e
        e = np.where(least > 0, (x.e + np.abs(x.v / y.v) * y.e) / least, np.inf)
        return settled(x.v / y.v, form, np.where((x.e > 0) | (y.e > 0), e, 0.0), 4)


def floor_divide(a: Any, b: Any) -> Q:
    x, y, form = pair(a, b)
    if form.is_float or np.any(y.v == 0):
        raise NoMeaning("a quotient by 0, or of floats")
    return exact(wrapped(x.v // y.v, form), form, x, y)


def modulo(a: Any, b: Any) -> Q:
    x, y, form = pair(a, b)
    if form.is_float or np.any(y.v == 0):
        raise NoMeaning("a remainder by 0, or of floats")
    return exact(wrapped(x.v % y.v, form), form, x, y)


def bitwise(op: Callable[[Array, Array], Array], a: Any, b: Any) -> Q:
    x, y, form = pair(a, b)
    if form.is_float:
        raise NoMeaning("bits of floats")
    if op in (np.left_shift, np.right_shift) and (np.any(y.v < 0) or np.any(y.v >= form.bits)):
        raise NoMeaning("a shift by more than all bits")
    return exact(wrapped(op(x.v, y.v), form), form, x, y)


def compare(op: Callable[[Array, Array], Array], a: Any, b: Any) -> Q:
    x, y, _ = pair(a, b)
    with np.errstate(all="ignore"):
        result = op(x.v, y.v)
        if not (np.any(x.e) or np.any(y.e)):
            return Q(result, BOOL)
        apart = np.abs(x.v.astype(np.float64) - y.v.astype(np.float64))
        e = x.e + y.e
        return Q(result, BOOL, np.where((e > 0) & ~(apart > e), 1.0, 0.0))


def select(condition: Any, a: Any, b: Any) -> Q:
    c = quantity(condition)
    x, y, form = pair(a, b)
    v = np.where(c.v, x.v, y.v)
    e = np.where(c.v, x.e, y.e)
    if np.any(c.e):
        e = np.where(c.e > 0, e + spread(x, y), e)
    return Q(v, form, e)


def spread(x: Q, y: Q) -> Array:
    """How far apart the two may be."""
    with np.errstate(all="ignore"):
        apart = np.abs(x.v.astype(np.float64) - y.v.astype(np.float64)) + x.e + y.e
    return np.where(np.isnan(apart), np.inf, apart)


def larger(a: Any, b: Any) -> Q:
    x, y, form = pair(a, b)
    return Q(np.maximum(x.v, y.v), form, np.maximum(x.e, y.e))


def smaller(a: Any, b: Any) -> Q:
    x, y, form = pair(a, b)
    return Q(np.minimum(x.v, y.v), form, np.maximum(x.e, y.e))


def convert(x: Q, form: Format) -> Q:
    """To another type, as a cast does it."""
    if x.format == form:
        return x
    if form == BOOL:
        return Q(x.v != 0, BOOL, np.where((x.e > 0) & ~(np.abs(x.v.astype(np.float64)) > x.e), 1.0, 0.0))
    if form.is_float:
        if x.format.is_float and form.name == "float8_e8m0fnu":
            return exact(rounded(x.v, form), form, x)
        # A long integer is one rounding to double away, and another one to the type.
        return settled(x.v.astype(np.float64), form, x.e)
    if x.format.is_float:
        low, high = form.range
        with np.errstate(all="ignore"):
            cut = np.trunc(np.where(np.isnan(x.v), 0.0, x.v))
            inside = np.clip(cut, float(low), float(high))
            v = np.where(inside >= 2.0**63, 0, inside).astype(np.int64).astype(form.type)
            v = np.where(cut >= float(high), np.asarray(high, form.type), v)
            v = np.where(inside >= 2.0**63, np.where(cut >= float(high), v, inside.astype(np.uint64)), v)
            near = np.trunc(x.v + x.e) != np.trunc(x.v - x.e)
        return Q(v.astype(form.type), form, np.where((x.e > 0) & near, np.ceil(x.e) + 1, 0.0))
    return whole(x.v, form, x.e)


def named(name: Any) -> Format:
    """A type by its name or as `T.name`."""
    return FORMATS[name] if isinstance(name, str) else name.format
