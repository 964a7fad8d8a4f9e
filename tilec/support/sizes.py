"""Sizes known only at launch: integer expressions of the kernel's scalars, in a form that JSON holds directly.

A size is a number, the name of a scalar, or an operation on two sizes: `m`, or `["floordiv", ["add", "m", 127], 128]`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Union

Size = Union[int, str, "tuple[str, Size, Size]"]
Shape = tuple[Size, ...]

OPERATIONS: dict[str, tuple[Callable[[int, int], int], str]] = {
    "add": (operator.add, "+"), "sub": (operator.sub, "-"), "mul": (operator.mul, "*"),
    "floordiv": (operator.floordiv, "//"), "floormod": (operator.mod, "%"), "min": (min, "min"), "max": (max, "max"),
    "shr": (operator.rshift, ">>"),
}  # fmt: skip
"""Python's integer operations, with their notation. `shr` divides by a power of two, and what it divides is a multiple
of that: the bytes of four-bit elements, of which a row has an even number."""

_LARGEST = 1 << 63
MOST_ELEMENTS = (1 << 31) - 1
"""The largest extent of a tensor, and the largest intermediate value of its computation: kernels count in int32."""


class SizeError(ValueError):
    """Arrays and numbers that contradict each other."""


class UnknownSize(SizeError):
    """Scalars that nothing determines."""

    def __init__(self, *names: str) -> None:
        several = len(names) > 1
        listed = f"sizes {', '.join(names[:-1])} and {names[-1]}" if several else f"size {names[0]}"
        super().__init__(f"no argument determines the {listed}")
        self.names = names


def evaluate_size(size: Size, scalars: Mapping[str, int]) -> int:
    """Return the number of a size expression for these scalars; raise `UnknownSize` for a scalar without a value.

    Division by 0 is a `SizeError`, and so is a remainder of `shr`.
    """
    if isinstance(size, int):
        return size
    if isinstance(size, str):
        if size not in scalars:
            raise UnknownSize(size)
        return int(scalars[size])
    name, a, b = size
    divisor = evaluate_size(b, scalars)
    if name in ("floordiv", "floormod") and divisor == 0:
        raise SizeError(f"{format_size(size)} divides by 0")
    value = evaluate_size(a, scalars)
    if name == "shr" and value % (1 << divisor):
        raise SizeError(f"{format_size(a)} is {value}, and must be a multiple of {1 << divisor}")
    return OPERATIONS[name][0](value, divisor)


def has_shift(size: Size) -> bool:
    """Return whether a size divides a multiple of a power of two by it, which no kernel's text says of its own."""
    return any(isinstance(part, tuple) and part[0] == "shr" for part in nested_sizes(size))


def evaluate_shape(shape: Shape, scalars: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate_size(size, scalars) for size in shape)


def scalar_names(size: Size) -> Iterator[str]:
    """Return the names of the scalars in a size expression, with repeats."""
    return (part for part in nested_sizes(size) if isinstance(part, str))


def nested_sizes(size: Size) -> Iterator[Size]:
    """Yield a size expression and all expressions that it is made of, outermost first."""
    yield size
    if isinstance(size, tuple):
        yield from nested_sizes(size[1])
        yield from nested_sizes(size[2])


def format_size(size: Size) -> str:
    """Return a size expression in Python's notation: `(m + 127) // 128`."""
    if not isinstance(size, tuple):
        return str(size)
    name, a, b = size
    symbol = OPERATIONS[name][1]
    if symbol == name:
        return f"{name}({format_size(a)}, {format_size(b)})"
    left, right = (f"({format_size(s)})" if isinstance(s, tuple) else format_size(s) for s in (a, b))
    return f"{left} {symbol} {right}"


def read_size(record: object) -> Size:
    """Return a size expression from its JSON form; raise ValueError for anything else."""
    if type(record) is str or (type(record) is int and abs(record) < _LARGEST):
        return record
    if isinstance(record, list | tuple) and len(record) == 3:
        name, a, b = record
        if type(name) is str and name in OPERATIONS:
            return name, read_size(a), read_size(b)
    raise ValueError(f"expected a number, a name, or [operation, size, size], found {record!r:.60}")


def solve_scalars(shapes: Mapping[str, Shape], arrays: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the scalars that the arrays' shapes determine; raise `SizeError`, naming both places, if two disagree.

    Arrays of another rank are skipped.
    """
    values: dict[str, int] = {}
    places: dict[str, str] = {}
    for tensor, shape in shapes.items():
        extents = arrays.get(tensor, ())
        if len(extents) != len(shape):
            continue  # reported where the shapes are compared
        for axis, (size, extent) in enumerate(zip(shape, extents, strict=True)):
            solved = _solve_scalar(size, extent)
            if solved is None:
                continue
            name, value = solved
            place = f"{tensor}.shape[{axis}] = {extent}"
            if values.setdefault(name, value) != value:
                raise SizeError(f"{name} is {values[name]} by {places[name]}, but {value} by {place}")
            places.setdefault(name, place)
    return values


def _solve_scalar(size: Size, value: int) -> tuple[str, int] | None:
    """Return the name and value of a size's only scalar, by inverting sums and products with numbers; else None."""
    match size:
        case str():
            return size, value
        case ("add", a, int(b)):
            return _solve_scalar(a, value - b)
        case ("sub", a, int(b)):
            return _solve_scalar(a, value + b)
        case ("mul", a, int(b)) if b != 0 and value % b == 0:
            return _solve_scalar(a, value // b)
        case ("shr", a, int(b)):
            return _solve_scalar(a, value << b)
        case _:
            return None
