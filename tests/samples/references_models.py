"""What the samples of layers and of compressed weights compute, in numpy: more of `references`."""

from __future__ import annotations

import math

import numpy as np
from references import SAMPLES, Array, Generator, Outputs, integers, sample

__all__ = ["SAMPLES"]

SMALL: dict[str, int] = {"block_M": 64, "block_N": 64, "block_K": 32, "threads": 128}


def _unpacked(packed: Array) -> Array:
    """Two numbers of 4 bits from each byte, the lower one first."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)


@sample("gemm/dynamic", N=72, K=80, **SMALL, sizes={"M": 100}, steps=1)
def _(A: Array, B: Array) -> Outputs:
    return {"C": A @ B}


@sample(
    "gemm/dequant_int4", M=64, N=72, K=96, group=32, **SMALL, inputs={"B": integers(0, 256)}, noise=1e-3,
)  # fmt: skip
def _(A: Array, B: Array, scale: Array, group: int) -> Outputs:
    return {"C": A @ ((_unpacked(B) - 8) * scale.repeat(group, 1)).T}


@sample(
    "gemm/dequant_fp4", M=48, N=72, K=96, block_M=32, block_N=64, block_K=32, threads=128,
    inputs={"B": integers(0, 256), "scale": integers(124, 130)},
)  # fmt: skip
def _(A: Array, B: Array, scale: Array) -> Outputs:
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    weights = np.concatenate([values, -values])[_unpacked(B)]
    return {"C": A @ (weights * np.exp2(scale - 127.0).repeat(32, 1)).T}


def _places(generator: Generator, shape: tuple[int, ...]) -> Array:
    """For each of four groups of four, two different places in order."""
    pairs = np.array([a | b << 2 for a in range(4) for b in range(a + 1, 4)])
    return (generator.choice(pairs, (*shape, 4)) << np.arange(0, 16, 4)).sum(axis=-1)


@sample("gemm/sparse_2_4", M=64, N=72, K=96, **SMALL, inputs={"places": _places})
def _(A: Array, places: Array, B: Array) -> Outputs:
    pairs = places[:, :, None] >> np.arange(0, 16, 2) & 3  # where each element that is kept stands in its four
    columns = pairs.reshape(len(A), -1) + np.arange(A.shape[1]) // 2 * 4
    dense = np.zeros((len(A), B.shape[0]))
    np.put_along_axis(dense, columns, A, axis=1)
    return {"C": dense @ B}


@sample(
    "models/conv2d", batch=2, H=7, W=6, C=12, F=40, block_M=64, block_N=32, block_K=32, threads=128,
    also=({"stride": 2, "padding": 0},),
    padding=1, stride=1, kernel=3,
)  # fmt: skip
def _(X: Array, weight: Array, kernel: int, stride: int, padding: int) -> Outputs:
    padded = np.pad(X, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (1, 2))[:, ::stride, ::stride]
    rows = np.moveaxis(seen, 3, 5).reshape(-1, weight.shape[0])
    return {"Y": rows @ weight}
