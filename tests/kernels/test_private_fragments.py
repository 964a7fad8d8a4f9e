"""Fragments of which a kernel uses single elements only, differently in each thread: arrays of the threads."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import kernel

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

PARAMETERS = 'A: T.Tensor((128, 4), "float32"), I: T.Tensor((128,), "int32"), B: T.Tensor((128, 4), "float32")'
OF_EACH_THREAD = """
t = T.get_thread_binding()
m = T.alloc_fragment((2, 4), "int32")
for r in T.serial(4):
    m[0, r] = (I[t] + r) % 128
    m[1, r] = m[0, r] % 4
"""


def build(body: str) -> Build:
    return build_kernel(SourceFile("kernel.tl", kernel(PARAMETERS, body)), CompileOptions(target="sm_90a"), Observer())


def run(body: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What A and I were, and what the kernel left in B."""
    made = build(body)
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    found.tensors["I"][:] = np.random.default_rng(1).integers(0, 128, 128)
    a, i = found.tensors["A"].copy(), found.tensors["I"].copy()
    emulate.emulate_build(made, found)
    return a, i, found.tensors["B"]


def test_each_thread_has_its_own() -> None:
    a, i, b = run(f"{OF_EACH_THREAD}for r in T.serial(4):\n    B[t, r] = A[m[0, r], m[1, r]]\n")
    rows = (i[:, None] + np.arange(4)) % 128
    np.testing.assert_array_equal(b, a[rows, rows % 4])


def test_some_threads_have_their_own() -> None:
    """As where one warpgroup of several prefetches the indices of its next rows."""
    body = """
t = T.get_thread_binding()
m = T.alloc_fragment((4,), "int32")
for r in T.serial(4):
    B[t, r] = 0
if t >= 96:
    for r in T.serial(4):
        m[r] = I[t] + r
    for r in T.serial(4):
        m[r] += r
        B[t, r] = T.cast(m[r], "float32")
"""
    _, i, b = run(body)
    rows = (i[:, None] + 2 * np.arange(4)) * (np.arange(128) >= 96)[:, None]
    np.testing.assert_array_equal(b, rows.astype(np.float32))


def test_vectors_of_each_thread() -> None:
    a, _, b = run("""
t = T.get_thread_binding()
m = T.alloc_fragment((4,), "float32")
for r in T.vectorized(4):
    m[r] = A[t, r]
for r in T.vectorized(4):
    B[t, r] = m[r]
""")
    np.testing.assert_array_equal(b, a)


@pytest.mark.parametrize(
    "use", ["T.fill(m, 0)", "for i, j in T.Parallel(2, 4):\n    m[i, j] += 1", "T.copy(m[0, 0:4], m[1, 0:4])"]
)
def test_what_is_used_whole_is_spread(use: str) -> None:
    """Its elements then are the same for all threads."""
    with pytest.raises(CompileError, match="must be the same for all threads"):
        build(f"{OF_EACH_THREAD}{use}\n")


def test_elements_that_all_threads_share_stay_spread() -> None:
    a, _, b = run('m = T.alloc_fragment((4,), "float32")\nm[1] = A[0, 0]\nm[2] = m[1] + 1\nB[0, 0] = m[2]\n')
    assert b[0, 0] == a[0, 0] + np.float32(1)


EXCHANGES = {
    "an index of the thread": "m[t] = A[t, 0]\nB[t, 0] = m[127 - t]",
    "what one thread sets": "if t == 0:\n    m[0] = A[3, 0]\n    m[1] = A[t, 1]\nB[t, 0] = m[0]",
    "an atomic addition": "m[0] = A[t, 0]\nT.atomic_add(m[0], 1.0)\nB[t, 0] = m[0]",
    "a tile from an element on": "m[0] = A[t, 0]\nT.copy(m[0], s)",
    "a reduction": "for r in T.serial(4):\n    m[r] = A[t, r]\nT.reduce_sum(m[0], s)",
    "what a condition no longer admits": (
        "if I[t] > 64:\n    m[0] = A[t, 0]\nI[t] = 127 - I[t]\nif I[t] > 64:\n    B[t, 0] = m[0]"
    ),
    "roles": "with T.ws(0):\n    m[0] = A[0, 0]\nwith T.ws(1):\n    B[0, 0] = m[0]",
}


@pytest.mark.parametrize("body", EXCHANGES.values(), ids=EXCHANGES)
def test_what_threads_exchange_is_refused(body: str) -> None:
    start = (
        't = T.get_thread_binding()\nm = T.alloc_fragment((128,), "float32")\ns = T.alloc_shared((128,), "float32")\n'
    )
    with pytest.raises(CompileError):
        build(f"{start}{body}\n")
