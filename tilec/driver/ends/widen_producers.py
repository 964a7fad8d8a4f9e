"""More registers for a producer that spills.

A producer's warpgroup has as few registers as setmaxnreg takes, since its threads only start copies and wait. A
producer whose copies need many numbers for their addresses does not get by on them. So a kernel that spills is
assembled again with more registers for its producer and fewer for its consumers. The first code stays where the second
spills as much, or serialises products."""

from __future__ import annotations

from dataclasses import replace

from tilec.driver.observer import Observer
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.passes.loop.pools import PRODUCER_REGISTERS, compute_register_split
from tilec.passes.state import FileState, KernelState
from tilec.ptx.assembled_cache import assemble_ptx
from tilec.ptx.module import Imm, Instruction, Item, Module
from tilec.ptx.text import print_module
from tilec.support.diagnostics import InternalError

Change = dict[int, int]
"""The new number of registers by the old one that a setmaxnreg names."""


def widen_producers(file: FileState, observer: Observer) -> FileState:
    """Return the file with more registers for producers of kernels that spill, where these then spill less."""
    changes = {kernel.kernel.name: change for kernel in file.kernels if (change := _find_change(kernel))}
    if not changes:
        return file
    try:
        narrow = file.assembled or assemble_ptx(file.options, file.module.target, print_module(file.module))
    except InternalError:
        return file  # `assemble-cubin` says so, when the PTX is there as evidence
    spilled = {report.name: report.spill_store_bytes for report in narrow.entries if report.spill_store_bytes}
    changes = {name: change for name, change in changes.items() if name in spilled}
    while changes:
        module = _change_registers(file.module, changes)
        try:
            wide = assemble_ptx(file.options, file.module.target, print_module(module))
        except InternalError:
            break  # the operands of one wgmma may need the registers
        less = {report.name for report in wide.entries if report.spill_store_bytes < spilled.get(report.name, 0)}
        if less >= set(changes):
            if {remark.kind for remark in wide.remarks} <= {remark.kind for remark in narrow.remarks}:
                kernels = tuple(_change_roles(kernel, changes.get(kernel.kernel.name, {})) for kernel in file.kernels)
                return replace(file, kernels=kernels, ptx_module=module, assembled=wide)
            break  # with fewer registers products may be serialised
        changes = {name: change for name, change in changes.items() if name in less}
    return replace(file, assembled=narrow)


def _find_change(kernel: KernelState) -> Change:
    """Return the change of registers that gives the producer its most; none where it has them, or an equal share."""
    producer = next((role for role in kernel.program.roles if role.name == "producer"), None)
    if producer is None or producer.registers is None:
        return {}
    groups, (_, most) = kernel.kernel.threads // WARPGROUP_THREADS, PRODUCER_REGISTERS
    narrow = compute_register_split(groups, kernel.target)
    if producer.registers != narrow[0]:
        return {}
    wide = compute_register_split(groups, kernel.target, most)
    return {old: new for old, new in zip(narrow, wide, strict=True) if old != new}


def _change_registers(module: Module, changes: dict[str, Change]) -> Module:
    """Return the module whose entries in `changes` set other numbers of registers."""
    entries = (
        replace(entry, body=tuple(_change_item(item, changes[entry.name]) for item in entry.body))
        if entry.name in changes
        else entry
        for entry in module.entries
    )
    return replace(module, entries=tuple(entries))


def _change_item(item: Item, change: Change) -> Item:
    """Return an item of an entry; a setmaxnreg with its new number of registers."""
    if not isinstance(item, Instruction) or not item.opcode.startswith("setmaxnreg"):
        return item
    (count,) = item.operands
    return replace(item, operands=(Imm(change.get(count.value, count.value)),)) if isinstance(count, Imm) else item


def _change_roles(kernel: KernelState, change: Change) -> KernelState:
    """Return the kernel whose roles have the new numbers of registers."""
    roles = (replace(role, registers=change.get(role.registers or 0, role.registers)) for role in kernel.program.roles)
    return replace(kernel, warp_program=replace(kernel.program, roles=tuple(roles)))
