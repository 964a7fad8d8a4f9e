"""T.Parallel(…, prefer_async=True): nests that become asynchronous copies, and those that say why not."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

from tilec.analysis.copy_nests import is_constant_per_run
from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.ir.affine import scale_expr
from tilec.ir.read import read_kernel
from tilec.ir.text import print_kernel
from tilec.ir.tile import Binary, BinaryOp, Var, int32_const
from tilec.ir.types import BOOL, INT32
from tilec.rewriting.fold_constants import compute_expr
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

HEAD = """\
import tilelang.language as T
@T.prim_func
def kernel(X: T.Tensor((48, 96), "float32"), F: T.Tensor((4608,), "float32"), Y: T.Tensor((48, 96), "float32")):
    with T.Kernel(1, threads=64) as bx:
        s = T.alloc_shared((48, 96), "float32")
        t = T.alloc_shared((12, 96), "float32")
        T.fill(s, 3.0)
"""
TAIL = "for i, j in T.Parallel(48, 96):\n    Y[i, j] = s[47 - i, j]"
FORMS = {
    "the whole tile": "for i, j in T.Parallel(48, 96, prefer_async=True):\n    s[i, j] = X[i, j]",
    "a vector each": """
for i, j in T.Parallel(48, 12, prefer_async=True):
    for v in T.vectorized(8):
        s[i, j * 8 + v] = X[i, j * 8 + v]""",
    "two digits of rows": """
for a, b, j in T.Parallel(6, 8, 96, prefer_async=True):
    s[a * 8 + b, j] = X[a * 8 + b, j]""",
    "a box": "for i, j in T.Parallel(16, 32, prefer_async=True):\n    s[i + 8, j + 64] = X[i, j + 4]",
    "a row of it in each iteration": """
for k in T.serial(48):
    for j in T.Parallel(96, prefer_async=True):
        s[k, j] = X[47 - k, j]""",
    "the same part again": """
for k in T.serial(4):
    for j in T.Parallel(64, prefer_async=True):
        s[0, j] = X[k, j]
    for j in T.Parallel(64):
        s[k + 1, 63 - j] = s[0, j]""",
    "a flat source": "for i, j in T.Parallel(48, 96, prefer_async=True):\n    s[i, j] = F[i * 96 + j]",
    "a flat source, shifted": "for i, j in T.Parallel(16, 32, prefer_async=True):\n    s[i, j] = F[i * 96 + j + 3]",
    "a flat source that ends": "for i, j in T.Parallel(48, 96, prefer_async=True):\n    s[i, j] = F[i * 96 + j + 64]",
    "transposed": "for i, j in T.Parallel(48, 48, prefer_async=True):\n    s[j, i] = X[i, j]",
    "a column": "for i in T.Parallel(48, prefer_async=True):\n    s[i, 5] = X[i, 7]",
    "every second": "for i, j in T.Parallel(48, 48, prefer_async=True):\n    s[i, j] = X[i, j * 2]",
    "a diagonal": "for i, j in T.Parallel(48, 48, prefer_async=True):\n    s[i, j] = X[i, i + j]",
    "rows of digits": "for i, j in T.Parallel(48, 96, prefer_async=True):\n    s[i, j] = X[i // 8 * 8 + 7 - i % 8, j]",
    "below": """
for i, j in T.Parallel(48, 96, prefer_async=True):
    s[i, j] = T.if_then_else(j < 60, X[i, j], 0.0)""",
    "below, and in between": """
for i, j in T.Parallel(48, 96, prefer_async=True):
    s[i, j] = T.if_then_else(j <= 60 and j > 7, X[i, j], 0.0)""",
    "from the end": """
for i, j in T.Parallel(48, 96, prefer_async=True):
    s[i, j] = T.if_then_else(95 - j < 41, 0.0, X[i, j])""",
    "a triangle": """
for i, j in T.Parallel(48, 96, prefer_async=True):
    s[i, j] = T.if_then_else(i >= j, X[i, j], 0.0)""",
    "under a condition of the loop": """
for k in T.serial(4):
    for i, j in T.Parallel(12, 96, prefer_async=True):
        s[k * 12 + i, j] = T.if_then_else(k * 12 + i < 31, F[k * 1152 + i * 96 + j], 0.0)""",
    "in a pipelined loop": """
