"""Statements that each thread runs for itself: the PTX that ships, in the emulator, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver.emulation import emulate
from tilec.emu import Fault
from tilec.support.diagnostics import CompileError
from tilec.support.options import Strategy

FORMS: list[tuple[str, Strategy]] = [
    ("sm_80", "auto"), ("sm_80", "none"), ("sm_90a", "auto"), ("sm_90a", "unspecialize"),
]  # fmt: skip

Arrays = dict[str, Any]


def elements(a: Arrays) -> Arrays:
    s = a["A"].reshape(4, 128)
    t = np.arange(128)
    odd = np.where(t % 2 == 0, s[:, np.maximum(t - 32, 0)], 2 * s + 1)
    c = np.where(t < 32, 2 * s[:, np.minimum(t + 32, 127)], odd)
    return {"B": s[:, ::-1].ravel(), "C": c.ravel()}


def gemv(a: Arrays) -> Arrays:
    return {"C": a["B"].astype(np.float64) @ a["A"].astype(np.float64)}


def unpack(a: Arrays) -> Arrays:
    low, high = a["B"] & 15, a["B"] >> 4 & 15
    wide = np.stack([low, high], -1).reshape(64, 128).astype(np.float64)
    return {"C": a["A"].astype(np.float64) @ wide.T}


def variables(a: Arrays) -> Arrays:
    y, z = np.zeros(64, np.int32), np.zeros(64, np.int32)
    for t in range(64):
        mine = a["X"][t::64]
        bins = np.bincount(mine & 3, minlength=4)
        y[t] = mine.sum(dtype=np.int32) << t % 4
        z[t] = (mine > 0).sum() * 1000 + bins[t % 4] * 100 + bins[3]
    return {"Y": y, "Z": z}


def warps(_: Arrays) -> Arrays:
    t = np.arange(256)
    along_y, along_z = t // 16 % 8, t // 128
    both = np.ones((2, 3, 1), int)
    return {
        "A": both * (t % 32 + 100 * (t // 32)),
        "B": both * (along_y + 10 * (t // 128) + 100 * along_z + 3000),
    }


def workspace(a: Arrays) -> Arrays:
    w = a["A"].reshape(4, 64) + 1
    return {"B": w[:, ::-1] + np.roll(w, -1, 1)}


def together(a: Arrays) -> Arrays:
    t = np.arange(64)
    x, n, h = (a[name].reshape(2, 32) for name in "XIH")
    lane = np.arange(32)
    down = np.where(lane % 16 + 5 < 16, lane + 5, lane)

    def each(values: Any) -> Any:
        return np.repeat(values, 32)

    def bits(holds: Any) -> Any:
        return (holds.reshape(2, 32).astype(np.uint64) << lane.astype(np.uint64)).sum(1).astype(np.uint64)

    f = [x[:, lane ^ 1], np.where(lane >= 3, x[:, lane - 3], x), x[:, down], x[:, lane // 8 * 8 + lane % 4]]
    f = [part.ravel() for part in f] + [each(x.sum(1)), each(x.max(1)), each(x.min(1))]
    same = np.concatenate([bits(np.tile(row, 2) == v)[:1] for row in n for v in row])
    third = t % 3 == 0
    j = [
        each(n.sum(1)), each(n.max(1)), each(np.bitwise_and.reduce(n | 4, 1)), each(np.bitwise_or.reduce(n, 1)),
        each((n > 3).any(1)), each((n > -3).all(1)), np.full(64, (x > 0).sum()), np.full(64, (n < 100).all()),
        np.full(64, (n == 3).any()), same.astype(np.uint32).view(np.int32),
        each(-1 * (n == n[:, :1]).all(1)), each(n[:, 7]), np.where(third, 1, 0),
    ]  # fmt: skip
    w = [each(bits(x > 0)), np.where(third, each(bits((x.ravel() > 0) & third)), 0)]
    w.append(np.where(third, each(bits(third)), each(bits(~third))))
    return {"F": np.stack(f), "J": np.stack(j), "G": h[:, lane ^ 2].ravel(), "W": np.stack(w)}


def rounded(exact: Fraction, mode: str) -> np.float32:
    """The float32 next to an exact number in this direction."""
    nearest = np.float32(float(exact))
    candidates = [np.nextafter(nearest, np.float32(-np.inf)), nearest, np.nextafter(nearest, np.float32(np.inf))]
    below = max(c for c in candidates if Fraction(float(c)) <= exact)
    above = min(c for c in candidates if Fraction(float(c)) >= exact)
    if mode == "rn":
        apart = exact - Fraction(float(below)), Fraction(float(above)) - exact
        return nearest if apart[0] == apart[1] else below if apart[0] < apart[1] else above
    return {"ru": above, "rd": below, "rz": below if exact > 0 else above}[mode]


def intrinsics(a: Arrays) -> Arrays:
    x, y = a["X"], a["Y"]
    size = np.abs(x) + np.float32(0.5)
    f = [np.exp(x), 10**x, np.log(size), np.log2(size), np.log10(size), np.sin(x), np.cos(x), np.tan(x / 4), 1 / size]
    small = y * np.float32(1e-6)
    exact = [[Fraction(float(v)) for v in values] for values in (x, y, size, small)]
    r = np.zeros((4, 7, 128), np.float32)
    for t, (u, v, s, w) in enumerate(zip(*exact, strict=True)):
        # A root to twice the digits of float32 and more is on the same side of every float32.
        root = Fraction(isqrt(s.numerator * s.denominator << 200), s.denominator << 100)
        for m, mode in enumerate(("rn", "rz", "ru", "rd")):
            wanted = [u + w, u - v, u * v, u * v + u, 1 / u, root, u / v]
            r[m, :, t] = [rounded(value, mode) for value in wanted]
    return {"F": np.stack(f), "R": r, "S": 1 / np.sqrt(size.astype(np.float64))}


def dots(a: Arrays) -> Arrays:
    return {"C": (a["A"].astype(np.int32) * a["B"].astype(np.int32)).sum(1)}


def reshaped(a: Arrays) -> Arrays:
    heads = a["A"].reshape(64, 4, 32)
    four = heads.transpose(1, 0, 2).reshape(4, -1, 4).astype(np.float64)[:, :64]  # of each head
    f = four[..., 0] + four[..., 1] * 2 + four[..., 2] * 3
    f[:, 0] = 0
    return {
        "B": (heads * np.float16(2)).reshape(256, 32),
        "C": heads.astype(np.float64).sum(2).T,
        "E": a["A"].ravel().view(np.int16),
        "F": f,
    }


def logic(a: Arrays) -> Arrays:
    m, f, x = a["M"].astype(bool), a["F"] != 0, a["A"] != 0
    both = m[6:, :3].any() & f[:, 1].all(1)
    b = [m.any(1), m.all(1), f[:, :, 0].any(1), np.where(both, 5, 7)]
    d = np.where(m[:, 1:3].all(1)[:, None], np.arange(64), -1)
    return {"B": np.stack(b, 1), "C": np.stack([x[:, 1:].all(1), x.any(1)], 1), "D": d}


def bits(a: Arrays) -> Arrays:
    def counted(values: Any) -> list[list[int]]:
        size = values.dtype.itemsize * 8
        words = [int(v) & (1 << size) - 1 for v in values]
        lowest = [(w & -w).bit_length() for w in words]
        return [[w.bit_count() for w in words], [size - w.bit_length() for w in words], lowest]

    shifts = np.arange(64)
    wide = a["X"].astype(np.int64) << shifts
    narrow = [wide.astype(t) for t in (np.int8, np.uint16, np.int32, np.uint32)]
    unsigned = wide.astype(np.uint64)
    return {
        "C": np.array([counted(v) for v in (*narrow, wide, unsigned)]),
        "R": unsigned >> shifts.astype(np.uint64),
    }


def breaks(a: Arrays) -> Arrays:
    left = next(k for k in range(3, 8) if a["Ids"][k])
    b = a["B"].copy()
    b[:left] = 2 * a["A"][:left]
    b[left] = a["A"][left]
    return {"B": b, "S": np.array([left, 10 * 5 + 4, 4])}


EXACT = {"R"}
"""What has to be equal to the last bit."""

KERNELS: dict[str, Callable[[Arrays], Arrays]] = {
    f.__name__: f
    for f in (
        elements, gemv, unpack, variables, warps, workspace, together, intrinsics, reshaped, dots, logic, bits,
        breaks,
    )
}  # fmt: skip


def test_every_kernel_is_here() -> None:
    assert {p.stem for p in (HERE / "simt").glob("*.tl")} == set(KERNELS)


GUIDE = {
    "two users": """
        for ko in T.Pipelined(
            num_tiles,
            stage=[0, 1],
            order=[1, 0],
        ):
            base: T.int32 = ko * BK
            T.copy(A[base + tx], A_shared[tx])
            B[base + tx] = A_shared[tx]
