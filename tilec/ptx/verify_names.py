"""Checks that every name in a PTX module has one meaning where it is visible.

Kernels, functions and variables share the outermost name space; the parameters and variables of a kernel are visible
beside them. Labels and registers have `$` and `%` in front.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ptx.module import Module, Variable


def find_name_clashes(module: Module) -> Iterator[str]:
    """Yield a sentence for each name with two meanings in a module's outermost scope or in a kernel."""
    outer = [variable.name for variable in module.variables]
    outer += [function.name for function in module.functions]
    outer += [entry.name for entry in module.entries]
    yield from _report_repeated(outer)
    for entry in module.entries:
        inner = [p.name for p in entry.params] + [item.name for item in entry.body if isinstance(item, Variable)]
        yield from _report_repeated([*dict.fromkeys(outer), *inner])


def _report_repeated(names: list[str]) -> Iterator[str]:
    """Yield a sentence for each time that a name occurs again."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield f"two things are called {name}"
        seen.add(name)
