"""Imports point down only, and each heavy dependency has one home."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilec

PACKAGE = Path(tilec.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# From the ground up. A module may import its own floor and what is listed before it.
FLOORS = [
    "records",
    "readers",
    "schema",
    "progress",
    "processes",
    "sizes",
    "source",
    "diag",
    "resources",
    "recognise",
    "files",
    "options",
    "sched",
    "target",
    "ir",
    "ptx",
    "manifest",
    "fatbin",
    "header_calls",
    "header",
    "syntax",
    "imports",
    "emu",
    "render",
    "ops",
    "passes.analysis",
    "passes.layouts",
    "passes.reading",
    "passes.pipelining",
    "passes.grid",
    "passes.hand",
    "passes.code",
    "language",
    "codegen",
    "elements",
    "arrays",
    "cooperative",
    "interp_roles",
    "meetings",
    "interp",
    "runtime",
    "calibrate",
    "tune",
    "remarks",
    "refusals",
    "lints",
    "legality",
    "observer",
    "front",
    "scheduling",
    "planning",
    "driver",
    "batch",
    "trial",
    "emulate_compare",
    "emulate",
    "emulate_ptx",
    "api",
    "explanations",
    "lsp",
    "cli",
]
HEIGHT = {floor: height for height, floor in enumerate(FLOORS)}

# Narrower than their height: what else of tilec these may import.
ONLY = {"sched": {"records", "readers", "schema"}, "emu": {"records", "ptx", "source", "diag", "resources"}}

# A third-party package, and the modules that may import it.
HOMES = {
    "lark": {
        "syntax.explain",
        "syntax.lines",
        "syntax.mistakes",
        "ptx.parse",
    },
    "ortools": {"sched.cp"},
    "cuda": {"ptx.assemble", "fatbin", "runtime"},
    "distributed": {"tune.dask_engine"},
    "ray": {"tune.ray_engine"},
    "ruff": {"syntax.formatting"},
    "lsprotocol": {"lsp"},
    "pygls": {"lsp.server"},
    "sklearn": {"tune.surrogate"},
    "rich": {"render", "cli"},
    "click": {"cli"},
}


def name_of(path: Path) -> str:
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor_of(module: str) -> str:
    """The package or file of tilec that it belongs to; of `passes`, each folder is a floor."""
    top, _, rest = module.partition(".")
    return f"{top}.{rest.partition('.')[0]}" if top == "passes" and rest else top


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything the module imports, wherever in it, type-checking blocks included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide the floor"
            assert node.module is not None
            if node.module == "tilec":
                yield from ((node.lineno, f"tilec.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


@pytest.mark.parametrize("path", MODULES, ids=lambda p: name_of(p) or "tilec")
def test_imports_point_down(path: Path) -> None:
    module = name_of(path)
    if not module:
        names = {name for _, name in imports(path)}
        assert names == {"__future__", "typing", "tilec.api"}, "tilec/__init__.py is imported by everything"
        top = ast.parse(path.read_text(encoding="utf-8")).body
        assert [node.module for node in top if isinstance(node, ast.ImportFrom)] == ["__future__"]
        return
    floor = floor_of(module)
    if floor == "passes":
        assert not list(imports(path)), "tilec/passes/__init__.py only says what the folders are for"
        return
    assert floor in HEIGHT, f"{floor} has no floor yet: add it to FLOORS and to the design"
    for line, name in imports(path):
        package, _, rest = name.partition(".")
        where = f"{path}:{line}"
        if package != "tilec":
            homes = HOMES.get(package)
            assert homes is None or module in homes or floor in homes, f"{where}: {package} is imported in {homes} only"
            continue
        if not rest or rest.startswith("__"):
            continue
        other = floor_of(rest)
        assert HEIGHT[other] <= HEIGHT[floor], f"{where}: {floor} is below {other}"
        if floor in ONLY and other != floor:
            assert other in ONLY[floor], f"{where}: {floor} may not import {other}"


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(p) for p in MODULES if p.stat().st_size and not ast.get_docstring(ast.parse(p.read_text("utf-8")))]
    assert silent == []
