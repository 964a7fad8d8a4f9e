"""Privatisation: transposed tiles of which each warpgroup has a copy.

A product may need a factor transposed in shared memory. If all warpgroups transpose it together, each a part, none can
run independently: it reads what the others have written. If each transposes all of it, it waits for none, at the price
of more shared memory and work. The schedule decides which pays (`loop.build_problem`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.analysis.rings import find_accesses, find_touched_outside
from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ops.copies.transpose import Transpose
from tilec.passes.layout.assign_layouts import LayoutAssignment


def find_private_tiles(assignment: LayoutAssignment, loop: tile.For) -> frozenset[str]:
    """Return the transposed tiles of a loop that each of several consumer warpgroups could copy: only its wgmma
    reads them."""
    transposed = {s.regions[1].buffer.name: s for s in loop.body if isinstance(s, Transpose)}
    has_several = assignment.form == "warp_specialised" and assignment.kernel.threads > WARPGROUP_THREADS
    if not transposed or not has_several:
        return frozenset()
    found = set()
    for name in transposed.keys() - find_touched_outside(assignment.kernel, loop):
        users = (stmt for stmt in loop.body if name in find_accesses(stmt).all_names)
        if all(stmt is transposed[name] or _is_product_reading(stmt, name) for stmt in users):
            found.add(name)
    return frozenset(found)


def _is_product_reading(stmt: tile.Stmt, name: str) -> bool:
    """Return whether the statement is a wgmma product that does not write the tile."""
    return isinstance(stmt, tile.TileOp) and stmt.via == "wgmma" and name not in find_accesses(stmt).writes


def add_private_copies(assignment: LayoutAssignment, replicated: Sequence[tuple[tile.For, int]]) -> LayoutAssignment:
    """Return the assignment with the private tiles of each loop copied once for each of its warpgroups."""
    shared = dict(assignment.shared)
    for loop, groups in replicated:
        for name in find_private_tiles(assignment, loop):
            shared[name] = replace(shared[name], copies=groups)
    return assignment if shared == assignment.shared else replace(assignment, shared=shared)
