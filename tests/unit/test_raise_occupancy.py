"""Registers that keep a second block from a multiprocessor, and products that find none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilec.driver import build as driver
from tilec.driver.ends import raise_occupancy as row
from tilec.support.diagnostics import CompileError
from tilec.support.files import read_source
from tilec.support.options import CompileOptions

SAMPLES = Path(__file__).parents[2] / "samples"
OPTIONS = CompileOptions(target="sm_90a", defines=(("threads", 256),))


def build_sample(name: str, options: CompileOptions = OPTIONS) -> driver.Build:
    return driver.build_kernel(read_source(str(SAMPLES / f"{name}.tl")), options, driver.Observer())


def list_decisions(made: driver.Build) -> list[str]:
    return [each.chosen for each in made.work.decisions if each.what == row.DECISION]


def test_a_few_registers_less_make_room_for_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    made = build_sample("rows/top_k_long")
    assert list_decisions(made) == ["2"] and ".minnctapersm 2" in made.ptx
    monkeypatch.setattr(row, "MAX_EXCESS", 0)
    plain = build_sample("rows/top_k_long")
    assert list_decisions(plain) == [] and ".minnctapersm 1" in plain.ptx
    assert made.entries[0].registers <= 128 < plain.entries[0].registers and made.entries[0].spill_store_bytes == 0


def test_lower_levels_take_what_the_assembler_gives() -> None:
    assert ".minnctapersm 1" in build_sample("rows/top_k_long", replace(OPTIONS, opt_level=2)).ptx


def test_roles_that_share_registers_keep_them() -> None:
    assert list_decisions(build_sample("flash_attention", CompileOptions(target="sm_90a"))) == []


def test_no_block_is_bought_with_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row, "MAX_EXCESS", 3)
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
