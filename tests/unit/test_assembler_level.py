"""What takes the assembler minutes is optimised less, which is said; whoever asks for a level gets it."""

from __future__ import annotations

from typing import Any

import pytest

from tilec.driver.build import build_kernel
from tilec.driver.observer import Observer
from tilec.ptx import assemble as assembler, assembled_cache as assembling, assembler_level
from tilec.ptx.assembler_level import MAX_CONSECUTIVE_WAITS, count_consecutive_waits
from tilec.support.diagnostics import Diagnostic
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

HEAD = """
import tilelang.language as T


@T.prim_func
def products(A: T.Tensor((64, 1024), "float16"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        a = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
"""
PRODUCT = "        T.copy(A[0, {at} * 64], a)\n        T.gemm(a, a, c)\n"
PRODUCTS = SourceFile("k.tl", HEAD + "".join(PRODUCT.format(at=at) for at in range(6)) + "        T.copy(c, C)\n")
WAIT = "    wgmma.wait_group.sync.aligned 0;\n"


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The levels that the assembler is asked for; three waits in a row take it minutes."""
    asked: list[int] = []
    assemble = assembler.assemble_module

    def noted(ptx: str, target: str, **more: Any) -> assembler.AssemblerResult:
        asked.append(more["opt_level"])
        return assemble(ptx, target, **more)

    monkeypatch.setattr(assembler, "assemble_module", noted)
    monkeypatch.setattr(assembler_level, "MAX_CONSECUTIVE_WAITS", 3)
    assembling._assemble_once.cache_clear()
    return asked


def said(**options: Any) -> list[Diagnostic]:
    observer = Observer()
    build_kernel(PRODUCTS, CompileOptions(target="sm_90a", **options), observer)
    return [warning for warning in observer.warnings if warning.code == "assembled-at-lower-level"]


def test_a_long_line_of_products_is_optimised_less(levels: list[int]) -> None:
    (warning,) = said()
    assert levels == [1] and "-O1 instead of -O3" in warning.title
    assert warning.notes[0].startswith("6 wgmma products") and str(warning.help).endswith("--assembler-level 3")


@pytest.mark.parametrize("level", [1, 2, 3])
def test_who_asks_for_a_level_gets_it(level: int, levels: list[int]) -> None:
    assert said(assembler_level=level) == []
    assert levels == [level]


@pytest.mark.parametrize("opt_level", [2, 3])
def test_without_any_all_is_optimised(opt_level: int, levels: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembler_level, "MAX_CONSECUTIVE_WAITS", MAX_CONSECUTIVE_WAITS)
    assert said(opt_level=opt_level) == []
    assert levels == [opt_level]


@pytest.mark.parametrize(
    ("between", "count"),
    [
        ("", 10),
        ("    add.s32 %r1, %r1, 1;\n", 10),
        ("$L1_loop:\n", 5),
        ("    @%p1 bra $L1_loop;\n", 5),
        ("    bra.uni $L1_loop;\n", 5),
        ("}\n.visible .entry other()\n{\n", 5),
    ],
)
def test_waits_are_counted_between_branches(between: str, count: int) -> None:
    assert count_consecutive_waits(WAIT * 5 + between + WAIT * 5) == count
