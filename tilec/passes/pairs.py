"""Whether blocks should run in pairs that load together what they have in common.

In a product, blocks side by side read the same rows of A, and those above each other the same columns of B. As a
cluster of two each of them loads half of such a tile, for both (TMA multicast), so that the L2 cache is read half as
often for it: on an H100 that took a persistent product of 4096³ from 704 to 734 TFLOP/s (a public measurement; none of
ours). Larger clusters share more, but a cluster of multiprocessors (GPC) has not always room for another one of four.

The rule: blocks run in pairs along the axis along which the larger tile is the same, x if both are equal,

* if the machine has clusters and multiplies by wgmma, whose loops signal other blocks as they do their own;
* if the grid is persistent, known when compiling, and more than a wave of blocks: in a single wave nothing is gained
  that would pay for the blocks' waiting for each other at the beginning and at the end;
* if the grid has an even number of blocks along that axis;
* if each pipelined loop does nothing but load tiles and multiply them, since then both blocks keep the same pace;
* and if the compiler sees that both load that tile at the same time, and can cut it into two slices.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.tile import ALONE, Bind, Cluster, For, TileOp
from tilec.passes.layout import Laid
from tilec.passes.multicast import with_multicast
from tilec.passes.rings import is_load, pipelined_loops
from tilec.passes.strips import strips
from tilec.target import Target

PAIRS = {"x": Cluster((2, 1, 1)), "y": Cluster((1, 2, 1))}


def best_pairs(laid: Laid, target: Target) -> tuple[Cluster, str]:
    """The cluster for a kernel with a persistent grid that asks for none, and why this one."""
    loops = pipelined_loops(laid.kernel.body)
    if not (target.has("cluster") and target.has("wgmma")):
        return ALONE, f"{target.name} has no clusters whose blocks multiply by wgmma"
    if not loops or not all(map(_only_multiplies, loops)):
        return ALONE, "blocks keep one pace only in loops that do nothing but load tiles and multiply them"
    shared = {axis: _shared(laid, axis) for axis in PAIRS}
    axis, (size, tiles) = max(shared.items(), key=lambda found: found[1][0])
    if not size:
        return ALONE, "no two neighbours in a grid of even extent load the same tile"
    return PAIRS[axis], f"neighbours along {axis} need the same {tiles}, the most that two of them can load together"


def _only_multiplies(loop: For) -> bool:
    """Operands that wgmma cannot read as they are stored are turned first."""
    work = [stmt for stmt in loop.body if not isinstance(stmt, Bind)]
    names = {"load" if is_load(stmt) else stmt.name for stmt in work if isinstance(stmt, TileOp)}
    return "gemm" in names <= {"load", "transpose", "gemm"} and all(isinstance(stmt, TileOp) for stmt in work)


def _shared(laid: Laid, axis: str) -> tuple[int, str]:
    """The bytes of the tiles that pairs along the axis load together, and the names of those."""
    at = "xyz".index(axis)
    extent = laid.kernel.grid[at] if at < len(laid.kernel.grid) else 1
    if not isinstance(extent, int) or extent % 2:
        return 0, ""
    paired = with_multicast(replace(laid, kernel=replace(laid.kernel, cluster=PAIRS[axis])))
    found = [strip for strip in strips(paired.kernel) if strip.shared]
    return sum(strip.bytes for strip in found), ", ".join(dict.fromkeys(strip.tile for strip in found))
