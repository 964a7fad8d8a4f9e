"""Pipelines as values of a kernel: T.InputTilePipeline and T.OutputTilePipeline, their role handles and stages.

A pipeline holds `stages` versions of some tiles, and two barriers for each stage. Producers arrive at `full` when they
have filled the stage, consumers arrive at `empty` when they are done with it. This module resolves the names of
pipelines, and `sema.roles.stages` emits their statements. `sema.roles.linear_resources` proves that each stage is
released once on every path, and `sema.roles.pipeline_rules` checks each pipeline as a whole. Later passes, and the
proof of the barriers (`explicit_roles.protocol`), see barriers only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NoReturn

from tilec.analysis.usage import find_reads, find_writes
from tilec.frontend.sema.compile_time.functions import bind_target
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.sema.loops.manual_schedules import MAX_STAGES
from tilec.frontend.sema.roles import explicit_roles as roles
from tilec.frontend.sema.roles.pipeline_records import PIPELINE_SIGNATURES
from tilec.frontend.sema.roles.stages import (
    acquire_stage,
    announce_bytes,
    drain_pipeline,
    make_variable,
    release_stage,
    release_stage_explicitly,
    try_acquire_stage,
)
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.types import BOOL, UINT64
from tilec.ops.copies.copy import Copy
from tilec.ops.language.signature import (
    Argument,
    Call,
    Parameter,
    Signature,
    as_expr,
    find_nearest_name,
)
from tilec.ops.language.values import (
    SIDES,
    Dictionary,
    IndexRange,
    Method,
    Pipeline,
    PipelineHandle,
    PipelineSide,
    PipelineStage,
    StageTile,
    Value,
    describe_value,
)
from tilec.ops.synchronisation.barriers import build_allocation
from tilec.support.diagnostics import Label, raise_error, suggest_replacement
from tilec.support.source import Span

PAYLOAD_SCOPES = ("shared", "tmem")
"""The scopes of tiles that a stage can hold."""
_PIPELINE_METHODS = ("producer", "consumer", "acquire_producer", "acquire_consumer")
_HANDLE_METHODS = ("acquire", "acquire_if_needed", "acquire_stage", "try_acquire", "drain")
_STAGE_METHODS = ("release", "expect_bytes")
_STAGE_ACCESSORS = ("payload", "stage", "barrier", "mbar")
STATEMENT_METHODS = ("release", "expect_bytes", "drain")
"""The methods that return no value."""
_METHOD_SIGNATURES = {
    **{name: Signature(name, ()) for name in (*_PIPELINE_METHODS, *_HANDLE_METHODS, *_STAGE_METHODS)},
    "acquire_if_needed": Signature("acquire_if_needed", (Parameter("ready"),)),
    "expect_bytes": Signature("expect_bytes", (Parameter("bytes", None),)),
}


# ---- construction ----------------------------------------------------------------------------------------------------


def make_pipeline(context: Context, name: str, node: ast.Call) -> Pipeline:
    """Make a pipeline: give its tiles stages in `context.buffers`, emit barriers and counters; refuse it in roles and
    loops. From then on the kernel has explicit roles. Errors: `pipeline-stages`, `pipeline-payload`.
    """
    path = evaluate.find_callee(context, node)
    assert path is not None
    call = evaluate.bind_call(context, PIPELINE_SIGNATURES[path], node)
    if context.loops or context.masks or context.role is not None:
        title = "pipelines are allocated once, before roles, loops and branches"
        raise_error("misplaced-statement", title, node.span, help="move it to the beginning of the kernel")
    stages = _read_stage_count(call)
    form, tiles = _read_payload(context, call, path)
    staged = {key: replace(stage_tile, extents=(stages, *stage_tile.extents)) for key, stage_tile in tiles.items()}
    for key, stage_tile in tiles.items():
        context.buffers[context.buffers.index(stage_tile)] = staged[key]
    full, empty = (
        context.allocate_buffer(f"{name}_{kind}", (stages,), UINT64, "barrier", node.span) for kind in ("full", "empty")
    )
    for barriers in (full, empty):
        # `finish_pipelines` sets the arrival counts, when all roles are known.
        context.out.append(build_allocation(barriers, (1,) * stages))
    # A fresh barrier counts as if a phase of parity 1 had just completed: a producer's first waits pass.
    ends = {side: PipelineSide(make_variable(context, f"{name}_{side}_stage", 0, node.span),
                      make_variable(context, f"{name}_{side}_parity", int(side == "producer"), node.span))
            for side in SIDES}  # fmt: skip
    made = Pipeline(name, path, staged, form, stages, full, empty, ends, node.span)
    context.pipelines.made.append(made)
    context.pipelines.tiles.update({stage_tile.name: made for stage_tile in tiles.values()})
    context.has_explicit_roles = True
    return made


def _read_stage_count(call: Call) -> int:
    """Return the argument `stages` of a pipeline; raise `pipeline-stages` unless it is 1 to `MAX_STAGES`."""
    stages = call.read_integer("stages")
    if stages < 1:
        title = "a pipeline needs at least one stage"
        way_out = "use 2, to fill one stage while another is read, or more, to hide a longer latency"
        raise_error("pipeline-stages", title, call["stages"].span, "no role could ever acquire one", help=way_out)
    if stages > MAX_STAGES:
        title = f"a pipeline has at most {MAX_STAGES} stages"
        raise_error("pipeline-stages", title, call["stages"].span, f"not {stages}")
    return stages


def _read_payload(
    context: Context, call: Call, function: str
) -> tuple[Literal["tile", "tuple", "dictionary"], dict[str, tile.Buffer]]:
    """Return the form of `payload` and its tiles by dictionary key or own name; raise `pipeline-payload` for bad tiles.
    These are of a wrong scope, repeated, badly named or used before.
    """
    argument = call["payload"]
    form: Literal["tile", "tuple", "dictionary"]
    given: list[tuple[str, Value]]
    match argument.value:
        case Dictionary(entries=entries):
            form, given = "dictionary", [(str(e.key), e.value) for e in entries]
        case tuple() as items:
            form, given = "tuple", [(_get_tile_name(item), item) for item in items]
        case alone:
            form, given = "tile", [(_get_tile_name(alone), alone)]
    if not given:
        _refuse_payload("a stage needs at least one tile", argument.span)
    tiles: dict[str, tile.Buffer] = {}
    for key, stage_tile in given:
        if not isinstance(stage_tile, tile.Buffer) or stage_tile.scope not in PAYLOAD_SCOPES:
            title = "a stage holds tiles made by T.alloc_shared, or T.alloc_tmem"
            _refuse_payload(title, argument.span, f"this is {describe_value(stage_tile)}")
        here = Label(stage_tile.span, "allocated here")
        if stage_tile.scope == "tmem" and function == "T.InputTilePipeline":
            title = "the tiles of T.InputTilePipeline must be in shared memory"
            _refuse_payload(title, argument.span, "this is an accumulator", secondary=(here,))
        if stage_tile in tiles.values():
            _refuse_payload(f"{stage_tile.name} appears twice in the payload", argument.span, secondary=(here,))
        if key in (*_STAGE_ACCESSORS, *_STAGE_METHODS) or not key.isidentifier():
            _refuse_payload(f"a tile of a stage cannot be called {key!r}", argument.span, secondary=(here,))
        used = [
            s.span for s in tile.walk_statements(tuple(context.out)) if stage_tile in (*find_reads(s), *find_writes(s))
        ]
        used += [pinned.span for pinned in context.hints.layouts.values() if pinned.buffer == stage_tile]
        if used:
            title, before = f"{stage_tile.name} is used before it becomes a part of stages", Label(used[0], "used here")
            _refuse_payload(title, argument.span, secondary=(before,))
        tiles[key] = stage_tile
    return form, tiles


def _get_tile_name(value: Value) -> str:
    """Return the name of a tile, or "" for any other value."""
    return value.name if isinstance(value, tile.Buffer) else ""


def _refuse_payload(title: str, span: Span, label: str = "", secondary: tuple[Label, ...] = ()) -> NoReturn:
    """Raise `pipeline-payload` with this title, and show a payload that is accepted."""
    raise_error(
        "pipeline-payload",
        title,
        span,
        label,
        secondary=secondary,
        help="pass the shared tiles of one stage: (A_shared, B_shared), or {'A': A_shared, 'B': B_shared}; "
        "T.OutputTilePipeline also takes accumulators in tensor memory",
    )


# ---- attributes ------------------------------------------------------------------------------------------------------

MethodOwner = Pipeline | PipelineHandle | PipelineStage


def resolve_attribute(context: Context, owner: MethodOwner | StageTile, node: ast.Attribute) -> Value:
    """Return an attribute of a pipeline, side, stage or stage tile, as `stage.A_shared`, or a method; refuse unknown
    ones. Errors: a stage's attribute after its release.
    """
    known: tuple[str, ...]
    values: dict[str, Value]
    match owner:
        case Pipeline():
            known, values = _PIPELINE_METHODS, {"stages": owner.stages}
        case PipelineHandle():
            known, values = _HANDLE_METHODS, {"pipeline": owner.pipeline}
        case PipelineStage():
            if node.name not in _STAGE_METHODS:
                _use_stage(context, owner, node.span)
            known = _STAGE_METHODS
            values = {**_make_stage_tiles(owner), "payload": get_payload(owner), "stage": owner.index}
            values |= {"barrier": owner.barrier, "mbar": owner.barrier}
        case StageTile():
            known, values = (), {"shape": owner.tile.extents, "dtype": owner.tile.dtype}
    if node.name in known:
        return Method(owner, node.name)
    if node.name not in values:
        near = find_nearest_name(node.name, (*known, *values))
        title = f"{describe_value(owner)} has no `{node.name}`"
        note = f"it has {', '.join((*values, *known))}"
        way_out = f"did you mean `{near}`?" if near else _suggest_owner(owner, node.name)
        raise_error("unknown-attribute", title, node.span, note, help=way_out, fix=suggest_replacement(node.name, near))
    return values[node.name]


def _suggest_owner(owner: MethodOwner | StageTile, name: str) -> str | None:
    """Return advice naming the stage or side that has this attribute, which `owner` lacks, or None."""
    match owner:
        case PipelineHandle(pipeline=made, side=side) if name in (*made.tiles, *_STAGE_ACCESSORS, *_STAGE_METHODS):
            return f"a stage has it: write `with {made.name}.{side}().acquire() as tiles:`"
        case PipelineStage(pipeline=made, side=side) if name in _HANDLE_METHODS:
            return f"{made.name}.{side}() has it, whose stage this is: write `side = {made.name}.{side}()`"
        case _:
            return None


def get_payload(stage: PipelineStage) -> Value:
    """Return a stage's tiles as its pipeline was given them: one tile alone, else a tuple."""
    tiles = _make_stage_tiles(stage)
    return next(iter(tiles.values())) if stage.pipeline.form == "tile" else tuple(tiles.values())


