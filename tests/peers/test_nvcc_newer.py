"""What newer hardware brought, as nvcc and libcu++ spell it, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from peers import compile_cuda, nvcc

from tilec.emu import Report, launch
from tilec.emu.numbers import Array

pytestmark = [pytest.mark.peers, pytest.mark.skipif(nvcc() is None, reason="nvcc is not on PATH")]

Run = Callable[..., Report]
HOPPER = pytest.mark.parametrize("run", ["sm_90a", "sm_100a"], indirect=True)


@pytest.fixture(scope="module", params=["sm_80", "sm_90a", "sm_100a"])
def run(request: pytest.FixtureRequest) -> Run:
    ptx = compile_cuda(request.param, "newer.cu")

    def run_entry(entry: str, grid: Any, block: Any, *args: object, **more: Any) -> Report:
        return launch(ptx, entry, grid, block, list(args), **more)

    return run_entry


def codes_of(values: Array, dtype: Any, largest: float) -> Array:
    return np.clip(values, -largest, largest).astype(dtype).view(np.uint8)


def test_fp8(run: Run) -> None:
    generator = np.random.default_rng(1)
    x = (generator.standard_normal((128, 2)) * 10.0 ** generator.integers(-4, 4, (128, 2))).astype(np.float32)
    x[:8] = [
        [0, -0.0],
        [np.inf, -np.inf],
        [448, 464],
        [465, -480],
        [57344, 61440],
        [2**-10, 2**-9],
        [1e-8, -1e-7],
        [1, 3],
    ]
    codes, back, single = np.zeros((128, 8), np.uint16), np.zeros((128, 2, 2), np.float16), np.zeros(128, np.float32)
    run("eights", 1, 128, x, codes, back, single)
    e4m3, e5m2 = (ml_dtypes.float8_e4m3fn, 448.0), (ml_dtypes.float8_e5m2, 57344.0)
    with np.errstate(over="ignore"):
        halves = x.astype(np.float16).astype(np.float32)
        brains = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    for column, values, kind in [(0, x, e4m3), (1, x, e5m2), (2, halves, e4m3), (3, halves, e5m2), (4, brains, e4m3)]:
        expected = codes_of(values, *kind)
        np.testing.assert_array_equal(codes[:, column], expected[:, 0] | expected[:, 1].astype(np.uint16) << 8)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(codes[:, 5], x[:, 0].astype(ml_dtypes.float8_e5m2).view(np.uint8))
    values = [codes_of(x, *kind).view(kind[0]).astype(np.float32) for kind in (e4m3, e5m2)]
    np.testing.assert_array_equal(back[:, 0], values[0])
    np.testing.assert_array_equal(back[:, 1], values[1])
    np.testing.assert_array_equal(single, values[0][:, 1] + values[1][:, 0])


def test_warps(run: Run) -> None:
    x = np.random.default_rng(1).integers(0, 100, 64).astype(np.int32)
    out = np.zeros((64, 12), np.int32)
    run("warps", 1, 64, x, out)
    eights = x.reshape(8, 8)
    np.testing.assert_array_equal(out[:, 0], eights.sum(1).repeat(8))
    np.testing.assert_array_equal(out[:, 1], eights.max(1).repeat(8))
    np.testing.assert_array_equal(out[:, 2], eights.cumsum(1).reshape(-1))
    before = np.bitwise_or.accumulate(eights, axis=1)
    np.testing.assert_array_equal(out[:, 3], np.concatenate([np.zeros((8, 1), int), before[:, :-1]], 1).reshape(-1))
    np.testing.assert_array_equal(out[:, 5], eights[:, np.arange(8) ^ 3].reshape(-1))
    for t, v in enumerate(x.tolist()):
        warp = x[t // 32 * 32 : t // 32 * 32 + 32]
        same = (warp & 3) == (v & 3)
        mine = eights[t // 8]
        assert out[t, 4] == same.sum() * 100 + same[: t % 32].sum()
        assert (out[t, 6], out[t, 7]) == (1, 1 + 2 * (mine > 0).all() + 4 * (mine > 90).any())
        assert out[t, 8:11].tolist() == [warp.sum(), warp.min(), np.bitwise_or.reduce(warp)]
        assert out[t, 11] == (warp & 1).sum()


def test_sparse(run: Run) -> None:
    generator = np.random.default_rng(1)
    kept, b = generator.integers(-8, 9, (16, 8)), generator.integers(-8, 9, (16, 8))
    dense, metadata = np.zeros((16, 16)), np.zeros(16, np.uint32)
    for row in range(16):
        for chunk in range(4):
            first, second = sorted(generator.choice(4, 2, replace=False).tolist())
            dense[row, 4 * chunk + first], dense[row, 4 * chunk + second] = kept[row, 2 * chunk : 2 * chunk + 2]
            metadata[row] |= np.uint32((first | second << 2) << 4 * chunk)
    a_words, b_words, meta, c = [], [], np.zeros(32, np.uint32), np.ones((32, 4), np.float32)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        a_words.append([kept[row, 2 * t : 2 * t + 2] for row in (g, g + 8)])
        b_words.append([b[k : k + 2, g] for k in (2 * t, 2 * t + 8)])
        if t == 0:
            meta[lane] = metadata[g] | metadata[g + 8] << np.uint32(16)
    parts = [np.array(words, np.float16).reshape(32, 4).view(np.uint32) for words in (a_words, b_words)]
    run("sparse", 1, 32, *parts, meta, c)
    product = dense @ b + 1
    for lane in range(32):
        g, t = lane // 4, lane % 4
        assert c[lane].tolist() == [product[row, 2 * t + e] for row in (g, g + 8) for e in range(2)]


def test_half_atomics(run: Run) -> None:
    x = np.random.default_rng(1).integers(-3, 4, (64, 2)).astype(np.float16)
    h, b, one = np.zeros(2, np.float16), np.zeros(2, np.uint16), np.zeros(1, np.float16)
    run("half_atomics", 1, 64, x, h, b, one)
    total = x.astype(np.float32).sum(0)
    assert h.tolist() == total.tolist()
    assert b.view(ml_dtypes.bfloat16).astype(np.float32).tolist() == total.tolist()
    assert one[0] == total[0]


def test_walks(run: Run) -> None:
    tree = np.random.default_rng(1).integers(0, 1000, 32).astype(np.int32)
    out = np.zeros(64, np.int32)
    run("walks", 1, 64, tree, out)

    def walk(node: int, depth: int) -> int:
        children = [(node * 5 + i * i + int(tree[(node + i) & 31])) & 31 for i in range(4)]
        if depth == 0:
            return int(tree[children[node & 3]])
        return walk(children[node >> 2 & 3], depth - 1) + 3 * children[depth & 3]

    assert out.tolist() == [walk(t & 31, t % 6) for t in range(64)]


@HOPPER
@pytest.mark.parametrize("adversary", [None, 1])
def test_bulk(run: Run, adversary: int | None) -> None:
    x, out = np.random.default_rng(1).standard_normal((5, 128)).astype(np.float32), np.zeros(128, np.float32)
    run("bulk", 1, 128, x, out, 5, adversary=adversary)
    expected = sum(np.roll(x[i], -(i + 1)) * (i + 1) for i in range(5))
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@HOPPER
def test_histogram(run: Run) -> None:
    x = np.random.default_rng(1).integers(0, 64, 500).astype(np.int32)
    bins = np.zeros(64, np.int32)
    run("histogram", 4, 32, x, bins, 500, cluster=4)
    np.testing.assert_array_equal(bins, np.bincount(x, minlength=64))
