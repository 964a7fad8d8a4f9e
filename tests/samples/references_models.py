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
    also=({"M": 13, "K": 192, "group": 64, "block_M": 16, "block_K": 64},),
)  # fmt: skip
def _(A: Array, B: Array, scale: Array, group: int) -> Outputs:
    return {"C": A @ ((_unpacked(B) - 8) * scale.repeat(group, 1)).T}


@sample(
    "gemm/dequant_split_k", M=13, N=72, K=384, group=64, splits=2, block_N=64, block_K=64,
    inputs={"B": integers(-(1 << 31), 1 << 31)}, noise=1e-3,
)  # fmt: skip
def _(A: Array, B: Array, scale: Array, C: Array, group: int) -> Outputs:
    shifts = np.arange(8) % 2 * 16 + np.arange(8) // 2 * 4
    weights = (B[..., None] >> shifts & 15).reshape(len(B), -1)
    return {"C": C + A @ ((weights - 8) * scale.repeat(group, 1)).T}


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


def _dense(kept: Array, places: Array) -> Array:
    pairs = places[:, :, None] >> np.arange(0, 16, 2) & 3  # where each element that is kept stands in its four
    columns = pairs.reshape(len(kept), -1) + np.arange(kept.shape[1]) // 2 * 4
    dense = np.zeros((len(kept), 2 * kept.shape[1]))
    np.put_along_axis(dense, columns, kept, axis=1)
    return dense


@sample("gemm/sparse_2_4", M=64, N=72, K=96, **SMALL, inputs={"places": _places})
def _(A: Array, places: Array, B: Array) -> Outputs:
    return {"C": _dense(A, places) @ B}


@sample(
    "gemm/sparse_tensor_cores", M=96, N=72, K=256, block_M=64, block_N=64, block_K=128, threads=128,
    inputs={"E": _places},
)  # fmt: skip
def _(A: Array, E: Array, B: Array) -> Outputs:
    return {"C": _dense(A, E) @ B}


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


