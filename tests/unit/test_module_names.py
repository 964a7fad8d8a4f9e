"""Modules that tests import by their bare names have names of their own: of two with one name, the one that a process
of the tests happens to import first would be both."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_two_modules_beside_tests_have_one_name() -> None:
    folders = [ROOT / "benchmarks", ROOT / "tests", *(path for path in (ROOT / "tests").iterdir() if path.is_dir())]
    modules = Counter(path.stem for folder in folders for path in folder.glob("*.py") if path.stem != "conftest")
    assert modules["published_rows"] == 1
    assert [name for name, count in modules.items() if count > 1] == []
