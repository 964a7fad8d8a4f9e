"""What the samples of attention compute, in numpy: more of `references`."""

from __future__ import annotations

import math

import numpy as np
from references import SAMPLES, Array, Generator, Outputs, integers, sample

__all__ = ["SAMPLES"]

# Weights are rounded to the type of V before they are multiplied.
HALF, BRAIN = {"noise": 1e-3, "steps": 2.0}, {"noise": 8e-3, "steps": 2.0}


def _heads_first(*tensors: Array) -> list[Array]:
    """(batch, S, heads, D) as (batch, heads, S, D), or back."""
    return [np.swapaxes(tensor, 1, 2) for tensor in tensors]


def _scores(Q: Array, K: Array) -> Array:
    return Q @ np.swapaxes(K, -1, -2) / math.sqrt(Q.shape[-1])


def _weighted(scores: Array, V: Array, seen: Array | bool = True) -> Array:
    e = np.exp(scores - scores.max(axis=-1, keepdims=True)) * seen
    return e / e.sum(axis=-1, keepdims=True) @ V


def _causal(S: int) -> Array:
    return np.tri(S, dtype=bool)


@sample(
    "attention/causal", batch=1, heads=1, S=160, D=32, block_M=64, block_N=32, threads=128,
    also=({"S": 64},), **HALF,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array) -> Outputs:
    Q, K, V = _heads_first(Q, K, V)
    return {"O": _heads_first(_weighted(_scores(Q, K), V, _causal(Q.shape[2])))[0]}


@sample(
    "attention/warp_specialised", batch=1, heads=1, S=200, D=64, block_N=64, feature="wgmma",
    also=({"S": 40}, {"S": 128}, {"S": 192}), **HALF,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array) -> Outputs:
    Q, K, V = _heads_first(Q, K, V)
    return {"O": _heads_first(_weighted(_scores(Q, K), V))[0]}


@sample(
    "attention/flash_attention_sm100", batch=1, heads=1, S=200, D=64, feature="tcgen05",
    also=({"S": 40}, {"S": 64}, {"S": 320, "block_N": 96}, {"S": 300, "stages": 3, "D": 128}), **HALF,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array) -> Outputs:
    Q, K, V = _heads_first(Q, K, V)
    return {"O": _heads_first(_weighted(_scores(Q, K), V))[0]}


@sample("attention/gqa", batch=1, heads=8, kv_heads=2, S=64, D=32, block_M=64, block_N=32, threads=128, **BRAIN)
def _(Q: Array, K: Array, V: Array) -> Outputs:
    Q, K, V = _heads_first(Q, K, V)
    group = Q.shape[1] // K.shape[1]
    return {"O": _heads_first(_weighted(_scores(Q, K.repeat(group, 1)), V.repeat(group, 1)))[0]}


@sample(
    "attention/window_sink", batch=1, heads=1, S=160, D=32, window=40, block_N=32,
    also=({"window": 1000},), **BRAIN,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array, sink: Array, window: int) -> Outputs:
    Q, K, V = _heads_first(Q, K, V)
    S = Q.shape[2]
    seen = _causal(S) & ~np.tri(S, k=-window, dtype=bool)
    e = np.exp(_scores(Q, K)) * seen
    total = e.sum(axis=-1, keepdims=True) + np.exp(sink)[:, None, None]
    return {"O": _heads_first(e / total @ V)[0]}


@sample(
    "attention/varlen", batch=3, longest=100, heads=1, D=32, block_N=32, sizes={"tokens": 175},
    inputs={"starts": lambda generator, shape: np.array([0, 100, 105, 175])}, **HALF,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array, starts: Array) -> Outputs:
    pieces = []
    for b, e in zip(starts[:-1], starts[1:], strict=True):
        q, k, v = (np.swapaxes(t[b:e], 0, 1) for t in (Q, K, V))
        pieces.append(np.swapaxes(_weighted(_scores(q, k), v), 0, 1))
    return {"O": np.concatenate(pieces)}


def _lists(generator: Generator, shape: tuple[int, ...]) -> Array:
    """For each block of queries a list of different blocks of keys."""
    return np.array([generator.permutation(4)[: shape[-1]] for _ in range(math.prod(shape[:-1]))]).reshape(shape)


@sample(
    "attention/block_sparse", batch=1, heads=2, S=128, D=32, most=3, block_M=64, block_N=32, threads=128,
    inputs={"blocks": _lists, "counts": lambda generator, shape: np.array([[[3, 1], [0, 2]]])}, **HALF,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array, blocks: Array, counts: Array, block_M: int, block_N: int) -> Outputs:
    O = np.zeros_like(Q)
    for b, h, m in np.ndindex(counts.shape):
        rows = slice(m * block_M, (m + 1) * block_M)
        keys = [n * block_N + j for n in blocks[b, h, m, : counts[b, h, m]] for j in range(block_N)]
        if keys:
            O[b, h, rows] = _weighted(_scores(Q[b, h, rows], K[b, h, keys]), V[b, h, keys])
    return {"O": O}


