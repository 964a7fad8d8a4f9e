"""The costs of layouts, for the schedule trace: of each tile every candidate, with the terms of its score.

A shared tile may lie in any swizzle that its rows allow; the cheapest that its accesses allow is chosen. A tile in
registers or in tensor memory has one candidate, since its operations decide where it lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.layout import SharedLayout
from tilec.ops.copies.copy import Copy
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.shared import atoms
from tilec.passes.state import KernelState
from tilec.sched.decision import Decider
from tilec.support.records import dataclass
from tilec.target.table import LayoutWeights, Target


@dataclass(frozen=True, slots=True)
class CandidateLayout:
    """A layout that a tile could have: its cost, whether all accesses allow it, and whether it was chosen."""

    name: str
    cost: atoms.StorageCost
    is_allowed: bool = True
    is_chosen: bool = True


def record_layout_costs(state: KernelState) -> list[dict[str, Any]]:
    """Return the trace's list of tiles, each with its candidate layouts, their terms and scores, and who chose."""
    assignment, target = state.assignment, state.target
    given = {pinned.buffer.name for part in assignment.kernels for pinned in part.kernel.layouts}
    used_in = {planned.loop.problem.name: _list_accessed_tiles(planned.loop.loop.body) for planned in state.loops}
    record = []
    for buffer, candidates in _list_tiles(assignment, target):
        decider: Decider = "the kernel" if buffer.name in given else "the compiler"
        if state.options.switches.always_swizzle and buffer.scope == "shared" and decider == "the compiler":
            decider = "the command line"
        record.append(
            {
                "tile": buffer.name,
                "scope": buffer.scope,
                "loops": [loop for loop, names in used_in.items() if buffer.name in names],
                "by": decider,
                "candidates": [_record_candidate(candidate, target.weights) for candidate in candidates],
            }
        )
    return record


def _record_candidate(candidate: CandidateLayout, weights: LayoutWeights) -> dict[str, str | int | bool]:
    """Return a candidate's terms and its score, which is text because weights have fractions."""
    cost = candidate.cost
    return {
        "layout": candidate.name,
        "allowed": candidate.is_allowed,
        "chosen": candidate.is_chosen,
        "smem_transactions": cost.smem_transactions,
        "tmem_cycles": cost.tmem_cycles,
        "live_registers": cost.live_registers,
        "bank_conflicts": cost.bank_conflicts,
        "score": repr(cost.score(weights)).removesuffix(".0"),
    }


def _list_accessed_tiles(body: tuple[tile.Stmt, ...]) -> frozenset[str]:
    """Return the names of the tiles that statements read or write, at any depth."""
    statements = list(tile.walk_statements(body))
    return frozenset(b.name for stmt in statements for b in (*find_reads(stmt), *find_writes(stmt)))


def _list_tiles(
    assignment: LayoutAssignment, target: Target
) -> Iterator[tuple[tile.Buffer, tuple[CandidateLayout, ...]]]:
    """Yield each tile of a kernel, in the order of its buffers, with the layouts that it could have."""
    parts = assignment.kernels
    buffers = {buffer.name: buffer for part in parts for buffer in part.kernel.buffers}
    shared: Mapping[str, SharedLayout] = {name: chosen for part in parts for name, chosen in part.shared.items()}
    fragments = {name: fragment for part in parts for name, fragment in part.fragments.items()}
    patterns: dict[str, list[atoms.AccessPattern]] = {}
    for part in parts:
        for access in atoms.find_shared_accesses(part.kernel, part.fragments, part.nest_layout):
            patterns.setdefault(access.tile, []).append(access.pattern)
    for name, buffer in buffers.items():
        if name in shared:
            yield buffer, tuple(_list_shared_candidates(buffer, shared[name], patterns.get(name, [])))
        elif name in fragments:
            registers = -(-fragments[name].register_count * buffer.dtype.bytes // 4)
            yield buffer, (CandidateLayout("registers", atoms.StorageCost(0, 0, registers)),)
        elif buffer.scope == "tmem":
            cycles = sum(_count_tensor_memory_cycles(buffer, part.kernel, target) for part in parts)
            yield buffer, (CandidateLayout("tensor memory", atoms.StorageCost(0, cycles, 0)),)


def _list_shared_candidates(
    buffer: tile.Buffer, chosen: SharedLayout, patterns: Sequence[atoms.AccessPattern]
) -> Iterator[CandidateLayout]:
    """Yield the layouts that a shared tile could have, and the chosen one if the kernel gives another."""
    candidates = atoms.list_candidate_layouts(buffer)
    for layout in candidates if chosen in candidates else (*candidates, chosen):
        name = "given" if layout.placement is not None else f"swizzle {layout.swizzle}"
        cost = atoms.compute_storage_cost(layout, patterns)
        yield CandidateLayout(name, cost, atoms.is_legal(layout, patterns), layout == chosen)


def _count_tensor_memory_cycles(buffer: tile.Buffer, kernel: tile.Kernel, target: Target) -> int:
    """Return the cycles in which copies between a tile in tensor memory and registers hold its transport."""
    cycles = 0
    for copy in (s for s in tile.walk_statements(kernel.body) if isinstance(s, Copy) and s.via == "tcgen05"):
        source, destination = copy.regions
        if buffer in (source.buffer, destination.buffer):
            elements = math.prod(destination.extent)
            price = target.price(
                "tcgen05.ld" if buffer == source.buffer else "tcgen05.st", bytes=elements * source.buffer.dtype.bytes
            )
            cycles += max(cycles_held for _, cycles_held, _ in price.uses)
    return cycles