""",
    "scheduled bind": """
        for ko in T.Pipelined(
            num_tiles,
            stage=[0, 1, 1],
            order=[2, 0, 1],
        ):
            T.copy(A[ko * BK], A_shared)
            value: T.float32 = A_shared[tx]
            B[ko * BK + tx] = value
""",
    "branches": """
        for ko in T.Pipelined(num_tiles, stage=[0, 1, 1], order=[2, 0, 1], sync=[[], [], [0, 1]]):
            T.copy(A[ko * BK], A_shared)
            if tx < 40:
                here: T.int32 = ko * BK + tx
                B[here] = A[here]
                B[here] = B[here] + 1.0
            elif A[ko * BK + tx] > 0.0:
                B[ko * BK + tx] = 1.0
            else:
                B[ko * BK + tx] = -1.0
            if A_shared[tx] > 0.0:
                B[ko * BK + tx] = A_shared[tx]
            else:
                kept: T.float32 = A_shared[tx]
                B[ko * BK + tx] = kept
""",
    "dependencies": """
        for ko in T.Pipelined(num_tiles, stage=[0, 1], order=[0, 1]):
            base: T.int32 = ko * BK
            offset: T.int32 = base + tx
            T.copy(A[offset], A_shared[tx])
            B[offset] = A_shared[tx]
