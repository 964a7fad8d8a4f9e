"""What each sample computes, in numpy: one function per sample, named by its path below samples/.

A reference takes, by name, what it needs of the tensors (as they were before the run), the scalars and the constants,
and returns the outputs. Tensors come as float64 or as integers; `inputs` may make some of them other than random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Outputs = dict[str, Array]
Generator = np.random.Generator


@dataclass(frozen=True)
class Sample:
    """`constants` make it small. An output may differ by `steps` roundings of its type and by `noise` times its largest
    element, which is what the order of a sum may change. `feature` is what a target must have, `sizes` are those that
    the kernel learns at launch."""

    path: str
    constants: Mapping[str, int | float | bool | str]
    reference: Callable[..., Outputs]
    inputs: Mapping[str, Callable[[Generator, tuple[int, ...]], Array]]
    steps: float = 2.0
    noise: float = 2e-6
    feature: str | None = None
    also: tuple[Mapping[str, int | float | bool | str], ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)


EIGHT_BIT_SUMS = 2.0**-12
"""`noise` of products of eight-bit floats: Hopper's tensor cores keep 13 bits behind the largest one's leading bit."""
SAMPLES: list[Sample] = []
Reference = Callable[..., Outputs]


def sample(
    path: str,
    *,
    inputs: Mapping[str, Callable[[Generator, tuple[int, ...]], Array]] | None = None,
    steps: float = 2.0,
    noise: float = 2e-6,
    feature: str | None = None,
    also: tuple[Mapping[str, int | float | bool | str], ...] = (),
    sizes: Mapping[str, int] | None = None,
    **constants: int | float | bool | str,
) -> Callable[[Reference], Reference]:
    """Decorator: the function is the reference of this sample. `also` are further sets of constants to run it with."""

    def keep(reference: Reference) -> Reference:
        SAMPLES.append(Sample(path, constants, reference, inputs or {}, steps, noise, feature, also, sizes or {}))
        return reference

    return keep


def integers(low: int, high: int) -> Callable[[Generator, tuple[int, ...]], Array]:
    return lambda generator, shape: generator.integers(low, high, shape)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _softmax(X: Array) -> Array:
    e = np.exp(X - X.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


# ---- to begin with ---------------------------------------------------------------------------------------------------


@sample("vector_add", N=500, block_N=256)
def _(A: Array, B: Array) -> Outputs:
    return {"C": A + B}


@sample("softmax", M=6, N=128)
def _(X: Array) -> Outputs:
    return {"Y": _softmax(X)}


@sample("gemm", M=100, N=72, K=80, block_M=64, block_N=64, block_K=32, threads=128)
def _(A: Array, B: Array) -> Outputs:
    return {"C": A @ B}


@sample("gemm_bias_relu", M=64, N=72, K=80, block_M=64, block_N=64, block_K=32, threads=128)
def _(A: Array, B: Array, bias: Array) -> Outputs:
    return {"C": np.maximum(A @ B + bias, 0)}


# ---- products of matrices --------------------------------------------------------------------------------------------

SMALL: dict[str, int] = {"block_M": 64, "block_N": 64, "block_K": 32, "threads": 128}


@sample(
    "gemm/transposed", M=64, N=72, K=80, **SMALL, trans_A=False, trans_B=False,
    also=tuple({"trans_A": a, "trans_B": b} for a, b in ((False, True), (True, False), (True, True))),
)  # fmt: skip
def _(A: Array, B: Array, trans_A: bool, trans_B: bool) -> Outputs:
    return {"C": (A.T if trans_A else A) @ (B.T if trans_B else B)}


@sample(
    "gemm/fp8_row_scaled", M=64, N=48, K=128, block_M=64, block_N=64, block_K=64, threads=128, feature="fp8",
    noise=EIGHT_BIT_SUMS,
)
def _(A: Array, B: Array, A_scale: Array, B_scale: Array) -> Outputs:
    return {"C": (A @ B.T) * A_scale[:, None] * B_scale}


@sample(
    "gemm/fp8_block_scaled", M=64, N=64, K=96, group=32, block_M=64, block_N=32, threads=128, feature="fp8",
    noise=EIGHT_BIT_SUMS,
)
def _(A: Array, B: Array, A_scale: Array, B_scale: Array, group: int) -> Outputs:
    wide = np.repeat(np.repeat(B_scale, group, 0), group, 1)
    return {"C": (A * np.repeat(A_scale.T, group, 1)) @ (B * wide).T}


@sample("gemm/int8", M=64, N=48, K=128, block_M=64, block_N=64, block_K=64, threads=128)
def _(A: Array, B: Array, factor: Array) -> Outputs:
    # The factor is applied in float32.
    scaled = (A @ B.T).astype(np.float32) * factor.astype(np.float32)
    return {"C": np.clip(np.rint(scaled), -128, 127)}


@sample("gemm/tf32", M=64, N=48, K=64, block_M=64, block_N=64, block_K=32, threads=128)
def _(A: Array, B: Array) -> Outputs:
    def tf32(values: Array) -> Array:
        return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)

    return {"C": tf32(A) @ tf32(B).T}


@sample("gemm/bias_gelu", M=64, N=72, K=80, **SMALL)
def _(A: Array, B: Array, bias: Array, residual: Array) -> Outputs:
    return {"C": _gelu(A @ B + bias + residual)}


@sample("gemm/swiglu", M=64, N=72, K=80, **SMALL)
def _(A: Array, gate: Array, up: Array) -> Outputs:
    gated = A @ gate
    return {"C": gated * _sigmoid(gated) * (A @ up)}


@sample("gemm/batched", batch=3, M=64, N=40, K=64, **SMALL)
def _(A: Array, B: Array) -> Outputs:
    return {"C": A @ B}


@sample("gemm/split_k", M=64, N=64, K=200, splits=3, **SMALL)
def _(A: Array, B: Array, C: Array) -> Outputs:
    return {"C": C + A @ B}


@sample("gemm/stream_k", M=128, N=64, K=160, blocks=3, **SMALL, also=({"blocks": 4}, {"blocks": 1, "M": 64}))
def _(A: Array, B: Array, C: Array) -> Outputs:
    return {"C": C + A @ B}


@sample(
    "gemm/grouped", rows=150, groups=3, N=64, K=64, **SMALL,
    inputs={"sizes": lambda generator, shape: np.array([70, 0, 80])},
)  # fmt: skip
def _(A: Array, B: Array, sizes: Array) -> Outputs:
    ends = np.cumsum(sizes)
    parts = [A[end - size : end] @ B[g] for g, (end, size) in enumerate(zip(ends, sizes, strict=True))]
    return {"C": np.concatenate(parts)}


def _route(tokens: int, sizes: list[int]) -> dict[str, Callable[[Generator, tuple[int, ...]], Array]]:
    """Return the inputs of experts that have so many tokens each, different ones."""

    def draw_ids(generator: Generator, shape: tuple[int, ...]) -> Array:
        return np.concatenate([generator.permutation(tokens)[:count] for count in sizes])

    return {"sizes": lambda generator, shape: np.array(sizes), "ids": draw_ids}


# Blocks of the second one with no tile, with one, three and six; with one load for a tile and more than go around.
@sample("gemm/moe_grouped", tokens=80, pairs=150, groups=3, N=64, K=64, **SMALL, inputs=_route(80, [70, 0, 80]))
@sample(
    "gemm/moe_ping_pong", tokens=160, pairs=230, groups=3, N=200, K=136, blocks=1, feature="wgmma",
    inputs=_route(160, [150, 0, 80]),
    also=({"blocks": 7, "K": 8}, {"blocks": 2, "N": 72, "block_N": 64, "K": 328, "stages": 2}),
)  # fmt: skip
def _(A: Array, B: Array, ids: Array, weights: Array, sizes: Array, C: Array) -> Outputs:
    total = C.copy()
    for expert, pairs in enumerate(np.split(np.arange(len(ids)), np.cumsum(sizes)[:-1])):
        np.add.at(total, ids[pairs], weights[pairs, None] * (A[ids[pairs]] @ B[expert]))
    return {"C": total}


@sample("gemm/block_sparse", M=128, N=64, K=160, **SMALL, inputs={"mask": integers(0, 2)})
def _(A: Array, B: Array, mask: Array, block_M: int, block_K: int) -> Outputs:
    kept = np.repeat(np.repeat(mask, block_M, 0), block_K, 1)[: A.shape[0], : A.shape[1]]
    return {"C": (A * kept) @ B}


@sample("gemm/persistent", M=150, N=100, K=64, blocks=2, **SMALL)
def _(A: Array, B: Array) -> Outputs:
    return {"C": A @ B}


# Blocks of this sample with no tile, with one, two, three and four; with one load for a tile and more than go around.
@sample(
    "gemm/ping_pong", M=264, N=72, K=136, blocks=4, panel=2, block_N=64, feature="wgmma",
    also=({"blocks": 7, "K": 8}, {"blocks": 1, "N": 64, "stages": 2},
          {"blocks": 1, "M": 130, "N": 200, "K": 328, "block_N": 192}),
)  # fmt: skip
def _(A: Array, B: Array, bias: Array, residual: Array) -> Outputs:
    return {"C": _gelu(A @ B + bias + residual)}


@sample("gemm/gemm_sm100", M=600, N=256, K=136, walkers=2, block_N=128)
def _(A: Array, B: Array) -> Outputs:
    return {"C": A @ B.T}


@sample("gemm/gemm_2cta", M=768, N=128, K=136, block_N=64, stages=2, pairs=2, feature="tcgen05")
def _(A: Array, B: Array) -> Outputs:
    return {"C": A @ B}


@sample(
    "gemm/pipeline_objects", M=264, N=520, K=200, sms=3, feature="tma", noise=1e-3,
    also=({"K": 8}, {"K": 128}, {"K": 192}, {"K": 256}, {"sms": 1, "stages": 2}, {"sms": 9, "stages": 1}),
)  # fmt: skip
def _(A: Array, B: Array) -> Outputs:
    return {"C": A @ B}


@sample(
    "gemm/cluster",
    **{"M": 256, "N": 256, "K": 128, "block_N": 128},
    also=({"cluster_x": 2, "cluster_y": 1}, {"cluster_x": 2, "cluster_y": 2}),
    feature="cluster",
)
def _(A: Array, B: Array) -> Outputs:
    return {"C": A @ B}


@sample("gemm/gemv", M=20, K=600, block_M=8, block_K=256)
def _(A: Array, x: Array) -> Outputs:
    return {"y": A @ x}


# ---- element by element ----------------------------------------------------------------------------------------------


@sample("elementwise/chain", M=20, N=100, block_M=8, block_N=64, threads=128)
def _(X: Array, Z: Array, a: float, b: float) -> Outputs:
    return {"Y": np.clip(np.float32(a) * X + np.float32(b) * Z, -1, 1)}


@sample(
    "elementwise/gelu", N=1000, block_N=512, threads=128, approximate=False, also=({"approximate": True},), noise=5e-4
)
def _(X: Array, approximate: bool) -> Outputs:
    tanh = 0.5 * X * (1 + np.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3)))
    return {"Y": tanh if approximate else _gelu(X)}


@sample("elementwise/swiglu", M=10, N=96, block_M=4, block_N=64, threads=128)
def _(X: Array) -> Outputs:
    gate, up = np.split(X, 2, axis=1)
    return {"Y": gate * _sigmoid(gate) * up}


@sample("elementwise/transpose", M=48, N=80, block=32, threads=128, steps=0)
def _(A: Array) -> Outputs:
    return {"B": A.T}


@sample(
    "elementwise/embedding", tokens=20, vocabulary=30, width=96, block_width=64, threads=128, steps=0,
    inputs={"ids": integers(0, 30)},
)  # fmt: skip
def _(ids: Array, table: Array) -> Outputs:
    return {"Y": table[ids]}


@sample("elementwise/rotary", tokens=10, heads=2, dim=32, block_tokens=8)
def _(X: Array, cosine: Array, sine: Array) -> Outputs:
    a, b = np.split(X, 2, axis=2)
    c, s = cosine[:, None, :], sine[:, None, :]
    return {"Y": np.concatenate([a * c - b * s, b * c + a * s], axis=2)}


@sample("elementwise/hadamard", M=6, N=512)
def _(X: Array) -> Outputs:
    H = np.ones((1, 1))
    while len(H) < X.shape[1]:
        H = np.block([[H, H], [H, -H]])
    return {"Y": X @ H / math.sqrt(len(H))}


# ---- row by row ------------------------------------------------------------------------------------------------------


@sample("rows/softmax_online", M=6, N=300, block_N=128)
def _(X: Array) -> Outputs:
    return {"Y": _softmax(X)}


@sample("rows/softmax_shared", M=3, N=1024, block_N=512)
def _(X: Array) -> Outputs:
    return {"Y": _softmax(X)}


@sample("rows/softmax_held", M=3, N=1024, block_N=256, held=3, threads=64)
def _(X: Array) -> Outputs:
    return {"Y": _softmax(X)}


@sample("rows/softmax_padded", M=6, N=100, block_N=128)
def _(X: Array) -> Outputs:
    return {"Y": _softmax(X)}


@sample("rows/layernorm", M=6, N=128)
def _(X: Array, weight: Array, bias: Array) -> Outputs:
    return {"Y": (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-5) * weight + bias}


@sample("rows/rmsnorm", M=5, N=512, blocks=2, also=({"M": 1},))
def _(X: Array, weight: Array) -> Outputs:
    return {"Y": X / np.sqrt((X * X).mean(1, keepdims=True) + 1e-6) * weight}


@sample("rows/rmsnorm_dependent", M=5, N=256, feature="dependent_launch")
def _(X: Array, weight: Array) -> Outputs:
    return {"Y": X / np.sqrt((X * X).mean(1, keepdims=True) + 1e-6) * weight}


@sample("rows/batch_norm", M=64, N=64, parts=2, block_N=64, threads=256, noise=1e-5, also=({"N": 128},))
def _(X: Array, G: Array, B: Array) -> Outputs:
    return {"Y": (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-5) * G + B}


def _scaled(X: Array, smallest: float, largest: float) -> tuple[Array, Array]:
    """As the samples divide: in float32."""
    narrow = X.astype(np.float32)
    scale = np.maximum(np.abs(narrow).max(1), np.float32(smallest)) / np.float32(largest)
    return narrow / scale[:, None], scale


@sample("rows/cast_fp8_rows", M=6, N=128, steps=1)
def _(X: Array) -> Outputs:
    scaled, scale = _scaled(X, 1e-4, 448)
    return {"Y": scaled, "scale": scale}


@sample("rows/cast_fp8_groups", M=6, N=128, group=64, block_M=4, steps=1)
def _(X: Array, group: int) -> Outputs:
    scaled, scale = _scaled(X.reshape(-1, group), 1e-4, 448)
    return {"Y": scaled.reshape(X.shape), "scale": scale.reshape(len(X), -1).T}


@sample("rows/quantise_activations", M=6, N=128, group=64, block_M=4, steps=1)
def _(X: Array, group: int) -> Outputs:
    gate, up = np.split(X, 2, axis=1)
    gated = gate * _sigmoid(gate) * up
    scaled, scale = _scaled(gated.reshape(-1, group), 1e-4, 448)
    return {"Y": scaled.reshape(gated.shape), "scale": scale.reshape(len(X), -1)}


@sample("rows/cast_int8_rows", M=6, N=128)
def _(X: Array) -> Outputs:
    scaled, scale = _scaled(X, 1e-6, 127)
    return {"Y": np.rint(scaled), "scale": scale}


@sample("rows/top_k", M=6, N=64, k=3, block_M=4)
def _(X: Array, k: int) -> Outputs:
    order = np.argsort(-X, axis=1, kind="stable")[:, :k]
    return {"values": np.take_along_axis(X, order, 1), "indices": order}


def _rounded(generator: Generator, shape: tuple[int, ...]) -> Array:
    """Return numbers of either sign, many of them equal."""
    return np.rint(8 * generator.standard_normal(shape)) / 4


@sample("rows/top_k_long", M=5, N=256, k=40, threads=64, inputs={"X": _rounded})
def _(X: Array, k: int) -> Outputs:
    return {"indices": np.sort(np.argsort(-X, axis=1, kind="stable")[:, :k], axis=1)}


@sample(
    "rows/top_p", M=6, N=512, threads=64, also=({"ends_early": False},),
    inputs={
        "X": lambda generator, shape: _softmax(3 * generator.standard_normal(shape)),
        "p": lambda generator, shape: generator.uniform(0, 1, shape),
        "draws": lambda generator, shape: 1 - generator.uniform(0, 1, shape),
    },
)  # fmt: skip
def _(X: Array, p: Array, draws: Array) -> Outputs:
    token = np.empty(len(X), dtype=np.int64)
    for row, likely in enumerate(X):
        descending = np.sort(likely)[::-1]
        least = descending[np.searchsorted(np.cumsum(descending), p[row])]
        sums = np.cumsum(np.where(likely >= least, likely, 0))
        token[row] = np.searchsorted(sums, draws[row] * sums[-1])
    return {"token": token}


@sample("rows/argmax", M=6, N=300, block_N=128)
def _(X: Array) -> Outputs:
    return {"index": X.argmax(1)}


@sample("rows/prefix_sum", M=6, N=300, block_M=4, block_N=64)
def _(X: Array) -> Outputs:
    return {"Y": np.cumsum(X, axis=1)}


@sample("rows/column_sum", M=100, N=80, block_M=32, block_N=64)
def _(X: Array, total: Array) -> Outputs:
    return {"total": total + X.sum(0)}


@sample("rows/row_statistics", M=6, N=128)
def _(X: Array) -> Outputs:
    return {"total": X.sum(1), "smallest": X.min(1), "largest": X.max(1), "magnitude": np.abs(X).max(1)}


@sample("rows/cross_entropy", M=6, N=300, block_N=128, inputs={"label": integers(0, 300)})
def _(X: Array, label: Array) -> Outputs:
    rows = np.arange(len(X))
    return {"loss": np.log(np.exp(X).sum(1)) - X[rows, label]}


@sample("rows/gemv_transposed", K=150, N=104, block_N=64, splits=3)
def _(x: Array, A: Array, y: Array) -> Outputs:
    return {"y": y + x @ A}
