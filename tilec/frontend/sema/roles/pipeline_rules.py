"""Checks of the pipelines of a kernel as a whole, after all roles have been elaborated: arrivals at their barriers, and
what producers read.

Only then are the producers and consumers known, and with them the arrival counts of the barriers.

One thread arrives for its warp, after the warp has synchronised. On sm_100a the tensor cores work on a stage
asynchronously, so they arrive when they are done, and warps arrive only if they access the stage too.

A T.copy or T.tma_copy may complete only after the release of the stage, and a stage not written since its acquire has
data of an earlier iteration. The index of a stage is a variable of its acquire, which identifies the statements on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Literal

from tilec.analysis.usage import find_reads, find_writes
from tilec.frontend.sema.roles.linear_resources import describe_role
from tilec.frontend.sema.roles.pipeline_records import NestedAcquire, PipelineRecords
from tilec.frontend.sema.roles.stages import compute_payload_bytes
from tilec.ir import tile
from tilec.ir.groups import WARP_THREADS, guarded_warps
from tilec.ir.rewrite import map_nested_bodies, map_statements
from tilec.ir.tile import Buffer, Cluster, Expr, Stmt, Store, TileOp, walk_loads, walk_statements
from tilec.ops.language.values import SIDES, Pipeline, PipelineStage, Side
from tilec.ops.products.tcgen05 import TensorArrive
from tilec.ops.synchronisation.barriers import AllocBarrier, Arrive, build_allocation, get_barrier
from tilec.support.diagnostics import ErrorCollector, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span

_SIDE_VERBS: dict[Side, str] = {"producer": "fills", "consumer": "takes"}


def finish_pipelines(
    statements: Sequence[Stmt], pipelines: PipelineRecords, cluster: Cluster, mistakes: ErrorCollector
) -> list[Stmt]:
    """Check all pipelines, and return the statements with barriers' arrival counts set and releases made arrivals.
    Where `mistakes` has any already, nothing is checked. Errors: `pipeline-role`, `pipeline-deadlock`,
    `pipeline-drain`, `stage-access`.
    """
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
        held = tuple(tile.name for tile in pipeline.tiles.values())
        allocations[pipeline.full.name] = replace(
            allocations[pipeline.full.name], pipeline=pipeline.name, tiles=tuple(pipeline.tiles), holds=held,
            bytes=compute_payload_bytes(pipeline),
        )  # fmt: skip
    if is_whole:
        check_stage_contents(statements, pipelines, mistakes)
        with mistakes.caught():
            _check_acquire_order(pipelines.nested)
    return [_set_arrival_counts(stmt, allocations) for stmt in expand_releases(tuple(statements), releases)]


def _set_arrival_counts(stmt: Stmt, counts: Mapping[str, AllocBarrier]) -> Stmt:
    """Return a barrier's allocation with its arrival counts, if there are new ones; other statements unchanged."""
    return counts.get(get_barrier(stmt).name, stmt) if isinstance(stmt, AllocBarrier) else stmt


# ---- roles -----------------------------------------------------------------------------------------------------------


def _check_roles(pipeline: Pipeline) -> None:
    """Raise `pipeline-role` if a pipeline lacks a producer or consumer, or if two of its roles share a warp."""
    for side, other_side in (SIDES, SIDES[::-1]):
        if not pipeline.ends[side].roles:
            acquires = tuple(
                Label(span, f"{describe_role(role)} {_SIDE_VERBS[other_side]} it")
                for role, span in pipeline.ends[other_side].roles.items()
            )
            title = f"{pipeline.name} has no {side}"
            note = f"no role acquires a stage as its {side}"
            way_out = f"write `with {pipeline.name}.{side}().acquire() as tiles:` under the `with T.ws(…):` of a role"
            raise_error("pipeline-role", title, pipeline.span, note, secondary=acquires, help=way_out)
    acquires_by_role = [(side, role, span) for side in SIDES for role, span in pipeline.ends[side].roles.items()]
    for (side, role, span), (other_side, other_role, other_span) in combinations(acquires_by_role, 2):
        if not set(role) & set(other_role):
            continue
        first, second = (f"{describe_role(r)} {_SIDE_VERBS[s]}" for s, r in ((side, role), (other_side, other_role)))
        title = f"{second} {pipeline.name}, and {first} it"
        place = Label(span, f"{describe_role(role)} acquires it here")
        note = "producer and consumer at once"
        way_out = "a role that is producer and consumer needs no pipeline: use T.Pipelined"
        if side == other_side:
            note = "the two roles overlap"
            way_out = "let the warpgroups of a role acquire together, or give each a `with T.ws(…):` of its own"
        raise_error("pipeline-role", title, other_span, note, secondary=(place,), help=way_out)


