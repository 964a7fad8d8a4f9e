"""copy-not-asynchronous: a T.async_copy that no asynchronous mechanism can carry out."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.analysis.ordering import is_asynchronous_copy
from tilec.driver.lints.registry import LAYOUT, register_warning
from tilec.ir.tile import TileOp, walk_statements
from tilec.passes.state import KernelState
from tilec.support.diagnostics import Diagnostic, make_warning


@register_warning(LAYOUT)
def find_synchronous_copies(work: KernelState) -> Iterator[Diagnostic]:
    for stmt in (stmt for assignment in work.assignment.kernels for stmt in walk_statements(assignment.kernel.body)):
        if isinstance(stmt, TileOp) and is_asynchronous_copy(stmt) and stmt.via == "registers":
            source, tile = stmt.regions
            why = "its rows are not aligned to 4 bytes"
            if source.buffer.dtype != tile.buffer.dtype:
                why = f"it converts {source.buffer.dtype} to {tile.buffer.dtype}"
            yield make_warning(
                "copy-not-asynchronous",
                "this T.async_copy is not asynchronous",
                stmt.span,
                why,
                help="copy rows of whole words to a shared tile of the tensor's dtype, or write T.copy",
            )