@sample(
    "attention/decode_split", batch=2, heads=6, kv_heads=2, longest=200, D=32, splits=3, block_N=32,
    inputs={"lengths": lambda generator, shape: np.array([150, 20])}, **HALF,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array, lengths: Array, splits: int, block_N: int) -> Outputs:
    batch, kv_heads, group, D = Q.shape
    parts = np.zeros((batch, kv_heads, group, splits, D))
    sums = np.full((batch, kv_heads, group, splits), -np.inf)
    for b, length in enumerate(lengths):
        share = -(-(-(-length // block_N)) // splits) * block_N
        for part in range(splits):
            keys = slice(part * share, min((part + 1) * share, length))
            if keys.start >= length:
                continue
            k, v = (np.swapaxes(t[b, keys], 0, 1) for t in (K, V))
            scores = _scores(Q[b], k)
            parts[b, :, :, part] = _weighted(scores, v)
            sums[b, :, :, part] = np.log2(np.exp(scores).sum(axis=-1))
    return {"parts": parts, "sums": sums}


@sample("attention/decode_combine", rows=10, splits=5, D=32)
def _(parts: Array, sums: Array) -> Outputs:
    share = np.exp2(sums) / np.exp2(sums).sum(axis=1, keepdims=True)
    return {"O": np.einsum("rsd,rs->rd", parts, share)}


@sample(
    "attention/decode_paged", batch=2, heads=6, kv_heads=2, D=32, pages=8, page_size=32, most=4,
    inputs={"table": integers(0, 8), "lengths": lambda generator, shape: np.array([100, 32])}, **BRAIN,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array, table: Array, lengths: Array) -> Outputs:
    O = np.empty_like(Q)
    for b, length in enumerate(lengths):
        k, v = (np.concatenate(list(cache[table[b]]), axis=1)[:, :length] for cache in (K, V))
        O[b] = _weighted(_scores(Q[b], k), v)
    return {"O": O}


@sample("attention/backward_delta", rows=50, D=32)
def _(O: Array, dO: Array) -> Outputs:
    return {"delta": (O * dO).sum(axis=1)}


def _likely(generator: Generator, shape: tuple[int, ...]) -> Array:
    """What a sum of exponentials may have as its logarithm."""
    return generator.uniform(4, 5, shape)


def _weights_and_gradients(Q: Array, K: Array, V: Array, dO: Array, lse: Array, delta: Array) -> tuple[Array, Array]:
    weights = np.exp(_scores(Q, K) - lse[..., None]) * _causal(Q.shape[2])
    return weights, weights * (dO @ np.swapaxes(V, -1, -2) - delta[..., None]) / math.sqrt(Q.shape[3])


@sample(
    "attention/backward_dkdv", batch=1, heads=1, S=96, D=32, block_M=32, block_N=64, threads=128,
    inputs={"lse": _likely}, **HALF,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array, dO: Array, lse: Array, delta: Array) -> Outputs:
    weights, gradients = _weights_and_gradients(Q, K, V, dO, lse, delta)
    return {"dK": np.swapaxes(gradients, -1, -2) @ Q, "dV": np.swapaxes(weights, -1, -2) @ dO}


@sample(
    "attention/backward_atomic", batch=1, heads=1, S=96, D=32, block_M=64, block_N=64, threads=128,
    inputs={"lse": _likely}, **HALF,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array, dO: Array, lse: Array, delta: Array, dQ: Array) -> Outputs:
    weights, gradients = _weights_and_gradients(Q, K, V, dO, lse, delta)
    dK, dV = np.swapaxes(gradients, -1, -2) @ Q, np.swapaxes(weights, -1, -2) @ dO
    return {"dQ": dQ + gradients @ K, "dK": dK, "dV": dV}


@sample("attention/backward_dq", batch=1, heads=1, S=96, D=32, block_N=32, inputs={"lse": _likely}, **HALF)
def _(Q: Array, K: Array, V: Array, dO: Array, lse: Array, delta: Array) -> Outputs:
    return {"dQ": _weights_and_gradients(Q, K, V, dO, lse, delta)[1] @ K}


def _attend_latent(Q: Array, Q_rotary: Array, KV: Array, K_rotary: Array, lengths: Array) -> Array:
    query, keys = np.concatenate([Q, Q_rotary], axis=2), np.concatenate([KV, K_rotary], axis=2)
    scores = [_scores(query[b], keys[b, :length]) for b, length in enumerate(lengths)]
    return np.stack([_weighted(s, KV[b, : s.shape[1]]) for b, s in enumerate(scores)])


@sample(
    "attention/mla_decode", batch=2, heads=64, longest=100, latent=128, rotary=16,
    inputs={"lengths": lambda generator, shape: np.array([70, 32])}, **BRAIN,
)  # fmt: skip
def _(Q: Array, Q_rotary: Array, KV: Array, K_rotary: Array, lengths: Array) -> Outputs:
    return {"O": _attend_latent(Q, Q_rotary, KV, K_rotary, lengths)}


@sample(
    "attention/mla_seesaw", batch=3, heads=64, longest=300, latent=128, rotary=64, feature="wgmma",
    inputs={"lengths": lambda generator, shape: np.array([300, 64, 129])}, **BRAIN,
)  # fmt: skip
def _(Q: Array, Q_rotary: Array, KV: Array, K_rotary: Array, lengths: Array) -> Outputs:
    return {"O": _attend_latent(Q, Q_rotary, KV, K_rotary, lengths)}


@sample(
    "attention/mla_split", batch=2, heads=64, longest=100, latent=128, rotary=16, splits=3, block_N=32,
    inputs={"lengths": lambda generator, shape: np.array([70, 32])}, **BRAIN,
)  # fmt: skip
def _(Q: Array, Q_rotary: Array, KV: Array, K_rotary: Array, lengths: Array, splits: int, block_N: int) -> Outputs:
    query, keys = np.concatenate([Q, Q_rotary], axis=2), np.concatenate([KV, K_rotary], axis=2)
    parts = np.zeros((*Q.shape[:2], splits, Q.shape[2]))
    sums = np.full(parts.shape[:3], -np.inf)
    for b, length in enumerate(lengths):
        share = -(-(-(-length // block_N)) // splits) * block_N
        for part, start in enumerate(range(0, length, share)):
            seen = slice(start, min(start + share, length))
            scores = _scores(query[b], keys[b, seen])
            parts[b, :, part] = _weighted(scores, KV[b, seen])
            sums[b, :, part] = np.log2(np.exp(scores).sum(axis=-1))
    return {"parts": parts, "sums": sums}


def _slots(generator: Generator, shape: tuple[int, ...]) -> Array:
    """Return a different place in a cache of 48 for each token, and none for the third."""
    slots = generator.permutation(48)[: shape[0]]
    slots[2] = -1
    return slots


@sample(
    "attention/rotary_cache", tokens=20, heads=3, kv_heads=2, D=32, longest=64, pages=3, page_size=16,
    inputs={"positions": integers(0, 64), "slots": _slots},
)  # fmt: skip
def _(
    Q: Array, K: Array, V: Array, cosine: Array, sine: Array, positions: Array, slots: Array,
    K_cache: Array, V_cache: Array, page_size: int,
) -> Outputs:  # fmt: skip
    c, s = cosine[positions, None], sine[positions, None]

    def turned(X: Array) -> Array:
        a, b = np.split(X, 2, axis=2)
        return np.concatenate([a * c - b * s, b * c + a * s], axis=2)

    K_cache, V_cache = K_cache.copy(), V_cache.copy()
    for token in np.flatnonzero(slots >= 0):
        page, place = divmod(slots[token], page_size)
        K_cache[page, :, place], V_cache[page, :, place] = turned(K)[token], V[token]
    return {"Q_turned": turned(Q), "K_cache": K_cache, "V_cache": V_cache}


def _selected(generator: Generator, shape: tuple[int, ...]) -> Array:
    """Return for each query the block that it is in, another one of three, and none."""
    lists = np.full(shape, -1)
    own = np.arange(shape[1])[None, :, None] // 16
    lists[..., 0] = (own + generator.integers(1, 3, shape[:3])) % 3
    lists[..., 2] = own
    return lists


@sample(
    "attention/native_sparse", batch=1, heads=6, kv_heads=2, S=40, D=32, selected=3, block_N=16,
    inputs={"blocks": _selected}, **BRAIN,
)  # fmt: skip
def _(Q: Array, K: Array, V: Array, blocks: Array, block_N: int) -> Outputs:
    O = np.zeros_like(Q)
    for b, query, head in np.ndindex(Q.shape[:3]):
        listed = np.isin(np.arange(query + 1) // block_N, blocks[b, query, head])
        keys = np.flatnonzero(listed)
        O[b, query, head] = _weighted(_scores(Q[b, query, head], K[b, keys, head]), V[b, keys, head])
    return {"O": O}
