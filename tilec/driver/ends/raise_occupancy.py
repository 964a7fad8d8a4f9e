"""Fewer registers where one more block then shares a multiprocessor (`passes.assembled.fit_blocks`)."""

from __future__ import annotations

from dataclasses import replace

from tilec.driver.observer import Observer
from tilec.passes.assembled.fit_blocks import FittedModule, fit_blocks
from tilec.passes.state import FileState, KernelState
from tilec.sched.decision import Alternative, Decision
from tilec.support.diagnostics import InternalError
from tilec.support.options import DECIDING_LEVEL

DECISION = "blocks of a multiprocessor"


def raise_occupancy(file: FileState, observer: Observer) -> FileState:
    """Return the assembled file, with fewer registers in kernels of which one more block then fits a multiprocessor."""
    if file.options.opt_level < DECIDING_LEVEL:
        return file
    stated = {work.kernel.name for work in file.kernels if work.kernel.min_blocks}
    try:
        fitted = fit_blocks(file.module, file.kernels[0].target, file.options, stated)
    except InternalError:
        return file  # `assemble-cubin` says so, when the PTX is there as evidence
    if not fitted.blocks:
        return replace(file, assembled=fitted.assembled)
    kernels = tuple(_record_decision(kernel, fitted) for kernel in file.kernels)
    return replace(file, kernels=kernels, ptx_module=fitted.module, assembled=fitted.assembled)


def _record_decision(kernel: KernelState, fitted: FittedModule) -> KernelState:
    """Return the kernel with the decision for more blocks, if it is one of those that have more."""
    blocks = fitted.blocks.get(kernel.kernel.name)
    if blocks is None:
        return kernel
    why = f"{blocks - 1} would fit with the {fitted.before[kernel.kernel.name]} registers that the assembler likes"
    answers = tuple(Alternative(str(count), None, None) for count in (blocks, blocks - 1))
    return replace(kernel, decisions=(*kernel.decisions, Decision(DECISION, str(blocks), "the compiler", why, answers)))
