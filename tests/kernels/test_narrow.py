"""Types of four bits, and powers of two: whole kernels, and every value there is."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from harness import HERE

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.ir.elements import decode_values
from tilec.ir.types import FLOAT4_E2M1, FLOAT8_E8M0, TYPES_BY_NAME, DType
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TARGETS = ["sm_80", "sm_90a"]
PACKED = ["int4", "uint4", "float4_e2m1fn"]


def made(text: str, target: str, entry: str | None = None, **defines: str) -> Build:
    options = CompileOptions(target=target, entry=entry, defines=tuple(defines.items()))
    return build_kernel(SourceFile("k.tl", text), options, Observer())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", PACKED)
@pytest.mark.parametrize("entry", ["product", "scaled", "made", "arithmetic"])
def test_kernels(entry: str, dtype: str, target: str) -> None:
    built = made((HERE / "narrow.tl").read_text(encoding="utf-8"), target, entry, dtype=dtype)
    found = emulate.draw_arguments(built.kernel, built.manifest, 1)
    expected = found.copy()
    emulate.emulate_build(built, found)
    emulate.run_reference(built.kernel, expected)
    for r in emulate.compare_arguments(built.kernel, built.manifest, found, expected):
        assert r.matches, f"{r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"
    if entry == "made":  # what is rounded on the way is rounded alike
        assert all(np.array_equal(found.tensors[name], expected.tensors[name]) for name in ("Q", "S"))


@pytest.mark.parametrize("target", TARGETS)
def test_neighbours_are_loaded_together(target: str) -> None:
    """Eight elements of a tile of four bits are one load, for eight stores of float16 in one."""
    ptx = made((HERE / "narrow.tl").read_text(encoding="utf-8"), target, "product").ptx
    lines = [line.split()[0] for line in ptx.splitlines() if line.strip().startswith(("ld.shared", "st.shared"))]
    assert set(lines) - {"st.shared.v2.f32"} == {"ld.shared.b32", "st.shared.v4.b32"}


CONVERSION = """
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((256,), "{source}"), B: T.Tensor((256,), "{target}")):
    with T.Kernel(1, threads=32) as bx:
        for i in T.Parallel(256):
            B[i] = T.cast(A[i], "{target}")
"""

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def converted(source: str, target: str, values: np.ndarray) -> np.ndarray:
    built = made(CONVERSION.format(source=source, target=target), "sm_80")
    arguments = emulate.draw_arguments(built.kernel, built.manifest, 0)
    arguments.tensors["A"][...] = values
    emulate.emulate_build(built, arguments)
    return decode_values(arguments.tensors["B"], TYPES_BY_NAME[target]).astype(np.float64)


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("source", PACKED)
def test_every_nibble(source: str, target: str) -> None:
    low = np.arange(128, dtype=np.uint8) % 16
    codes = np.stack((low, 15 - low), axis=-1).reshape(-1)
    meaning = {
        "uint4": np.arange(16.0),
        "int4": np.array([*range(8), *range(-8, 0)], np.float64),
        "float4_e2m1fn": np.concatenate((E2M1, -E2M1)),
    }
    np.testing.assert_array_equal(converted(source, target, low | (15 - low) << 4), meaning[source][codes])


def test_every_power() -> None:
    found = converted("float8_e8m0fnu", "float32", np.arange(256, dtype=np.uint8))
    np.testing.assert_array_equal(found, [*(2.0 ** (np.arange(255.0) - 127)), np.nan])


def test_rounding_to_four_bits() -> None:
    """To the nearest number, in a tie to the one whose last bit is 0; beyond the largest to that."""
    halfway = (E2M1[1:] + E2M1[:-1]) / 2
    sizes = np.concatenate((E2M1, halfway, np.nextafter(halfway, 9, dtype=np.float32), [5.9, 7, 1e30, np.inf, 1e-40]))
    near = np.abs(np.minimum(sizes, 6.0)[:, None] - E2M1)
    best = near == near.min(axis=1, keepdims=True)
    expected = np.array([E2M1[row.nonzero()[0]][np.argmin(row.nonzero()[0] % 2)] for row in best])
    values = np.resize(np.concatenate((sizes, -sizes)), 256).astype(np.float32)
    found = converted("float32", "float4_e2m1fn", values)
    np.testing.assert_array_equal(found, np.resize(np.concatenate((expected, -expected)), 256))
    assert converted("float32", "float4_e2m1fn", np.full(256, np.nan, np.float32))[0] == 6.0


def test_rounding_to_powers() -> None:
    """Up, so that what is divided by a scale does not grow beyond its range."""
    values = [0, 1, 1.5, 2, -3, 1e-45, 2.0**-127, 1.5 * 2.0**-127, 2.0**-126, 2.0**127, 3e38, np.inf, np.nan]
    wanted = [2.0**-127, 1, 2, 2, 4, 2.0**-127, 2.0**-127, 2.0**-126, 2.0**-126, 2.0**127, 2.0**127, 2.0**127, np.nan]
    found = converted("float32", "float8_e8m0fnu", np.resize(np.array(values, np.float32), 256))
    np.testing.assert_array_equal(found, np.resize(wanted, 256))


@pytest.mark.parametrize("dtype", [FLOAT4_E2M1, FLOAT8_E8M0])
def test_the_references_round_alike(dtype: DType) -> None:
    """Compile-time constants, and numpy's stand-in."""
    from tilec.ir.elements import round_values
    from tilec.ir.expr import round_to

    values = np.concatenate((np.random.default_rng(0).normal(0, 3, 500), [0.0, 0.25, 0.75, 5.0, 100.0, np.inf]))
    for value, other in zip(values, round_values(values.astype(np.float32), dtype), strict=True):
        assert round_to(float(np.float32(value)), dtype) == other


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_numbers_round_to_the_nearest_byte(dtype: str) -> None:
    """By arithmetic, where there is no instruction: ties to even, subnormals, and up to the largest."""
    codes = np.arange(120, dtype=np.uint8).view(getattr(ml_dtypes, dtype)).astype(np.float32)
    largest = codes[np.isfinite(codes)].max()
    numbers = codes[np.isfinite(codes) & (codes < largest)]
    between = (numbers[:-1] + numbers[1:]) / 2
    values = np.resize(np.concatenate((between, np.nextafter(between, np.float32(0)), -numbers)), 256).astype(
        np.float32
    )
    expected = values.astype(getattr(ml_dtypes, dtype)).astype(np.float64)
    np.testing.assert_array_equal(converted("float32", dtype, values), expected)
