"""PTX of nvcc's, from CUDA C++ kernels of our own, against numpy.

nvcc's code is right on silicon, so where the emulator faults or computes something else the emulator is wrong.
"""

from __future__ import annotations

import math
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


@pytest.fixture(scope="module", params=["sm_80", "sm_90a", "sm_100a"])
def run(request: pytest.FixtureRequest) -> Run:
    ptx = compile_cuda(request.param)

    def run_entry(entry: str, grid: Any, block: Any, *args: object, **more: Any) -> Report:
        return launch(ptx, entry, grid, block, list(args), **more)

    return run_entry


def floats(seed: int, *shape: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


# -- reductions, votes, atomics ----------------------------------------------------------------------------------------


def test_reduction(run: Run) -> None:
    x = floats(1, 3000)
    total, largest = np.zeros(1, np.float32), np.full(1, -(2**31), np.int32)
    run("reduce_sum", 4, 256, x, total, largest, 3000)
    np.testing.assert_allclose(total[0], x.sum(), rtol=1e-4)
    assert largest[0] == np.rint(x * np.float32(100)).max()


def test_last_block(run: Run) -> None:
    x, total = floats(1, 8, 100), np.zeros(1, np.float32)
    run("last_block", 8, 32, x, total, 100)
    np.testing.assert_allclose(total[0], x.sum(), rtol=1e-4)


def test_votes(run: Run) -> None:
    x = np.random.default_rng(1).integers(0, 40, 128).astype(np.int32)
    x[64:96] = 5
    out = np.zeros(128, np.uint32)
    run("votes", 2, 64, x, out, 128)
    for block in range(2):
        mine = x[block * 64 : block * 64 + 64].tolist()
        for warp in range(2):
            lanes = mine[warp * 32 : warp * 32 + 32]

            def ballot(test: Callable[[int], bool], lanes: list[int] = lanes) -> int:
                return sum(1 << lane for lane, value in enumerate(lanes) if test(value))

            for lane, value in enumerate(lanes):
                r = ballot(lambda v: v & 1 == 1) + 7 + (11 if 5 in lanes else 0)
                r ^= sum(1 << other for other, v in enumerate(lanes) if v % 4 == value % 4)
                r += 0xFFFFFFFF
                r += sum(v > 10 for v in mine)
                r ^= 0x200
                r &= 0xFFFFFFFF
                if value & 2:
                    r += ballot(lambda v: v & 2 == 2).bit_count()
                if value & 1:
                    active = ballot(lambda v: v & 1 == 1)
                    r += (active & ((1 << lane) - 1)).bit_count() * 64 + active.bit_count()
                assert out[block * 64 + warp * 32 + lane] == r & 0xFFFFFFFF


@pytest.mark.parametrize("adversary", [None, 1])
def test_atomics(run: Run, adversary: int | None) -> None:
    i, u = np.zeros(7 + 64, np.int32), np.array([5, 5, 0, 0], np.uint32)
    i[6] = -1
    f, d = np.zeros(1, np.float32), np.zeros(1)
    wide, h, s = np.zeros(2, np.uint64), np.zeros(2, np.float16), np.zeros(2, np.uint16)
    run("atomics", 2, 32, i, u, f, d, wide, h, s, adversary=adversary)
    xor = 0
    for t in range(64):
        xor ^= t
    assert i[:7].tolist() == [2016, -2016, -63, 63, xor, 63, ~63]
    assert i[7:].tolist() == [3 * t for t in range(64)]
    inc = dec = 5
    for _ in range(64):
        inc = 0 if inc >= 9 else inc + 1
        dec = 9 if dec == 0 or dec > 9 else dec - 1
    assert u.tolist() == [inc, dec, 63 << 24, sum(2 * t + 1 for t in range(64))]
    assert (f[0], d[0]) == (32.0, 16.0)
    assert wide.tolist() == [64 * 0x100000001, 63 << 33]
    assert h.tolist() == [64.0, 32.0]
    assert s.tolist() == [64, 0]


# -- memory ------------------------------------------------------------------------------------------------------------


def test_transpose(run: Run) -> None:
    x = floats(1, 70, 45)
    out = np.zeros((45, 70), np.float32)
    run("transpose", (2, 3), (32, 8), x, out, 45, 70)
    np.testing.assert_array_equal(out, x.T)


def test_parameters(run: Run) -> None:
    x, to, out = floats(1, 32), np.zeros(32, np.float32), np.zeros(32, np.float32)
    pair = (x, to, np.int16(-3), np.int8(-2))
    shorts = np.array([-7, 9], np.int16).tobytes()
    run("parameters", 1, 32, pair, b"\0", -5, shorts, 2.0, 7 << 33, out)
    np.testing.assert_allclose(to, x * 6 - 5, rtol=1e-6)
    weights, lookup = np.array([0.5, -1.25, 1e10]), np.array([3, 1, 4, 1, 5, 9, 2, 6])
    i = np.arange(32)
    np.testing.assert_allclose(out, -61 + 2 * weights[i % 3] + lookup[i % 8] + 7, rtol=1e-6)


def test_local_arrays(run: Run) -> None:
    x = np.random.default_rng(1).integers(-100, 100, (64, 11)).astype(np.int32)
    out = np.zeros_like(x)
    run("local_array", 1, 64, x, out, 11)
    np.testing.assert_array_equal(out, np.sort(x, axis=1))


# -- functions ---------------------------------------------------------------------------------------------------------


def test_functions(run: Run) -> None:
    x = np.random.default_rng(1).integers(0, 50, 64).astype(np.int32)
    out, reals = np.zeros((3, 64), np.int32), np.zeros(64)
    run("functions", 1, 64, x, out, reals)

    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def descend(above: list[int], n: int) -> int:
        mine = [n * 10 + i for i in range(4)]
        return above[1] if n == 0 else descend(mine, n - 1) + mine[n & 3] + above[n & 3]

    for t, n in enumerate(x.tolist()):
        v = [t, 1, 2, 3, 4, 5]
        v[n % 6] += n
        assert out[:, t].tolist() == [fibonacci(n % 10), v[0] + 10 * v[n % 6], descend([1, 2, 3, 4], n % 4)]
    np.testing.assert_array_equal(reals, 1.5 * x)


def test_indirect_calls(run: Run) -> None:
    a, b, out = floats(1, 64), floats(2, 64), np.zeros(64, np.float32)
    which = np.random.default_rng(1).integers(0, 4, 64).astype(np.int32)
    run("indirect", 1, 64, a, b, which, out)
    np.testing.assert_array_equal(out, np.choose(which, [a + b, a - b, a * b, a / b]))


def test_switches(run: Run) -> None:
    generator = np.random.default_rng(1)
    x, out = generator.integers(-2, 13, 96).astype(np.int32), generator.integers(-100, 1000, 96).astype(np.int32)
    before = out.tolist()
    run("switches", 1, 96, x, out)

    def truncated(a: int, b: int) -> int:
        return int(a / b)

    for v, old, new in zip(x.tolist(), before, out.tolist(), strict=True):
        cases = {
            0: v + 100,
            1: v * 7,
            2: old - 5,
            3: v ^ 0x55,
            4: (old & 0xFFFFFFFF).bit_count(),
            5: truncated(old, 3),
            6: old - 7 * truncated(old, 7),
            7: 32 - (v & 0xFFFFFFFF).bit_length(),
            8: old << 3,
            9: -old,
        }
        assert new == cases.get(v, -1), v


# -- numbers -----------------------------------------------------------------------------------------------------------


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def test_integers(run: Run) -> None:
    generator = np.random.default_rng(1)
    x = generator.integers(-(2**63), 2**63 - 1, 128, np.int64)
    y = generator.integers(-(2**63), 2**63 - 1, 128, np.int64) >> generator.integers(0, 60, 128)
    x[:8], y[:8] = [0, 1, -1, 2**63 - 1, -(2**63) + 1, 5, -7, 2**31], [1, -1, 3, 2**63 - 1, 7, 0, 2, -(2**31)]
    out = np.zeros((128, 32), np.int64)
    run("integers", 1, 128, x, y, out)
    for a, b, row in zip(x.tolist(), y.tolist(), out.tolist(), strict=True):
        i, j = signed(a, 32), signed(b, 32)
        u, v, p, q = i & 0xFFFFFFFF, j & 0xFFFFFFFF, a & (2**64 - 1), b & (2**64 - 1)

        def div(m: int, n: int) -> int:
            return abs(m) // abs(n) * (1 if (m < 0) == (n < 0) else -1) if n else 0

        def bytes_of(word: int) -> list[int]:
            return list(word.to_bytes(4, "little"))

        def low24(word: int) -> int:
            return signed(word, 24)

        eight = bytes_of(u) + bytes_of(v)
        signed_bytes = [[signed(byte, 8) for byte in bytes_of(word)] for word in (u, v)]
        halves = [signed(u, 16), signed(u >> 16, 16)]
        set_bits = [k for k in range(32) if u >> k & 1]
        expected = {
            0: div(a, b), 1: a - b * div(a, b) if b else 0, 2: p // q if q else 0, 3: p % q if q else 0,
            4: div(i, j), 5: u % v if v else 0,
            6: i * j >> 32, 7: u * v >> 32, 8: a * b >> 64, 9: p * q >> 64,
            10: p.bit_count(), 11: 64 - p.bit_length(), 12: (p & -p).bit_length(), 13: int(f"{p:064b}"[::-1], 2),
            14: int(f"{u:032b}"[::-1], 2), 15: (u & -u).bit_length(),
            16: (abs(i - j) + u) & 0xFFFFFFFF, 17: (abs(u - v) + u) & 0xFFFFFFFF,
            18: sum(eight[n] << 8 * k for k, n in enumerate((5, 1, 7, 3))),
            19: (v << 32 | u) << (j & 31) >> 32 & 0xFFFFFFFF, 20: (v << 32 | u) >> min(j & 63, 32) & 0xFFFFFFFF,
            21: signed(sum(m * n for m, n in zip(*signed_bytes, strict=True)) + 5, 32),
            22: signed(halves[0] * signed_bytes[1][0] + halves[1] * signed_bytes[1][1] + 5, 32),
            23: (i + j) >> 1,
            24: sum(((m + n) & 255) << 8 * k for k, (m, n) in enumerate(zip(bytes_of(u), bytes_of(v), strict=True))),
            25: sum(abs(m - n) << 8 * k for k, (m, n) in enumerate(zip(bytes_of(u), bytes_of(v), strict=True))),
            26: signed(low24(i) * low24(j), 32), 27: (u & 0xFFFFFF) * (v & 0xFFFFFF) & 0xFFFFFFFF,
            28: (p * q + p) >> 64, 29: (a * b - a) >> 64,
            30: set_bits[j & 7] if len(set_bits) > j & 7 else 0xFFFFFFFF,
            31: signed(i, 16) * signed(j, 8) + (u >> 3 & 255),
        }  # fmt: skip
        for index, value in expected.items():
            assert row[index] & (2**64 - 1) == value & (2**64 - 1), (index, a, b)


def test_floats(run: Run) -> None:
    x, y = floats(1, 256, scale=30), floats(2, 256, scale=3)
    specials = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38]
    x[:64] = np.repeat(specials, 8)
    y[:64] = np.tile(specials, 8)
    out = np.zeros((256, 32), np.float32)
    run("floats", 1, 256, x, y, out)
    a, b = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        exact = {
            0: x / y, 1: np.sqrt(x), 2: np.float32(1) / x, 8: np.rint(x), 9: np.floor(x), 10: np.ceil(x),
            11: np.trunc(x), 12: np.copysign(x, y), 13: np.fmin(x, y), 14: np.fmax(x, y), 15: np.abs(x),
            20: np.fmod(x, y), 21: np.where(np.isnan(x), 0, np.clip(x, 0, 1)), 22: np.isnan(x),
            23: np.ldexp(x, 3), 31: np.signbit(x),
        }  # fmt: skip
        near = {
            3: a / b, 4: a * b + a, 5: a * b + a, 6: a + b, 7: a * b, 16: np.exp(a * 0.01), 17: np.log(np.abs(a)),
            19: np.tanh(a * 0.01), 24: 1 / np.sqrt(np.abs(a)), 25: np.vectorize(math.erf)(a * 0.01),
            26: np.abs(a) ** 0.3, 27: np.cbrt(a), 28: np.sqrt(np.abs(a)),
        }  # fmt: skip
    for index, expected in exact.items():
        np.testing.assert_array_equal(out[:, index], expected.astype(np.float32), str(index))
    for index, expected in near.items():
        with np.errstate(all="ignore"):
            single = expected.astype(np.float32)
        # Rounding towards zero stops short of infinity.
        single = np.where(np.isinf(single) & np.isfinite(out[:, index]), out[:, index], single)
        np.testing.assert_allclose(out[:, index], single, rtol=1e-5, atol=1e-37, err_msg=str(index))
    ordinary = slice(64, None)
    np.testing.assert_allclose(out[ordinary, 18], np.sin(a[ordinary] * 0.001), rtol=1e-5, atol=1e-7)
    lgamma = [math.lgamma(abs(value) * 0.001 + 1) for value in a[ordinary]]
    np.testing.assert_allclose(out[ordinary, 30], lgamma, rtol=2e-3, atol=1e-6)
    remainders = [math.remainder(p, q) for p, q in zip(a[ordinary], b[ordinary], strict=True)]
    np.testing.assert_allclose(out[ordinary, 29], remainders, rtol=1e-6)


