"""Fewer registers where one more block then shares a multiprocessor.

The assembler gives a thread as many registers as it likes. A few more than a step of the register file cost a block its
neighbour: with 135 registers one block of 256 threads fits where with 128 two would. So a kernel is assembled as it is
first; where registers alone keep a block out, and little above the step, it is assembled again for one block more. The
first code stays where the second spills, or serialises products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import prod

from tilec.driver.ends.assemble_cubin import assemble_ptx
from tilec.driver.observer import Observer
from tilec.ir.manifest import Manifest, manifests_in_module
from tilec.passes.cost.kernel import read_occupancy_limits
from tilec.passes.cost.model import count_ctas_by_resource
from tilec.passes.state import FileState, KernelState
from tilec.ptx.assemble import EntryReport
from tilec.ptx.module import Entry, Instruction, Module
from tilec.ptx.text import print_module
from tilec.sched.decision import Alternative, Decision
from tilec.support.diagnostics import InternalError
from tilec.support.options import DECIDING_LEVEL
from tilec.target.table import Target

MAX_EXCESS = Fraction(1, 3)
"""The most by which registers may exceed the step below, as a fraction of it: the assembler finds that many without
spills in most kernels, by computing addresses again. Of 14 kernels of rows on an H200 that gained a block by it seven
were 3 to 9 % faster, and none was over 0.5 % slower."""
MAX_BLOCKS = 8
"""The most blocks of a multiprocessor to which one is added: to more it adds little."""
DECISION = "blocks of a multiprocessor"
_ONE_BLOCK = ".minnctapersm 1"


def raise_occupancy(file: FileState, observer: Observer) -> FileState:
    """Return the assembled file, with fewer registers in kernels of which one more block then fits a multiprocessor."""
    if file.options.opt_level < DECIDING_LEVEL:
        return file
    try:
        assembled = assemble_ptx(file.options, file.module.target, print_module(file.module))
    except InternalError:
        return file  # `assemble-cubin` says so, when the PTX is there as evidence
    reports = {report.name: report for report in assembled.entries}
    target, stated = file.kernels[0].target, {work.kernel.name for work in file.kernels if work.kernel.min_blocks}
    free = [entry.name for entry in file.module.entries if _may_change(entry) and entry.name not in stated]
    wanted = {
        manifest.entry: blocks
        for manifest in manifests_in_module(file.module)
        if manifest.entry in free
        and (blocks := _count_possible_blocks(manifest, reports[manifest.entry], target)) is not None
    }
    if not wanted:
        return replace(file, assembled=assembled)
    module = _request_blocks(file.module, wanted)
    try:
        limited = assemble_ptx(file.options, file.module.target, print_module(module))
    except InternalError:  # an instruction alone, as a wide wgmma, may need more registers
        return replace(file, assembled=assembled)
    kept = {report.name for report in limited.entries if _is_as_good(report, reports[report.name])}
    if not kept >= set(wanted):
        wanted = {name: blocks for name, blocks in wanted.items() if name in kept}
        module = _request_blocks(file.module, wanted)
        limited = assemble_ptx(file.options, file.module.target, print_module(module)) if wanted else assembled
    if {remark.kind for remark in limited.remarks} - {remark.kind for remark in assembled.remarks}:
        return replace(file, assembled=assembled)  # with fewer registers products may be serialised
    kernels = tuple(_record_decision(kernel, wanted, reports) for kernel in file.kernels)
    return replace(file, kernels=kernels, ptx_module=module, assembled=limited)


def _count_possible_blocks(manifest: Manifest, report: EntryReport, target: Target) -> int | None:
    """Return how many blocks fit a multiprocessor with a few registers less, one more than now; None if none does."""
    threads, smem = prod(manifest.block), manifest.dynamic_smem + report.smem_bytes
    limits = read_occupancy_limits(target)
    found = count_ctas_by_resource(smem, report.registers, threads, limits)
    others = min(count for what, count in found.items() if what != "registers")
    blocks = found["registers"]
    if not 1 <= blocks <= MAX_BLOCKS or blocks >= others:
        return None
    fewest = int(report.registers / (1 + MAX_EXCESS))
    return blocks + 1 if count_ctas_by_resource(smem, fewest, threads, limits)["registers"] > blocks else None


def _may_change(entry: Entry) -> bool:
    """Return whether no role of an entry sets its registers."""
    return _ONE_BLOCK in entry.directives and not any(
        isinstance(item, Instruction) and item.opcode.startswith("setmaxnreg") for item in entry.body
    )


def _request_blocks(module: Module, wanted: dict[str, int]) -> Module:
    """Return the module whose entries in `wanted` request that many blocks of a multiprocessor."""

    def list_directives(entry: Entry) -> Iterator[str]:
        for directive in entry.directives:
            is_changed = directive == _ONE_BLOCK and entry.name in wanted
            yield f".minnctapersm {wanted[entry.name]}" if is_changed else directive

    entries = (replace(entry, directives=tuple(list_directives(entry))) for entry in module.entries)
    return replace(module, entries=tuple(entries))


def _is_as_good(limited: EntryReport, free: EntryReport) -> bool:
    """Return whether an entry with fewer registers keeps no more in local memory than the one without a limit."""
    return limited.stack_bytes <= free.stack_bytes and limited.spill_store_bytes <= free.spill_store_bytes


def _record_decision(kernel: KernelState, wanted: dict[str, int], reports: dict[str, EntryReport]) -> KernelState:
    """Return the kernel with the decision for more blocks, if it is one of those that have more."""
    blocks = wanted.get(kernel.kernel.name)
    if blocks is None:
        return kernel
    why = f"{blocks - 1} would fit with the {reports[kernel.kernel.name].registers} registers that the assembler likes"
    answers = tuple(Alternative(str(count), None, None) for count in (blocks, blocks - 1))
    return replace(kernel, decisions=(*kernel.decisions, Decision(DECISION, str(blocks), "the compiler", why, answers)))
