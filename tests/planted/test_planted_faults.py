"""The faults that `planting.py` plants are of the code as it is: a change that outdates one comes with another."""

from __future__ import annotations

import ast

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
    missing = [path for path in fault.near if not (planting.ROOT / "tests" / path).exists()]
    return f"there is no {missing[0]}" if missing else None


def test_every_fault_can_be_planted() -> None:
    flaws = {fault.name: flaw for fault in FAULTS if (flaw := find_flaw(fault)) is not None}
    assert flaws == {}


def test_drawn_faults_can_be_planted_and_stay_the_same() -> None:
    faults = [draw_fault(number, planting.ROOT) for number in range(8)]
    assert [find_flaw(fault) for fault in faults] == [None] * 8
    assert draw_fault(3, planting.ROOT) == faults[3]


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60


def test_quick_folders_are_there() -> None:
    assert [name for name in planting.QUICK if not list((planting.ROOT / "tests" / name).glob("test_*.py"))] == []


def test_every_folder_of_the_compiler_has_tests() -> None:
    folders = {path.parent.name for path in (planting.ROOT / "tilec").glob("*/__init__.py")}
    assert folders - {"lsp", "serve"} == planting.BY_FOLDER.keys()
    named = [path for paths in planting.BY_FOLDER.values() for path in paths]
    assert [path for path in named if not (planting.ROOT / "tests" / path).exists()] == []


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
