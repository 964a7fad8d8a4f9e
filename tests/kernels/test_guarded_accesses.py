"""Accesses behind a guard or outside of their tensor never touch memory outside, with indices near their type's ends.

The emulator faults where one does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from snippets import kernel

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

ROWS = 20
HEAD = 'R = T.dynamic("R")\n'
PARAMS = (
    'A: T.Tensor(({rows}, 64), "float32"), L: T.Tensor(({rows},), "int32"), P: T.Tensor((4,), "{dtype}"), '
    'X: T.Tensor((8, 64), "float32"), Y: T.Tensor((64,), "int32"), n: T.int32'
)
ENDS = {
    "int32": (2**31 - 1, 2**31 - 5, 2**31 - 64, -(2**31), -(2**31) + 3, -3, 2**26 + 1, 0, 5, 15, 2**30),
    "int64": (2**31 - 1, 2**31 - 5, 2**31, 2**32, 2**32 - 4, -(2**31) - 2, 2**40, 2**63 - 1, -(2**63), -3, 0, 5, 15),
}  # fmt: skip

# A kernel's body, and the row or place that its element `i` asks for, where P holds p; None where it asks for none.
USES: dict[str, tuple[str, Any]] = {
    "guarded rows": (
        "for i, j in T.Parallel(8, 64):\n    if P[0] < {rows}:\n        X[i, j] = A[P[0] + i, j]",
        lambda p, i: p + i if p < ROWS else None,
    ),
    "guarded sum": (
        "for i, j in T.Parallel(8, 64):\n    if P[0] + i < {rows}:\n        X[i, j] = A[P[0] + i, j]",
        lambda p, i: p + i if p + i < ROWS else None,
    ),
    "rows": ("for i, j in T.Parallel(8, 64):\n    X[i, j] = A[P[0] + i, j]", lambda p, i: p + i),
    "rows by a name": (
        "row = P[0] - 2\nfor i, j in T.Parallel(8, 64):\n    X[i, j] = A[row + i * 3, j]",
        lambda p, i: p - 2 + i * 3,
    ),
    "pages": ("for i, j in T.Parallel(8, 64):\n    X[i, j] = A[P[0] * 4 + i, j]", lambda p, i: p * 4 + i),
    "tile": (
        "s = T.alloc_shared((8, 64), 'float32')\nT.copy(A[P[0] + 1, 0], s)\nT.copy(s, X)",
        lambda p, i: p + 1 + i,
    ),
    "pipelined": (
        "s = T.alloc_shared((1, 64), 'float32')\nfor k in T.Pipelined(8, num_stages=2):\n"
        "    T.copy(A[P[0] + k, 0], s)\n    for i, j in T.Parallel(1, 64):\n        X[k + i, j] = s[i, j]",
        lambda p, i: p + i,
    ),
    "one place": (
        "for i in T.Parallel(64):\n    Y[i] = L[P[0] + i * 3]",
        lambda p, i: p + i * 3,
    ),
    "guarded places": (
        "for i in T.Parallel(64):\n    if P[0] + i >= 0 and P[0] + i < {rows}:\n        Y[i] = L[P[0] + i]",
        lambda p, i: p + i if 0 <= p + i < ROWS else None,
    ),
    "each thread": (
        "tx = T.get_thread_binding()\nif P[0] + tx < {rows}:\n    Y[tx] = L[P[0] + tx]",
        lambda p, i: p + i if p + i < ROWS else None,
    ),
    "through shared": (
        "s = T.alloc_shared((4,), '{dtype}')\nT.copy(P, s)\nfor i in T.Parallel(64):\n    Y[i] = L[s[1] + i - 7]",
        lambda p, i: p + i - 7,
    ),
    "of shared": (
        "s = T.alloc_shared((20,), 'int32')\nfor i in T.Parallel(20):\n    s[i] = L[i]\n"
        "for i in T.Parallel(64):\n    if P[0] + i >= 0 and P[0] + i < 20:\n        Y[i] = s[P[0] + i]",
        lambda p, i: p + i if 0 <= p + i < ROWS else None,
    ),
    "looked up twice": (
        "for i in T.Parallel(64):\n    q = P[0] + i\n    if L[q + 1] != 0:\n        Y[i] = L[q + 1]",
        lambda p, i: p + i + 1 if 0 <= p + i + 1 < ROWS else None,
    ),
    "unrelated guard": (
        "for i in T.Parallel(64):\n    if n > 100:\n        Y[i] = L[P[0] + i]",
        lambda p, i: None,
    ),
    "scalar": ("for i in T.Parallel(64):\n    Y[i] = L[n + i]", lambda p, i: p + i),
    "store": ("for i in T.Parallel(64):\n    L[P[0] + i] = 5", lambda p, i: p + i),
    "guarded store": (
        "for i in T.Parallel(64):\n    if P[0] + i < {rows}:\n        L[P[0] + i] = 5",
        lambda p, i: p + i if p + i < ROWS else None,
    ),
    "store by pages": ("for i in T.Parallel(64):\n    L[P[0] * 4 + i] = 5", lambda p, i: p * 4 + i),
    "tile stored": (
        "f = T.alloc_fragment((64,), 'int32')\nT.fill(f, 5)\nT.copy(f, L[P[0] + 1])",
        lambda p, i: p + 1 + i,
    ),
    "tile stored from shared": (
        "s = T.alloc_shared((16,), 'int32')\nT.fill(s, 5)\nT.copy(s, L[P[0] * 4])",
        lambda p, i: p * 4 + i if i < 16 else None,
    ),
    "one element": (
        "q = L[P[0] + 3]\nfor i in T.Parallel(64):\n    Y[i] = q",
        lambda p, i: p + 3,
    ),
    "one element behind a guard": (
        "q = P[0] + 3\nif q < {rows}:\n    r = L[q + 2]\n    for i in T.Parallel(64):\n        Y[i] = r",
        lambda p, i: p + 5 if p + 3 < ROWS else None,
    ),
    "atomic": ("for i in T.Parallel(64):\n    T.atomic_add(L[P[0] + i + 2], 1000)", lambda p, i: p + i + 2),
}  # fmt: skip


def wrapped(number: int, dtype: str) -> int:
    """Return the number as arithmetic of this type leaves it."""
    bits = 32 if dtype == "int32" else 64
    return (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


class Number(int):
    """An integer of the kernel's, whose sums and products wrap around."""

    dtype = "int32"

    def _made(self, value: int) -> Number:
        return Number(wrapped(value, self.dtype))

    def __add__(self, other: int) -> Number:
        return self._made(int(self) + int(other))

    def __sub__(self, other: int) -> Number:
        return self._made(int(self) - int(other))

    def __mul__(self, other: int) -> Number:
        return self._made(int(self) * int(other))


