"""The variants of a kernel: values for its compile-time constants, as `-D` takes them, and for compiler options, whose
names begin with dashes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from tilec.support.records import dataclass

Value = int | float | bool | str
"""A value that `-D` accepts."""
Point = tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """One constant or option and the values to try, in the given order."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """All combinations of the axes' values, and the points `others`."""

    axes: tuple[Axis, ...]
    others: tuple[Point, ...] = ()

    @property
    def size(self) -> int:
        """Return the number of points: the combinations of the axes' values, and the others."""
        return prod(len(axis.values) for axis in self.axes) * self._has_combinations + len(self.others)

    @property
    def _has_combinations(self) -> bool:
        """Return whether the axes give points: always, unless there are no axes but other points.

        Without axes they give one point, the file as written.
        """
        return bool(self.axes) or not self.others

    def points(self) -> Iterator[Point]:
        """Yield the points in the order of the axes, the last axis fastest; then the others."""
        names = [axis.name for axis in self.axes]
        for values in product(*(axis.values for axis in self.axes)) if self._has_combinations else ():
            yield tuple(zip(names, values, strict=True))
        yield from self.others


MAX_POINTS = 100_000
"""Largest space that is searched: predicting a point takes milliseconds."""


class SpaceError(ValueError):
    """An axis without values, or given twice."""


def build_space(axes: Sequence[tuple[str, Sequence[Value]]]) -> Space:
    """Return a space of named lists of values, equal values once; raise `SpaceError` for a repeated or empty axis."""
    made: list[Axis] = []
    for name, values in axes:
        if any(axis.name == name for axis in made):
            raise SpaceError(f"'{name}' is given twice")
        if not values:
            raise SpaceError(f"'{name}' has no values")
        # By type too: 1 and True are equal in Python but different variants of a kernel.
        different = {(type(value), value): value for value in values}
        made.append(Axis(name, tuple(different.values())))
    return Space(tuple(made))
