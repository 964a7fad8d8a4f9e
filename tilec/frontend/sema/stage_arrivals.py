"""Who arrives at a barrier when a role releases a stage of a pipeline: its warps, the tensor cores, or both.

Threads of a warp have met when one of them arrives for all. What the tensor cores of sm_100a do with a stage, threads
only ask for: there the tensor cores arrive when it is done, and threads only where they touch the stage too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilec.ir.groups import WARPGROUP_THREADS, WARPGROUP_WARPS, groups_of
from tilec.ir.tile import For, If, Stmt, TileOp, While, bodies, with_attr
from tilec.ops.barriers import barrier_of
from tilec.ops.gemm import is_in_tensor_memory
from tilec.ops.registry import tile_op
from tilec.ops.values import Pipeline
from tilec.passes.analysis.usage import reads, writes
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Arriving:
    """At each release by a role: how many warps, and whether the tensor cores do."""

    warps: int
    by_tensor_cores: bool


def arriving(statements: Sequence[Stmt], pipeline: Pipeline, role: range) -> Arriving:
    """Who works on the stages that a role acquires."""
    held = set(pipeline.tiles.values())
    users = [s for s, team in _by_teams(statements, None) if team in (None, role) or set(team or ()) <= set(role)]
    users = [s for s in users if held & {*reads(s), *writes(s)}]
    asks = any(is_in_tensor_memory(s) for s in users)
    touches = not asks or not all(is_in_tensor_memory(s) for s in users)
    return Arriving(WARPGROUP_WARPS * len(role) if touches else 0, asks)


def _by_teams(statements: Sequence[Stmt], team: range | None) -> Iterator[tuple[Stmt, range | None]]:
    """Operations and nests, with the warpgroups that run them; None: all."""
    for stmt in statements:
        if isinstance(stmt, For | While | If):
            inside = groups_of(stmt) or team
            for body in bodies(stmt):
                yield from _by_teams(body, inside)
        else:
            yield stmt, team


def with_arrivals(
    statements: Sequence[Stmt], releases: Mapping[tuple[str, range], Arriving], team: range | None = None
) -> tuple[Stmt, ...]:
    """The statements, in which each release is by those who arrive for its role."""
    found: list[Stmt] = []
    for stmt in statements:
        match stmt:
            case For() | While():
                found.append(replace(stmt, body=with_arrivals(stmt.body, releases, team)))
            case If():
                inside = groups_of(stmt) or team
                then, orelse = (with_arrivals(b, releases, inside) for b in bodies(stmt))
                found.append(replace(stmt, then=then, orelse=orelse))
            case TileOp(name="arrive") if team is not None and (barrier_of(stmt).name, team) in releases:
                found += _arrivals(stmt, team, releases[barrier_of(stmt).name, team])
            case _:
                found.append(stmt)
    return tuple(found)


def _arrivals(release: TileOp, role: range, who: Arriving) -> Iterator[TileOp]:
    if who.warps:
        yield with_attr(release, "by_warps", True)
    if who.by_tensor_cores:
        yield tile_op("tensor_arrive", (), release.span, **dict(release.attrs), leader=WARPGROUP_THREADS * role.start)