def test_doubles(run: Run) -> None:
    generator = np.random.default_rng(1)
    x, y = generator.standard_normal(128) * 50, generator.standard_normal(128) * 3
    out, whole = np.zeros((128, 16)), np.zeros((128, 4), np.int64)
    run("doubles", 1, 128, x, y, out, whole)
    with np.errstate(invalid="ignore"):
        exact = {0: x / y, 1: np.sqrt(x), 3: np.floor(x), 4: np.fmod(x, y)}
    for index, values in exact.items():
        np.testing.assert_array_equal(out[:, index], values, str(index))
    near = {
        2: x * y + x, 5: np.exp(x * 0.001), 6: np.log(np.abs(x)), 7: 1 / np.sqrt(np.abs(x)), 8: np.sin(x * 0.01),
        9: x + y, 10: x * y, 13: 1 / x, 14: np.hypot(x, y), 15: np.arctan2(x, y),
    }  # fmt: skip
    for index, values in near.items():
        np.testing.assert_allclose(out[:, index], values, rtol=1e-13, atol=1e-14, err_msg=str(index))
    np.testing.assert_array_equal(out[:, 11], x.astype(np.float32))
    np.testing.assert_array_equal(out[:, 12], np.fmax(x, y))
    columns = [np.rint(x), np.trunc(x), np.trunc(np.abs(x)), np.trunc(y)]
    np.testing.assert_array_equal(whole, np.stack(columns, axis=1).astype(np.int64))