def _check_drained(pipeline: Pipeline, cluster: Cluster) -> None:
    """Raise `pipeline-drain` if a producer of an input pipeline in an explicit cluster does not drain it."""
    producer = pipeline.ends["producer"]
    if cluster.blocks == 1 or not cluster.span.line or pipeline.function != "T.InputTilePipeline":
        return
    for role, span in producer.roles.items():
        if role not in producer.drained:
            title = f"the producer of {pipeline.name} ends without draining it"
            note = f"{describe_role(role)} may end while stages are still in use"
            place = Label(cluster.span, "a block of this cluster may still signal them")
            way_out = "write `producer.drain()` after its last stage"
            raise_error("pipeline-drain", title, span, note, secondary=(place,), help=way_out)


# ---- order -----------------------------------------------------------------------------------------------------------


def _check_acquire_order(nested: Sequence[NestedAcquire]) -> None:
    """Raise `pipeline-deadlock` if acquires while holding another stage form a cycle across different roles."""
    unique: dict[tuple[str, str, range], NestedAcquire] = {}
    for edge in nested:
        unique.setdefault((edge.held.name, edge.acquired.name, edge.role), edge)
    for edge in unique.values():
        for path in _find_paths(edge.acquired, edge.held, list(unique.values())):
            if any(e.role != edge.role for e in path):
                _refuse_cycle((edge, *path))


def _find_paths(start: Pipeline, end: Pipeline, edges: list[NestedAcquire]) -> Iterator[tuple[NestedAcquire, ...]]:
    """Yield the paths of nested acquires that lead from holding `start` to acquiring `end`."""
    for edge in edges:
        if edge.held is not start:
            continue
        if edge.acquired is end:
            yield (edge,)
        rest = [e for e in edges if e.held is not start]
        yield from ((edge, *path) for path in _find_paths(edge.acquired, end, rest))


def _refuse_cycle(cycle: tuple[NestedAcquire, ...]) -> None:
    """Raise `pipeline-deadlock` for a cycle of acquires, labelling what each role holds and waits for."""
    names = [cycle[0].held.name, *(edge.acquired.name for edge in cycle)]
    labels = [
        Label(span, f"{describe_role(edge.role)} {does} {pipeline.name}")
        for edge in reversed(cycle)
        for span, does, pipeline in ((edge.span, "then acquires", edge.acquired), (edge.held_span, "holds", edge.held))
    ]
    first, *others = labels
    title = "deadlock: each role holds a stage and waits for one that another role holds"
    notes = (f"the cycle: {' → '.join(names)}",)
    way_out = "acquire them in the same order everywhere, or release one before acquiring the next"
    places = tuple(others)
    raise_error("pipeline-deadlock", title, first.span, first.text, secondary=places, notes=notes, help=way_out)


@dataclass(frozen=True, slots=True)
class StageArrivals:
    """The arrivals at each release by a role: the number of warps, and whether the tensor cores arrive."""

    warps: int
    by_tensor_cores: bool


def find_arrivals(statements: Sequence[tile.Stmt], pipeline: Pipeline, role: range) -> StageArrivals:
    """Count the arrivals at each release by a role: the tensor cores if they use the stage, its warps unless only these
    do.
    """
    held = set(pipeline.tiles.values())
    run = (s for s, warps in _walk_by_warps(statements, None) if warps is None or set(warps) <= set(role))
    users = [s for s in run if held & {*find_reads(s), *find_writes(s)}]
    by_tensor_cores = [isinstance(s, tile.TileOp) and s.is_in_tensor_memory for s in users]
    has_tensor_work = any(by_tensor_cores)
    has_thread_work = not has_tensor_work or not all(by_tensor_cores)
    return StageArrivals(len(role) if has_thread_work else 0, has_tensor_work)


def _walk_by_warps(statements: Sequence[tile.Stmt], warps: range | None) -> Iterator[tuple[tile.Stmt, range | None]]:
    """Yield each innermost statement with the warps that run it, None for the whole block."""
    for stmt in statements:
        if isinstance(stmt, tile.For | tile.While | tile.If):
            inside = guarded_warps(stmt) or warps
            for body in tile.nested_bodies(stmt):
                yield from _walk_by_warps(body, inside)
        else:
            yield stmt, warps


