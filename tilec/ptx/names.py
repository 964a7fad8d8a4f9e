"""Keeps the names of a PTX module apart: the kernel author's, and those of tilec and PTX.

The assembler accepts a parameter with the name of its kernel, and crashes for sm_80. A `$`, which no name in a kernel
file has, makes a name that is free by construction. No caller needs the name of a parameter: a launch passes them in
order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tilec.ptx.module import Address, Entry, Instruction, Item, Module, Symbol

_RESERVED = re.compile(r"_|WARP_SZ|vprintf|tilec_smem|__tilec_.*|printf_arguments|printf_[0-9a-f]{16}")
"""The identifiers of PTX itself, and of tilec's variables and functions."""


def is_reserved(name: str) -> bool:
    """Return whether PTX or tilec uses a name itself, so that no kernel can have it."""
    return _RESERVED.fullmatch(name) is not None


def parameter_name(name: str) -> str:
    """Return a parameter's name in PTX: its own, with a `$` behind it if that is reserved."""
    return f"{name}$" if is_reserved(name) else name


def separate_parameters(module: Module) -> Module:
    """Return the module with a `$` behind parameters that have the name of one of its kernels."""
    kernels = {entry.name for entry in module.entries}
    return replace(module, entries=tuple(_separate_entry(entry, kernels) for entry in module.entries))


def _separate_entry(entry: Entry, kernels: set[str]) -> Entry:
    """Return an entry with a `$` behind parameters that have a kernel's name, in its body too; unchanged without
    any."""
    renamed = {param.name: f"{param.name}$" for param in entry.params if param.name in kernels}
    if not renamed:
        return entry
    params = tuple(replace(param, name=renamed.get(param.name, param.name)) for param in entry.params)
    return replace(entry, params=params, body=tuple(_rename_parameters(item, renamed) for item in entry.body))


def _rename_parameters(item: Item, renamed: Mapping[str, str]) -> Item:
    """Return an instruction with the parameters that it reads renamed, `[name]` or `name`; other items unchanged."""
    if not isinstance(item, Instruction):
        return item
    operands = list(item.operands)
    for at, operand in enumerate(operands):
        match operand:
            case Symbol(name=name) if name in renamed:
                operands[at] = replace(operand, name=renamed[name])
            case Address(base=Symbol(name=name) as base) if name in renamed:
                operands[at] = replace(operand, base=replace(base, name=renamed[name]))
    return replace(item, operands=tuple(operands))