def _make_stage_tiles(stage: PipelineStage) -> dict[str, StageTile]:
    """Return, by payload name, the stage's version of each tile of its pipeline."""

    def make_tile(whole: tile.Buffer) -> StageTile:
        """Return the stage's version of one tile, its whole box at the stage's index."""
        inside = (IndexRange(tile.int32_const(0), extent) for extent in whole.shape[1:])
        return StageTile(whole, (stage.index, *inside), stage)

    return {key: make_tile(whole) for key, whole in stage.pipeline.tiles.items()}


def unpack_stage(context: Context, stage: PipelineStage, span: Span) -> tuple[Value, ...]:
    """Return a stage's tiles in payload order, as for `a, b = stage`; refuse a stage that has been released."""
    _use_stage(context, stage, span)
    return tuple(_make_stage_tiles(stage).values())


def check_container_item(argument: Argument) -> Value:
    """Return an item for a tuple, list or dictionary; raise `stage-escapes` if it is a pipeline stage."""
    if isinstance(argument.value, PipelineStage):
        _refuse_escape(argument.value, argument.span, "held by a tuple, a list or a dictionary")
    return argument.value


def check_stage_names(value: Value, targets: tuple[ast.Expr, ...], node: ast.Expr) -> None:
    """Raise `stage-escapes` if an assignment gives a stage a name beyond the one of its acquire."""
    names = [t for t in targets if not isinstance(t, ast.Tuple | ast.List)]
    if isinstance(value, PipelineStage) and len(names) > isinstance(node, ast.Call):
        _refuse_escape(value, node.span, "gets a second name")


