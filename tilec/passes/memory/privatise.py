"""Turned tiles of which each warpgroup has a copy of its own.

A product may want a factor turned in shared memory. Where all warpgroups turn it together, each a part, none can run
apart from the others: what it reads they have written. Where each turns all of it for itself, it waits for nobody, for
more shared memory and more work; which pays is decided with the schedule (`loop.build_problem`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ops.transpose import Transpose
from tilec.passes.analysis.rings import find_accesses, find_touched_outside
from tilec.passes.layout.assign_layouts import LayoutAssignment


def own_tiles(assignment: LayoutAssignment, loop: tile.For) -> frozenset[str]:
    """The tiles that could have a copy for each of several warpgroups that compute: those that a transposition fills in
    the loop, for nothing but products there by wgmma."""
    transposed = {s.regions[1].buffer.name: s for s in loop.body if isinstance(s, Transpose)}
    has_several = assignment.form == "warp_specialised" and assignment.kernel.threads > WARPGROUP_THREADS
    if not transposed or not has_several:
        return frozenset()
    outside = find_touched_outside(assignment.kernel, loop)
    return frozenset(
        name
        for name, filled in transposed.items()
        if name not in outside
        and all(
            stmt is filled or _multiplies(stmt, name) for stmt in loop.body if name in find_accesses(stmt).all_names
        )
    )


def _multiplies(stmt: tile.Stmt, name: str) -> bool:
    """Whether the statement is a product by wgmma that reads the tile alone."""
    return isinstance(stmt, tile.TileOp) and stmt.via == "wgmma" and name not in find_accesses(stmt).writes


def with_private_copies(assignment: LayoutAssignment, replicated: Sequence[tuple[tile.For, int]]) -> LayoutAssignment:
    """The kernel with copies of the tiles of these loops, for so many warpgroups each that run apart."""
    shared = dict(assignment.shared)
    for loop, groups in replicated:
        for name in own_tiles(assignment, loop):
            shared[name] = replace(shared[name], copies=groups)
    return assignment if shared == assignment.shared else replace(assignment, shared=shared)
