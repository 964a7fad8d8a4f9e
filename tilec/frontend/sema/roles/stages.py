"""Acquire and release of pipeline stages, as waits for and arrivals at barriers (`ops.synchronisation.barriers`).

An acquire waits at one barrier of the stage, a release arrives at the other one. Each side keeps the index of its next
stage and the parity to wait for in variables, which are right in any loop.
"""

from __future__ import annotations

import math

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.roles import explicit_roles as roles
from tilec.frontend.sema.roles.linear_resources import Resource
from tilec.frontend.sema.roles.pipeline_records import NestedAcquire
from tilec.frontend.sema.statements import per_thread
from tilec.frontend.sema.statements.stores import emit_uniform_set
from tilec.ir import tile
from tilec.ir.types import BOOL, INT32
from tilec.ops.form import UNKNOWN_LEADER
from tilec.ops.language.signature import Call
from tilec.ops.language.values import Pipeline, PipelineHandle, PipelineStage, Side
from tilec.ops.synchronisation.barriers import MAX_ARRIVALS, Arrive, AwaitBarrier, ExpectTx
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span


def make_variable(context: Context, name: str, value: int, span: Span) -> tile.Buffer:
    """Allocate an int32 variable, of which every thread has a copy, and emit the statement that sets it."""
    made = context.allocate_buffer(name, (1,), INT32, "fragment", span)
    emit_uniform_set(context, made, tile.int32_const(value), span)
    return made


def acquire_stage(
    context: Context, handle: PipelineHandle, span: Span, returns: bool = False, ready: tile.Expr | None = None
) -> PipelineStage:
    """Emit the wait for a side's next stage, skipped where `ready`; step its counters; return the stage; refuse one too
    many. `ready` counts if it is the result of the last `try_acquire` for this stage. `returns`: the end of a `with`
    releases the stage. The stage is recorded as taken. Errors: `pipeline-role`, `pipeline-deadlock`.
    """
    made, side, role = handle.pipeline, handle.side, _require_role(context, handle, span)
    held = context.ledger.held()
    _check_free_stage(handle, held, span)
    end = made.ends[side]
    end.roles.setdefault(role, span)
    context.pipelines.nested += [
        NestedAcquire(t.owner.pipeline, made, role, t.span, span) for t in held if t.owner.pipeline is not made
    ]
    index, parity = _read_stage_and_parity(context, made, side, span)
    try_result = context.pipelines.try_acquire_results.pop((made.name, side), None)
    _emit_wait(context, handle, index, parity, span, None if try_result is None or try_result != ready else try_result)
    is_last = tile.Binary("eq", index, tile.int32_const(made.stages - 1), BOOL)
    following = tile.Binary("add", index, tile.int32_const(1), INT32)
    emit_uniform_set(context, end.index, tile.Select(is_last, tile.int32_const(0), following, INT32), span)
    emit_uniform_set(context, end.parity, tile.Select(is_last, _flip_parity(parity), parity, INT32), span)
    taken = context.ledger.take(f"this stage of {made.name}", span, role, returns)
    taken.owner = stage = PipelineStage(made, side, index, taken)
    context.pipelines.acquired.append(stage)
    return stage


def try_acquire_stage(context: Context, handle: PipelineHandle, span: Span) -> tile.Var:
    """Emit a test, by one thread, of whether a side's next stage is ready; record and return its result; refuse it
    without role. The result is for the whole role, and the next acquire of this side may use it.
    """
    made, side = handle.pipeline, handle.side
    _require_role(context, handle, span)
    index, parity = _read_stage_and_parity(context, made, side, span)
    flag = context.allocate_buffer(f"{made.name}_found", (1,), INT32, "shared", span)
    is_done = tile.Call(tile.PHASE_DONE, (tile.Load(_get_awaited_barriers(handle), (index,)), parity), BOOL)
    emit_uniform_set(context, flag, tile.Select(is_done, tile.int32_const(1), tile.int32_const(0), INT32), span)
    is_found = tile.Binary("eq", tile.Load(flag, (tile.int32_const(0),)), tile.int32_const(1), BOOL)
    ready = context.bind_value(f"{made.name}_ready", is_found, span)
    context.pipelines.try_acquire_results[made.name, side] = ready
    return ready


def _require_role(context: Context, handle: PipelineHandle, span: Span) -> range:
    """Return the role that runs the current statement; refuse T.Parallel, masked threads and the whole block."""
    made = handle.pipeline
    if context.is_parallel:
        title = f"a stage of {made.name} cannot be acquired inside {context.nest_name}"
        note = "all threads of a role acquire it together"
        raise_error("tile-op-in-parallel", title, span, note, help="acquire it before the loop")
    per_thread.require_all_threads(context, span, f"acquiring a stage of {made.name}")
    if context.role is None:
        title = f"no role acquires this stage of {made.name}"
        note = "all warpgroups of the block run this"
        place = Label(made.span, "the pipeline needs two roles")
        raise_error("pipeline-role", title, span, note, secondary=(place,), help="put it under `with T.ws(…):`")
    return context.role


def _check_free_stage(handle: PipelineHandle, held: list[Resource], span: Span) -> None:
    """Raise `pipeline-deadlock` if a side that holds every stage of its pipeline acquires one more."""
    own_stages = [t for t in held if t.owner.pipeline is handle.pipeline and t.owner.side == handle.side]
    if len(own_stages) >= handle.pipeline.stages:
        made, stages = handle.pipeline, handle.pipeline.stages
        title = f"the {handle.side} holds every stage of {made.name} and acquires one more"
        held_places = (Label(t.span, "still held") for t in reversed(own_stages))
        places = *held_places, Label(made.span, f"{stages} stage{'s' * (stages != 1)}")
        way_out = "release one first, or give the pipeline more stages"
        raise_error("pipeline-deadlock", title, span, "this wait never ends", secondary=places, help=way_out)


