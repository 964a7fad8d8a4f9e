"""T.gemm_sp against numpy: 2:4 sparse products by mma.sp and wgmma.sp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver.build import Build
from tilec.driver.emulation import emulate
from tilec.ir.elements import decode_values, encode_values
from tilec.ir.types import TYPES_BY_NAME, DType

KERNEL = HERE / "gemm_sparse.tl"
TARGETS = ("sm_80", "sm_90a")

Array = np.ndarray[Any, Any]


def compressed(dense: Array, generator: np.random.Generator, dtype: DType, element: str) -> tuple[Array, Array, Array]:
    """A matrix made sparse; what is stored of it, and the metadata as integers `element`."""
    rows, k = dense.shape
    group, kept = (2, 1) if dtype.name == "float32" else (4, 2)
    places = np.sort(generator.permuted(np.tile(np.arange(group), (rows, k // group, 1)), axis=-1)[..., :kept], axis=-1)
    groups = dense.reshape(rows, -1, group)
    stays = np.zeros(groups.shape, bool)
    np.put_along_axis(stays, places, True, axis=-1)
    fields = np.where(places[..., 0], 0b1110, 0b0100) if kept == 1 else places[..., 0] | places[..., 1] << 2
    octets = (fields[:, ::2] | fields[:, 1::2] << 4).astype(np.uint8)
    values = np.take_along_axis(groups, places, axis=-1).reshape(rows, -1)
    return np.where(stays, groups, 0).reshape(rows, k), values, np.ascontiguousarray(octets).view(element)


def computed(made: Build, transpose_a: bool, transpose_b: bool, places_dtype: str) -> tuple[Array, Array]:
    """What the emulated kernel gives for small integers, and what numpy does."""
    arguments = emulate.draw_arguments(made.kernel, made.manifest, 1)
    generator = np.random.default_rng(2)
    dtype = TYPES_BY_NAME[made.manifest.tensor("A").dtype]
    m, n = arguments.tensors["C"].shape
    low = 0 if dtype.kind == "uint" else -4
    k = arguments.tensors["B"].shape[1 if transpose_b else 0]
    a, b = (generator.integers(low, 5, shape).astype(np.float64) for shape in ((m, k), (k, n)))
    a, kept, metadata = compressed(a, generator, dtype, places_dtype)
    given = {"A": kept.T if transpose_a else kept, "B": b.T if transpose_b else b}
    for name, values in given.items():
        values = np.ascontiguousarray(values)
        arguments.tensors[name] = encode_values(values if dtype.is_float else values.astype(dtype.name), dtype)
    arguments.tensors["E"] = metadata
    reference = arguments.copy()
    emulate.emulate_build(made, arguments)
    emulate.run_reference(made.kernel, reference)
    np.testing.assert_array_equal(reference.tensors["C"], arguments.tensors["C"])
    return decode_values(arguments.tensors["C"], TYPES_BY_NAME[made.manifest.tensor("C").dtype]), a @ b


def check(target: str, **defines: Any) -> Build:
    _, made = built(KERNEL, target, **defines)
    known = ("bank-conflict", "barriers-exhausted", "assembled-interval")  # all of them about speed
    assert [w.title for w in made.warnings if w.code not in known] == []
    transposed = bool(defines.get("transpose_A")), bool(defines.get("transpose_B"))
    found, expected = computed(made, *transposed, defines.get("places_dtype", "int16"))
    np.testing.assert_array_equal(found, expected)
    return made


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(dtype: str, transpose_a: bool, transpose_b: bool, target: str) -> None:
    made = check(target, dtype=dtype, transpose_A=transpose_a, transpose_B=transpose_b)
    assert ("wgmma.mma_async.sp" if target == "sm_90a" else "mma.sp.sync") in made.ptx


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("places_dtype", "per_element"), [("int8", 8), ("uint8", 8), ("uint16", 16), ("int32", 32), ("uint32", 32)]
)
@pytest.mark.parametrize("block_K", [64, 96, 128])
def test_metadata_in_any_integer(places_dtype: str, per_element: int, block_K: int, target: str) -> None:
    """Also an odd number of instructions along k, of which no two share a register."""
    check(target, places_dtype=places_dtype, per_element=per_element, block_K=block_K, block_M=128, threads=256)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("dtype", "accum_dtype", "per_element"), [("int8", "int32", 16), ("uint8", "int32", 16), ("float32", "float32", 8)]
)
def test_other_types(dtype: str, accum_dtype: str, per_element: int, target: str) -> None:
    made = check(target, dtype=dtype, accum_dtype=accum_dtype, per_element=per_element, transpose_B=True, N=48)
    assert ("wgmma.mma_async.sp" if target == "sm_90a" else "mma.sp.sync") in made.ptx


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("accum_dtype", ["float32", "float16"])
def test_eight_bit_floats(dtype: str, accum_dtype: str) -> None:
    check("sm_90a", dtype=dtype, accum_dtype=accum_dtype, transpose_B=True, N=48, block_K=128)


@pytest.mark.parametrize("target", TARGETS)
def test_halves_as_accumulators(target: str) -> None:
    check(target, accum_dtype="float16")


def test_tiles_too_small_for_wgmma() -> None:
    """mma.sp on sm_90a, also of 8-bit floats."""
    assert "mma.sp.sync" in check("sm_90a", block_M=32).ptx
    made = check("sm_90a", block_M=32, dtype="float8_e4m3fn", transpose_B=True, N=48)
    assert "mma.sp.sync" in made.ptx


@pytest.mark.parametrize("threads", [128, 256, 384])
def test_several_warpgroups(threads: int) -> None:
    """Each with rows of its own, fed by TMA."""
    made = check("sm_90a", M=200, N=136, K=512, block_M=threads // 2, block_N=128, block_K=128, threads=threads)
    assert "wgmma.mma_async.sp" in made.ptx and "elect.sync" in made.ptx
