"""Arrivals at a barrier when a role releases a stage of a pipeline: by its warps, by the tensor cores, or by both.

One thread arrives for its warp, after the warp has synchronised. On sm_100a the tensor cores work on a stage
asynchronously, so they arrive when they are done, and warps arrive only if they access the stage too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_THREADS, WARPGROUP_WARPS, groups_of
from tilec.ir.rewrite import map_statements, with_bodies
from tilec.ops.barriers import Arrive, barrier_of
from tilec.ops.tcgen05 import TensorArrive
from tilec.ops.values import Pipeline
from tilec.passes.analysis.usage import reads, writes
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Arriving:
    """The arrivals at each release by a role: the number of warps, and whether the tensor cores arrive."""

    warps: int
    by_tensor_cores: bool


def arriving(statements: Sequence[tile.Stmt], pipeline: Pipeline, role: range) -> Arriving:
    """Return the arrivals for a role, from the statements that use the stages it acquires."""
    held = set(pipeline.tiles.values())
    users = [
        s
        for s, warpgroups in _by_warpgroups(statements, None)
        if warpgroups in (None, role) or set(warpgroups or ()) <= set(role)
    ]
    users = [s for s in users if held & {*reads(s), *writes(s)}]
    by_tensor_cores = [isinstance(s, tile.TileOp) and s.is_in_tensor_memory for s in users]
    has_tensor_work = any(by_tensor_cores)
    has_thread_work = not has_tensor_work or not all(by_tensor_cores)
    return Arriving(WARPGROUP_WARPS * len(role) if has_thread_work else 0, has_tensor_work)


def _by_warpgroups(
    statements: Sequence[tile.Stmt], warpgroups: range | None
) -> Iterator[tuple[tile.Stmt, range | None]]:
    """Yield operations and nests with the warpgroups that run them, None for all of the block."""
    for stmt in statements:
        if isinstance(stmt, tile.For | tile.While | tile.If):
            inside = groups_of(stmt) or warpgroups
            for body in tile.bodies(stmt):
                yield from _by_warpgroups(body, inside)
        else:
            yield stmt, warpgroups


def with_arrivals(
    statements: tuple[tile.Stmt, ...], releases: Mapping[tuple[str, range], Arriving], warpgroups: range | None = None
) -> tuple[tile.Stmt, ...]:
    """Replace each release by the arrivals of its role."""

    def arriving(stmt: tile.Stmt) -> tile.Stmt | tuple[tile.Stmt, ...]:
        if isinstance(stmt, Arrive) and warpgroups is not None:
            release = releases.get((barrier_of(stmt).name, warpgroups))
            return stmt if release is None else tuple(_arrivals(stmt, warpgroups, release))
        return with_bodies(stmt, lambda body: with_arrivals(body, releases, groups_of(stmt) or warpgroups))

    return map_statements(statements, arriving)


def _arrivals(release: Arrive, role: range, who: Arriving) -> Iterator[tile.TileOp]:
    if who.warps:
        yield replace(release, by_warps=True)
    if who.by_tensor_cores:
        leader = WARPGROUP_THREADS * role.start
        yield TensorArrive(release.barrier, leader, releases=release.releases, span=release.span)
