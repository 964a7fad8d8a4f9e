"""Fewer registers where one more block then shares a multiprocessor.

The assembler gives a thread as many registers as it likes. A few more than a step of the register file cost a block its
neighbour: with 135 registers one block of 256 threads fits where with 128 two would. So a kernel is assembled as it is
first; where registers alone keep a block out, and little above the step, it is assembled again for one block more. The
first code stays where the second spills, or serialises products."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import prod

from tilec.ir.manifest import Manifest, manifests_in_module
from tilec.passes.cost.kernel import read_occupancy_limits
from tilec.passes.cost.model import count_ctas_by_resource
from tilec.ptx.assemble import AssemblerResult, EntryReport
from tilec.ptx.assembled_cache import assemble_ptx
from tilec.ptx.module import Entry, Instruction, Module
from tilec.ptx.text import print_module
from tilec.support.diagnostics import InternalError
from tilec.support.options import DECIDING_LEVEL, CompileOptions
from tilec.support.records import dataclass
from tilec.target.table import Target

MAX_EXCESS = Fraction(1, 3)
"""The most by which registers may exceed the step below, as a fraction of it: the assembler finds that many without
spills in most kernels, by computing addresses again. Of 14 kernels of rows on an H200 that gained a block by it seven
were 3 to 9 % faster, and none was over 0.5 % slower."""
MAX_BLOCKS = 8
"""The most blocks of a multiprocessor to which one is added: to more it adds little."""
_ONE_BLOCK = ".minnctapersm 1"


@dataclass(frozen=True, slots=True)
class FittedModule:
    """A `module` and what it was `assembled` to. `blocks` of a multiprocessor fit by fewer registers, by entry, which
    have the registers `before` without."""

    module: Module
    assembled: AssemblerResult
    blocks: Mapping[str, int]
    before: Mapping[str, int]


def fit_blocks(module: Module, target: Target, options: CompileOptions, kept: Collection[str] = ()) -> FittedModule:
    """Assemble a module, with fewer registers in entries of which one more block then fits a multiprocessor; not in
    those that are `kept`. Raise an InternalError where the assembler fails."""
    free = assemble_ptx(options, module.target, print_module(module))
    as_it_is = FittedModule(module, free, {}, {})
    if options.opt_level < DECIDING_LEVEL:
        return as_it_is
    reports = {report.name: report for report in free.entries}
    open_entries = {entry.name for entry in module.entries if _may_change(entry) and entry.name not in kept}
    wanted = {
        manifest.entry: blocks
        for manifest in manifests_in_module(module)
        if manifest.entry in open_entries
        and (blocks := _count_possible_blocks(manifest, reports[manifest.entry], target)) is not None
    }
    if not wanted:
        return as_it_is
    changed = _request_blocks(module, wanted)
    try:
        limited = assemble_ptx(options, module.target, print_module(changed))
        good = {report.name for report in limited.entries if _is_as_good(report, reports[report.name])}
        if not good >= set(wanted):
            wanted = {name: blocks for name, blocks in wanted.items() if name in good}
            changed = _request_blocks(module, wanted)
            limited = assemble_ptx(options, module.target, print_module(changed)) if wanted else free
    except InternalError:  # an instruction alone, as a wide wgmma, may need more registers
        return as_it_is
    if {remark.kind for remark in limited.remarks} - {remark.kind for remark in free.remarks}:
        return as_it_is  # with fewer registers products may be serialised
    return FittedModule(changed, limited, wanted, {name: report.registers for name, report in reports.items()})


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