def compiled(use: str, dtype: str, rows: int | str, target: str) -> Build:
    text = kernel(PARAMS.format(rows=rows, dtype=dtype), USES[use][0].format(rows=rows, dtype=dtype), threads=64)
    text = text.replace("@T.prim_func", f"{HEAD}\n@T.prim_func") if rows == "R" else text
    return build_kernel(SourceFile("kernel.tl", text), CompileOptions(target=target, lint="off"), Observer())


def expected(use: str, dtype: str, p: int, tensors: dict[str, Any]) -> dict[str, Any]:
    """Return what the tensors hold afterwards."""
    Number.dtype = "int32" if use == "scalar" else dtype
    made = {name: tensors[name].copy() for name in ("X", "Y", "L")}
    places = [USES[use][1](Number(p), i) for i in range(64)]
    is_store, is_rows = "store" in use or use == "atomic", "X[" in USES[use][0] or "X)" in USES[use][0]
    for i, place in enumerate(places[:8] if is_rows else places):
        if place is None:
            continue
        inside = 0 <= place < ROWS
        if is_store:
            if inside:
                made["L"][place] = 5 if use != "atomic" else made["L"][place] + 1000
        elif is_rows:
            made["X"][i] = tensors["A"][place] if inside else 0
        else:
            made["Y"][i] = tensors["L"][place] if inside else 0
    return made


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("rows", ["R", ROWS])
@pytest.mark.parametrize("dtype", ENDS)
@pytest.mark.parametrize("use", USES)
def test_memory_outside_is_never_touched(use: str, dtype: str, rows: int | str, target: str) -> None:
    made = compiled(use, dtype, rows, target)
    sizes = {"R": ROWS} if rows == "R" else {}
    for p in ENDS["int32" if use == "scalar" else dtype]:
        scalars = {**sizes, "n": p if use == "scalar" else 7}
        found = emulate.draw_arguments(made.kernel, made.manifest, 0, scalars)
        found.scalars.update({k: v for k, v in scalars.items() if k in found.scalars})
        if "P" in found.tensors:
            found.tensors["P"][:] = p
        found.tensors["L"][:] = np.arange(1, ROWS + 1)
        wanted, reference = expected(use, dtype, p, found.tensors), found.copy()
        emulate.emulate_build(made, found)
        emulate.run_reference(made.kernel, reference)
        for name, values in wanted.items():
            assert np.array_equal(found.tensors[name], values, equal_nan=True), (p, name)
            assert np.array_equal(reference.tensors[name], values, equal_nan=True), (p, name, "reference")
