"""The faults that `planting.py` plants are of the code as it is: a change that outdates one comes with another."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import planting
from drawn_faults import draw_fault
from faults import FAULTS, Fault


def find_flaw(fault: Fault) -> str | None:
    """Say why a fault cannot be planted, or None where it can."""
    text = (planting.ROOT / fault.file).read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        return f"what it replaces is {text.count(fault.old)} times in {fault.file}"
    if ast.dump(ast.parse(text.replace(fault.old, fault.new))) == ast.dump(ast.parse(text)):
        return "it changes nothing"
    return None


def test_every_fault_can_be_planted() -> None:
    flaws = {fault.name: flaw for fault in FAULTS if (flaw := find_flaw(fault)) is not None}
    assert flaws == {}


def test_drawn_faults_can_be_planted_and_stay_the_same() -> None:
    faults = [draw_fault(number, planting.ROOT) for number in range(8)]
    assert [find_flaw(fault) for fault in faults] == [None] * 8
    assert draw_fault(3, planting.ROOT) == faults[3]


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60


def test_tests_that_call_a_function_come_quickest_first(tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "sync-forgets-a-branch")
    text = (planting.ROOT / fault.file).read_text(encoding="utf-8")
    before = text[: text.index(fault.old)]
    line = 1 + before.count("\n", 0, before.rindex("    def "))
    known = {
        test: {"seconds": seconds, "functions": [f"passes/lower/insert_sync.py:{line}"]}
        for test, seconds in (("a::t[1]", 0.2), ("a::t[2]", 0.1), ("b::u", 3.0))
    }
    (tmp_path / "gw0.json").write_text(json.dumps({**known, "c::v": {"seconds": 0.0, "functions": ["x.py:1"]}}))
    assert planting.Reach(tmp_path).tests_of(fault) == ["a::t[2]", "b::u", "a::t[1]"]


def test_a_table_counts_what_the_default_tier_finds_for_both() -> None:
    first, second, third = FAULTS[:3]
    entries: dict[tuple[str, str], planting.Entry] = {
        (first.name, "default"): {"outcome": "found", "by": "a"},
        (second.name, "default"): {"outcome": "survives", "by": None},
        (second.name, "exhaustive"): {"outcome": "found", "by": "b"},
    }
    table = planting.make_table(entries, (first, second, third))
    assert table["found"] == {"default": 1, "exhaustive": 2} and table["not tried"] == 1
    assert [row["by"] for row in table["rows"]] == ["a", "b", None]
