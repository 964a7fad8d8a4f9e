"""Checks of the pipelines of a kernel as a whole, after all roles have been elaborated.

Only then are the producers and consumers known, and with them the arrival counts of the barriers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from tilec.frontend.sema.pipeline_records import NestedAcquire, PipelineRecords
from tilec.frontend.sema.stage_arrivals import StageArrivals, expand_releases, find_arrivals
from tilec.frontend.sema.stage_contents import check_stage_contents
from tilec.frontend.sema.stages import compute_payload_bytes
from tilec.ir.tile import Cluster, Stmt
from tilec.ops.barriers import AllocBarrier, build_allocation, get_barrier
from tilec.ops.values import SIDES, Pipeline, Side
from tilec.support.diagnostics import ErrorCollector, Label, raise_error

_SIDE_VERBS: dict[Side, str] = {"producer": "fills", "consumer": "takes"}


def finish_pipelines(
    statements: Sequence[Stmt], pipelines: PipelineRecords, cluster: Cluster, mistakes: ErrorCollector
) -> list[Stmt]:
    """Check the pipelines, set the arrival counts of their barriers, and expand each release into its arrivals. Errors:
    `pipeline-role`, `pipeline-deadlock`, `pipeline-drain`, `stage-access`."""
    allocations: dict[str, AllocBarrier] = {}
    releases: dict[tuple[str, range], StageArrivals] = {}
    is_whole = not mistakes.met  # a statement with a mistake may have been an acquire
    for pipeline in pipelines.made:
        if is_whole:
            with mistakes.caught():
                _check_roles(pipeline)
                _check_drained(pipeline, cluster)
        for side, barriers in zip(SIDES, (pipeline.full, pipeline.empty), strict=True):
            arrivals_by_role = {role: find_arrivals(statements, pipeline, role) for role in pipeline.ends[side].roles}
            arrivals = sum(a.warps + a.by_tensor_cores for a in arrivals_by_role.values())
            allocations[barriers.name] = build_allocation(barriers, (max(arrivals, 1),) * pipeline.stages)
            releases |= {(barriers.name, role): a for role, a in arrivals_by_role.items()}
        # For the trace: facts about the pipeline, beside the first of its barriers.
        allocations[pipeline.full.name] = replace(
            allocations[pipeline.full.name],
            pipeline=pipeline.name,
            tiles=tuple(pipeline.tiles),
            bytes=compute_payload_bytes(pipeline),
            holds=tuple(tile.name for tile in pipeline.tiles.values()),
        )
    if is_whole:
        check_stage_contents(statements, pipelines, mistakes)
        with mistakes.caught():
            _check_acquire_order(pipelines.nested)
    return [_set_arrival_counts(stmt, allocations) for stmt in expand_releases(tuple(statements), releases)]


def _set_arrival_counts(stmt: Stmt, counts: Mapping[str, AllocBarrier]) -> Stmt:
    if not isinstance(stmt, AllocBarrier):
        return stmt
    return counts.get(get_barrier(stmt).name, stmt)


# ---- roles -----------------------------------------------------------------------------------------------------------


def _check_roles(pipeline: Pipeline) -> None:
    """Check that a pipeline has a producer and a consumer, and that each warpgroup is in one role only."""
    for side, other_side in (SIDES, SIDES[::-1]):
        if not pipeline.ends[side].roles:
            acquires = tuple(
                Label(span, f"{_describe_role(role)} {_SIDE_VERBS[other_side]} it")
                for role, span in pipeline.ends[other_side].roles.items()
            )
            raise_error(
                "pipeline-role",
                f"{pipeline.name} has no {side}",
                pipeline.span,
                f"no role acquires a stage as its {side}",
                secondary=acquires,
                help=f"write `with {pipeline.name}.{side}().acquire() as tiles:` under the `with T.ws(…):` of a role",
            )
    acquires_by_role = [(side, role, span) for side in SIDES for role, span in pipeline.ends[side].roles.items()]
    for (side, role, span), (other_side, other_role, other_span) in combinations(acquires_by_role, 2):
        if not set(role) & set(other_role):
            continue
        first, second = (f"{_describe_role(r)} {_SIDE_VERBS[s]}" for s, r in ((side, role), (other_side, other_role)))
        is_both_sides = side != other_side
        raise_error(
            "pipeline-role",
            f"{second} {pipeline.name}, and {first} it",
            other_span,
            "producer and consumer at once" if is_both_sides else "the two roles overlap",
            secondary=(Label(span, f"{_describe_role(role)} acquires it here"),),
            help="a role that is producer and consumer needs no pipeline: use T.Pipelined"
            if is_both_sides
            else "let the warpgroups of a role acquire together, or give each a `with T.ws(…):` of its own",
        )


def _check_drained(pipeline: Pipeline, cluster: Cluster) -> None:
    """Check that producers in a cluster drain: a block must not end while another one may signal its barriers."""
    producer = pipeline.ends["producer"]
    if cluster.blocks == 1 or not cluster.span.line or pipeline.function != "T.InputTilePipeline":
        return
    for role, span in producer.roles.items():
        if role not in producer.drained:
            raise_error(
                "pipeline-drain",
                f"the producer of {pipeline.name} ends without draining it",
                span,
                f"{_describe_role(role)} may end while stages are still in use",
                secondary=(Label(cluster.span, "a block of this cluster may still signal them"),),
                help="write `producer.drain()` after its last stage",
            )


# ---- order -----------------------------------------------------------------------------------------------------------


def _check_acquire_order(nested: Sequence[NestedAcquire]) -> None:
    """Refuse acquire orders that form a cycle: roles that hold one stage and wait for another may deadlock."""
    unique: dict[tuple[str, str, range], NestedAcquire] = {}
    for edge in nested:
        unique.setdefault((edge.held.name, edge.acquired.name, edge.role), edge)
    for edge in unique.values():
        for path in _find_paths(edge.acquired, edge.held, list(unique.values())):
            if any(e.role != edge.role for e in path):
                _refuse_cycle((edge, *path))


def _find_paths(start: Pipeline, end: Pipeline, edges: list[NestedAcquire]) -> Iterator[tuple[NestedAcquire, ...]]:
    """Yield the paths of nested acquires from one pipeline to another."""
    for edge in edges:
        if edge.held is not start:
            continue
        if edge.acquired is end:
            yield (edge,)
        rest = [e for e in edges if e.held is not start]
        yield from ((edge, *path) for path in _find_paths(edge.acquired, end, rest))


def _refuse_cycle(cycle: tuple[NestedAcquire, ...]) -> None:
    names = [cycle[0].held.name, *(edge.acquired.name for edge in cycle)]
    labels = [
        Label(span, f"{_describe_role(edge.role)} {does} {pipeline.name}")
        for edge in reversed(cycle)
        for span, does, pipeline in ((edge.span, "then acquires", edge.acquired), (edge.held_span, "holds", edge.held))
    ]
    first, *others = labels
    raise_error(
        "pipeline-deadlock",
        "deadlock: each role holds a stage and waits for one that another role holds",
        first.span,
        first.text,
        secondary=tuple(others),
        notes=(f"the cycle: {' → '.join(names)}",),
        help="acquire them in the same order everywhere, or release one before acquiring the next",
    )


def _describe_role(role: range) -> str:
    return f"warpgroup {role.start}" if len(role) == 1 else f"warpgroups {role.start} to {role.stop - 1}"
