"""The explicit roles of a kernel, and the pipelines between them, as listed for people and in the trace.

The statements of a role are listed in execution order: as written, except in loops that acquire stages
(`loop.role_loops`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilec.ir import tile
from tilec.ir.operations.interfaces import PipelineEnd
from tilec.ops.language.values import SIDES
from tilec.ops.synchronisation.barriers import AllocBarrier, AwaitBarrier
from tilec.passes.layout.assign_layouts import LayoutAssignment, RoleAssignment
from tilec.passes.loop.role_loops import name_statement, only_sets_variables

Listing = dict[str, list[dict[str, Any]]]


def list_roles_and_pipelines(kernel: tile.Kernel, assignment: LayoutAssignment) -> Listing:
    """Return the trace's lists `pipelines` and `roles`; an empty dict for a kernel without explicit roles."""
    if not assignment.roles:
        return {}
    pipelines = (op for op in kernel.body if isinstance(op, AllocBarrier))
    return {
        "pipelines": [_list_pipeline(op, assignment.roles) for op in pipelines if op.tiles is not None],
        "roles": [
            {
                "name": part.name,
                "first_warp": part.first_warp,
                "warps": part.kernel.threads // 32,
                "statements": list(_list_statements(part.kernel.body, 0)),
            }
            for part in assignment.roles
        ],
    }


def _list_pipeline(op: AllocBarrier, parts: tuple[RoleAssignment, ...]) -> dict[str, Any]:
    """Return a pipeline's name, tiles, stages, bytes, and its producer and consumer roles, for the trace."""
    assert op.pipeline is not None and op.tiles is not None and op.bytes is not None
    stages = len(op.counts)
    ends = {side: [p.name for p in parts if _has_acquire(p, (op.pipeline, side))] for side in SIDES}
    return {
        "name": op.pipeline,
        "tiles": list(op.tiles),
        "stages": stages,
        "bytes": op.bytes,
        "total_bytes": op.bytes * stages,
        "producers": ends["producer"],
        "consumers": ends["consumer"],
    }


def _has_acquire(part: RoleAssignment, end: PipelineEnd) -> bool:
    """Return True if the role acquires stages at this end of a pipeline."""
    statements = tile.walk_statements(part.kernel.body)
    return any(isinstance(s, AwaitBarrier) and s.acquires == end for s in statements)


def _list_statements(body: tuple[tile.Stmt, ...], depth: int) -> Iterator[dict[str, Any]]:
    """Yield name, line and depth of each statement and those nested in it, except where only variables are set."""
    for stmt in body:
        if isinstance(stmt, tile.Bind) or only_sets_variables(stmt):
            continue
        yield {"name": name_statement(stmt), "line": stmt.span.line, "depth": depth}
        if not isinstance(stmt, tile.Parallel):
            for inner in tile.nested_bodies(stmt):
                yield from _list_statements(inner, depth + 1)
