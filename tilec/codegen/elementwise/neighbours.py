"""Adjacent elements among those that the statements of a nest name one by one, to be moved by one access."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from tilec.ir.affine import Affine, affine_form, row_divisor
from tilec.ir.tile import Buffer, Expr
from tilec.support.records import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ElementPlace:
    """An element of a buffer. `last` is its last index in affine form."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    last: Affine

    @property
    def row(self) -> object:
        """Return a key that is equal for elements of a buffer whose last indices differ by a constant only."""
        return self.buffer.name, self.indices[:-1], self.last.terms

    @property
    def key(self) -> object:
        """Return a key that is equal exactly for places of the same element."""
        return self.row, self.last.constant


def locate_element(buffer: Buffer, indices: tuple[Expr, ...]) -> ElementPlace:
    """Return the place of a buffer's element at these indices, with its last index in affine form."""
    return ElementPlace(buffer, indices, affine_form(indices[-1]))


def group_rows(places: Sequence[tuple[ElementPlace, T]]) -> list[list[tuple[ElementPlace, T]]]:
    """Group elements whose indices differ only by a constant in the last, sorted by it; keep the first of equals."""
    found: dict[object, dict[int, tuple[ElementPlace, T]]] = {}
    for place, owner in places:
        found.setdefault(place.row, {}).setdefault(place.last.constant, (place, owner))
    return [[row[at] for at in sorted(row)] for row in found.values()]


def split_row(
    row: Sequence[tuple[ElementPlace, T]], most_bytes: int, panel: int | None
) -> list[list[tuple[ElementPlace, T]]]:
    """Split the elements of one row into accesses: 1, 2, 4 … adjacent elements, aligned, of at most `most_bytes`.

    An access is wholly inside or outside the tensor. `panel` is the number of contiguous elements of a shared tile's
    row.
    """
    made: list[list[tuple[ElementPlace, T]]] = []
    at = 0
    while at < len(row):
        first, _ = row[at]
        width = 1
        while _is_one_access(first, row[at : at + 2 * width], 2 * width, most_bytes, panel):
            width *= 2
        made.append(list(row[at : at + width]))
        at += width
    return made


def _is_one_access(
    first: ElementPlace, together: Sequence[tuple[ElementPlace, T]], width: int, most_bytes: int, panel: int | None
) -> bool:
    """Return whether the first `width` elements of a row are adjacent, aligned to their size and not too many bytes."""
    if len(together) < width or together[-1][0].last.constant != first.last.constant + width - 1:
        return False
    buffer = first.buffer
    if buffer.dtype.kind == "bool" or width * buffer.dtype.bytes > most_bytes:
        return False
    # A row's length must be a multiple of an access, so that no access crosses its end and each row starts aligned.
    aligned = math.gcd(first.last.divisor, row_divisor(buffer), panel or 0)
    return aligned % width == 0
