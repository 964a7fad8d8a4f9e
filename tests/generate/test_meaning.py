"""What the meaning of drawn kernels leaves open."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from meaning.language import walked
from meaning.numbers import FORMATS, rounded
from meaning.operations import in_any_order
from meaning.quantity import Q, add
from meaning.tiles import Tile


@pytest.mark.parametrize(
    ("dtype", "numbers", "is_exact"),
    [
        ("float16", (2.0, -2.0, 0.3, -0.3), False),
        ("float16", (2.5, -2.0, 0.5, 3.0), True),
        (
            "bfloat16",
            (0.5, -100.0, 100.0, -100.0, 100.0),
            False,
        ),  # as written no sum is above 100, in others one is 200
    ],
)
def test_sums_of_atomics_are_those_of_any_order(dtype: str, numbers: tuple[float, ...], is_exact: bool) -> None:
    form, zero = FORMATS[dtype], np.zeros(1)
    values = [rounded(np.array([number]), form) for number in numbers]
    tile = Tile((1,), form, is_tensor=True, masked=lambda: None)
    for value in values:
        old = Q(tile.v, form, tile.e)
        found = in_any_order(add)(old, Q(value, form, zero), tile.reach(np.arange(1), value))
        tile.v, tile.e = found.v, found.e
    sums = set()
    for order in itertools.permutations(values):
        total = zero
        for value in order:
            total = rounded(total + value, form)
        sums.add(float(total[0]))
    assert all(abs(total - found.v[0]) <= found.e[0] for total in sums)
    assert is_exact == (found.e[0] == 0) == (len(sums) == 1)


def test_tiles_of_a_scheduler_come_in_panels() -> None:
    assert walked(2, 3, 1) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    assert walked(2, 3, 2) == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]
