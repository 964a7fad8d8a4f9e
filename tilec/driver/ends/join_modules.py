"""The modules of all kernels of a file as one."""

from __future__ import annotations

from dataclasses import replace

from tilec.driver.observer import Observer
from tilec.passes.state import FileState
from tilec.ptx.names import separate_parameters
from tilec.ptx.verify_names import find_name_clashes
from tilec.support.diagnostics import InternalError


def join_modules(file: FileState, observer: Observer) -> FileState:
    """Join the modules of all kernels into one, with shared declarations once and distinct parameter names."""
    modules = [work.module for work in file.kernels]
    variables = dict.fromkeys(v for module in modules for v in module.variables)
    entries = tuple(entry for module in modules for entry in module.entries)
    functions = dict.fromkeys(f for module in modules for f in module.functions)
    joined = replace(modules[0], variables=tuple(variables), entries=entries, functions=tuple(functions))
    separated = separate_parameters(joined)
    if clashes := list(find_name_clashes(separated)):
        raise InternalError("; ".join(clashes))
    return replace(file, ptx_module=separated)
