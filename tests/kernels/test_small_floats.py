"""Conversions of 8-bit floats, every value there is: by instructions, and where a target has none by bits.

What is expected comes from the definition of the formats (OCP 8-bit floating point specification): a table of all
numbers, of which the nearest is taken, at halves the one whose last bit is 0, and the largest one beyond them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import HERE, agrees

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.ir.elements import decode_values, encode_values
from tilec.ir.types import BFLOAT16, TYPES_BY_NAME
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # of signalling NaNs, by numpy

TARGETS = ("sm_80", "sm_90a")
FORMATS = {"float8_e4m3fn": (3, 7, 0x7E), "float8_e5m2": (2, 15, 0x7B)}
"""Bits of fraction, bias, and the code of the largest number."""

KERNEL = """
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor({shape}, "{source}"), B: T.Tensor({shape}, "{target}")):
    with T.Kernel({blocks}, threads=128) as bx:
        {body}
"""
WHOLE = """for i in T.Parallel(1024):
            B[bx * 1024 + i] = A[bx * 1024 + i]"""
ROWS = """for i, j in T.Parallel(128, 3):
            B[bx * 128 + i, j] = A[bx * 128 + i, j]"""


def made(source: str, target: str, machine: str, shape: tuple[int, ...], blocks: int, body: str) -> Build:
    text = KERNEL.format(shape=shape, source=source, target=target, blocks=blocks, body=body)
    return build_kernel(SourceFile("k.tl", text), CompileOptions(target=machine), Observer())


def converted(source: str, target: str, machine: str, values: Array) -> Array:
    """Raw elements to raw elements, neighbours together."""
    blocks = -(-len(values) // 1024)
    built = made(source, target, machine, (len(values),), blocks, WHOLE)
    arguments = emulate.draw_arguments(built.kernel, built.manifest, 0)
    arguments.tensors["A"] = values
    emulate.emulate_build(built, arguments)
    return arguments.tensors["B"]


def numbers(dtype: str) -> Array:
    """By code, those that are not negative."""
    fraction, bias, largest = FORMATS[dtype]
    found = []
    for code in range(largest + 1):
        exponent, digits = code >> fraction, code & (1 << fraction) - 1
        one = exponent > 0
        found.append((one + digits / 2.0**fraction) * 2.0 ** (max(exponent, 1) - bias))
    return np.array(found)


def nearest(values: Array, dtype: str) -> Array:
    """The codes of float64 values."""
    table, size = numbers(dtype), np.abs(values)
    middles = (table[1:] + table[:-1]) / 2
    below, above = (np.searchsorted(middles, size, side) for side in ("left", "right"))
    # They differ in the middle of two numbers, of which the even one is taken.
    codes = np.where(below % 2 == 0, below, above)
    codes = np.where(np.isnan(values), 0x7F, codes | np.signbit(values) * 0x80)
    return codes.astype(np.uint8)


def of_codes(dtype: str) -> Array:
    """The values of all 256 codes."""
    table = numbers(dtype)
    special = [np.nan] if dtype == "float8_e4m3fn" else [np.inf, np.nan, np.nan, np.nan]
    positive = np.concatenate((table, special))
    return np.concatenate((positive, -positive))


@pytest.mark.parametrize("machine", TARGETS)
@pytest.mark.parametrize("wide", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_from_all_codes(dtype: str, wide: str, machine: str) -> None:
    codes = np.tile(np.arange(256, dtype=np.uint8), 4)
    found = decode_values(converted(dtype, wide, machine, codes), TYPES_BY_NAME[wide])[:256].astype(np.float64)
    expected = of_codes(dtype)
    np.testing.assert_array_equal(found, expected)
    numbered = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[numbered]), np.signbit(expected[numbered]))


@pytest.mark.parametrize("machine", TARGETS)
@pytest.mark.parametrize("wide", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_from_all_halves(dtype: str, wide: str, machine: str) -> None:
    bits = np.arange(65536).astype(np.uint16)
    halves = bits if wide == "bfloat16" else bits.view(np.float16)
    values = decode_values(halves, BFLOAT16) if wide == "bfloat16" else halves
    np.testing.assert_array_equal(converted(wide, dtype, machine, halves), nearest(values.astype(np.float64), dtype))


@pytest.mark.parametrize("machine", TARGETS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_around_all_numbers_and_halves_between_them(dtype: str, machine: str) -> None:
    """The float32 there, and the next ones on both sides; and any others."""
    table = numbers(dtype)
    points = np.concatenate((table, (table[1:] + table[:-1]) / 2, [table[-1] * 1.07, 1e30, np.inf, 1e-40, 1e-45]))
    exact = points.astype(np.float32)
    around = np.concatenate([np.nextafter(exact, np.float32(to)) for to in (-np.inf, np.inf)] + [exact])
    random = np.random.default_rng(0).integers(0, 1 << 32, 8192, dtype=np.uint32).view(np.float32)
    values = np.concatenate((around, -around, [np.nan], random)).astype(np.float32)
    values = np.pad(values, (0, -len(values) % 1024))
    np.testing.assert_array_equal(
        converted("float32", dtype, machine, values), nearest(values.astype(np.float64), dtype)
    )


@pytest.mark.parametrize("machine", TARGETS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_one_at_a_time(dtype: str, machine: str) -> None:
    """Rows of three, of which no two elements travel together."""
    for source, target in (("float32", dtype), (dtype, "float32")):
        built = made(source, target, machine, (512, 3), 4, ROWS)
        arguments = emulate.draw_arguments(built.kernel, built.manifest, 7)
        emulate.emulate_build(built, arguments)
        values = decode_values(arguments.tensors["A"], TYPES_BY_NAME[source])
        np.testing.assert_array_equal(arguments.tensors["B"], encode_values(values, TYPES_BY_NAME[target]))


@pytest.mark.parametrize("dtype", FORMATS)
def test_arithmetic_without_instructions(dtype: str) -> None:
    agrees(HERE / "elementwise.tl", "sm_80", dtype=dtype)


@pytest.mark.parametrize("dtype", FORMATS)
def test_which_targets_have_instructions(dtype: str) -> None:
    texts = {machine: made("float32", dtype, machine, (1024,), 1, WHOLE).ptx for machine in TARGETS}
    spelled = {"float8_e4m3fn": "e4m3x2", "float8_e5m2": "e5m2x2"}[dtype]
    assert spelled in texts["sm_90a"] and spelled not in texts["sm_80"]