def _read_stage_and_parity(context: Context, made: Pipeline, side: Side, span: Span) -> tuple[tile.Var, tile.Var]:
    """Emit binds of the index of a side's next stage and of the parity to wait for, and return both variables."""
    end = made.ends[side]
    index, parity = (
        context.bind_value(f"{made.name}_{what}", tile.Load(variable, (tile.int32_const(0),)), span)
        for what, variable in (("stage", end.index), ("phase", end.parity))
    )
    context.ranges[index.name] = (0, made.stages - 1)
    return index, parity


def _emit_wait(
    context: Context, handle: PipelineHandle, index: tile.Expr, parity: tile.Expr, span: Span, unless: tile.Expr | None
) -> None:
    """Emit a side's wait for the stage at this index and parity, skipped where `unless` holds (None: never skipped)."""
    element, end = tile.Load(_get_awaited_barriers(handle), (index,)), (handle.pipeline.name, handle.side)
    context.out.append(AwaitBarrier(element, parity, acquires=end, unless=unless, span=span))


def _get_awaited_barriers(handle: PipelineHandle) -> tile.Buffer:
    """Return the barriers that a side waits at: the producer at the empty ones, the consumer at the full ones."""
    return handle.pipeline.empty if handle.side == "producer" else handle.pipeline.full


def _flip_parity(parity: tile.Expr) -> tile.Expr:
    """Return the other parity, `1 - parity`."""
    return tile.Binary("sub", tile.int32_const(1), parity, INT32)


def release_stage_explicitly(context: Context, stage: PipelineStage, span: Span) -> None:
    """Release a stage by `.release()`; raise `double-release` if the end of a `with` releases it."""
    if stage.taken.returns:
        title = f"{stage.taken.what} is released twice"
        place = Label(stage.taken.span, "and at the end of this `with`")
        way_out = "remove this, or write `stage = ….acquire_stage()` in place of the `with`"
        raise_error("double-release", title, span, "released here", secondary=(place,), help=way_out)
    release_stage(context, stage, span)


def release_stage(context: Context, stage: PipelineStage, span: Span) -> None:
    """Record a stage's release in the ledger, and emit the arrival of the role's threads; refuse it where some are
    masked.
    """
    per_thread.require_all_threads(context, span, f"releasing a stage of {stage.pipeline.name}")
    context.ledger.release(stage.taken, span, context.role)
    end = stage.pipeline.name, stage.side
    context.out.append(Arrive(tile.Load(stage.barrier.buffer, (stage.index,)), releases=end, span=span))


def drain_pipeline(context: Context, handle: PipelineHandle, span: Span) -> None:
    """Emit a loop of a producer's waits until every stage has been released; refuse a consumer, or with a stage
    held.
    """
    made = handle.pipeline
    role = _require_role(context, handle, span)
    if handle.side == "consumer":
        title = f"the consumer of {made.name} has nothing to drain"
        note = "releasing its last stage is enough"
        raise_error("misplaced-statement", title, span, note, help="drain it in the producer")
    if any(t.owner.pipeline is made for t in context.ledger.held()):
        title = f"{made.name} is drained while a stage of it is held"
        note = "this would wait for the held stage for ever"
        raise_error("misplaced-statement", title, span, note, help="drain it after the last release")
    made.ends["producer"].drained.add(role)
    index, parity = _read_stage_and_parity(context, made, "producer", span)
    step, place, stage, phase = (
        tile.Var(context.unique.take(f"{made.name}_{n}")) for n in ("step", "place", "stage", "phase")
    )
    stages = tile.int32_const(made.stages)
    wraps = tile.Binary("ge", place, stages, BOOL)
    body = (
        tile.Bind(place, tile.Binary("add", index, step, INT32), span),
        tile.Bind(stage, tile.Select(wraps, tile.Binary("sub", place, stages, INT32), place, INT32), span),
        tile.Bind(phase, tile.Select(wraps, _flip_parity(parity), parity, INT32), span),
        AwaitBarrier(tile.Load(made.empty, (stage,)), phase, drains=made.name, span=span),
    )
    context.out.append(tile.For("serial", step, tile.int32_const(0), stages, 1, body, span=span))


def announce_bytes(context: Context, stage: PipelineStage, call: Call) -> None:
    """Emit the announcement of TMA bytes, the payload's or a given number, at a stage's barrier; refuse a consumer.
    They count TMA copies only, which are known after mechanism selection (`explicit_roles.compute_expected_bytes`).
    """
    context.ledger.use(stage.taken, call.span)
    if stage.side == "consumer":
        title = "a consumer cannot announce bytes"
        place = Label(stage.taken.span, "acquired here, full")
        raise_error("misplaced-statement", title, call.span, secondary=(place,), help="call it in the producer")
    is_payload = call["bytes"].value is None
    announced = compute_payload_bytes(stage.pipeline) if is_payload else call.read_integer("bytes")
    if not 0 < announced <= MAX_ARRIVALS:
        call.refuse("bytes", f"a number of bytes, 1 to {MAX_ARRIVALS:,}")
    element = tile.Load(stage.barrier.buffer, (stage.index,))
    op = ExpectTx(
        False, element, announced, UNKNOWN_LEADER, of_stage="payload" if is_payload else "said", span=call.span
    )
    by_one = roles.assign_executing_threads(context, op)
    assert by_one is not None
    context.out.append(by_one)


def compute_payload_bytes(made: Pipeline) -> int:
    """Return the size in bytes of one stage: the sum over the pipeline's tiles."""
    return sum(math.prod(buffer.shape[1:]) * buffer.dtype.bits // 8 for buffer in made.tiles.values())
