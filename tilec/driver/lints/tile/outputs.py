"""nothing-written, unwritten-output: kernels of which nothing is left, and tensors that they return as they found them.

A kernel that prints or asserts is of use without an output.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.driver.lints.registry import TILE, warns
from tilec.driver.work import Work
from tilec.ir import tile
from tilec.ops.device_assert import DeviceAssert
from tilec.passes.analysis.usage import find_writes
from tilec.support.diagnostics import Diagnostic, make_warning


@warns(TILE)
def unwritten_outputs(work: Work) -> Iterator[Diagnostic]:
    """A warning for a kernel without effect, or for each tensor that it returns without writing it."""
    kernel = work.source_kernel
    written = {buffer for stmt in kernel.body for buffer in find_writes(stmt)}
    if not _has_effect(kernel, written):
        yield make_warning(
            "nothing-written",
            f"{kernel.name} writes no tensor: whatever it computes is lost",
            kernel.span,
            "no statement writes to a parameter",
            help="T.copy(tile, C[…]) stores a tile in a tensor",
        )
        return
    for param in kernel.params:
        if isinstance(param, tile.Buffer) and param.name in kernel.outputs and param not in written:
            yield make_warning(
                "unwritten-output",
                f"{kernel.name} returns {param.name} and never writes it",
                param.span,
                "no statement writes to it",
                help=f"T.copy(tile, {param.name}[…]) stores a tile in it",
            )


def _has_effect(kernel: tile.Kernel, written: set[tile.Buffer]) -> bool:
    """Whether anything is left of a run."""
    if any(buffer.scope == "global" or buffer == tile.PRINT_OUTPUT for buffer in written):
        return True
    return any(isinstance(stmt, DeviceAssert) for stmt in tile.walk_statements(kernel.body))
