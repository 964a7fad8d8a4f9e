"""Which tiles are never live together, and where they lie then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilec.ir.tile import Kernel
from tilec.passes.memory.live_ranges import find_reusable_tiles, place_tiles

Make = Callable[..., Kernel]

HEAD = """
s = T.alloc_shared((64, 64), "float16")
t = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
"""
PARAMS = 'A: T.Tensor((512, 64), "float16"), C: T.Tensor((512, 64), "float16"), n: T.int32'
FIRST = "T.copy(c, s)\nT.copy(s, C[0, 0])\n"
SECOND = FIRST.replace("s,", "t,").replace(" s)", " t)")
PIPELINE = "for k in T.Pipelined(n):\n    T.copy(A[k * 64, 0], s)\n    T.gemm(s, s, c)\n"


def nested(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.strip().split("\n"))


def in_loop(text: str, head: str = "for i in T.serial(n):") -> str:
    return f"{head}\n{nested(text)}"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (FIRST + SECOND, {"t": {"s"}}),
        (SECOND + FIRST, {"s": {"t"}}),
        (FIRST + SECOND + FIRST, {}),
        (in_loop(FIRST) + SECOND, {"t": {"s"}}),
        (in_loop(FIRST) + in_loop(SECOND), {"t": {"s"}}),
        (in_loop(FIRST + SECOND), {"t": {"s"}}),
        (in_loop(in_loop(FIRST + SECOND, "for j in T.serial(4):")), {"t": {"s"}}),
        (in_loop(FIRST + SECOND, "while n > 2:"), {"t": {"s"}}),
        (in_loop(FIRST + SECOND, "if n > 2:"), {"t": {"s"}}),
        (f"if n > 2:\n{nested(FIRST)}else:\n{nested(SECOND)}", {}),  # of one statement
        (in_loop(FIRST + SECOND, "for i in T.Pipelined(n):"), {}),  # of one statement, whose iterations overlap
        (PIPELINE + SECOND, {"t": {"s"}}),
        (SECOND + PIPELINE, {}),  # filled ahead of time
        (in_loop(PIPELINE + SECOND), {}),  # filled again
        (in_loop(PIPELINE) + SECOND, {"t": {"s"}}),
        (in_loop("T.copy(s, C[0, 0])\nT.copy(c, s)\n" + SECOND), {}),  # what the iteration before has left
        (in_loop("T.copy(c[0:32, 0:64], s[0:32, 0:64])\nT.copy(s, C[0, 0])\n" + SECOND), {}),  # the rest is left
        (in_loop(FIRST + SECOND.replace("T.copy(c", "if n > i:\n    T.copy(c")), {}),
        (FIRST + "T.copy(t, C[0, 0])\n", {}),  # never written
        (FIRST + "T.sync_threads()\n" + SECOND, {"t": {"s"}}),
        (FIRST + SECOND + 'if T.cast(t[0, 0], "float32") > 1:\n    T.copy(c, C[0, 0])\n', {}),  # in a condition
    ],
)
def test_tiles_that_are_never_live_together(body: Make, text: str, pairs: dict[str, set[str]]) -> None:
    assert find_reusable_tiles(body(HEAD + text, PARAMS)) == pairs


def test_tiles_lie_as_low_as_others_allow() -> None:
    sizes = {"a": 8, "b": 4, "c": 4, "d": 8}
    assert place_tiles(sizes, (), {}) == ({"a": 0, "d": 8, "b": 16, "c": 20}, 24)
    assert place_tiles(sizes, (), {"d": frozenset("a")}) == ({"a": 0, "d": 0, "b": 8, "c": 12}, 16)
    later = {"b": frozenset("a"), "c": frozenset("a"), "d": frozenset("abc")}
    assert place_tiles(sizes, (), later) == ({"a": 0, "d": 0, "b": 0, "c": 4}, 8)


def test_a_tile_lies_over_the_rings_that_it_may_all_reuse() -> None:
    sizes = {"r": 8, "q": 4, "a": 8, "b": 16}
    over = {"a": frozenset("rq"), "b": frozenset("r")}
    assert place_tiles(sizes, ("r", "q"), over) == ({"b": 0, "a": -12}, 16)
    assert place_tiles(sizes, ("r", "q"), {"b": frozenset("rq")}) == ({"b": -12, "a": 4}, 12)
