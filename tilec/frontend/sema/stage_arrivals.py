"""Arrivals at a barrier when a role releases a stage of a pipeline: by its warps, by the tensor cores, or by both.

One thread arrives for its warp, after the warp has synchronised. On sm_100a the tensor cores work on a stage
asynchronously, so they arrive when they are done, and warps arrive only if they access the stage too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_THREADS, WARPGROUP_WARPS, guarded_warpgroups
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.ops.barriers import Arrive, get_barrier
from tilec.ops.tcgen05 import TensorArrive
from tilec.ops.values import Pipeline
from tilec.passes.analysis.usage import find_reads, find_writes
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class StageArrivals:
    """The arrivals at each release by a role: the number of warps, and whether the tensor cores arrive."""

    warps: int
    by_tensor_cores: bool


def find_arrivals(statements: Sequence[tile.Stmt], pipeline: Pipeline, role: range) -> StageArrivals:
    """Return the arrivals for a role, from the statements that use the stages it acquires."""
    held = set(pipeline.tiles.values())
    users = [
        s
        for s, warpgroups in _walk_by_warpgroups(statements, None)
        if warpgroups in (None, role) or set(warpgroups or ()) <= set(role)
    ]
    users = [s for s in users if held & {*find_reads(s), *find_writes(s)}]
    by_tensor_cores = [isinstance(s, tile.TileOp) and s.is_in_tensor_memory for s in users]
    has_tensor_work = any(by_tensor_cores)
    has_thread_work = not has_tensor_work or not all(by_tensor_cores)
    return StageArrivals(WARPGROUP_WARPS * len(role) if has_thread_work else 0, has_tensor_work)


def _walk_by_warpgroups(
    statements: Sequence[tile.Stmt], warpgroups: range | None
) -> Iterator[tuple[tile.Stmt, range | None]]:
    """Yield operations and nests with the warpgroups that run them, None for all of the block."""
    for stmt in statements:
        if isinstance(stmt, tile.For | tile.While | tile.If):
            inside = guarded_warpgroups(stmt) or warpgroups
            for body in tile.nested_bodies(stmt):
                yield from _walk_by_warpgroups(body, inside)
        else:
            yield stmt, warpgroups


def expand_releases(
    statements: tuple[tile.Stmt, ...],
    releases: Mapping[tuple[str, range], StageArrivals],
    warpgroups: range | None = None,
) -> tuple[tile.Stmt, ...]:
    """Replace each release by the arrivals of its role."""

    def expand_statement(stmt: tile.Stmt) -> tile.Stmt | tuple[tile.Stmt, ...]:
        if isinstance(stmt, Arrive) and warpgroups is not None:
            release = releases.get((get_barrier(stmt).name, warpgroups))
            return stmt if release is None else tuple(_make_arrivals(stmt, warpgroups, release))
        return map_nested_bodies(
            stmt, lambda body: expand_releases(body, releases, guarded_warpgroups(stmt) or warpgroups)
        )

    return map_statements(statements, expand_statement)


def _make_arrivals(release: Arrive, role: range, who: StageArrivals) -> Iterator[tile.TileOp]:
    if who.warps:
        yield replace(release, by_warps=True)
    if who.by_tensor_cores:
        leader = WARPGROUP_THREADS * role.start
        yield TensorArrive(release.barrier, leader, releases=release.releases, span=release.span)
