"""Lower asynchronous nests to cp.async of gathered chunks."""

from __future__ import annotations

from tilec.analysis.copy_nests import analyse_gather
from tilec.ir import warp
from tilec.ir.layout import row_major_fragment
from tilec.ir.tile import Parallel
from tilec.passes.layout.assign_layouts import LayoutAssignment


def build_gathered_copy(
    nest: Parallel, assignment: LayoutAssignment, cursors: tuple[warp.Cursor, ...]
) -> warp.CpAsync | None:
    """Return the copy that the nest makes; None where the tile's layout leaves no chunks of 4 bytes."""
    found = analyse_gather(nest)
    if isinstance(found, str):
        return None
    layout = assignment.shared[found.destination.buffer.name]
    width = found.choose_width(min(layout.run, layout.shape[-1]))
    if width is None:
        return None
    spread = row_major_fragment(found.extents, assignment.kernel.threads, width // found.load.buffer.dtype.bytes)
    source = warp.Gather(found.load.buffer, found.vars, found.load.indices, found.condition)
    return warp.CpAsync(source, found.destination, spread, width, cursors=cursors, span=nest.span)