def _refuse_escape(stage: PipelineStage, span: Span, how: str) -> NoReturn:
    """Raise `stage-escapes`: a stage is known only by the name that it was acquired by."""
    title = f"{stage.taken.what} has one owner, the name that it was acquired by"
    way_out = "release it by that name; its tiles can have other names, as in `A, B = stage`"
    raise_error("stage-escapes", title, span, how, secondary=(Label(stage.taken.span, "acquired here"),), help=way_out)


def access_stage_tile(context: Context, stage_tile: StageTile, node: ast.Subscript) -> StageTile:
    """Return the element or box of a stage's tile that `stage.A_shared[i, j]` addresses."""
    inside = evaluate.evaluate_access(context, stage_tile.tile, node)
    return StageTile(stage_tile.buffer, (stage_tile.indices[0], *inside.indices), stage_tile.stage)


def check_tile_read(context: Context, value: Value, span: Span) -> None:
    """Refuse a stage tile after its release, and a payload tile that is named without its stage; do nothing
    otherwise.
    """
    if isinstance(value, StageTile):
        _use_stage(context, value.stage, span)
    if not isinstance(value, tile.Buffer) or value.scope not in PAYLOAD_SCOPES:
        return
    owner = context.pipelines.tiles.get(value.name)
    if owner is not None:
        title, place = f"{value.name} belongs to the stages of {owner.name}", Label(owner.span, "the pipeline")
        key = next(key for key, stage_tile in owner.tiles.items() if stage_tile.name == value.name)
        way_out = f"acquire a stage, and write its tile: `with {owner.name}.consumer().acquire() as tiles:` and "
        way_out += f"`tiles.{key}`"
        raise_error("pipeline-tile", title, span, "the stage is not named", secondary=(place,), help=way_out)


