"""A row of the pass table, its function, its file and its line of the documents have one name, and only the engine
calls the function."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tilec.driver.engine import list_parameters
from tilec.driver.pipeline import PIPELINE, Choice, FilePass, Lints, Pass
from tilec.passes.state import KernelState, SearchState
from tilec.support.options import CompileOptions

ROOT = Path(__file__).parents[2]
ROWS = [row for row in PIPELINE if not isinstance(row, Lints)]
KERNEL_ROWS = [row for row in ROWS if isinstance(row, Pass | Choice)]
PARTS = {"state", "explore"} | {
    name for each in (KernelState, SearchState, CompileOptions) for name in dir(each) if not name.startswith("_")
}

REWRITES = {
    "make_names_unique": "a pass that writes a statement twice ends with it",
    "fold_constants": "splitting a tile leaves constants to fold",
    "select_mechanisms": "each explicit role is a kernel of its own",
    "split_roles": "blocks in another order give each role its block index",
}
"""Passes that others also run on what they have built."""


def functions_of(row: FilePass | Pass | Choice) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield from zip((name.rpartition(".")[2] for name in row.list_modules()), row.load_functions(), strict=True)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row_function_and_file_have_one_name(row: FilePass | Pass | Choice) -> None:
    for name, function in functions_of(row):
        assert len(row.list_modules()) > 1 or name == row.name.replace("-", "_")
        assert function.__name__ == name and Path(inspect.getsourcefile(function) or "").stem == name


@pytest.mark.parametrize("row", KERNEL_ROWS, ids=lambda row: row.name)
def test_passes_take_and_write_parts_of_the_state(row: Pass | Choice) -> None:
    for _, function in functions_of(row):
        assert set(list_parameters(function)) <= PARTS
    assert set(row.writes) <= {"state"} | {field.name for field in fields(KernelState)}


def test_every_row_is_in_the_document() -> None:
    listed = [
        line.split("`")[1] for line in (ROOT / "docs/pipeline.md").read_text("utf-8").splitlines() if "| `" in line
    ]
    assert listed == [row.name for row in PIPELINE]


def called_passes(path: Path, passes: dict[str, str]) -> Iterator[str]:
    """Yield the passes that a file imports from their modules, or reaches through these."""
    own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module != own:
            yield from (a.name for a in node.names if passes.get(a.name) in (node.module, f"{node.module}.{a.name}"))


def test_only_the_engine_calls_a_pass() -> None:
    passes = {name: function.__module__ for row in KERNEL_ROWS for name, function in functions_of(row)}
    # frontend/language.py names the checks whose errors the documents list.
    paths = [p for p in (ROOT / "tilec").rglob("*.py") if p.as_posix().split("/tilec/")[-1] != "frontend/language.py"]
    found = {(path.stem, name) for path in paths for name in called_passes(path, passes) if name not in REWRITES}
    assert found == set()


def test_passes_are_imported_when_they_run() -> None:
    look = "import sys; import tilec.driver.engine; print(*(name for name in sys.modules if name.startswith('tilec.')))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, cwd=ROOT)
    modules = {f"tilec.{name}" for row in ROWS for name in row.list_modules()}
    assert not modules & set(done.stdout.split())
