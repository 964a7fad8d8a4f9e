"""The report on a kernel of which the machine code is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from tilec.passes.assembled.machine_code import LoopCode, find_block_code, find_loop_codes, select_slowest_roles
from tilec.passes.cost.block_time import MachineInterval
from tilec.passes.cost.known_values import Contents
from tilec.passes.cost.report import Report, build_report
from tilec.passes.loop.build_problem import ScheduledLoop
from tilec.support.diagnostics import InternalError
from tilec.support.records import dataclass

if TYPE_CHECKING:
    from tilec.ir.manifest import Manifest
    from tilec.passes.state import KernelState


@dataclass(frozen=True, slots=True)
class AssembledKernel:
    """A kernel with its PTX and machine code, alone or among others: the `registers` of a thread, its `manifest`, and
    the machine code of scheduled loops (`codes`, of other kernels too)."""

    work: KernelState
    manifest: Manifest
    ptx: str
    cubin: bytes
    registers: int
    codes: Sequence[LoopCode]


def report_assembled_kernel(
    kernel: AssembledKernel,
    grid: tuple[int, int, int] | None,
    sizes: Mapping[str, int],
    contents: Contents | None,
) -> Report:
    """Predict the time of an assembled kernel whose `grid` is that of its `sizes` (None: known at launch only)."""
    work, manifest = kernel.work, kernel.manifest
    own = [code for code in kernel.codes if code.kernel == manifest.entry]
    return build_report(
        work.assignment,
        [ScheduledLoop(planned.loop, planned.solution.schedule) for planned in work.loops],
        work.target,
        grid,
        prod(manifest.block),
        manifest.dynamic_smem,
        kernel.registers,
        sizes,
        contents,
        assumes_sizes=not sizes and bool(manifest.size_scalars()),
        intervals={
            code.place.line: MachineInterval(round(code.interval.cycles), round(code.interval.issue), code.held)
            for code in select_slowest_roles(own)
        },
        dram_reads=None if sizes else work.dram_reads,
        code=find_block_code(work, kernel.ptx, kernel.cubin),
    )


def predict_emitted_kernel(work: KernelState) -> int | None:
    """Assemble a kernel that has been emitted, for as many blocks of a multiprocessor as it will be, and return its
    predicted cycles; None where its grid is known at launch only, or where the assembler fails."""
    from tilec.ir.manifest import manifests_in_module
    from tilec.passes.assembled.fit_blocks import fit_blocks
    from tilec.ptx.text import print_module

    (manifest,) = manifests_in_module(work.module)
    if not all(isinstance(size, int) for size in manifest.grid):
        return None
    stated = (work.kernel.name,) if work.kernel.min_blocks else ()
    try:
        fitted = fit_blocks(work.module, work.target, work.options, stated)
    except InternalError:  # as for products whose operands find no registers; `assemble-cubin` says so
        return None
    ptx, made = print_module(fitted.module), fitted.assembled
    codes = find_loop_codes([work], ptx, made.cubin, work.source)
    kernel = AssembledKernel(work, manifest, ptx, made.cubin, made.entries[0].registers, codes)
    report = report_assembled_kernel(kernel, manifest.blocks({}), {}, None)
    return report.scale_to_clock(report.predicted)
