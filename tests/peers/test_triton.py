"""PTX of Triton's, compiled ahead of time from kernels of our own, against numpy.

Triton's code is right on silicon, so where the emulator faults or computes something else the emulator is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from peers import Kernel, compile_triton, triton_python

from tilec.emu import Report, TensorMap, launch
from tilec.emu.numbers import Array, bf16_to_f32, f32_to_bf16

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(triton_python() is None, reason="no interpreter here imports triton"),
]
NULL = None


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    return compile_triton(tmp_path_factory.mktemp("triton"))


def run(kernel: Kernel, grid: tuple[int, ...], *args: Any) -> Report:
    """Triton appends two pointers to scratch memory of each block, the second for its profiler."""
    blocks = int(np.prod(grid))
    scratch = np.zeros(kernel.scratch * blocks, np.uint8) if kernel.scratch else NULL
    block = (kernel.threads, 1, 1)
    return launch(kernel.ptx, kernel.entry, grid, block, [*args, scratch, NULL], dynamic_smem=kernel.shared)


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_vector_add(kernels: dict[str, Kernel]) -> None:
    n = 1000
    x, y, out = normal(1, n), normal(2, n), np.zeros(n, np.float32)
    run(kernels["vector_add"], (4,), x, y, out, n)
    np.testing.assert_array_equal(out, x + y)


def test_softmax(kernels: dict[str, Kernel]) -> None:
    x, out = normal(1, 3, 400) * 4, np.zeros((3, 400), np.float32)
    run(kernels["softmax"], (3,), x, out, 400, 400)
    weights = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, weights / weights.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp32"])
def test_gemm(kernels: dict[str, Kernel], kind: str, arch: int) -> None:
    m, n, k = 96, 80, 112
    a, b = normal(1, m, k), normal(2, k, n)
    out = np.zeros((m, n), np.float32)
    if kind == "bf16":
        a_bits, b_bits = f32_to_bf16(a), f32_to_bf16(b)
        a, b = bf16_to_f32(a_bits), bf16_to_f32(b_bits)
        run(kernels[f"gemm_{kind}_sm{arch}"], (2, 2), a_bits, b_bits, out, m, n, k)
    else:
        if kind == "fp16":
            a, b = a.astype(np.float16), b.astype(np.float16)
        run(kernels[f"gemm_{kind}_sm{arch}"], (2, 2), a, b, out, m, n, k)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    # tf32 keeps 10 bits of a factor.
    np.testing.assert_allclose(out, exact, atol=0.1 if kind == "fp32" else 1e-3)


def test_gemm_fp64(kernels: dict[str, Kernel]) -> None:
    a, b = np.random.default_rng(1).standard_normal((2, 48, 48))
    out = np.zeros((48, 48))
    run(kernels["gemm_fp64"], (2, 2), a, b, out, 48, 48, 48)
    np.testing.assert_allclose(out, a @ b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_gemm_int8(kernels: dict[str, Kernel], arch: int) -> None:
    generator = np.random.default_rng(1)
    a, b = (generator.integers(-128, 128, (64, 128), dtype=np.int8) for _ in range(2))
    out = np.zeros((64, 64), np.int32)
    run(kernels[f"gemm_int8_sm{arch}"], (1, 1), a, b, out, 64, 64, 128)
    np.testing.assert_array_equal(out, a.astype(np.int32) @ b.astype(np.int32).T)


def descriptor(array: Array, box: int) -> list[object]:
    """A descriptor argument becomes the map, the sizes and the strides."""
    strides = [stride // array.itemsize for stride in array.strides]
    return [TensorMap(array, (box, 64), 128), *array.shape, *strides]


@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize("stages", [2, 3])
def test_gemm_descriptors(kernels: dict[str, Kernel], stages: int, arch: int) -> None:
    m, n, k = 100, 72, 200
    a, b = normal(1, m, k).astype(np.float16), normal(2, n, k).astype(np.float16)
    out = np.zeros((m, n), np.float16)
    args = [*descriptor(a, 64), *descriptor(b, 64), *descriptor(out, 64), k]
    run(kernels[f"gemm_descriptors_{stages}_sm{arch}"], (2, 2), *args)
    np.testing.assert_allclose(out, a.astype(np.float32) @ b.astype(np.float32).T, atol=0.05)


@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize(("name", "tile"), [("gemm_device_descriptors", 64), ("gemm_specialised", 128)])
def test_gemm_device_descriptors(kernels: dict[str, Kernel], name: str, tile: int, arch: int) -> None:
    m, n, k = 200, 136, 256
    a, b = normal(1, m, k).astype(np.float16), normal(2, n, k).astype(np.float16)
    out = np.zeros((m, n), np.float16)
    run(kernels[f"{name}_sm{arch}"], (-(-m // tile), -(-n // tile)), a, b, out, m, n, k)
    np.testing.assert_allclose(out, a.astype(np.float32) @ b.astype(np.float32).T, atol=0.05)


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("form", ["full", "causal"])
def test_attention(kernels: dict[str, Kernel], form: str, arch: int) -> None:
    length, heads = 128, 1
    q, k, v = (normal(seed, heads, length, 64).astype(np.float16) for seed in range(3))
    out = np.zeros_like(q)
    run(kernels[f"attention_{form}_sm{arch}"], (length // 64, heads), q, k, v, out, length, 0.125)
    scores = np.einsum("hid,hjd->hij", q.astype(np.float32), k.astype(np.float32)) * 0.125
    if form == "causal":
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(out, weights @ v.astype(np.float32), atol=4e-3)


def test_histogram(kernels: dict[str, Kernel]) -> None:
    x = np.random.default_rng(1).integers(1, 64, 900).astype(np.int32)
    counts = np.zeros(64, np.int32)
    run(kernels["histogram"], (2,), x, counts, 900)
    expected = np.bincount(x, minlength=64)
    # What lies past the end counts as bin 0.
    expected[0] += 1024 - 900
    np.testing.assert_array_equal(counts, expected)


def test_scan_and_sort(kernels: dict[str, Kernel]) -> None:
    x = np.random.default_rng(1).integers(-1000, 1000, 256).astype(np.int32)
    sums, ordered = np.zeros_like(x), np.zeros_like(x)
    run(kernels["scan_sort"], (1,), x, sums, ordered)
    np.testing.assert_array_equal(sums, np.cumsum(x))
    np.testing.assert_array_equal(ordered, np.sort(x))


def test_mathematics(kernels: dict[str, Kernel]) -> None:
    from math import erf

    x, y = normal(1, 256) * 3, normal(2, 256) * 3
    out = np.zeros((5, 256), np.float32)
    small, large = np.zeros(256, np.uint8), np.zeros(256, np.uint8)
    run(kernels["mathematics"], (1,), x, y, out, small, large)
    a, b = x.astype(np.float64), np.abs(y).astype(np.float64)
    expected = [
        1 / (1 + np.exp(-a)) + np.sqrt(b),
        np.sin(a) * np.cos(y),
        np.floor(x) + np.ceil(y),
        np.vectorize(erf)(a) + np.log2(b),
        1 / np.sqrt(b) + x / y,
    ]
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)
    import ml_dtypes

    np.testing.assert_array_equal(small, x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
    # By way of f16, as the kernel does it.
    once = x.astype(ml_dtypes.float8_e5m2)
    np.testing.assert_array_equal(large, once.astype(np.float16).astype(ml_dtypes.float8_e5m2).view(np.uint8))
