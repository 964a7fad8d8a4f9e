"""How many iterations apart two statements of a loop may touch one place of a tensor."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tilec.analysis.tensor_regions import RegionAnalysis
from tilec.ir.tile import For, Kernel, Store, walk_statements

Make = Callable[..., Kernel]

PARAMS = (
    'X: T.Tensor((4096,), "float32"), M: T.Tensor((64, 256), "float32"), '
    'W: T.StridedTensor((64, 256), (260, 1), "float32"), Ids: T.Tensor((64,), "int32"), '
    "n: T.int32, m: T.int32"
)


def distances(kernel: Kernel) -> tuple[int | None, int | None]:
    """From the first statement of the loop to the second, and from the second to the first."""
    loop = next(s for s in kernel.body if isinstance(s, For))
    regions = RegionAnalysis(loop)
    statements = [s for s in loop.body if any(isinstance(inner, Store) for inner in walk_statements((s,)))]
    first, second = (regions.find_touched(s).writes for s in statements)
    (name,) = first
    return regions.find_distance(first[name], second[name], 0), regions.find_distance(second[name], first[name], 1)


def two(head: str, first: str, second: str, binds: str = "") -> str:
    """Two nests of 128 elements, of which each writes one place of a tensor."""
    nests = "".join(f"    for j in T.Parallel(128):\n        {place} = 1.0\n" for place in (first, second))
    return f"for k in {head}:\n{binds}{nests}"


@pytest.mark.parametrize(
    ("head", "first", "second", "expected"),
    [
        ("T.serial(8)", "X[k * 128 + j]", "X[k * 128 + j]", (0, None)),
        # One element in common with the neighbour's, on either side.
        ("T.serial(8)", "X[k * 127 + j]", "X[k * 127 + j]", (0, 1)),
        ("T.serial(8)", "X[k * 128 + j]", "X[k * 128 + j + 1]", (0, 1)),
        ("T.serial(8)", "X[k * 128 + j + 1]", "X[k * 128 + j]", (0, None)),
        ("T.serial(8)", "X[k * 128 + j]", "X[k * 128 + j + 128]", (None, 1)),
        ("T.serial(8)", "X[k * 128 + j + 128]", "X[k * 128 + j]", (1, None)),
        ("T.serial(8)", "X[k * 128 + j + 384]", "X[k * 128 + j]", (3, None)),
        ("T.serial(3)", "X[k * 128 + j + 384]", "X[k * 128 + j]", (None, None)),
        ("T.serial(n)", "X[k * 128 + j + 384]", "X[k * 128 + j]", (3, None)),
        # Steps, downwards and upwards.
        ("T.serial(7, -1, -1)", "X[k * 128 + j]", "X[k * 128 + j + 128]", (1, None)),
        ("T.serial(0, 16, 2)", "X[k * 64 + j]", "X[k * 64 + j + 128]", (None, 1)),
        ("T.serial(0, 16, 2)", "X[k * 63 + j]", "X[k * 63 + j]", (0, 1)),
        # The block's own part, and one that nobody knows.
        ("T.serial(8)", "X[n * 7 + k * 128 + j]", "X[k * 128 + n * 7 + j]", (0, None)),
        ("T.serial(8)", "X[n * 7 + k * 128 + j]", "X[k * 128 + m * 7 + j]", (0, 1)),
        ("T.serial(8)", "X[Ids[k] + j]", "X[Ids[k] + j]", (0, 1)),
        ("T.serial(8)", "X[Ids[0] + k * 128 + j]", "X[Ids[0] + k * 128 + j]", (0, 1)),
        # Every second element: the interval covers the others too.
        ("T.serial(8)", "X[k * 256 + 2 * j]", "X[k * 256 + 2 * j + 1]", (0, None)),
        ("T.serial(8)", "X[k + 8 * j]", "X[k + 8 * j]", (0, 1)),
        # Another speed, in a range that is known, or not.
        ("T.serial(8)", "X[k * 128 + j]", "X[2048 + k * 256 + j]", (None, None)),
        ("T.serial(8)", "X[k * 128 + j]", "X[k * 256 + j]", (0, 1)),
        ("T.serial(n)", "X[k * 128 + j]", "X[2048 + k * 256 + j]", (0, 1)),
        ("T.serial(8)", "X[(k % 2) * 128 + j]", "X[256 + (k % 2) * 128 + j]", (None, None)),
        ("T.serial(8)", "X[(k // 2) * 128 + j]", "X[(k // 2) * 128 + j]", (0, 1)),
        # In two dimensions it is enough that one of them parts them.
        ("T.serial(8)", "M[k, j]", "M[k, j + 64]", (0, None)),
        ("T.serial(8)", "M[k, j]", "M[k, j + 128]", (None, None)),
        ("T.serial(8)", "M[m, k * 8 + j]", "M[m + 1, k * 8 + j]", (None, None)),
        ("T.serial(8)", "M[k, j]", "M[7 - k, j]", (0, 1)),
        ("T.serial(8)", "M[n - 1 - k, j]", "M[n - 1 - k, j]", (0, None)),
        ("T.serial(m)", "M[m + k, j]", "M[m + k, j]", (0, None)),
        # What strides make of it.
        ("T.serial(8)", "W[k, j]", "W[k, j]", (0, None)),
        ("T.serial(8)", "W[k, j + 100]", "W[k + 1, j]", (None, 1)),
    ],
)
def test_iterations_between(
    body: Make, head: str, first: str, second: str, expected: tuple[int | None, int | None]
) -> None:
    assert distances(body(two(head, first, second), PARAMS)) == expected


def test_binds_are_looked_through(body: Make) -> None:
    binds = "    at = k * 128\n    other = at + 128\n"
    assert distances(body(two("T.serial(8)", "X[at + j]", "X[other + j]", binds), PARAMS)) == (None, 1)
    binds = "    at = Ids[k] * 128\n    other = at + 128\n"
    assert distances(body(two("T.serial(8)", "X[at + j]", "X[other + j]", binds), PARAMS)) == (0, 1)


@pytest.mark.parametrize(("extent", "expected"), [("4", (0, None)), ("5", (0, 1)), ("m", (0, 1))])
def test_inner_loops_are_intervals(body: Make, extent: str, expected: tuple[int | None, int | None]) -> None:
    nest = f"    for i in T.serial({extent}):\n        for j in T.Parallel(128):\n"
    nest += "            X[k * 512 + i * 128 + j] = 1.0\n"
    assert distances(body(f"for k in T.serial(8):\n{nest}{nest}", PARAMS)) == expected


def test_atomics_may_be_anywhere(body: Make) -> None:
    nest = "    for j in T.Parallel(128):\n        T.atomic_add(X[k * 128 + j], 1.0)\n"
    assert distances(body(f"for k in T.serial(8):\n{nest}{nest}", PARAMS)) == (0, 1)


def test_nothing_that_meets_is_said_to_be_apart(body: Make) -> None:
    """Of drawn accesses in one and two dimensions, against all pairs of iterations."""
    draw = random.Random(0)
    for _ in range(150):
        start, count, step = draw.choice((0, 3)), draw.randrange(1, 6), draw.choice((1, 2, -1))
        flat = draw.random() < 0.5
        sides = [[(draw.randrange(-3, 4) * 8, draw.randrange(24) * 4) for _ in range(2 - flat)] for _ in range(2)]
        extent = draw.choice((4, 8, 16))
        written = []
        for access in sides:
            at = [f"({c}) * k + {o + 256}" for c, o in access]
            at[-1] += " + j"
            written.append(f"{'X' if flat else 'M'}[{', '.join(at)}]")
        stop = start + count * step
        made = body(two(f"T.serial({start}, {stop}, {step})", *written).replace("128", str(extent)), PARAMS)
        values = range(start, stop, step)
        met = {
            (e - d)
            for d, k in enumerate(values)
            for e, other in enumerate(values)
            if all(
                abs((ca * k + oa) - (cb * other + ob)) < (extent if at == len(sides[0]) - 1 else 1)
                for at, ((ca, oa), (cb, ob)) in enumerate(zip(*sides, strict=True))
            )
        }
        forward, back = min((d for d in met if d >= 0), default=None), min((-d for d in met if d < 0), default=None)
        for found, real in zip(distances(made), (forward, back), strict=True):
            assert real is None or (found is not None and found <= real), (written, values, met)
