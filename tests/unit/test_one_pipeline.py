"""Tests and benchmarks run the table of passes, and compose no pipeline of their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORMS = {"Kernel", "MechanismSelection", "LayoutAssignment", "LoopProblem", "Program", "Module"}
"""What a kernel is on its way: tile IR, with mechanisms, with layouts, as scheduling problems, a warp program, PTX."""

FILES = sorted(path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))


def named(annotation: ast.expr | None) -> set[str]:
    """The types that an annotation is made of, without their modules."""
    if annotation is None:
        return set()
    nodes = list(ast.walk(annotation))
    return {n.id for n in nodes if isinstance(n, ast.Name)} | {n.attr for n in nodes if isinstance(n, ast.Attribute)}


@cache
def rewriting() -> dict[str, set[str]]:
    """Functions that take a whole kernel in some form and give it in one, by module: what passes consist of."""
    found: dict[str, set[str]] = {}
    for folder in ("frontend/sema", "rewriting", "analysis", "passes", "codegen"):
        for path in (ROOT / "tilec" / folder).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    taken = {name for argument in node.args.args for name in named(argument.annotation)}
                    if taken & FORMS and named(node.returns) & FORMS:
                        found.setdefault(module, set()).add(node.name)
    return found


def taken(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The functions that a file takes from modules: by name, or through the module."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield node.module, alias.name
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            yield modules.get(node.func.value.id, ""), node.func.attr


def test_the_passes_are_known_by_what_they_take_and_give() -> None:
    names = {name for found in rewriting().values() for name in found}
    assert {
        "elaborate_entry",
        "fold_constants",
        "select_mechanisms",
        "assign_layouts",
        "expand_schedules",
        "allocate_shared",
        "insert_sync",
        "emit_module",
    } <= names


def used_passes(path: Path) -> list[str]:
    """Return the modules of the compiler whose passes a file calls itself."""
    names = taken(ast.parse(path.read_text(encoding="utf-8")))
    return sorted({module for module, name in names if name in rewriting().get(module, ())})


def test_no_file_puts_passes_in_an_order() -> None:
    """One function on one value is the test of a unit. Who needs what several make asks the engine for it: `stages`."""
    used = {path.relative_to(ROOT).as_posix(): used_passes(path) for path in FILES}
    assert {path: modules for path, modules in used.items() if len(modules) > 1} == {}
