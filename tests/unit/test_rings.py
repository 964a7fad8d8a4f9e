"""Which tiles may have several versions, and why another one may not."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

import pytest

from tilec.analysis import rings
from tilec.analysis.rings import find_pipelined_loops
from tilec.ir.tile import For, Kernel

Make = Callable[..., Kernel]

PARAMS = 'A: T.Tensor((512, 64), "float16"), Ids: T.Tensor((8,), "int32"), n: T.int32'
HEAD = """
s = T.alloc_shared((64, 64), "float16")
t = T.alloc_shared((64, 64), "float16")
one = T.alloc_shared((1,), "int32")
c = T.alloc_fragment((64, 64), "float32")
d = T.alloc_fragment((64, 64), "float32")
"""
USE = "T.gemm(s, s, d)"


def nest(*lines: str, extents: str = "64, 64") -> str:
    return f"for i, j in T.Parallel({extents}):\n" + indent("\n".join(lines), "    ")


def loop_of(body: Make, text: str, around: str = "{}") -> tuple[Kernel, For]:
    """The innermost pipelined loop: over k, with this body."""
    kernel = body(HEAD + around.format("for k in T.Pipelined(n):\n" + indent(text, "    ")), PARAMS)
    return kernel, find_pipelined_loops(kernel.body)[-1]


def found(body: Make, text: str, around: str = "{}") -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    plans = rings.plan_rings(*loop_of(body, text, around))
    return [("+".join(b.name for b in plan.buffers), plan.producers, plan.consumers) for plan in plans]


def reason(body: Make, text: str, tile: str = "s", around: str = "{}") -> str | None:
    kernel, loop = loop_of(body, text, around)
    return rings.analyse_loop_body(kernel, loop).why_not_versioned(next(b for b in kernel.buffers if b.name == tile))


FILLS = [
    "T.clear(s)",
    "T.fill(s, 2.0)",
    "T.copy(A[k * 64, 0], s)",
    "T.copy(A[k * 64 + 7, 3], s)",  # beyond the tensor there are zeros
    "T.copy(c, s)",
    "T.copy(t, s)",
    "T.transpose(t, s)",
    nest("s[i, j] = 1.0"),
    nest("s[j, i] = t[i, j]"),
    nest("if i > j:", "    s[i, j] = 1.0", "else:", "    s[i, j] = t[i, j]"),
    "for i in T.serial(64):\n    for j in T.Parallel(64):\n        s[i, j] = 1.0",
    "for again in T.serial(2):\n    T.copy(A[again * 64, 0], s)",
    "if k % 2 == 0:\n    T.copy(A[k * 64, 0], s)\nelse:\n    T.clear(s)",
    "if k % 2 == 0:\n    T.clear(s)\nelse:\n" + indent(nest("s[i, j] = 1.0"), "    "),
]


@pytest.mark.parametrize("fill", FILLS)
def test_whatever_overwrites_a_tile_as_a_whole_fills_a_version(body: Make, fill: str) -> None:
    assert found(body, f"{fill}\n{USE}") == [("s", (0,), (1,))]
    assert reason(body, f"{fill}\n{USE}") is None


PARTS = [
    "T.copy(c[0:32, :], s[0:32, :])",
    nest("s[i, j] = 1.0", extents="32, 64"),
    nest("s[i, i] = T.cast(j, 'float16')"),
    nest("s[i, (j + 1) % 32] = 1.0"),
    nest("if i > j:", "    s[i, j] = 1.0"),
    nest("if i > j:", "    s[i, j] = 1.0", "else:", "    s[j, i] = 1.0"),
    "for i in T.serial(63):\n    for j in T.Parallel(64):\n        s[i, j] = 1.0",
    "for i in T.serial(0, 64, 2):\n    for j in T.Parallel(64):\n        s[i, j] = 1.0",
    "for again in T.serial(n):\n    T.clear(s)",
    "for again in T.serial(64):\n    if again > bx:\n        break\n    T.clear(s)",
    "if k % 2 == 0:\n    T.copy(A[k * 64, 0], s)",
    "if k % 2 == 0:\n    T.clear(t)\nelse:\n    T.clear(s)",
]


@pytest.mark.parametrize("fill", PARTS)
def test_a_statement_that_may_leave_something_fills_no_version(body: Make, fill: str) -> None:
    text = f"{fill}\n{USE}"
    assert found(body, text) == []
    line = loop_of(body, text)[1].body[0].span.line
    assert reason(body, text) == f"line {line} may not overwrite all of s, so elements of the iteration before remain"


@pytest.mark.parametrize("part", [p for p in PARTS if "T.clear(t)" not in p])
def test_after_a_fill_a_part_is_enough(body: Make, part: str) -> None:
    assert found(body, f"T.clear(s)\n{part}\n{USE}") == [("s", (0, 1), (2,))]


def test_a_scalar_that_is_stored_fills_a_version(body: Make) -> None:
    assert found(body, "one[0] = Ids[k]\nfor i in T.Parallel(8):\n    Ids[i] = one[0]") == [("one", (0,), (1,))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{USE}\nT.copy(A[k * 64, 0], s)", "s is read before it is filled"),
        (nest("s[i, j] = s[i, j] + 1.0") + f"\n{USE}", "s is read before it is filled"),
        ("if k > 0:\n    T.gemm(s, s, d)\nT.clear(s)", "s is read before it is filled"),
        ("T.clear(s)\nT.copy(A[k * 64, 0], s)\nT.gemm(t, t, d)", "nothing in the loop reads s"),
        (f"T.clear(s)\n{USE}", None),
    ],
)
def test_why_a_tile_has_one_version(body: Make, text: str, said: str | None) -> None:
    assert reason(body, text) == said


@pytest.mark.parametrize(
    "around",
    [
        "T.clear(s)\n{}",
        "{}\nT.copy(s, A[0, 0])",
        "if bx > 0:\n    T.clear(s)\n{}",
        "{}\nfor again in T.serial(n):\n    T.copy(s, A[again * 64, 0])",
    ],
)
def test_what_is_used_outside_the_loop_has_one_version(body: Make, around: str) -> None:
    assert reason(body, f"T.clear(s)\n{USE}", around=around) == "s is also used outside the loop"


@pytest.mark.parametrize(
    "around", ["while one[0] < n:\n{}", "for again in T.serial(one[0]):\n{}", "if one[0] > 2:\n{}"]
)
def test_what_bounds_and_conditions_around_the_loop_read_is_used_outside(body: Make, around: str) -> None:
    text = indent(
        "for k in T.Pipelined(n):\n    one[0] = Ids[k]\n    for i in T.Parallel(8):\n        Ids[i] = one[0]", "    "
    )
    kernel = body(HEAD + around.format(text), PARAMS)
    (loop,) = find_pipelined_loops(kernel.body)
    assert rings.plan_rings(kernel, loop) == ()


def test_copies_share_a_ring_and_what_is_computed_has_its_own(body: Make) -> None:
    """Whoever waits for one copy waits for all that is read with it; a ring of one role has nobody waiting."""
    assert found(body, "T.copy(A[k * 64, 0], s)\nT.copy(A[0, 0], t)\nT.gemm(s, t, d)") == [("s+t", (0, 1), (2,))]
    assert found(body, "T.copy(c, s)\nT.clear(t)\nT.gemm(s, t, d)") == [("s", (0,), (2,)), ("t", (1,), (2,))]
    both = nest("s[i, j] = 1.0", "t[i, j] = 2.0")
    assert found(body, f"{both}\nT.gemm(s, t, d)") == [("s+t", (0,), (1,))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"T.copy(A[k * 64, 0], s)\n{USE}", None),
        (f"T.copy(A[k * 64, 0], s)\n{USE}\nT.copy(c, s)", None),
        ("T.copy(A[k * 64, 0], s)\n" + nest("s[i, j] = s[i, j] * 2.0") + f"\n{USE}", None),
        (f"T.clear(s)\nT.copy(A[k * 64, 0], s)\n{USE}", "an earlier statement of the loop also fills s"),
        (f"T.copy(A[k * 64, 0], s)\nT.copy(A[0, 0], s)\n{USE}", "an earlier statement of the loop also fills s"),
        (f"T.copy(A[k * 64 : k * 64 + 32, 0:64], s[0:32, :])\n{USE}", "it fills only a part of s"),
        (f"{USE}\nT.copy(A[k * 64, 0], s)", "s is read before it is filled"),
        ("T.copy(A[k * 64, 0], s)", "nothing in the loop reads s"),
    ],
)
def test_what_another_role_can_fill(body: Make, text: str, said: str | None) -> None:
    kernel, loop = loop_of(body, text)
    refusal = rings.why_not_fed(kernel, loop)
    assert refusal is None if said is None else str(refusal).endswith(f", {said}")