def _use_stage(context: Context, stage: PipelineStage, span: Span) -> None:
    """Raise `use-after-release` if the stage has been released on the current path."""
    context.ledger.use(stage.taken, span)


# ---- calls -----------------------------------------------------------------------------------------------------------


def call_pipeline_method(context: Context, function: Method, node: ast.Call) -> Value:
    """Run a method of a pipeline, side or stage; return the side, stage or condition it gives, or None; refuse those of
    `with`.
    """
    call = evaluate.bind_operands(context, _METHOD_SIGNATURES[function.name], node)
    match function.owner, function.name:
        case Pipeline() as owner, "producer" | "consumer" as side:
            return PipelineHandle(owner, side)
        case Pipeline() as owner, "acquire_producer" | "acquire_consumer" as name:
            side = "producer" if name == "acquire_producer" else "consumer"
            return acquire_stage(context, PipelineHandle(owner, side), node.span)
        case PipelineHandle() as handle, "acquire_stage":
            return acquire_stage(context, handle, node.span)
        case PipelineHandle() as handle, "try_acquire":
            return try_acquire_stage(context, handle, node.span)
        case PipelineHandle() as handle, "drain":
            drain_pipeline(context, handle, node.span)
        case PipelineStage() as stage, "release":
            release_stage_explicitly(context, stage, node.span)
        case PipelineStage() as stage, "expect_bytes":
            announce_bytes(context, stage, call)
        case _, name:
            way_out = f"write `with ….{name}() as tiles:`, or `stage = ….acquire_stage()` and `stage.release()`"
            raise_error("not-a-value", f".{name}() belongs in a with statement", node.span, help=way_out)
    return None


def is_pipeline_call(context: Context, call: ast.Call) -> bool:
    """Return whether a call is of a method of a pipeline, of one of its sides or of a stage."""
    function = context.value(call.function)
    return isinstance(function, Method) and isinstance(function.owner, MethodOwner)


