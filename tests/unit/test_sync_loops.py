"""Waits and barriers stand in front of serial loops whose iterations do not need them anew, and in those that do."""

from __future__ import annotations

import numpy as np
import pytest
from building import outcome
from mutants import mutants

from tilec.driver.build import Build, build_kernel
from tilec.driver.emulation import emulate
from tilec.driver.observer import Observer
from tilec.ir import warp
from tilec.ir.warp_verify.verify import program_violations
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

WAITS = (warp.BarSync, warp.WarpgroupSync, warp.CpAsyncWait)
HEAD = """\
import tilelang.language as T
@T.prim_func
def kernel(X: T.Tensor((192, 64), "float32"), Y: T.Tensor((192, 64), "float32"), n: T.int32):
    with T.Kernel(2, threads=96) as bx:
        s = T.alloc_shared((96, 64), "float32")
        t = T.alloc_shared((96, 64), "float32")
        r = T.alloc_fragment((96,), "float32")
        T.copy(X[bx * 96, 0], s)
        T.clear(r)
"""
READS = {
    "counted": """
for k in T.serial(64):
    for i in T.Parallel(96):
        r[i] = r[i] + s[i, 63 - k]
T.copy(r, Y[bx * 96:bx * 96 + 96, 0])""",
    "any number of times": """
for k in T.serial(n):
    for i in T.Parallel(96):
        r[i] = r[i] + s[i, k % 64]
T.copy(r, Y[bx * 96:bx * 96 + 96, 0])""",
    "inside another": """
for k in T.serial(8):
    for m in T.serial(8):
        for i in T.Parallel(96):
            r[i] = r[i] + s[(i + k) % 96, m]
T.copy(r, Y[bx * 96:bx * 96 + 96, 0])""",
    "while": """
k = T.alloc_var("int32", init=0)
while k < n:
    for i in T.Parallel(96):
        r[i] = r[i] + s[95 - i, k % 64]
    k = k + 1
T.copy(r, Y[bx * 96:bx * 96 + 96, 0])""",
    "under a condition": """
for k in T.serial(64):
    if k % 2 == 0:
        for i in T.Parallel(96):
            r[i] = r[i] + s[95 - i, k]
T.copy(r, Y[bx * 96:bx * 96 + 96, 0])""",
    "to a tensor": """
for k in T.serial(64):
    for i in T.Parallel(96):
        Y[bx * 96 + i, k] = s[95 - i, k]""",
    "from one's own row": """
for k in T.serial(1, 64):
    for i in T.Parallel(96):
        Y[bx * 96 + i, k] = Y[bx * 96 + i, k - 1] + X[i, k]""",
    "two nests of one row": """
for k in T.serial(64):
    for i in T.Parallel(96):
        Y[bx * 96 + i, k] = s[95 - i, k]
    for m in T.Parallel(96):
        Y[bx * 96 + m, k] = Y[bx * 96 + m, k] * 2.0""",
}
NEEDED = {
    "written in the loop": """
for k in T.serial(8):
    for i, j in T.Parallel(96, 64):
        t[i, j] = s[i, j] * k
    for i in T.Parallel(96):
        r[i] = r[i] + t[95 - i, k]
T.copy(r, Y[bx * 96:bx * 96 + 96, 0])""",
    "read behind a loop that may not run": """
for i, j in T.Parallel(96, 64):
    s[i, j] = s[i, j] + 1.0
for k in T.serial(n):
    for i, j in T.Parallel(96, 64):
        t[i, j] = j + k
    for i in T.Parallel(96):
        r[i] = r[i] + t[95 - i, k % 64]
for i in T.Parallel(96):
    r[i] = r[i] + s[95 - i, 3]
T.copy(r, Y[bx * 96:bx * 96 + 96, 0])""",
    "a neighbour's row": """
for k in T.serial(1, 64):
    for i in T.Parallel(96):
        Y[bx * 96 + i, k] = Y[bx * 96 + 95 - i, k - 1] + X[i, k]""",
    "rows that move": """
for k in T.serial(48):
    for i in T.Parallel(48):
        Y[bx * 96 + k + i, 0] = s[i, k] + k""",
    "other threads for the second nest": """
for k in T.serial(16):
    for i in T.Parallel(96):
        Y[bx * 96 + i, k] = s[95 - i, k]
    for i, j in T.Parallel(96, 4):
        Y[bx * 96 + i, 16 + j] = Y[bx * 96 + i, j] + k""",
}


def made(body: str, target: str) -> Build:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return build_kernel(SourceFile("kernel.tl", HEAD + lines), CompileOptions(target=target), Observer())


def waits_in_loops(program: warp.Program) -> int:
    inner = (
        op
        for role in program.roles
        for op in warp.walk_operations(role.body)
        if isinstance(op, warp.Loop | warp.Forever)
    )
    return sum(isinstance(op, WAITS) for loop in inner for op in warp.walk_operations(loop.body))


def runs(result: Build) -> None:
    given = emulate.draw_arguments(result.kernel, result.manifest, 0)
    given.scalars["n"] = 9
    expected = given.copy()
    emulate.emulate_build(result, given)
    emulate.run_reference(result.kernel, expected)
    np.testing.assert_allclose(given.tensors["Y"], expected.tensors["Y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("form", READS)
def test_no_iteration_waits_for_what_stays(form: str, target: str) -> None:
    result = made(READS[form], target)
    assert waits_in_loops(result.program) == 0
    runs(result)


@pytest.mark.parametrize("form", NEEDED)
def test_iterations_wait_for_each_other(form: str) -> None:
    result = made(NEEDED[form], "sm_80")
    assert waits_in_loops(result.program) > 0
    runs(result)


@pytest.mark.parametrize("form", [*READS, *NEEDED])
def test_nothing_can_be_missing(form: str) -> None:
    """What stands in front of a loop is needed there, and so is what stands in it."""
    result = made((READS | NEEDED)[form], "sm_80")
    unnoticed = {what: program for what, program in mutants(result.program) if not list(program_violations(program))}
    assert [what for what, program in unnoticed.items() if not outcome(result, program, "sm_80")] == []
