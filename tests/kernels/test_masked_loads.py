"""Elements that a nest reads under a condition are not read where it is false, while others store them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

N = 512
TEXT = """
import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((512,), "{dtype}"), B: T.Tensor((512,), "{dtype}"), n: T.int32):
    with T.Kernel({blocks}, threads=64) as bx:
        s = T.alloc_shared((512,), "{dtype}")
        f = T.alloc_fragment((512,), "{dtype}")
        T.copy(A, s)
        T.copy(A, f)
        for i in T.Parallel(512):
            {body}
        {store}
"""
SWAP = "v = s[i]\ns[i] = s[j]\ns[j] = v"


def inside(*heads: str, body: str) -> str:
    """The lines under these conditions."""
    lines = [*heads, *("    " * len(heads) + line for line in body.split("\n"))]
    return "\n".join("    " * n + line if n < len(heads) else line for n, line in enumerate(lines))


def swapped(a: NDArray[Any], asked: Any) -> None:
    for i in range(N):
        if asked(i, i ^ 64):
            a[i], a[i ^ 64] = a[i ^ 64], a[i]


def neighbours(a: NDArray[Any]) -> None:
    a[1::2] += a[0::2]


def half(a: NDArray[Any]) -> None:
    a[:256] = a[256:]


def compared(a: NDArray[Any]) -> None:
    swapped(a, lambda i, j: i < j and a[i] > a[j])


def evens(a: NDArray[Any]) -> None:
    a[0::2] = a[1::2]


def each(change: Any) -> Any:
    """What `change` makes of an even element and the odd one behind it, number of the element first."""

    def run(a: NDArray[Any]) -> None:
        for i in range(0, N, 2):
            a[i] = change(i, a[i], a[i + 1])

    return run


def nothing(a: NDArray[Any]) -> None:
    del a


# A nest's body, and what numpy makes of a copy of A; in place of s, the tensor B for those with two blocks.
BODIES: dict[str, tuple[str, Any]] = {
    "swap": ("j = i ^ 64\n" + inside("if i < j:", body=SWAP), lambda a: swapped(a, lambda i, j: i < j)),
    "sort": ("j = i ^ 64\n" + inside("if i < j:", "if s[i] > s[j]:", body=SWAP), compared),
    "sort with and": ("j = i ^ 64\n" + inside("if i < j and s[i] > s[j]:", body=SWAP), compared),
    "sort with and, or else": (
        "j = i ^ 64\n" + inside("if i < j and s[i] > s[j]:", body=SWAP)
        + "\nelif i < j and s[j] == s[i]:\n    s[i] = 1.0",
        compared,
    ),
    "neighbours": (inside("if i % 2 == 1:", body="s[i] = s[i] + s[i - 1]"), neighbours),
    "pairs": (inside("if i % 2 == 0:", body="s[i // 2 * 2 + 1] += s[i]"), neighbours),
    "half": (inside("if i < 256:", body="s[i] = s[i + 256]"), half),
    "half, if at all": (inside("if n > 3:", "if i < 256:", body="s[i] = s[i + 256]"), half),
    "not at all": (inside("if n < 3:", body="s[i] = s[511 - i]"), nothing),
    "otherwise": (inside("if i >= 256:", body="pass") + "\nelse:\n    s[i] = s[i + 256]", half),
    "one block": (inside("if bx == 0:", body="B[i] = B[i] + B[i]"), lambda a: np.add(a, a, a)),
    "one block, if registers say so": (
        inside("if bx == 0:", "if f[i] == f[i]:", body="f[i] = f[i] + f[i]\nB[i] = B[i] + B[i]"),
        lambda a: np.add(a, a, a),
    ),
    "or": (
        inside("if i % 4 == 0 or i % 4 == 2 and s[i + 1] > 0.0:", body="s[i] = 1.0"),
        each(lambda i, x, y: 1 if i % 4 == 0 or y > 0 else x),
    ),
    "or what stands behind": (
        inside("if i % 2 == 1 or s[i + 1] > 0.0:", "if i % 2 == 0:", body="s[i] = s[i + 1]"),
        each(lambda i, x, y: y if y > 0 else x),
    ),
    "not both": (
        inside("if not (i % 2 == 0 and s[i + 1] > 0.0):", "if i % 2 == 0:", body="s[i] = s[i + 1]"),
        each(lambda i, x, y: x if y > 0 else y),
    ),
    "one or the other of both": (
        inside("if (i % 2 == 0 and s[i + 1] > 0.5) or (i % 2 == 0 and s[i + 1] < -0.5):", body="s[i] = 0.0"),
        each(lambda i, x, y: 0 if abs(y) > 0.5 else x),
    ),
    "chain": (
        "if i % 2 == 1:\n    pass\nelif s[i + 1] > 0.5:\n    s[i] = s[i + 1]\nelif s[i + 1] < -0.5:\n    s[i] = 0.0",
        each(lambda i, x, y: y if y > 0.5 else 0 if y < -0.5 else x),
    ),
    "arm": ("s[i] = s[i + 1] if i % 2 == 0 else s[i]", evens),
    "arm of T.if_then_else": ("s[i] = T.if_then_else(i % 2 == 1, s[i], s[i + 1])", evens),
    "arm of T.Select": ("v = T.Select(i % 2 == 0, s[i + 1], s[i])\ns[i] = v", evens),
    "arms in arms": (
        "s[i] = (s[i + 1] if i % 4 == 0 else s[i] if s[i + 1] > 0.0 else s[i + 1]) if i % 2 == 0 else s[i]",
        each(lambda i, x, y: y if i % 4 == 0 or y <= 0 else x),
    ),
    "arm of a sum": ("s[i] = s[i] + (s[i + 1] if i % 2 == 0 else 0.0)", each(lambda i, x, y: x + y)),
    "arm for registers": (
        "f[i] = s[i + 1] if i % 2 == 0 else f[i]\n" + inside("if i % 2 == 0:", body="s[i] = f[i]"), evens
    ),
    "arm that registers choose": (
        "f[i] = T.if_then_else(i % 2 == 0, 1.0, 0.0)\ns[i] = s[i + 1] if f[i] > 0.5 else s[i]", evens
    ),
    "arm of one block": (
        "f[i] = B[i] if bx == 0 else 0.0\n" + inside("if bx == 0:", body="B[i] = f[i] + f[i]"),
        lambda a: np.add(a, a, a),
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", BODIES)
def test_what_is_not_used_is_not_read(name: str, dtype: str, target: str) -> None:
    body, meaning = BODIES[name]
    blocks, store = (2, "pass") if "block" in name else (1, "T.copy(s, B)")
    body = body.replace("\n", "\n            ")
    text = TEXT.format(dtype=dtype, body=body, blocks=blocks, store=store)
    made = build_kernel(SourceFile("masked.tl", text), CompileOptions(target=target, lint="off"), Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    found.scalars["n"] = 5
    found.tensors["B"][...] = found.tensors["A"]
    wanted = found.tensors["A"].copy()
    meaning(wanted)
    emulate.emulate_build(made, found)
    assert np.array_equal(found.tensors["B"], wanted)


PARTLY = """
import tilelang.language as T

