"""Imports point down only, nothing lies loose, and each heavy dependency has one home."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import tilec

PACKAGE = Path(tilec.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
KNOWN = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for path in MODULES}

# From the ground up. A module may import its own floor and what is listed before it.
FLOORS = [
    "support",
    "ptx",
    "emu",
    "sched",
    "target",
    "sass",
    "simulate",
    "ir",
    "frontend.syntax",
    "ops",
    "rewriting",
    "analysis",
    "passes",
    "codegen",
    "interp",
    "frontend",
    "driver",
    "host",
    "tilelang_run",
    "tools",
]

# Folders of one floor, in the same order among themselves.
FOLDERS = {
    "passes": [
        "layout",
        "memory",
        "loop",
        "grid",
        "explicit_roles",
        "cost",
        "state",
        "scheduling",
        "assembled",
        "choices",
        "lower",
    ],
    "tools": ["calibrate", "tune", "report", "serve", "lsp", "cli"],
}

# Narrower than their height: what else of tilec these may import.
ONLY = {
    "support": set[str](),
    "sched": {
        "support.staging",
        "support.identity",
        "support.records",
        "support.readers",
        "support.schema",
        "support.display",
    },
    "emu": {"support.identity", "support.records", "support.source", "support.diagnostics", "support.resources", "ptx"},
}

# A third-party package, and the modules that may import it.
HOMES = {
    "lark": {"frontend.syntax.mistakes", "ptx.parse"},
    "ortools": {"sched.cp"},
    "cuda": {"ptx.assemble", "host.fatbin", "host.runtime"},
    "distributed": {"tune.dask_engine"},
    "ray": {"tune.ray_engine"},
    "ruff": {"frontend.syntax.formatting"},
    "lsprotocol": {"lsp"},
    "pygls": {"lsp.server"},
    "sklearn": {"tune.surrogate"},
    "rich": {"support.render", "report", "cli"},
    "click": {"cli"},
}


def name_of(path: Path) -> str:
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def place_of(module: str) -> tuple[int, int]:
    """Its floor, and the folder there."""
    folders = module.split(".")[:2]
    if ".".join(folders) in FLOORS:
        return FLOORS.index(".".join(folders)), 0
    if folders[0] in FOLDERS["tools"]:
        return FLOORS.index("tools"), FOLDERS["tools"].index(folders[0])
    assert folders[0] in FLOORS, f"{folders[0]} has no floor yet: add it to FLOORS and to the design"
    inside = FOLDERS.get(folders[0], [])
    return FLOORS.index(folders[0]), inside.index(folders[1]) if inside and len(folders) > 1 else 0


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Return line and dotted name of everything the module imports, wherever in it, type-checking blocks included."""
    return tuple(walk_imports(path))


def walk_imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide the floor"
            assert node.module is not None
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((node.lineno, name if name in KNOWN else node.module) for name in named)


def test_imports_point_down() -> None:
    for path in MODULES:
        check_imports(path)


def check_imports(path: Path) -> None:
    module = name_of(path)
    if not module:
        names = {name for _, name in imports(path)}
        assert names == {"__future__", "typing", "tilec.host.api", "tilec.support.diagnostics"}, (
            "tilec/__init__.py is imported by everything"
        )
        body = ast.parse(path.read_text(encoding="utf-8")).body
        assert [node.module for node in body if isinstance(node, ast.ImportFrom)] == ["__future__"]
        return
    if module in FOLDERS:
        assert not list(imports(path)), f"{module} only says what its folders are for"
        return
    top = "cli" if module == "__main__" else module.partition(".")[0]
    place = place_of(top if module == "__main__" else module)
    for line, name in imports(path):
        package, _, rest = name.partition(".")
        where = f"{path}:{line}"
        if package != "tilec":
            homes = HOMES.get(package)
            assert homes is None or module in homes or top in homes, f"{where}: {package} is imported in {homes} only"
            continue
        if not rest or rest.startswith("__"):
            continue
        assert place_of(rest) <= place, f"{where}: {module} is below {rest}"
        if top in ONLY and rest.partition(".")[0] != top:
            said = f"{where}: {top} may not import {rest}"
            assert any(f"{rest}.".startswith(f"{allowed}.") for allowed in ONLY[top]), said


def test_no_module_lies_loose() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} <= {"__init__.py", "__main__.py"}


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(p) for p in MODULES if not ast.get_docstring(ast.parse(p.read_text("utf-8")))]
    assert silent == []


# What programs import from the package itself, and what fills a table.
WITH_CODE = {"", "emu", "ops", "driver.lints"}


def test_an_init_only_says_what_its_folder_is_for() -> None:
    """What a reader looks for stands in a file with a name."""
    inits = [path for path in MODULES if path.name == "__init__.py" and name_of(path) not in WITH_CODE]
    assert [str(path) for path in inits if len(ast.parse(path.read_text(encoding="utf-8")).body) != 1] == []


# A step is a function of the machine that runs it, and the machine runs steps: their types name each other.
MACHINE = {
    f"emu.{name}"
    for name in (
        "barriers.mbarrier", "calls.calls", "calls.printf", "machine.cluster", "machine.decode", "machine.groups",
        "machine.machine", "machine.progress", "machine.registers", "machine.steps", "memory.access", "memory.memory",
        "races.answers", "races.races", "scalar.semantics", "tcgen05.tmem", "tma.asyncops",
    )
}  # fmt: skip


def test_modules_import_each_other_in_one_direction() -> None:
    """For types, too. Readers of the syntax tree call each other through the context's dispatch table, never by import;
    the emulator's machine alone counts as one."""
    above: dict[str, set[str]] = {}
    for path in MODULES:
        needs = {name.removeprefix("tilec.") for _, name in imports(path) if name.startswith("tilec.")}
        module = "the machine" if name_of(path) in MACHINE else name_of(path)
        above.setdefault(module, set()).update("the machine" if name in MACHINE else name for name in needs)
    above["the machine"].discard("the machine")
    while free := {module for module, needs in above.items() if not needs & above.keys()}:
        above = {module: needs for module, needs in above.items() if module not in free}
    assert above == {}, "these import each other"