@sample(
    "models/conv2d_im2col", batch=2, H=7, W=6, C=32, F=40, block_M=64, block_N=32, block_K=32, threads=128,
    also=({"stride": 2, "padding": 0, "dilation": 2}, {"C": 12}),
    padding=1, stride=1, kernel=3, dilation=1,
)  # fmt: skip
def _(X: Array, weight: Array, kernel: int, stride: int, padding: int, dilation: int) -> Outputs:
    padded = np.pad(X, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    reach = dilation * (kernel - 1) + 1
    seen = np.lib.stride_tricks.sliding_window_view(padded, (reach, reach), (1, 2))[:, ::stride, ::stride]
    rows = np.moveaxis(seen[..., ::dilation, ::dilation], 3, 5).reshape(-1, weight.shape[0])
    return {"Y": rows @ weight}


# ---- states that go from chunk to chunk, each computed here a position at a time -------------------------------------

BRAIN = {"noise": 1e-2}


@sample(
    "models/linear_attention", batch=1, heads=2, S=128, D=32, D_V=32, chunk=64, block_D=32, **BRAIN,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array) -> Outputs:
    states = np.cumsum(K[..., :, None] * V[..., None, :], axis=2)
    return {"O": np.einsum("bhsd,bhsde->bhse", Q, states), "last": states[:, :, -1]}


@sample("models/retention", batch=1, heads=2, S=160, D=32, D_V=32, **BRAIN)
def _(Q: Array, K: Array, V: Array) -> Outputs:
    S, heads = Q.shape[1:3]
    back = np.arange(S)[:, None] - np.arange(S)
    decay = 1 - np.exp2(-5.0 - np.arange(heads))
    fading = np.where(back >= 0, decay[:, None, None] ** np.maximum(back, 0), 0)
    weights = np.einsum("bshd,bthd->bhst", Q, K) * fading / math.sqrt(Q.shape[3])
    total = np.maximum(np.abs(weights.sum(axis=-1)), 1)
    return {"O": np.einsum("bhst,bthd->bshd", weights / total[..., None], V)}


def _running(generator: Generator, shape: tuple[int, ...]) -> Array:
    """Sums along the last dimension of what may be logarithms of decays."""
    return np.cumsum(generator.uniform(-0.1, 0, shape), axis=-1)


def _steps(generator: Generator, shape: tuple[int, ...]) -> Array:
    return generator.uniform(0, 1, shape)


MAMBA: dict[str, int] = {"batch": 1, "chunks": 2, "chunk": 128, "heads": 4, "groups": 2, "D": 64, "N": 32}


@sample("models/mamba_chunk_state", **MAMBA, inputs={"dt": _steps, "decay": _running}, noise=1e-3)
def _(X: Array, B: Array, dt: Array, decay: Array) -> Outputs:
    left = np.exp(decay[..., -1:] - decay) * dt
    return {"states": np.einsum("bclhd,bclhn,bhcl->bchdn", X, B.repeat(X.shape[3] // B.shape[3], 3), left)}


@sample(
    "models/warp_specialised_gemm", M=200, N=264, K=328, feature="wgmma",
    also=({"K": 8}, {"K": 128}, {"K": 192}, {"K": 256}), steps=2.0, noise=1e-3,
)  # fmt: skip
def _(A: Array, B: Array) -> Outputs:
    return {"C": A @ B}


@sample(
    "models/mamba_state_passing", batch=2, chunks=3, heads=2, size=300, block=256,
    inputs={"decay": lambda generator, shape: generator.uniform(-2, 0, shape)},
)  # fmt: skip
def _(states: Array, decay: Array) -> Outputs:
    begins, state = np.empty_like(states), np.zeros_like(states[:, 0])
    for c in range(states.shape[1]):
        begins[:, c] = state
        state = state * np.exp(decay[:, :, c, None]) + states[:, c]
    return {"begins": begins, "last": state}


@sample("models/mamba_chunk_scan", **MAMBA, inputs={"dt": _steps, "decay": _running}, noise=1e-3)
def _(CB: Array, X: Array, dt: Array, decay: Array, C: Array, begins: Array, skip: Array) -> Outputs:
    share = X.shape[3] // C.shape[3]
    seen = np.tri(X.shape[2])
    left = np.exp(np.minimum(decay[..., :, None] - decay[..., None, :], 0)) * seen * dt[..., None, :]
    within = np.einsum("bchlk,bhclk,bckhd->bclhd", CB.repeat(share, 2), left, X)
    across = np.einsum("bclhn,bchdn,bhcl->bclhd", C.repeat(share, 3), begins, np.exp(decay))
    return {"Y": within + across + skip[:, None] * X}


@sample(
    "models/gated_delta_rule", batch=1, heads=2, S=64, D=32, D_V=32, chunk=32, block_D=16, threads=64,
    inputs={
        "K": lambda generator, shape: _unit(generator.standard_normal(shape)),
        "gate": lambda generator, shape: _chunked_sums(generator.uniform(-0.1, 0, shape), 32),
        "beta": _steps,
    },
    noise=2e-2,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array, gate: Array, beta: Array, chunk: int) -> Outputs:
    return {"O": _apply_delta_rule(Q, K, V, gate[..., None], beta, chunk)}


def _apply_delta_rule(Q: Array, K: Array, V: Array, gate: Array, beta: Array, chunk: int) -> Array:
    """Go through the gated delta rule position by position. `gate` are the running sums over each chunk, of all
    channels of the keys together or of each."""
    state = np.zeros((*K.shape[:2], K.shape[3], V.shape[3]))
    O = np.empty_like(V)
    for t in range(K.shape[2]):
        before = gate[:, :, t - 1] if t % chunk else 0
        state *= np.exp(gate[:, :, t] - before)[..., None]
        k = K[:, :, t]
        new = beta[:, :, t, None] * (V[:, :, t] - np.einsum("bhd,bhde->bhe", k, state))
        state += k[..., None] * new[..., None, :]
        O[:, :, t] = np.einsum("bhd,bhde->bhe", Q[:, :, t], state) / math.sqrt(K.shape[3])
    return O


def _unit(vectors: Array) -> Array:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _chunked_sums(values: Array, chunk: int) -> Array:
    return np.cumsum(values.reshape(*values.shape[:-1], -1, chunk), axis=-1).reshape(values.shape)


@sample(
    "models/lightning_indexer", S=160, heads=3, D=64, block_M=64, block_N=64, threads=128, feature="fp8", noise=1e-3,
)  # fmt: skip
def _(Q: Array, K: Array, K_scale: Array, weights: Array) -> Outputs:
    products = np.maximum(np.einsum("qhd,kd->hqk", Q, K), 0)
    scores = np.einsum("hqk,hq->qk", products, weights) * K_scale
    return {"scores": np.where(np.tri(len(Q), dtype=bool), scores, -np.inf)}


@sample(
    "models/kda_chunk", batch=1, heads=2, S=64, D=32, D_V=32, chunk=32, block_D=16, threads=64,
    inputs={
        "K": lambda generator, shape: _unit(generator.standard_normal(shape)),
        "gate": lambda generator, shape: _sum_channels(generator.uniform(-0.3, 0, shape), 32),
        "beta": _steps,
    },
    noise=2e-2,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array, gate: Array, beta: Array, chunk: int) -> Outputs:
    return {"O": _apply_delta_rule(Q, K, V, gate, beta, chunk)}


def _sum_channels(values: Array, chunk: int) -> Array:
    """Return the running sums of each channel over each chunk of positions."""
    return values.reshape(*values.shape[:2], -1, chunk, values.shape[3]).cumsum(axis=3).reshape(values.shape)


@sample(
    "models/kda_chunk_backward", batch=1, heads=2, S=96, D=32, D_V=32, chunk=32, block_D=16, threads=64,
    inputs={
        "K": lambda generator, shape: _unit(generator.standard_normal(shape)),
        "gate": lambda generator, shape: _sum_channels(generator.uniform(-0.1, 0, shape), 32),
        "beta": _steps,
    },
    noise=1e-2,
)  # fmt: skip
def _(
    Q: Array, K: Array, V: Array, gate: Array, beta: Array, dO: Array, dQ: Array, dK: Array, dgate: Array,
    dbeta: Array, chunk: int,
) -> Outputs:  # fmt: skip
    """Go through the recurrence of kda_chunk position by position, forward and then backward."""
    S, scale = K.shape[2], 1 / math.sqrt(K.shape[3])
    fades = np.exp(gate - np.where(np.arange(S)[:, None] % chunk, np.roll(gate, 1, axis=2), 0))[..., None]
    state = np.zeros((*K.shape[:2], K.shape[3], V.shape[3]))
    new, faded, states = np.empty_like(V), [], []
    for t in range(S):
        faded.append(state * fades[:, :, t])
        new[:, :, t] = V[:, :, t] - np.einsum("bhd,bhde->bhe", K[:, :, t], faded[t])
        state = faded[t] + np.einsum("bhd,bhe->bhde", K[:, :, t], beta[:, :, t, None] * new[:, :, t])
        states.append(state)

    dQ, dK, dgate, dbeta, dV = dQ.copy(), dK.copy(), dgate.copy(), dbeta.copy(), np.empty_like(V)
    d_state = np.zeros_like(state)
    for t in reversed(range(S)):
        q, k, b, learnt = Q[:, :, t], K[:, :, t], beta[:, :, t, None], beta[:, :, t, None] * new[:, :, t]
        dQ[:, :, t] += np.einsum("bhde,bhe->bhd", states[t], dO[:, :, t]) * scale
        d_state = d_state + np.einsum("bhd,bhe->bhde", q, dO[:, :, t]) * scale
        d_learnt = np.einsum("bhd,bhde->bhe", k, d_state)
        dbeta[:, :, t] += (d_learnt * new[:, :, t]).sum(axis=-1)
        dV[:, :, t] = b * d_learnt
        dK[:, :, t] += np.einsum("bhde,bhe->bhd", d_state, learnt) - np.einsum("bhde,bhe->bhd", faded[t], dV[:, :, t])
        d_state = d_state - np.einsum("bhd,bhe->bhde", k, dV[:, :, t])
        d_fade = (d_state * faded[t]).sum(axis=-1)  # of the logarithm, which is a difference of two running sums
        dgate[:, :, t] += d_fade
        if t % chunk:
            dgate[:, :, t - 1] -= d_fade
        d_state = d_state * fades[:, :, t]
    return {"dQ": dQ, "dK": dK, "dV": dV, "dgate": dgate, "dbeta": dbeta}
