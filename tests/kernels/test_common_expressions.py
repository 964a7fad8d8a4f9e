"""What the elements of a nest have in common is computed once, and only as long as it is the same."""

from __future__ import annotations

import re

import pytest

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

HEAD = """
import tilelang.language as T
@T.prim_func
def k(A: T.Tensor((64, 128), "float32"), B: T.Tensor((64, 128), "float32"), C: T.Tensor((128,), "float16")):
    with T.Kernel(1, threads=128) as bx:
        x = T.alloc_fragment((64, 128), "float32")
        s = T.alloc_fragment((64,), "float32")
        T.copy(A, x)
        T.reduce_sum(x, s, dim=1)
"""
TARGETS = ("sm_80", "sm_90a", "sm_100a")


def right(body: str, target: str) -> str:
    """The PTX of the kernel with this body, which gives in the emulator what the reference says."""
    text = HEAD + "".join(f"        {line}\n" for line in body.strip("\n").split("\n")) + "        T.copy(x, B)\n"
    build = driver.build_kernel(SourceFile("k.tl", text), CompileOptions(target=target), driver.Observer())
    found = emulate.draw_arguments(build.kernel, build.manifest, 3)
    expected = found.copy()
    emulate.emulate_build(build, found)
    emulate.run_reference(build.kernel, expected)
    for r in emulate.compare_arguments(build.kernel, build.manifest, found, expected):
        assert r.matches, f"{r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"
    return build.ptx


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("expression", "opcode"),
    [
        ("x[i, j] * T.rsqrt(s[i] * s[i] / 96 + 1.0)", r"rsqrt\.approx\.f32"),
        ("x[i, j] * T.rsqrt(s[i] * s[i] / 96 + 1.0)", r"div\.\w+\.f32"),
        ("x[i, j] - T.exp2(-T.abs(s[i]))", r"ex2\.approx\.f32"),
        ("x[i, j] * T.cast(T.cast(s[i], 'float16'), 'float32')", r"cvt\.rn\.f16\.f32"),
    ],
)
def test_what_a_row_has_in_common_is_computed_once_for_it(expression: str, opcode: str, target: str) -> None:
    ptx = right(f"for i, j in T.Parallel(64, 128):\n    x[i, j] = {expression}", target)
    count = len(re.findall(opcode, ptx))
    assert 0 < count <= 16, f"{count} for 64 elements of a thread"


CHANGED: dict[str, str] = {
    "by the next statement": """
for i, j in T.Parallel(64, 128):
    x[i, j] = x[i, j] * 2.0
    x[i, j] = x[i, j] * 2.0 + 1.0
""",
    "of a row": """
for i in T.Parallel(64):
    s[i] = T.exp2(-T.abs(s[i]))
    s[i] = T.exp2(-T.abs(s[i])) + 1.0
for i, j in T.Parallel(64, 128):
    x[i, j] = x[i, j] * s[i]
""",
    "in a loop": """
for k in T.serial(3):
    for i, j in T.Parallel(64, 128):
        x[i, j] = x[i, j] * T.sigmoid(s[i])
    for i in T.Parallel(64):
        s[i] = s[i] * T.sigmoid(s[i])
""",
    "in some iterations": """
for k in T.serial(3):
    for i, j in T.Parallel(64, 128):
        if j % 2 == k % 2:
            x[i, j] = x[i, j] * T.sigmoid(s[i])
        else:
            x[i, j] = x[i, j] - T.sigmoid(s[i])
""",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("body", CHANGED.values(), ids=CHANGED)
def test_what_changes_is_computed_again(body: str, target: str) -> None:
    right(body, target)


@pytest.mark.parametrize(("divisor", "divides"), [("64.0", False), ("-0.125", False), ("96.0", True), ("3.0", True)])
def test_division_by_a_power_of_two_is_a_product(divisor: str, divides: bool) -> None:
    ptx = right(f"for i, j in T.Parallel(64, 128):\n    x[i, j] = x[i, j] / {divisor}", "sm_80")
    assert ("div." in ptx) == divides


LOADS: dict[str, tuple[str, int]] = {
    "a scale of each row and one of all": ("x[i, j] = x[i, j] * (u[i] * u[3])", 16 + 1),
    "a scale of each pair": ("x[i, j] = x[i, j] * u[j // 2]", 64 // 2),
    "read and written": ("u[i] = u[i] + 1.0", 1),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("statement", "most"), LOADS.values(), ids=LOADS)
def test_elements_read_a_shared_scale_once(statement: str, most: int, target: str) -> None:
    over = "i in T.Parallel(64)" if statement.startswith("u") else "i, j in T.Parallel(64, 128)"
    body = f"""
u = T.alloc_shared((64,), "float32")
T.copy(s, u)
for {over}:
    {statement}
for i, j in T.Parallel(64, 128):
    x[i, j] = x[i, j] + u[i]
"""
    ptx = right(body, target)
    nest, again = (len(re.findall(r"ld\.shared[.\w]*f32", ptx)), 16)
    assert 0 < nest <= most + again