def expand_releases(
    statements: tuple[tile.Stmt, ...],
    releases: Mapping[tuple[str, range], StageArrivals],
    warps: range | None = None,
) -> tuple[tile.Stmt, ...]:
    """Return statements, run by `warps` (None: all), with each stage release replaced by its role's real
    arrivals.
    """

    def expand_statement(stmt: tile.Stmt) -> tile.Stmt | tuple[tile.Stmt, ...]:
        """Return the arrivals that replace a release, or the statement with the releases inside it replaced."""
        if isinstance(stmt, Arrive) and warps is not None:
            release = releases.get((get_barrier(stmt).name, warps))
            return stmt if release is None else tuple(_make_arrivals(stmt, warps, release))
        return map_nested_bodies(stmt, lambda body: expand_releases(body, releases, guarded_warps(stmt) or warps))

    return map_statements(statements, expand_statement)


def _make_arrivals(release: Arrive, role: range, who: StageArrivals) -> Iterator[tile.TileOp]:
    """Yield the arrival of the role's warps, and that of the tensor cores, that `who` asks for at a release."""
    if who.warps:
        yield replace(release, by_warps=True)
    if who.by_tensor_cores:
        leader = WARP_THREADS * role.start
        yield TensorArrive(release.barrier, leader, releases=release.releases, span=release.span)


@dataclass(frozen=True, slots=True)
class _TileUse:
    """One use of a tile of the stage with this index; "copies" fills it from a tensor."""

    how: Literal["reads", "writes", "copies"]
    tile: Buffer
    index: Expr
    span: Span


def check_stage_contents(statements: Sequence[Stmt], pipelines: PipelineRecords, mistakes: ErrorCollector) -> None:
    """Record `stage-access` for each stage that its producer reads before it has surely been filled."""
    tiles = {tile for made in pipelines.made for tile in made.tiles.values()}
    used: dict[tuple[Expr, Buffer], list[_TileUse]] = {}
    for use in (u for stmt in walk_statements(tuple(statements)) for u in _find_uses(stmt)):
        if use.tile in tiles:
            used.setdefault((use.index, use.tile), []).append(use)
    for stage in pipelines.acquired:
        if stage.side == "producer":
            for tile in stage.pipeline.tiles.values():
                with mistakes.caught():
                    _check_stage(stage, used.get((stage.index, tile), []))


def _find_uses(stmt: Stmt) -> Iterator[_TileUse]:
    """Yield the tile reads, writes and copies of a statement itself, each with its first index; operations read
    first.
    """
    for load in walk_loads(stmt):
        yield _TileUse("reads", load.buffer, load.indices[0], stmt.span)
    match stmt:
        case Store(buffer=buffer, indices=indices):
            yield _TileUse("writes", buffer, indices[0], stmt.span)
        case TileOp(regions=regions):
            is_load = stmt.copies_from_tensor
            read, written = find_reads(stmt), find_writes(stmt)
            for region in regions:
                if region.buffer in read:
                    yield _TileUse("reads", region.buffer, region.start[0], stmt.span)
            for region in regions:
                if region.buffer in written:
                    yield _TileUse("copies" if is_load else "writes", region.buffer, region.start[0], stmt.span)
        case _:
            pass


def _check_stage(stage: PipelineStage, uses: list[_TileUse]) -> None:
    """Raise `stage-access` if a producer reads its stage before its threads wrote it, or while copies may be
    pending.
    """
    made = stage.pipeline
    read = next((u for u in uses if u.how == "reads"), None)
    if read is None:
        return
    copy = next((u for u in uses if u.how == "copies"), None)
    first = next((u for u in uses if u.how == "writes"), None)
    is_left_over = made.function == "T.InputTilePipeline" and (first is None or uses.index(first) > uses.index(read))
    if copy is None and not is_left_over:
        return
    why = "the stage has not been written yet" if copy is None else "its copies may still be pending"
    copied = () if copy is None else (Label(copy.span, "copied here"),)
    places = *copied, Label(stage.taken.span, "acquired here, by the producer")
    way_out = f"read it in the consumer, after `{made.name}.consumer()`"
    raise_error("stage-access", "a producer reads its own stage", read.span, why, secondary=places, help=way_out)