""",
    "legacy": """
        for ko in T.Pipelined(
            num_tiles,
            stage=[3, 0, 1],
            order=[1, 2, 0],
        ):
            base: T.int32 = ko * BK
            T.copy(A[base + tx], A_shared[tx])
            B[base + tx] = A_shared[tx]
""",
    "raw annotations": """
        for ko in T.serial(
            0,
            num_tiles,
            annotations={
                "software_pipeline_stage": [0, 1],
                "software_pipeline_order": [1, 0],
                "software_pipeline_async_stages": [0],
            },
        ):
            base: T.int32 = ko * BK
            T.copy(A[base + tx], A_shared[tx])
            B[base + tx] = A_shared[tx]
""",
    "inferred": """
        for ko in T.Pipelined(num_tiles, num_stages=3):
            base = ko * BK
            A_shared[tx] = A[base + tx]
            B[base + tx] = A_shared[tx]
""",
}
"""Blocks of TileLang's guide to pipeline annotations that name the thread, as they stand there; and one whose branches
are taken by some threads only, each with its one entry."""

COMPLETED = """\
import tilelang.language as T
num_tiles, BK = 5, 128
@T.prim_func
def guide(A: T.Tensor((num_tiles * BK,), "float32"), B: T.Tensor((num_tiles * BK,), "float32")):
    with T.Kernel(1, threads=BK):
        tx = T.get_thread_binding(0)
        A_shared = T.alloc_shared((BK,), "float32")
"""


@pytest.mark.parametrize(("target", "strategy"), FORMS, ids=str)
@pytest.mark.parametrize("block", GUIDE)
def test_the_guide_means_what_it_says(block: str, target: str, strategy: Strategy, tmp_path: Path) -> None:
    path = tmp_path / "guide.tl"
    path.write_text(COMPLETED + GUIDE[block], encoding="utf-8")
    _, made = built(path, target, strategy)
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    wanted = given.tensors["A"].copy()
    emulate.emulate_build(made, given)
    np.testing.assert_array_equal(given.tensors["B"], wanted)


@pytest.mark.parametrize(("target", "strategy"), FORMS, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_it_is_right(name: str, target: str, strategy: Strategy) -> None:
    _, made = built(HERE / f"simt/{name}.tl", target, strategy)
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    before = {k: v.copy() for k, v in given.tensors.items()}
    through_tiles = given.copy()
    emulate.emulate_build(made, given)
    emulate.run_reference(made.kernel, through_tiles)
    for key, wanted in KERNELS[name](before).items():
        for found in (given, through_tiles):
            near = 0.0 if key in EXACT else 1e-3
            np.testing.assert_allclose(found.tensors[key], wanted, rtol=near, atol=near, err_msg=key)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_an_assertion_stops_the_kernel(target: str) -> None:
    path = HERE / "device_assert.tl"
    _, made = built(path, target)
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    a = given.tensors["A"]
    emulate.emulate_build(made, given)
    np.testing.assert_array_equal(given.tensors["B"], np.where(np.arange(128) % 2 == 0, a, 0))
    a[77] = 200.0
    with pytest.raises(Fault, match=r"device_assert\.tl:11"):
        emulate.emulate_build(made, given)
    with pytest.raises(CompileError) as refused:
        emulate.run_reference(made.kernel, given)
    assert "too large" in refused.value.diagnostics[0].title
