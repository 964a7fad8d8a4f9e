"""T.Parallel(…, prefer_async=True): nests that become asynchronous copies, and those that say why not."""

from __future__ import annotations

import numpy as np
import pytest

from tilec import emulate
from tilec.driver import Build, Observer, build
from tilec.options import CompileOptions
from tilec.source import SourceFile

HEAD = """\
import tilelang.language as T
@T.prim_func
def kernel(X: T.Tensor((48, 96), "float32"), F: T.Tensor((4608,), "float32"), Y: T.Tensor((48, 96), "float32")):
    with T.Kernel(1, threads=64) as bx:
        s = T.alloc_shared((48, 96), "float32")
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
    "a thickness of one": "for o, i, j in T.Parallel(1, 48, 48, prefer_async=True):\n    s[i, j + o] = X[i, j + o]",
}


def made(body: str, target: str) -> Build:
    lines = "".join(f"        {line}\n" for line in f"{body}\n{TAIL}".splitlines())
    return build(SourceFile("kernel.tl", HEAD + lines), CompileOptions(target=target), Observer())


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("form", FORMS)
def test_is_an_asynchronous_copy(form: str, target: str) -> None:
    result = made(FORMS[form], target)
    assert "cp.async" in result.ptx
    assert not [w for w in result.warnings if w.code == "hint-not-used"]
    given = emulate.random_arguments(result.kernel, result.manifest, 0)
    expected = given.copy()
    emulate.run(result, given)
    emulate.reference(result.kernel, expected)
    np.testing.assert_array_equal(given.tensors["Y"], expected.tensors["Y"])
