"""Checks of the pipelines of a kernel as a whole, after all roles have been elaborated.

Only then are the producers and consumers known, and with them the arrival counts of the barriers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from tilec.frontend.sema.pipeline_records import Nested, Pipelines
from tilec.frontend.sema.stage_arrivals import Arriving, arriving, with_arrivals
from tilec.frontend.sema.stage_contents import check_contents
from tilec.frontend.sema.stages import payload_bytes
from tilec.ir.tile import Cluster, Stmt
from tilec.ops.barriers import AllocBarrier, allocation, barrier_of
from tilec.ops.values import SIDES, Pipeline, Side
from tilec.support.diagnostics import Label, Mistakes, fail

_DOES: dict[Side, str] = {"producer": "fills", "consumer": "takes"}


def settled(statements: Sequence[Stmt], pipelines: Pipelines, cluster: Cluster, mistakes: Mistakes) -> list[Stmt]:
    """Check the pipelines, set the arrival counts of their barriers, and expand each release into its arrivals. Errors:
    `pipeline-role`, `pipeline-deadlock`, `pipeline-drain`, `stage-access`."""
    allocations: dict[str, AllocBarrier] = {}
    releases: dict[tuple[str, range], Arriving] = {}
    is_whole = not mistakes.met  # a statement with a mistake may have been an acquire
    for pipeline in pipelines.made:
        if is_whole:
            with mistakes.caught():
                _check_roles(pipeline)
                _check_drained(pipeline, cluster)
        for side, barriers in zip(SIDES, (pipeline.full, pipeline.empty), strict=True):
            arrivals_by_role = {role: arriving(statements, pipeline, role) for role in pipeline.ends[side].roles}
            arrivals = sum(a.warps + a.by_tensor_cores for a in arrivals_by_role.values())
            allocations[barriers.name] = allocation(barriers, (max(arrivals, 1),) * pipeline.stages)
            releases |= {(barriers.name, role): a for role, a in arrivals_by_role.items()}
        # For the trace: facts about the pipeline, beside the first of its barriers.
        allocations[pipeline.full.name] = replace(
            allocations[pipeline.full.name],
            pipeline=pipeline.name,
            tiles=tuple(pipeline.tiles),
            bytes=payload_bytes(pipeline),
            holds=tuple(tile.name for tile in pipeline.tiles.values()),
        )
    if is_whole:
        check_contents(statements, pipelines, mistakes)
        with mistakes.caught():
            _check_order(pipelines.nested)
    return [_counted(stmt, allocations) for stmt in with_arrivals(tuple(statements), releases)]


def _counted(stmt: Stmt, counts: Mapping[str, AllocBarrier]) -> Stmt:
    if not isinstance(stmt, AllocBarrier):
        return stmt
    return counts.get(barrier_of(stmt).name, stmt)


# ---- roles -----------------------------------------------------------------------------------------------------------


def _check_roles(pipeline: Pipeline) -> None:
    """Check that a pipeline has a producer and a consumer, and that each warpgroup is in one role only."""
    for side, other_side in (SIDES, SIDES[::-1]):
        if not pipeline.ends[side].roles:
            acquires = tuple(
                Label(span, f"{_spoken(role)} {_DOES[other_side]} it")
                for role, span in pipeline.ends[other_side].roles.items()
            )
            fail(
                "pipeline-role",
                f"nobody {_DOES[side]} what {pipeline.name} holds",
                pipeline.span,
                f"no role acquires a stage as its {side}",
                secondary=acquires,
                help=f"write `with {pipeline.name}.{side}().acquire() as tiles:` under the `with T.ws(…):` of a role",
            )
    acquires_by_role = [(side, role, span) for side in SIDES for role, span in pipeline.ends[side].roles.items()]
    for (side, role, span), (other_side, other_role, other_span) in combinations(acquires_by_role, 2):
        if not set(role) & set(other_role):
            continue
        first, second = (f"{_spoken(r)} {_DOES[s]}" for s, r in ((side, role), (other_side, other_role)))
        is_both_sides = side != other_side
        fail(
            "pipeline-role",
            f"{second} {pipeline.name}, which {first}",
            other_span,
            "on both sides of it" if is_both_sides else "some of its threads, not the others",
            secondary=(Label(span, f"{_spoken(role)} acquires it here"),),
            help="a role that fills and takes by itself needs no pipeline: use T.Pipelined"
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
            fail(
                "pipeline-drain",
                f"the producer of {pipeline.name} ends without draining it",
                span,
                f"{_spoken(role)} may end while stages are still in use",
                secondary=(Label(cluster.span, "a block of this cluster may still signal them"),),
                help="write `producer.drain()` behind its last stage",
            )


# ---- order -----------------------------------------------------------------------------------------------------------


def _check_order(nested: Sequence[Nested]) -> None:
    """Refuse acquire orders that form a cycle: roles that hold one stage and wait for another may deadlock."""
    unique: dict[tuple[str, str, range], Nested] = {}
    for edge in nested:
        unique.setdefault((edge.held.name, edge.acquired.name, edge.role), edge)
    for edge in unique.values():
        for path in _ways(edge.acquired, edge.held, list(unique.values())):
            if any(e.role != edge.role for e in path):
                _refuse_cycle((edge, *path))


def _ways(start: Pipeline, end: Pipeline, edges: list[Nested]) -> Iterator[tuple[Nested, ...]]:
    """Yield the paths of nested acquires from one pipeline to another."""
    for edge in edges:
        if edge.held is not start:
            continue
        if edge.acquired is end:
            yield (edge,)
        rest = [e for e in edges if e.held is not start]
        yield from ((edge, *path) for path in _ways(edge.acquired, end, rest))


def _refuse_cycle(cycle: tuple[Nested, ...]) -> None:
    names = [cycle[0].held.name, *(edge.acquired.name for edge in cycle)]
    labels = [
        Label(span, f"{_spoken(edge.role)} {does} {pipeline.name}")
        for edge in reversed(cycle)
        for span, does, pipeline in ((edge.span, "then acquires", edge.acquired), (edge.held_span, "holds", edge.held))
    ]
    first, *others = labels
    fail(
        "pipeline-deadlock",
        "roles may wait for each other for ever: each holds a stage that another one needs",
        first.span,
        first.text,
        secondary=tuple(others),
        notes=(f"the cycle: {' → '.join(names)}",),
        help="acquire them in the same order everywhere, or release the one before acquiring the other",
    )


def _spoken(role: range) -> str:
    return f"warpgroup {role.start}" if len(role) == 1 else f"warpgroups {role.start} to {role.stop - 1}"
