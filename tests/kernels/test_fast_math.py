"""`--fast-math`: approximate instructions and fused operations, only where they are asked for, and still right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilec.driver import build as driver
from tilec.driver.emulation import emulate
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

SAMPLES = Path(__file__).parents[2] / "samples"

# Of each function: the instruction of --fast-math, and how far it may be off.
FUNCTIONS = {
    "T.tanh(x)": ("tanh.approx.f32", 2.0**-10),
    "T.exp(x)": ("ex2.approx.ftz.f32", 2.0**-19),
    "T.log(T.abs(x) + 0.5)": ("lg2.approx.f32", 2.0**-20),
    "T.sin(x)": ("sin.approx.f32", 2.0**-19),
    "1.0 / (T.abs(x) + 0.5)": ("div.full.f32", 2.0**-21),
    "T.sqrt(T.abs(x))": ("sqrt.approx.f32", 2.0**-22),
}
KERNEL = """
import tilelang.language as T
@T.prim_func
def kernel(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
    with T.Kernel(1, threads=128) as bx:
        for i in T.Parallel(256):
            x = A[i]
            B[i] = EXPRESSION
"""


def made(source: SourceFile, fast: bool) -> driver.Build:
    return driver.build_kernel(source, CompileOptions(fast_math=fast, defines=()), driver.Observer())


@pytest.mark.parametrize("expression", FUNCTIONS)
def test_functions(expression: str) -> None:
    instruction, error = FUNCTIONS[expression]
    source = SourceFile("k.tl", KERNEL.replace("EXPRESSION", expression))
    exact, fast = made(source, False), made(source, True)
    assert instruction in fast.ptx and instruction not in exact.ptx
    for build, allowed in ((exact, 2.0**-20), (fast, error)):
        arguments = emulate.draw_arguments(build.kernel, build.manifest, 0)
        expected = arguments.copy()
        emulate.emulate_build(build, arguments)
        emulate.run_reference(build.kernel, expected)
        np.testing.assert_allclose(arguments.tensors["B"], expected.tensors["B"], rtol=allowed, atol=allowed)


def test_the_assembler_fuses_sums_and_products_only_when_asked() -> None:
    """Across statements: in one, the compiler has done it."""
    text = KERNEL.replace("x = A[i]", "x = A[i]; y = x * x").replace("EXPRESSION", "y + 1.0")
    source = SourceFile("k.tl", text)
    exact, fast = (made(source, is_fast).ptx for is_fast in (False, True))
    apart = driver.build_kernel(source, CompileOptions(fast_math=True, fma=False), driver.Observer()).ptx
    assert ".rn.f32" not in fast
    for ptx in (exact, apart):
        assert "mul.rn.f32" in ptx and "add.rn.f32" in ptx


def test_softmax_is_still_right() -> None:
    path = SAMPLES / "softmax.tl"
    build = driver.build_kernel(
        SourceFile(path.name, path.read_text()), CompileOptions(fast_math=True, defines=(("M", 8),)), driver.Observer()
    )
    arguments = emulate.draw_arguments(build.kernel, build.manifest, 1)
    expected = arguments.copy()
    emulate.emulate_build(build, arguments)
    emulate.run_reference(build.kernel, expected)
    assert all(r.matches for r in emulate.compare_arguments(build.kernel, build.manifest, arguments, expected))
