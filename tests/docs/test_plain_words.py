"""The compiler's code gets plainer, never less plain: counts of what makes it hard to read, which only go down."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from fenced import ROOT

from tilec.driver.pipeline import PIPELINE

COUNTED = {
    "functions with a name of one word": 44,
    "docstrings that open with a question word": 0,
    "files under 60 lines": 44,
    "files in folders of more than 20": 0,
    "functions with seven parameters or more": 46,
    "boolean parameters": 282,
}
"""At most so many of each. Whoever makes one fewer writes the new number here; nobody writes a larger one."""

PASSES = {name.rpartition(".")[2] for row in PIPELINE for name in row.list_modules()}
"""Files of one pass each, however short: a row of the table, its function and its file have one name."""

_QUESTION = re.compile(r"(?:what|whether|how|which|where|who|whose|when|why)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Module:
    path: Path
    lines: int
    tree: ast.Module


Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def read_modules() -> tuple[Module, ...]:
    paths = sorted((ROOT / "tilec").rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return tuple(Module(path, text.count("\n"), ast.parse(text)) for path, text in zip(paths, texts, strict=True))


def walk_functions(node: ast.AST, is_method: bool = False) -> Iterator[tuple[Function, bool]]:
    """Yield each function inside `node`, and whether it is a method."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child, is_method
        yield from walk_functions(child, isinstance(child, ast.ClassDef))


def find(what: str) -> Iterator[str]:
    """Yield the places of what is counted under this name."""
    folders = Counter(module.path.parent for module in read_modules())
    for module in read_modules():
        place = str(module.path.relative_to(ROOT))
        match what:
            case "files under 60 lines" if module.lines < 60 and module.path.stem not in ("__init__", *PASSES):
                yield place
            case "files in folders of more than 20" if folders[module.path.parent] > 20:
                yield place
            case "docstrings that open with a question word":
                documented = (n for n in ast.walk(module.tree) if isinstance(n, Function | ast.ClassDef | ast.Module))
                yield from (place for n in documented if _QUESTION.match(ast.get_docstring(n) or ""))
            case _:
                for function, is_method in walk_functions(module.tree):
                    yield from [f"{place}: {function.name}"] * count_in(function, is_method, what)


def count_in(function: Function, is_method: bool, what: str) -> int:
    """Return how often a function has what is counted under this name."""
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    match what:
        case "functions with a name of one word":
            return not is_method and "_" not in function.name.strip("_")
        case "functions with seven parameters or more":
            return len(parameters) - is_method >= 7
        case "boolean parameters":
            return sum(isinstance(p.annotation, ast.Name) and p.annotation.id == "bool" for p in parameters)
    return 0


@pytest.mark.parametrize("what", COUNTED)
def test_the_code_gets_plainer(what: str) -> None:
    places = list(find(what))
    known = COUNTED[what]
    assert len(places) <= known, f"{len(places)} {what}, {known} before; some: {Counter(places).most_common(12)}"
    assert len(places) >= known, f"{len(places)} {what}: write that number in {Path(__file__).name}"