def elaborate_pipeline_with(context: Context, node: ast.With, call: ast.Call) -> None:
    """Elaborate `with producer.acquire() as tiles:`: acquire, run the body, release unless the loop is left; refuse
    others. `with pipe.producer() as producer:` of an input pipeline only names the side.
    """
    function = context.value(call.function)
    assert isinstance(function, Method)
    if function.name not in ("acquire", "acquire_if_needed", *SIDES):
        way_out = "write `with producer.acquire() as tiles:`; a stage of .acquire_stage() needs .release() instead"
        raise_error("misplaced-statement", f".{function.name}() cannot be used in a `with`", call.span, help=way_out)
    if function.name in SIDES:
        handle = context.value(call)
        assert isinstance(handle, PipelineHandle)
        if not _enters_stage(handle, node):
            _bind_with_target(context, node, handle)
            context.block(node.body)
            return
        ready = None
    else:
        assert isinstance(function.owner, PipelineHandle)
        handle = function.owner
        ready = _read_ready_condition(evaluate.bind_operands(context, _METHOD_SIGNATURES[function.name], call))
    stage = acquire_stage(context, handle, call.span, returns=True, ready=ready)
    _bind_with_target(context, node, stage)
    context.block(node.body)
    if not context.ledger.is_left:
        release_stage(context, stage, call.span)


def _enters_stage(handle: PipelineHandle, node: ast.With) -> bool:
    """Return whether `with results.consumer() as result:` acquires a stage: of an output pipeline, unless used as a
    side. It is used as a side where the block uses a method that only a side has.
    """
    if handle.pipeline.function != "T.OutputTilePipeline":
        return False
    if not isinstance(node.target, ast.Name):
        return True
    name = node.target.id
    parts = (p for s in node.body for p in ast.walk_nodes(s) if isinstance(p, ast.Attribute))
    attributes = {p.name for p in parts if isinstance(p.value, ast.Name) and p.value.id == name}
    return attributes.isdisjoint((*_HANDLE_METHODS, "pipeline"))


def _read_ready_condition(call: Call) -> tile.Expr | None:
    """Return the run-time condition given to `acquire_if_needed`, or None if it is a constant; refuse other types."""
    ready = dict(call.arguments).get("ready")
    if ready is None or isinstance(ready.value, bool):
        return None
    if as_expr(ready).dtype != BOOL:
        call.refuse("ready", "the result of .try_acquire()")
    return as_expr(ready)


def _bind_with_target(context: Context, node: ast.With, value: Value) -> None:
    """Bind the name after `as` to a side or stage, or its names to the stage's tiles; do nothing without `as`."""
    match node.target:
        case None:
            pass
        case ast.Tuple() | ast.List() as target if isinstance(value, PipelineStage):
            tiles = unpack_stage(context, value, node.context.span)
            bind_target(context.scope, target, Argument(tiles, node.context.span))
        case target:
            bind_target(context.scope, target, Argument(value, node.context.span))


# ---- operations on stages --------------------------------------------------------------------------------------------


def add_stage_barrier(path: str, arguments: tuple[list[Argument], dict[str, Argument]]) -> None:
    """Add the stage's barrier to a TMA copy's keyword arguments if it fills a producer's stage and names no barrier."""
    positional, keywords = arguments
    destination = keywords.get("dst") or (positional[1] if len(positional) > 1 else None)
    if path not in ("T.tma_copy", "T.tma_gather4") or destination is None or "barrier" in keywords:
        return
    if isinstance(destination.value, StageTile) and destination.value.stage.side == "producer":
        keywords["barrier"] = Argument(destination.value.stage.barrier, destination.span)


def apply_stage_rules(
    context: Context, op: tile.TileOp, arguments: tuple[list[Argument], dict[str, Argument]]
) -> tile.TileOp:
    """Return an operation, a T.copy into a producer's stage marked to signal its barrier; refuse a consumer's load. The
    copy may signal it, if the target can do that. Errors: `stage-access`.
    """
    given = [(a.value, a.span) for a in (*arguments[0], *arguments[1].values()) if isinstance(a.value, StageTile)]
    loads = op.copies_from_tensor
    for stage_tile, span in given:
        stage = stage_tile.stage
        if loads and stage.side == "consumer":
            title = "a consumer writes its stage"
            place = Label(stage.taken.span, "acquired here, by the consumer")
            way_out = f"fill it in the producer, after `{stage.pipeline.name}.producer()`"
            raise_error("stage-access", title, span, "no role waits for this copy", secondary=(place,), help=way_out)
        if loads and isinstance(op, Copy) and op.barrier is None and op.asynchronous is None:
            element = tile.Load(stage.barrier.buffer, (stage.index,))
            return replace(op, signals=element, leader=roles.find_leader(context, span))
    return op
