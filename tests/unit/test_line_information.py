"""Instructions carry the line of the kernel that they are of."""

from __future__ import annotations

from pathlib import Path

from tilec.driver.build import Observer, build
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

GEMM = Path(__file__).parents[2] / "samples" / "gemm.tl"


def test_loads_of_factors_have_the_line_of_their_product() -> None:
    text = GEMM.read_text(encoding="utf-8")
    made = build(SourceFile("gemm.tl", text), CompileOptions(target="sm_80", scheduler="heuristic"), Observer())
    at, lines = "", set()
    for line in map(str.split, made.ptx.splitlines()):
        if line[:1] == [".loc"]:
            at = line[2]
        elif line and line[0].startswith("ldmatrix"):
            lines.add(at)
    product = 1 + next(n for n, line in enumerate(text.splitlines()) if "T.gemm(" in line)
    assert lines == {str(product)}