@T.prim_func
def kernel(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=32) as bx:
        s = T.alloc_shared((64,), "int32")
        f = T.alloc_fragment((64,), "int32")
        for i in T.Parallel(64):
            f[i] = -1
        {body}
        for i in T.Parallel(64):
            B[i] = f[i]
"""
PARTS = {
    "under a condition": """
for i in T.Parallel(64):
    if A[i] > 0:
        s[i] = A[i]
for i in T.Parallel(64):
    if A[i] > 0:
        f[i] = s[i]
""",
    "in a shorter loop": """
for i in T.Parallel(37):
    s[i] = A[i]
for i in T.Parallel(64):
    if i < 37 and A[i] > 0:
        f[i] = s[i]
""",
    "where an expression selects it": """
for i in T.Parallel(64):
    if A[i] > 0:
        s[i] = A[i]
for i in T.Parallel(64):
    f[i] = s[i] if A[i] > 0 else -1
""",
    "by an atomic operation": """
for i in T.Parallel(64):
    if A[i] > 0:
        f[i] = T.atomic_max(A[i], 99, return_prev=True)
""",
}


@pytest.mark.parametrize("name", PARTS)
def test_what_nobody_wrote_is_not_read(name: str) -> None:
    text = PARTLY.format(body=PARTS[name].strip().replace("\n", "\n        "))
    made = build_kernel(SourceFile("partly.tl", text), CompileOptions(lint="off"), Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    a = found.tensors["A"]
    a[...] = np.arange(64) % 5 - 2
    used = (a > 0) & ((np.arange(64) < 37) | ("shorter" not in name))
    wanted = np.where(used, a, -1)
    emulate.emulate_build(made, found)
    assert np.array_equal(found.tensors["B"], wanted)


def test_an_index_by_a_value_that_the_nest_overwrites() -> None:
    """Nothing is read ahead there: the value is kept first."""
    nest = "for i in T.Parallel(64):\n    x = f[i] < A[i]\n    f[i] = 7\n    f[i] = A[T.if_then_else(x, 63 - i, 0)]"
    text = PARTLY.format(body=nest.replace("\n", "\n        "))
    made = build_kernel(SourceFile("index.tl", text), CompileOptions(lint="off"), Observer())
    found = emulate.draw_arguments(made.kernel, made.manifest, 0)
    a = found.tensors["A"]
    emulate.emulate_build(made, found)
    assert np.array_equal(found.tensors["B"], a[np.where(a > -1, 63 - np.arange(64), 0)])
