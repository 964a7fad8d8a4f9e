"""Registers that keep a second block from a multiprocessor, and products that find none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tilec.driver import build as driver
from tilec.driver.ends import raise_occupancy as row
from tilec.passes.assembled import fit_blocks
from tilec.support.diagnostics import CompileError
from tilec.support.files import read_source
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

SAMPLES = Path(__file__).parents[2] / "samples"
OPTIONS = CompileOptions(target="sm_90a", defines=(("threads", 256),))


def build_sample(name: str, options: CompileOptions = OPTIONS) -> driver.Build:
    return driver.build_kernel(read_source(str(SAMPLES / f"{name}.tl")), options, driver.Observer())


def list_decisions(made: driver.Build) -> list[str]:
    return [each.chosen for each in made.work.decisions if each.what == row.DECISION]


def test_a_few_registers_less_make_room_for_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    made = build_sample("elementwise/gelu")
    assert list_decisions(made) == ["5"] and ".minnctapersm 5" in made.ptx
    monkeypatch.setattr(fit_blocks, "MAX_EXCESS", 0)
    plain = build_sample("elementwise/gelu")
    assert list_decisions(plain) == [] and ".minnctapersm 5" not in plain.ptx
    assert made.entries[0].registers <= 48 < plain.entries[0].registers and made.entries[0].spill_store_bytes == 0


HEAVY = """
import tilelang.language as T

@T.prim_func
def heavy(A: T.Tensor((512, 256), "float32"), B: T.Tensor((512, 256), "float32")):
    with T.Kernel(8, threads=256) as bx:
        {hint}
        x = T.alloc_fragment((64, 256), "float32")
        sums = T.alloc_fragment((256,), "float32")
        T.copy(A[bx * 64, 0], x)
        T.reduce_sum(x, sums, dim=0)
        for i, j in T.Parallel(64, 256):
            x[i, j] = x[i, j] * sums[j]
        T.copy(x, B[bx * 64, 0])
"""


def build_heavy(hint: str, level: Literal[2, 3] = 3) -> driver.Build:
    source = SourceFile("heavy.tl", HEAVY.format(hint=hint))
    return driver.build_kernel(source, CompileOptions(target="sm_80", opt_level=level), driver.Observer())


@pytest.mark.parametrize("level", [2, 3])
def test_the_author_says_how_many_blocks_share_a_multiprocessor(level: Literal[2, 3]) -> None:
    """Four blocks of 256 threads leave each thread 64 of 65,536 registers."""
    made, free = build_heavy("T.annotate_min_blocks_per_sm(4)", level), build_heavy("pass", level)
    assert ".minnctapersm 4" in made.ptx and list_decisions(made) == []
    assert made.entries[0].registers <= 64 < free.entries[0].registers


def test_a_number_of_blocks_that_the_author_gives_is_not_raised() -> None:
    text = (SAMPLES / "elementwise/gelu.tl").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if "with T.Kernel" in line)
    asked = text.replace(line, f"{line}\n        T.annotate_min_blocks_per_sm(4)")
    made = driver.build_kernel(SourceFile("gelu.tl", asked), OPTIONS, driver.Observer())
    assert list_decisions(made) == [] and ".minnctapersm 4" in made.ptx and made.entries[0].registers > 48


def test_blocks_that_leave_products_no_registers_are_refused() -> None:
    text = (SAMPLES / "gemm.tl").read_text(encoding="utf-8")
    asked = text.replace("        A_shared", "        T.annotate_min_blocks_per_sm(2)\n        A_shared", 1)
    with pytest.raises(CompileError) as refused:
        driver.build_kernel(SourceFile("gemm.tl", asked), CompileOptions(target="sm_90a"), driver.Observer())
    (found,) = refused.value.diagnostics
    assert found.code == "fragment-overflow" and found.help == "request fewer blocks"
    assert (
        "2 blocks" in found.secondary[-1].text
        and found.secondary[-1].span.line == asked[: asked.index("T.annot")].count("\n") + 1
    )


def test_roles_that_move_registers_take_a_multiprocessor_whole() -> None:
    text = (SAMPLES / "flash_attention.tl").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if "with T.Kernel" in line)
    asked = SourceFile("f.tl", text.replace(line, f"{line}\n        T.annotate_min_blocks_per_sm(2)"))
    observer = driver.Observer()
    made = driver.build_kernel(asked, CompileOptions(target="sm_90a"), observer)
    assert [warning.code for warning in observer.warnings] == ["hint-not-used"] and ".minnctapersm 1" in made.ptx


def test_lower_levels_take_what_the_assembler_gives() -> None:
    assert ".minnctapersm 5" not in build_sample("elementwise/gelu", replace(OPTIONS, opt_level=2)).ptx


def test_roles_that_share_registers_keep_them() -> None:
    assert list_decisions(build_sample("flash_attention", CompileOptions(target="sm_90a"))) == []


def test_no_block_is_bought_with_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_blocks, "MAX_EXCESS", 3)
    made = build_sample("rows/top_k_long", replace(OPTIONS, defines=(("threads", 512),)))
    assert made.entries[0].spill_store_bytes == 0


def test_no_block_is_bought_with_serialised_products() -> None:
    sizes = {"batch": 1, "heads": 1, "S": 160, "D": 32, "block_M": 64, "block_N": 64, "threads": 128}
    made = build_sample("attention/causal", CompileOptions(target="sm_90a", defines=tuple(sizes.items())))
    assert list_decisions(made) == [] and not [w for w in made.warnings if w.code == "wgmma-serialised"]


def test_products_without_registers_are_refused() -> None:
    """The assembler cannot spill what one wgmma holds."""
    options = CompileOptions(target="sm_90a", defines=(("block_M", 256),))
    with pytest.raises(CompileError) as refused:
        build_sample("flash_attention", options)
    assert refused.value.diagnostics[0].code == "fragment-overflow" and "each of 512 threads" in str(refused.value)
