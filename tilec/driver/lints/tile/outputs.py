"""nothing-written, unwritten-output: kernels without effect, and returned tensors that are never written.

A kernel that only prints or asserts has an effect.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.analysis.usage import find_writes
from tilec.driver.lints.registry import TILE, register_warning
from tilec.ir import tile
from tilec.ops.device_assert import DeviceAssert
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, make_warning


@register_warning(TILE)
def find_unwritten_outputs(work: KernelState) -> Iterator[Diagnostic]:
    """Yield a warning if the kernel has no effect, else one for each tensor that it returns unwritten."""
    kernel = work.source_kernel
    written = {buffer for stmt in kernel.body for buffer in find_writes(stmt)}
    if not _has_effect(kernel, written):
        title, label = f"{kernel.name} writes no tensor: its results are lost", "no statement writes to a parameter"
        advice = "T.copy(tile, C[…]) stores a tile in a tensor"
        yield make_warning("nothing-written", title, kernel.span, label, help=advice)
        return
    for param in kernel.params:
        if isinstance(param, tile.Buffer) and param.name in kernel.outputs and param not in written:
            title = f"{kernel.name} returns {param.name} and never writes it"
            advice = f"T.copy(tile, {param.name}[…]) stores a tile in it"
            yield make_warning("unwritten-output", title, param.span, "no statement writes to it", help=advice)


def _has_effect(kernel: tile.Kernel, written: set[tile.Buffer]) -> bool:
    """Return whether the kernel writes a tensor, prints or asserts."""
    if any(buffer.scope == "global" or buffer == tile.PRINT_OUTPUT for buffer in written):
        return True
    return any(isinstance(stmt, DeviceAssert) for stmt in tile.walk_statements(kernel.body))
