"""Warpgroups whose products the assembler serialises take no turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilec.driver import build as driver
from tilec.driver.ends import check_ping_pong
from tilec.driver.observer import Observer
from tilec.ptx import assembled_cache as assembling
from tilec.ptx.assemble import AssemblerResult, Remark
from tilec.sched.decision import Decision
from tilec.support.files import read_source
from tilec.support.options import CompileOptions

ATTENTION = Path(__file__).parents[2] / "samples" / "attention"
REMARK = Remark("wgmma-serialised", "C7512", "products are serialized")


@pytest.fixture(autouse=True)
def forget_assembled() -> Iterator[None]:
    assembling._assemble_once.cache_clear()
    yield
    assembling._assemble_once.cache_clear()


def build(name: str, **options: Any) -> tuple[driver.Build, Observer]:
    observer = Observer()
    given = CompileOptions(target="sm_90a", **options)
    return driver.build_kernel(read_source(str(ATTENTION / f"{name}.tl")), given, observer), observer


def find_ping_pong(built: driver.Build) -> Decision:
    (found,) = (each for each in built.work.decisions if each.what == "ping-pong")
    return found


def test_turns_are_taken_back_once_and_leave_no_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, seen = build("gqa")
    assert find_ping_pong(plain).chosen == "2 warpgroups"
    asked: list[str] = []

    def assemble(options: CompileOptions, target: str, ptx: str) -> AssemblerResult:
        asked.append(ptx)
        made = assembling.assemble_ptx(options, target, ptx)
        return replace(made, remarks=(*made.remarks, REMARK))

    monkeypatch.setattr(check_ping_pong, "assemble_ptx", assemble)
    found, warned = build("gqa")
    assert find_ping_pong(found).chosen == "no" and "serialises" in find_ping_pong(found).why
    assert asked == [plain.ptx]
    assert [each.what for each in found.work.decisions] == [each.what for each in plain.work.decisions]
    assert len(warned.warnings) == len({*warned.warnings}) and len(seen.warnings) == len({*seen.warnings})
    without, _ = build("gqa", ping_pong=False)
    assert found.ptx == without.ptx


def test_what_is_checked_is_not_assembled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    assemble = assembling.assemble_cached
    monkeypatch.setattr(
        assembling, "assemble_cached", lambda ptx, *rest, **named: made.append(ptx) or assemble(ptx, *rest, **named)
    )
    built, _ = build("gqa")
    assert made == [built.ptx]


def test_attention_backward_is_not_serialised() -> None:
    sizes = tuple({"batch": 1, "heads": 16, "S": 8192, "D": 128}.items())
    built, observer = build("backward_dkdv", defines=sizes)
    assert find_ping_pong(built).chosen == "no" and not built.entries[0].spill_store_bytes
    assert "wgmma-serialised" not in [warning.code for warning in observer.warnings]
    again, _ = build("backward_dkdv", defines=sizes, schedule=built.trace)
    assert again.ptx == built.ptx and find_ping_pong(again).why == "the given schedule has each statement once"
