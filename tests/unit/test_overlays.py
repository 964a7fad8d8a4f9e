"""Which tiles may lie over the rings, by where in the kernel they live."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilec.ir.tile import Kernel
from tilec.passes.memory.shared_reuse import find_tiles_over_rings

Make = Callable[..., Kernel]

HEAD = """
s = T.alloc_shared((64, 64), "float16")
t = T.alloc_shared((64, 64), "float16")
c = T.alloc_fragment((64, 64), "float32")
"""
PARAMS = 'A: T.Tensor((512, 64), "float16"), C: T.Tensor((512, 64), "float16"), n: T.int32'
LOOP = """for k in T.Pipelined(n):
    T.copy(A[k * 64, 0], s)
    T.gemm(s, s, c)
"""
STORE = "T.copy(c, t)\nT.copy(t, C[0, 0])\n"


def nested(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.strip().split("\n"))


@pytest.mark.parametrize(
    ("text", "over"),
    [
        (LOOP + STORE, {"t"}),
        (LOOP + LOOP.replace("k", "l") + STORE, {"t"}),
        (f"if n > 2:\n{nested(LOOP)}{STORE}", {"t"}),
        (LOOP + f"for i in T.serial(n):\n{nested(STORE)}", {"t"}),
        (STORE, set()),  # there are no rings
        (f"for i in T.serial(n):\n{nested(LOOP + STORE)}", set()),  # filled again for the next tile
        (LOOP + STORE + LOOP.replace("k", "l"), set()),
        ("T.clear(t)\n" + LOOP + STORE, set()),
        (LOOP + "    T.copy(s, C[0, 0])\n" + STORE, set()),  # a role of its own may store them
        (LOOP + "T.sync_threads()\n" + STORE, set()),  # the text orders its accesses itself
        (LOOP + "T.copy(s, C[0, 0])\n" + STORE, {"t"}),  # what the last iteration loaded is read for the last time
        (LOOP + STORE + "T.copy(s, C[64, 0])\n", set()),  # it is read later
        (LOOP + "T.copy(A[0, 0], t)\nT.gemm(s, t, c)\n", set()),
        (LOOP + "T.copy(t, C[0, 0])\n", set()),  # nothing is ever in it
        (LOOP + "if n > 2:\n    T.copy(c, t)\nT.copy(t, C[0, 0])\n", set()),  # perhaps nothing
        (LOOP + f"if n > 2:\n{nested(STORE)}else:\n    T.clear(t)\nT.copy(t, C[0, 0])\n", {"t"}),
        (LOOP + "for i in T.serial(n):\n    T.copy(c, t)\nT.copy(t, C[0, 0])\n", set()),
    ],
)
def test_a_tile_lives_behind_all_rings(body: Make, text: str, over: set[str]) -> None:
    assert find_tiles_over_rings(body(HEAD + text, PARAMS)) == over
