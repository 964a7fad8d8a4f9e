"""Sums of tensor cores against what an H200 gave (driver 580.159.04, 2026-11-26), bit for bit.

`h200_sums.npz` has, by instruction, type, depth of an instruction and range of the inputs' exponents, the operands
[m, k] and [n, k] as they are stored and the sums that four instructions left, begun at 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilec.emu.wgmma.wgmma import EIGHT_BITS, SIXTEEN_BITS, Adder, add_product
from tilec.ir.elements import decode_values
from tilec.ir.types import TYPES_BY_NAME

RECORDS = np.load(Path(__file__).with_name("h200_sums.npz"))
NAMES = sorted(name.removesuffix(" sum") for name in RECORDS.files if name.endswith(" sum"))


def by_the_model(name: str, adder: Adder) -> np.ndarray:
    _, dtype, depth, _ = name.split()
    a, b = (decode_values(RECORDS[f"{name} {operand}"], TYPES_BY_NAME[dtype]).astype(np.float64) for operand in "ab")
    if dtype == "float32":  # tf32 has ten bits of its 23
        a, b = ((x.astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
    total = np.zeros((len(a), len(b)))
    for at in range(0, a.shape[1], int(depth)):
        total = add_product(total, a[:, at : at + int(depth)], b[:, at : at + int(depth)], adder)
    return total.astype(np.float32)


def of_type(name: str) -> Adder:
    return EIGHT_BITS if "float8" in name else SIXTEEN_BITS


@pytest.mark.parametrize("name", NAMES)
def test_every_bit_is_the_gpus(name: str) -> None:
    np.testing.assert_array_equal(by_the_model(name, of_type(name)), RECORDS[f"{name} sum"])


@pytest.mark.parametrize("name", NAMES)
def test_the_record_tells_adders_apart(name: str) -> None:
    right = of_type(name)
    for other in (Adder(right.aligned + 1, right.kept), Adder(right.aligned - 1, right.kept)):
        assert (by_the_model(name, other) != RECORDS[f"{name} sum"]).any(), other


def test_ones_stop_counting() -> None:
    """A product of 1 is less than one unit of what eight-bit products leave of 2¹⁴."""
    ones = np.ones((1, 32))
    assert add_product(np.full((1, 1), 2.0**13), ones, ones, EIGHT_BITS) == 2**13 + 32
    assert add_product(np.full((1, 1), 2.0**14), ones, ones, EIGHT_BITS) == 2**14
    assert add_product(np.full((1, 1), 2.0**14), ones, ones, SIXTEEN_BITS) == 2**14 + 32


def test_what_is_not_finite_stays_so() -> None:
    a, b = np.array([[np.inf, 1.0], [np.nan, 1.0], [np.inf, -np.inf], [0.0, 0.0]]), np.ones((1, 2))
    found = add_product(np.zeros((4, 1)), a, b, EIGHT_BITS)[:, 0]
    np.testing.assert_array_equal(found, [np.inf, np.nan, np.nan, 0.0])
