"""Instructions carry the line of the kernel that they are of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilec.driver.build import Observer, build_kernel
from tilec.emu import Fault, launch
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

GEMM = Path(__file__).parents[2] / "samples" / "gemm.tl"


def test_loads_of_factors_have_the_line_of_their_product() -> None:
    text = GEMM.read_text(encoding="utf-8")
    made = build_kernel(SourceFile("gemm.tl", text), CompileOptions(target="sm_80", scheduler="heuristic"), Observer())
    at, lines = "", set()
    for line in map(str.split, made.ptx.splitlines()):
        if line[:1] == [".loc"]:
            at = line[2]
        elif line and line[0].startswith("ldmatrix"):
            lines.add(at)
    product = 1 + next(n for n, line in enumerate(text.splitlines()) if "T.gemm(" in line)
    assert lines == {str(product)}


RACES = """\
import tilelang.language as T

@T.macro
def double(D, i, v):
    D[i] = v + v

@T.prim_func
def k(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
    with T.Kernel(1, threads=128) as bx:
        S = T.alloc_shared((128,), "float32")
        for i in T.Parallel(128):
            S[i] = A[i]
            first
            second
"""


@pytest.mark.parametrize(
    ("first", "second", "did"),
    [
        ("S[(i * 7 + 1) % 128] = A[i + 128]", "B[i] = 1.0", "writes"),
        ("B[i] = 1.0", "B[i + 128] = S[127 - i] * 2.0", "reads"),
        ("x = S[127 - i]", "B[i] = x + 1.0", "reads"),
    ],
)
def test_a_race_names_the_lines_of_both_statements(first: str, second: str, did: str) -> None:
    text = RACES.replace("first", first).replace("second", second)
    line = 1 + next(n for n, said in enumerate(text.splitlines()) if "S[" in said and "S[i]" not in said)
    fault = race_of(text)
    assert did in fault.message and "r.tl:12:" in fault.message
    assert fault.source is not None and fault.source.line == line


def test_statements_of_a_macro_have_the_line_of_the_nest() -> None:
    text = RACES.replace("first", "double(S, 127 - i, A[i])").replace("second", "B[i] = 1.0")
    fault = race_of(text)
    assert "r.tl:12:" in fault.message
    assert fault.source is not None and fault.source.line == 11


def race_of(text: str) -> Fault:
    """Run the kernel on one block in the emulator and return its race."""
    made = build_kernel(SourceFile("r.tl", text), CompileOptions(target="sm_90a", scheduler="heuristic"), Observer())
    drawn = np.random.default_rng(0).standard_normal(256).astype(np.float32)
    with pytest.raises(Fault) as caught:
        launch(made.ptx, "k", 1, 128, [drawn, np.zeros(256, np.float32)], dynamic_smem=512)
    assert caught.value.kind == "data-race"
    return caught.value
