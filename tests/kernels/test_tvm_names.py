"""Names of TVM that TileLang's kernels use and that have one plain meaning, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import tilec
from tilec.support.diagnostics import CompileError

HEAD = "import tilelang.language as T\n"


def build(text: str, target: str = "sm_80") -> tilec.Kernel:
    """Compile a kernel for the emulator."""
    return tilec.compile(HEAD + text, target=target, device="emulator")


def find_mistake(text: str) -> tuple[str, str, str | None]:
    """Return the code, the title and the help of the only mistake of a kernel."""
    with pytest.raises(CompileError) as caught:
        build(text)
    (found,) = caught.value.diagnostics
    return found.code, found.title, found.help


def draw(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


GRID = """
@T.prim_func
def k(A: T.Tensor((64, 3), "float32"), n: T.int32, C: T.Tensor((64, 3, 2), "float32")):
    with T.Kernel(1, threads=64):
        t = T.get_thread_binding()
        for row, column in T.grid(3, 2):
            C[t, row, column] = -1
        i = n
        shape = (i, 2)
        for i, j in T.grid(*shape):  # the extent `i` is the one before the loop
            if i + j == 3:
                break
            if j == 0 and i == 1:
                continue
            C[t, i, j] = A[t, i] * (j + 1)
"""


def test_a_grid_is_one_serial_loop_in_another() -> None:
    a, c = draw(64, 3), np.zeros((64, 3, 2), np.float32)
    build(GRID)(a, 3, c)
    expected = a[:, :, None] * np.array([1, 2], np.float32)
    expected[:, 1, 0] = expected[:, 2, 1] = -1
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize(
    ("loop", "code", "title"),
    [
        ("i in T.grid()", "missing-argument", "T.grid needs at least one extent"),
        ("i in T.grid(2, 3)", "wrong-variable-count", "1 variable for 2 extents"),
        ("i, j in T.grid(2, 3.5)", "wrong-dtype", "T.grid: the bounds must be integers"),
        ("i in T.grid(2, stop=3)", "unknown-keyword", "T.grid has no parameter `stop`"),
    ],
)
def test_a_grid_is_refused_in_its_own_words(loop: str, code: str, title: str) -> None:
    text = f"@T.prim_func\ndef k(A: T.Tensor((8,), 'int32')):\n    with T.Kernel(1):\n        for {loop}:\n            A[i] = 1\n"
    assert find_mistake(text)[:2] == (code, title)
