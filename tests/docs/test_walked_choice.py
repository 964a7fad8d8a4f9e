"""The section on choices of docs/extending.md, done literally: one file, one row and one option are a choice, which is
recorded with its prices, asked for from the command line, shown, and explored by a tuner."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fenced import ROOT, blocks
from test_walked_pass import KERNEL, PAGE, compiler_in, tilec

pytestmark = pytest.mark.weekly

NAME = "choose_copies"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The compiler, with what the section adds to it."""
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    (block,) = (block for block in blocks(PAGE) if block.title == f"{NAME}.py")
    (row,) = re.findall(r"`(Choice\(.*?\),)`", page)
    ((field, below),) = re.findall(r'^    (drop_copies: bool = .*)\n    (""".*""")$', page, re.MULTILINE)
    compiler_in(tmp_path, f"choices/{NAME}.py", block.text, row)
    options = tmp_path / "tilec/support/options.py"
    text = options.read_text(encoding="utf-8")
    before = next(line for line in text.splitlines() if line.startswith("    stmatrix: bool"))
    options.write_text(text.replace(before, f"    {field}\n    {below}\n\n{before}"), encoding="utf-8")
    (tmp_path / "k.tl").write_text(KERNEL, encoding="utf-8")
    return tmp_path


def decision(copy: Path, *arguments: str) -> dict[str, object]:
    tilec(copy, "k.tl", "-o", "k.cubin", "--schedule-trace-file", "trace.json", *arguments)
    decisions = json.loads((copy / "trace.json").read_text(encoding="utf-8"))["tilec"]["decisions"]
    (found,) = (decision for decision in decisions if decision["what"] == "copies to itself")
    assert isinstance(found, dict)
    return found


def test_one_file_and_one_row_and_one_option_are_a_choice(copy: Path) -> None:
    chosen = decision(copy)
    assert (chosen["chosen"], chosen["by"], chosen["why"]) == (
        "dropped",
        "the compiler",
        "a cycle for each of 2 statements",
    )
    weighed = chosen["alternatives"]
    assert isinstance(weighed, list)
    assert [(each["answer"], each["price"]) for each in weighed] == [("stay", 3), ("dropped", 2)]
    asked = decision(copy, "--no-drop-copies")
    assert (asked["chosen"], asked["by"]) == ("stay", "the command line")
    assert "choose-copies" in tilec(copy, "k.tl", "--print-pipeline")
    assert "copies to itself" in tilec(copy, "schedule", "k.tl")
    tried = tilec(copy, "tune", "k.tl", "--trials", "2", "-j", "1")
    assert "drop-copies" in tried, tried