def test_halves(run: Run) -> None:
    x, y = floats(1, 64, 2, scale=10).astype(np.float16), floats(2, 64, 2).astype(np.float16)
    x[:6], y[:6, 0] = (
        [[np.inf, 0], [-0.0, 1], [np.nan, -1], [60000, 6e-8], [0.5, -np.inf], [2, 2]],
        [1, 2, 3, 4, 5, np.nan],
    )
    out = np.zeros((64, 12, 2), np.float16)
    brains, eights = np.zeros((64, 5, 2), np.uint16), np.zeros((64, 4), np.uint8)
    run("halves", 1, 64, x, y, out, brains, eights)
    a, b = x.astype(np.float64), y.astype(np.float64)
    half = np.float16
    with np.errstate(all="ignore"):
        expected = [
            (a + b).astype(half), (a * b).astype(half), (a * b + a).astype(half), np.fmax(x, y), np.minimum(x, y),
            -np.abs(x), np.where(np.isnan(a - b), 0, np.clip(a - b, 0, 1)).astype(half), None, None,
            np.where(a * b + a < 0, 0, a * b + a).astype(half), (x > y).astype(half), None,
        ]  # fmt: skip
        for index, values in enumerate(expected):
            if values is not None:
                np.testing.assert_array_equal(out[:, index], values, str(index))
        np.testing.assert_allclose(out[:, 7], (a / b).astype(half), rtol=2e-3)
        small = (x * half(0.01)).astype(np.float64)
        np.testing.assert_allclose(out[:, 8], np.exp2(small).astype(half), rtol=2e-3)
        np.testing.assert_allclose(out[:, 11], np.tanh(small).astype(half), rtol=2e-3, atol=1e-4)
        brain = ml_dtypes.bfloat16
        c, d = (values.astype(np.float32).astype(brain).astype(np.float64) for values in (x, y))
        results = [c + d, c * d, c * d + c, np.fmax(c, d), -c]
        for index, values in enumerate(results):
            found = brains[:, index].view(brain).astype(np.float32)
            np.testing.assert_array_equal(found, values.astype(np.float32).astype(brain).astype(np.float32), str(index))
        low, high = x[:, 0].astype(np.float32), x[:, 1].astype(np.float32)
        e4m3 = np.clip(low, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        e5m2 = np.clip(high, -57344, 57344).astype(ml_dtypes.float8_e5m2).view(np.uint8)
    not_nan = ~np.isnan(low)
    np.testing.assert_array_equal(eights[not_nan, 0], e4m3[not_nan])
    np.testing.assert_array_equal(eights[:, 1], e5m2)
    np.testing.assert_array_equal(eights[:, 2], ~np.isnan(x).any(1))
    whole = np.isfinite(y[:, 0])
    np.testing.assert_array_equal(eights[whole, 3], np.abs(y[whole, 0]).astype(np.uint8))


# -- matrices, copies, clusters ----------------------------------------------------------------------------------------


def test_wmma(run: Run) -> None:
    a, b, c = floats(1, 16, 48).astype(np.float16), floats(2, 16, 48).astype(np.float16), np.zeros((16, 16), np.float32)
    run("wmma_f16", 1, 32, a, b, c, 48)
    np.testing.assert_allclose(c, 2 * (a.astype(np.float32) @ b.astype(np.float32).T), rtol=1e-4, atol=1e-4)
    generator = np.random.default_rng(3)
    d, e = generator.integers(-128, 128, (16, 32), np.int8), generator.integers(-128, 128, (32, 16), np.int8)
    whole = np.zeros((16, 16), np.int32)
    run("wmma_s8", 1, 32, d, e, whole, 32)
    np.testing.assert_array_equal(whole.T, d.astype(np.int32) @ e.astype(np.int32))
    f, g, sums = floats(5, 16, 24), floats(6, 16, 24), floats(7, 16, 16)
    before = sums.copy()
    run("wmma_tf32", 1, 32, f, g, sums, 24)
    np.testing.assert_allclose(sums, f @ g.T + before, atol=2e-2)
    h, k, reals = generator.standard_normal((8, 12)), generator.standard_normal((12, 8)), np.zeros((8, 8))
    run("wmma_f64", 1, 32, h, k, reals, 12)
    np.testing.assert_allclose(reals, h @ k, rtol=1e-12)


def test_pipeline(run: Run) -> None:
    x, out = floats(1, 5, 128), np.zeros(128, np.float32)
    run("pipeline", 1, 128, x, out, 5)
    weights = np.arange(1, 6, dtype=np.float32)
    np.testing.assert_allclose(out, np.roll(x, -1, axis=1).T @ weights, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("run", ["sm_90a", "sm_100a"], indirect=True)
def test_neighbours(run: Run) -> None:
    x = np.arange(4 * 64, dtype=np.int32)
    out = np.zeros(4 * 64 + 2, np.int32)
    run("neighbours", 4, 64, x, out, cluster=2)
    blocks = x.reshape(4, 64)
    np.testing.assert_array_equal(out[:256].reshape(4, 64), blocks[[1, 0, 3, 2], ::-1])
    assert out[256:].tolist() == [2 * 2016, 2 * 2016]


@pytest.mark.parametrize("run", ["sm_100a"], indirect=True)
@pytest.mark.parametrize("adversary", [None, 1, 2])
def test_tensor_gemm(run: Run, adversary: int | None) -> None:
    a, b = floats(1, 128, 192).astype(np.float16), floats(2, 64, 192).astype(np.float16)
    out = np.zeros((128, 64), np.float32)
    run("tensor_gemm", 1, 128, a, b, out, 192, dynamic_smem=24 * 1024, adversary=adversary)
    np.testing.assert_allclose(out, a.astype(np.float32) @ b.astype(np.float32).T, atol=1e-3)