for k in T.Pipelined(4, num_stages=2):
    for i, j in T.Parallel(12, 96, prefer_async=True):
        t[i, j] = T.if_then_else(j < 64, F[k * 1152 + i * 96 + j], 0.0)
    for i, j in T.Parallel(12, 96):
        s[k * 12 + i, j] = t[11 - i, 95 - j]""",
    "a thickness of one": "for o, i, j in T.Parallel(1, 48, 48, prefer_async=True):\n    s[i, j + o] = X[i, j + o]",
}


def made(body: str, target: str) -> Build:
    lines = "".join(f"        {line}\n" for line in f"{body}\n{TAIL}".splitlines())
    return build_kernel(SourceFile("kernel.tl", HEAD + lines), CompileOptions(target=target), Observer())


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("form", FORMS)
def test_is_an_asynchronous_copy(form: str, target: str) -> None:
    result = made(FORMS[form], target)
    assert "cp.async" in result.ptx
    assert not [w for w in result.warnings if w.code == "hint-not-used"]
    given = emulate.draw_arguments(result.kernel, result.manifest, 0)
    expected = given.copy()
    emulate.emulate_build(result, given)
    emulate.run_reference(result.kernel, expected)
    np.testing.assert_array_equal(given.tensors["Y"], expected.tensors["Y"])


def test_written_and_read() -> None:
    """Tile IR keeps the wish."""
    kernel = made(FORMS["below"], "sm_80").kernel
    text = print_kernel(kernel)
    assert "asynchronous=True" in text and print_kernel(read_kernel(text)) == text


def test_chunks_are_as_wide_as_conditions_allow() -> None:
    for bound, width in ((60, 16), (58, 8), (57, 4)):
        guard = f"T.if_then_else(j < {bound}, X[i, j], 0.0)"
        text = f"for i, j in T.Parallel(48, 96, prefer_async=True):\n    s[i, j] = {guard}"
        widths = {
            int(w)
            for w in re.findall(r"cp.async.c[ag].shared.global \[[^]]*\], \[[^]]*\], (\d+)", made(text, "sm_80").ptx)
        }
        assert widths == {width}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge"])
def test_a_condition_is_even_on_runs_or_not(op: BinaryOp, sign: int) -> None:
    """Against all values: what is said to be even is."""
    found = 0
    x = Var("x")
    for offset, run, factor in product(range(-9, 10), (2, 4, 8), (1, 2, 4)):
        moved = x if sign == 1 else Binary("sub", int32_const(0), x, INT32)
        condition = Binary(op, Binary("add", moved, int32_const(offset), INT32), int32_const(0), BOOL)
        if factor > 1:
            condition = Binary(op, Binary("add", moved, scale_expr(Var("k"), factor), INT32), int32_const(offset), BOOL)
        said = is_constant_per_run(condition, x, run)
        runs = [
            {compute_expr(condition, {x: first + n, Var("k"): k}) for n in range(run)}
            for first in range(0, 48, run)
            for k in range(-3, 4)
        ]
        assert not said or all(len(values) == 1 for values in runs)
        found += said
    assert found > 20


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("for i in T.Parallel(48, prefer_async=True):\n    s[i, 0] = X[i, 0] + 1.0", "not an unchanged tensor element"),
        ("for i in T.Parallel(48, prefer_async=True):\n    Y[i, 0] = X[i, 0]", "Y is not a shared tile"),
        ("for i in T.Parallel(48, prefer_async=True):\n    if i < 5:\n        s[i, 0] = X[i, 0]", "T.if_then_else"),
        (
            "for i in T.Parallel(24, prefer_async=True):\n    s[i * 2, 0] = X[i, 0]",
            "the elements it stores are not a box of s",
        ),
        (
            "for i in T.Parallel(24, prefer_async=True):\n    s[i, 0] = T.if_then_else(i < 5, X[i, 0], 1.0)",
            "something other than 0",
        ),
        (
            "h = T.alloc_shared((48,), 'float16')\nfor i in T.Parallel(48, prefer_async=True):\n    h[i] = F[i]",
            "it converts the elements",
        ),
    ],
)
def test_says_why_not(body: str, reason: str) -> None:
    result = made(body, "sm_80")
    (found,) = [w for w in result.warnings if w.code == "hint-not-used"]
    assert reason in found.primary.text
