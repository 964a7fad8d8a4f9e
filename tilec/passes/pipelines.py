"""Pipelines as values of a kernel: T.InputTilePipeline and T.OutputTilePipeline, their role handles and stages.

A pipeline holds `stages` versions of some tiles, and for each stage two barriers: `full`, at which its producers arrive
when they have filled it, and `empty`, at which its consumers arrive when they are done with it. Acquiring a stage waits
for the one, releasing it arrives at the other; whose turn it is goes around in variables of each role, whatever loops
stand around. So all of this is statements that a kernel could have written itself (`ops.barriers`), and everything
behind, its proof of the barriers too (`passes.protocol`), knows of no pipelines.

Stages are given back exactly once on every path (`passes.linear`). What holds for a pipeline as a whole is checked at
the end (`passes.pipeline_rules`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NoReturn

from tilec.diag import Label, fail
from tilec.ir.tile import (
    Binary,
    Bind,
    Buffer,
    Expr,
    For,
    Load,
    Parallel,
    Select,
    Store,
    TileOp,
    Var,
    integer,
    walk,
    with_attr,
)
from tilec.ir.types import BOOL, INT32, UINT64
from tilec.ops.barriers import MOST_ARRIVALS, allocation
from tilec.ops.registry import tile_op
from tilec.ops.signature import Argument, Call, Parameter, Signature, bind, nearest
from tilec.ops.values import (
    SIDES,
    Access,
    Dictionary,
    End,
    Handle,
    Method,
    Pipeline,
    Range,
    Side,
    Stage,
    StageTile,
    Value,
    describe,
)
from tilec.passes.functions import bind_target
from tilec.passes.linear import Taken
from tilec.passes.usage import reads, writes
from tilec.source import Span
from tilec.syntax import ast

if TYPE_CHECKING:
    from tilec.passes.evaluate import Evaluator
    from tilec.passes.loop_statements import Loops
    from tilec.passes.statements import Body

PIPELINES = {
    name: Signature(name, (Parameter("payload"), Parameter("stages")))
    for name in ("T.InputTilePipeline", "T.OutputTilePipeline")
}
HELD_IN = ("shared",)
"""The memories whose tiles a stage can hold."""

_OF_PIPELINE = ("producer", "consumer", "acquire_producer", "acquire_consumer")
_OF_HANDLE = ("acquire", "acquire_stage", "drain")
_OF_STAGE = ("release", "expect_bytes")
_ACCESSORS = ("payload", "stage", "barrier", "mbar")
STATEMENTS = ("release", "expect_bytes", "drain")
"""Methods that give no value."""
_SIGNATURES = {
    **{name: Signature(name, ()) for name in (*_OF_PIPELINE, *_OF_HANDLE, *_OF_STAGE)},
    "expect_bytes": Signature("expect_bytes", (Parameter("bytes", None),)),
}


@dataclass(frozen=True, slots=True)
class Nested:
    """A role has acquired a stage of one pipeline while it held one of another."""

    held: Pipeline
    acquired: Pipeline
    role: range
    held_span: Span
    span: Span


@dataclass(slots=True)
class Pipelines:
    """Those of a kernel, with what its statements have done with them so far; `tiles` are the pipelines of the tiles
    that they hold, by name."""

    made: list[Pipeline] = field(default_factory=list)
    tiles: dict[str, Pipeline] = field(default_factory=dict)
    nested: list[Nested] = field(default_factory=list)


# ---- making one ------------------------------------------------------------------------------------------------------


def pipeline(body: Body, name: str, node: ast.Call) -> Pipeline:
    """`name = T.InputTilePipeline((A_shared, B_shared), stages=4)`. Errors: `pipeline-stages`, `pipeline-payload`."""
    path = body.callee(node)
    assert path is not None
    call = bind(PIPELINES[path], *body.arguments(node), node.span)
    if body.loops or body.masks or body.team is not None:
        fail(
            "misplaced-statement",
            "pipelines are made once, before the block divides its work",
            node.span,
            help="move it to the beginning of the kernel",
        )
    stages = _stages(call)
    form, tiles = _payload(body, call)
    staged = {key: replace(tile, extents=(stages, *tile.extents)) for key, tile in tiles.items()}
    for key, tile in tiles.items():
        body.buffers[body.buffers.index(tile)] = staged[key]
    full, empty = (
        Buffer(body.unique.take(f"{name}_{kind}"), (stages,), UINT64, "barrier", node.span) for kind in ("full", "empty")
    )
    for barriers in (full, empty):
        body.buffers.append(barriers)
        body.out.append(allocation(barriers, (1,) * stages))  # how many arrive is known when all roles have been seen
    # A fresh barrier counts as if a phase of parity 1 had just completed: a producer's first waits pass.
    ends = {side: End(_variable(body, f"{name}_{side}_stage", 0, node.span),
                      _variable(body, f"{name}_{side}_parity", int(side == "producer"), node.span))
            for side in SIDES}  # fmt: skip
    made = Pipeline(name, path, staged, form, stages, full, empty, ends, node.span)
    body.pipelines.made.append(made)
    body.pipelines.tiles.update({tile.name: made for tile in tiles.values()})
    body.by_hand = True
    return made


def _stages(call: Call) -> int:
    stages = call.integer("stages")
    if stages < 1:
        fail(
            "pipeline-stages",
            "a pipeline needs at least one stage",
            call["stages"].span,
            "nothing could ever be acquired",
            help="2 let one stage be filled while another one is used; more hide a longer latency",
        )
    return stages


def _payload(body: Body, call: Call) -> tuple[Literal["tile", "tuple", "dictionary"], dict[str, Buffer]]:
    argument = call["payload"]
    form: Literal["tile", "tuple", "dictionary"]
    match argument.value:
        case Buffer() as tile:
            form, given = "tile", [(tile.name, tile)]
        case Dictionary(entries=entries):
            form, given = "dictionary", [(str(e.key), e.value) for e in entries]
        case tuple() as items:
            form, given = "tuple", [(i.name if isinstance(i, Buffer) else "", i) for i in items]
        case _:
            form, given = "tile", [("", argument.value)]
    if not given:
        _bad_payload("a stage that holds no tiles", argument.span)
    tiles: dict[str, Buffer] = {}
    for key, tile in given:
        if not isinstance(tile, Buffer) or tile.scope not in HELD_IN:
            _bad_payload("a stage holds tiles made by T.alloc_shared", argument.span, f"this is {describe(tile)}")
        here = Label(tile.span, "allocated here")
        if tile in tiles.values():
            _bad_payload(f"{tile.name} stands twice in the payload", argument.span, secondary=(here,))
        if key in (*_ACCESSORS, *_OF_STAGE) or not key.isidentifier():
            _bad_payload(f"a tile of a stage cannot be called {key!r}", argument.span, secondary=(here,))
        used = next((s for top in body.out for s in walk((top,)) if tile in (*reads(s), *writes(s))), None)
        pinned = body.hints.layouts.get(tile)
        if used is not None or pinned is not None:
            before = Label(used.span if used is not None else pinned.span, "used here")  # type: ignore[union-attr]
            _bad_payload(f"{tile.name} is used before it becomes a part of stages", argument.span, secondary=(before,))
        tiles[key] = tile
    return form, tiles


def _bad_payload(title: str, span: Span, label: str = "", secondary: tuple[Label, ...] = ()) -> NoReturn:
    fail(
        "pipeline-payload",
        title,
        span,
        label,
        secondary=secondary,
        help="give it the shared tiles that one stage holds: (A_shared, B_shared), or {'A': A_shared, 'B': B_shared}",
    )


def _variable(body: Body, name: str, value: int, span: Span) -> Buffer:
    """A number of which every thread has a copy."""
    made = Buffer(body.unique.take(name), (1,), INT32, "fragment", span)
    body.buffers.append(made)
    _set(body, made, integer(value), span)
    return made


def _set(body: Body, variable: Buffer, value: Expr, span: Span) -> None:
    each = Var(body.unique.take(f"{variable.name}_copy"))
    body.out.append(Parallel((each,), (1,), (Store(variable, (each,), value, span),), span))


# ---- what a name behind a dot means ----------------------------------------------------------------------------------

Owner = Pipeline | Handle | Stage


def attribute(evaluator: Evaluator, owner: Owner | StageTile, node: ast.Attribute) -> Value:
    """`stage.A_shared`, `stage.barrier`, `pipeline.stages`, or a method."""
    match owner:
        case Pipeline():
            known, values = _OF_PIPELINE, {"stages": owner.stages}
        case Handle():
            known, values = _OF_HANDLE, {"pipeline": owner.pipeline}
        case Stage():
            if node.name not in _OF_STAGE:
                _used(evaluator, owner, node.span)
            known = _OF_STAGE
            values = {**_tiles(owner), "payload": payload(owner), "stage": owner.index}
            values |= {name: owner.barrier for name in ("barrier", "mbar")}
        case StageTile():
            known, values = (), {"shape": owner.tile.extents, "dtype": owner.tile.dtype}
    if node.name in known:
        return Method(owner, node.name)
    if node.name not in values:
        near = nearest(node.name, (*known, *values))
        fail(
            "unknown-attribute",
            f"{describe(owner)} has no `{node.name}`",
            node.span,
            f"it has {', '.join((*values, *known))}",
            help=f"did you mean `{near}`?" if near else None,
        )
    return values[node.name]


def payload(stage: Stage) -> Value:
    """The tiles of a stage, as the payload of its pipeline is written."""
    tiles = _tiles(stage)
    return next(iter(tiles.values())) if stage.pipeline.form == "tile" else tuple(tiles.values())


def _tiles(stage: Stage) -> dict[str, StageTile]:
    return {
        key: StageTile(tile, (stage.index, *(Range(integer(0), extent) for extent in tile.shape[1:])), stage)
        for key, tile in stage.pipeline.tiles.items()
    }


def tiles(evaluator: Evaluator, stage: Stage, span: Span) -> tuple[Value, ...]:
    """Those of a stage in their order: what `a, b = stage` and `stage[0]` mean."""
    _used(evaluator, stage, span)
    return tuple(_tiles(stage).values())


def kept(argument: Argument) -> Value:
    """A value that a tuple, a list or a dictionary is to hold, which a stage may not be. Errors: `stage-escapes`."""
    if isinstance(argument.value, Stage):
        _escapes(argument.value, argument.span, "held by a tuple, a list or a dictionary")
    return argument.value


def named(value: Value, targets: tuple[ast.Expr, ...], node: ast.Expr) -> None:
    """A value gets names. A stage has one already, unless it has just been acquired. Errors: `stage-escapes`."""
    names = [t for t in targets if not isinstance(t, ast.Tuple | ast.List)]
    if isinstance(value, Stage) and len(names) > isinstance(node, ast.Call):
        _escapes(value, node.span, "gets a second name")


def _escapes(stage: Stage, span: Span, how: str) -> NoReturn:
    fail(
        "stage-escapes",
        f"{stage.taken.what} has one owner, the name that it was acquired by",
        span,
        how,
        secondary=(Label(stage.taken.span, "acquired here"),),
        help="release it by that name; its tiles can have other names, as in `A, B = stage`",
    )


def part(evaluator: Evaluator, tile: StageTile, node: ast.Subscript) -> StageTile:
    """`stage.A_shared[i, j]`: an element of a whole tile, or a box of it."""
    inside = evaluator.access(tile.tile, node)
    return StageTile(tile.buffer, (tile.indices[0], *inside.indices), tile.stage)


def read(evaluator: Evaluator, value: Value, span: Span) -> None:
    """A name is read that may stand for a stage's tile, or for one that a pipeline has taken over."""
    if isinstance(value, StageTile):
        _used(evaluator, value.stage, span)
    if not isinstance(value, Buffer) or value.scope not in HELD_IN:
        return
    owner = _body(evaluator).pipelines.tiles.get(value.name)
    if owner is not None:
        fail(
            "pipeline-tile",
            f"{value.name} belongs to the stages of {owner.name}",
            span,
            "which of them is not said",
            secondary=(Label(owner.span, "from here on"),),
            help=f"acquire a stage, and write its tile: `with {owner.name}.consumer().acquire() as tiles:` and "
            f"`tiles.{next(key for key, tile in owner.tiles.items() if tile.name == value.name)}`",
        )


def _used(evaluator: Evaluator, stage: Stage, span: Span) -> None:
    _body(evaluator).ledger.use(stage.taken, span)


def _body(evaluator: Evaluator) -> Body:
    """Only the statements of a kernel have pipelines."""
    return evaluator  # type: ignore[return-value]


# ---- calls -----------------------------------------------------------------------------------------------------------


def called(evaluator: Evaluator, function: Method, node: ast.Call) -> Value:
    """`pipe.producer()`, `producer.acquire_stage()`, `stage.release()` and the like."""
    body = _body(evaluator)
    call = bind(_SIGNATURES[function.name], *body.operands(node), node.span)
    match function.owner, function.name:
        case Pipeline() as owner, "producer" | "consumer" as side:
            return Handle(owner, side)
        case Pipeline() as owner, "acquire_producer" | "acquire_consumer" as name:
            side = "producer" if name == "acquire_producer" else "consumer"
            return acquire(body, Handle(owner, side), node.span)
        case Handle() as handle, "acquire_stage":
            return acquire(body, handle, node.span)
        case Handle() as handle, "drain":
            _drain(body, handle, node.span)
        case Stage() as stage, "release":
            _release_by_hand(body, stage, node.span)
        case Stage() as stage, "expect_bytes":
            _expect(body, stage, call)
        case _, name:
            fail(
                "not-a-value",
                f".{name}() belongs in a with statement",
                node.span,
                help=f"write `with ….{name}() as tiles:`, or `stage = ….acquire_stage()` and `stage.release()`",
            )
    return None


def is_entered(body: Body, call: ast.Call) -> bool:
    """Whether a `with` enters something of a pipeline."""
    function = body.value(call.function)
    return isinstance(function, Method) and isinstance(function.owner, Owner)


def entered(body: Body, node: ast.With, call: ast.Call) -> None:
    """`with producer.acquire() as tiles:`, and `with pipe.producer() as producer:`, which only gives it a name."""
    function = body.value(call.function)
    assert isinstance(function, Method)
    if function.name not in ("acquire", *SIDES):
        fail(
            "misplaced-statement",
            f".{function.name}() is nothing to enter",
            call.span,
            help="write `with producer.acquire() as tiles:`; a stage by .acquire_stage() is released by .release()",
        )
    if function.name in SIDES:
        _bind(body, node, body.value(call))
        body.block(node.body)
        return
    assert isinstance(function.owner, Handle)
    bind(_SIGNATURES["acquire"], *body.operands(call), call.span)
    stage = acquire(body, function.owner, call.span, returns=True)
    _bind(body, node, stage)
    body.block(node.body)
    if not body.ledger.is_left:
        _release(body, stage, call.span)


def _bind(body: Body, node: ast.With, value: Value) -> None:
    match node.target:
        case None:
            pass
        case ast.Tuple() | ast.List() as target if isinstance(value, Stage):
            bind_target(body.scope, target, Argument(tiles(body, value, node.context.span), node.context.span))
        case target:
            bind_target(body.scope, target, Argument(value, node.context.span))


# ---- stages ----------------------------------------------------------------------------------------------------------


def acquire(body: Body, handle: Handle, span: Span, returns: bool = False) -> Stage:
    """Wait until the next stage is this side's, and take it. Errors: `pipeline-role`, `pipeline-order`."""
    made, side, role = handle.pipeline, handle.side, _role(body, handle, span)
    held = body.ledger.held()
    _check_room(handle, held, span)
    end = made.ends[side]
    end.roles.setdefault(role, span)
    body.pipelines.nested += [
        Nested(t.owner.pipeline, made, role, t.span, span) for t in held if t.owner.pipeline is not made
    ]
    index, parity = _turn(body, made, side, span)
    _wait(body, handle, index, parity, span)
    is_last = Binary("eq", index, integer(made.stages - 1), BOOL)
    _set(body, end.index, Select(is_last, integer(0), Binary("add", index, integer(1), INT32), INT32), span)
    _set(body, end.parity, Select(is_last, _other(parity), parity, INT32), span)
    taken = body.ledger.take(f"this stage of {made.name}", span, role, returns)
    taken.owner = Stage(made, side, index, taken)
    return taken.owner


def _role(body: Body, handle: Handle, span: Span) -> range:
    made = handle.pipeline
    if body.is_parallel:
        fail(
            "tile-op-in-parallel",
            f"a stage of {made.name} cannot be acquired inside T.Parallel",
            span,
            "all threads of a role acquire it together",
            help="acquire it before the loop",
        )
    body.together(span, f"acquiring a stage of {made.name}")
    if body.team is None:
        fail(
            "pipeline-role",
            f"no role acquires this stage of {made.name}",
            span,
            "all warpgroups of the block come here",
            secondary=(Label(made.span, "hands tiles from one role to another"),),
            help="put it under `with T.ws(…):`",
        )
    return body.team


def _check_room(handle: Handle, held: list[Taken], span: Span) -> None:
    """A side that holds every stage waits for one for ever."""
    mine = [t for t in held if t.owner.pipeline is handle.pipeline and t.owner.side == handle.side]
    if len(mine) >= handle.pipeline.stages:
        stages = handle.pipeline.stages
        fail(
            "pipeline-order",
            f"the {handle.side} acquires one stage of {handle.pipeline.name} more than there are",
            span,
            "waits for ever",
            secondary=(
                *(Label(t.span, "still held") for t in reversed(mine)),
                Label(handle.pipeline.span, f"{stages} stage{'s' * (stages != 1)}"),
            ),
            help="release one before, or give the pipeline more stages",
        )


def _turn(body: Body, made: Pipeline, side: Side, span: Span) -> tuple[Var, Var]:
    """The stage whose turn it is, and the parity to wait for."""
    end = made.ends[side]
    index, parity = (Var(body.unique.take(f"{made.name}_{what}")) for what in ("stage", "phase"))
    for var, variable in ((index, end.index), (parity, end.parity)):
        body.out.append(Bind(var, Load(variable, (integer(0),)), span))
    body.ranges[index.name] = (0, made.stages - 1)
    return index, parity


def _wait(body: Body, handle: Handle, index: Expr, parity: Expr, span: Span) -> None:
    barrier = handle.pipeline.empty if handle.side == "producer" else handle.pipeline.full
    acquires = f"{handle.pipeline.name} {handle.side}"
    wait = tile_op("await_barrier", (), span, barrier=Load(barrier, (index,)), parity=parity, acquires=acquires)
    body.out.append(wait)


def _other(parity: Expr) -> Expr:
    return Binary("sub", integer(1), parity, INT32)


def _release_by_hand(body: Body, stage: Stage, span: Span) -> None:
    if stage.taken.returns:
        fail(
            "stage-released-twice",
            f"{stage.taken.what} is released twice",
            span,
            "once here",
            secondary=(Label(stage.taken.span, "and by the end of this `with`"),),
            help="leave this out, or write `stage = ….acquire_stage()` in place of the `with`",
        )
    _release(body, stage, span)


def _release(body: Loops, stage: Stage, span: Span) -> None:
    body.together(span, f"releasing a stage of {stage.pipeline.name}")
    body.ledger.give_back(stage.taken, span, body.team)
    body.out.append(_arrival(stage, span))


def _arrival(stage: Stage, span: Span) -> TileOp:
    barrier = stage.barrier
    return tile_op("arrive", (), span, barrier=Load(barrier.buffer, (stage.index,)))


def leave(body: Loops, span: Span) -> None:
    """A `break`: the blocks that it leaves release their stages."""
    ledger = body.ledger
    for taken in ledger.held():
        if taken.returns and taken.loops == ledger.loops:
            _release(body, taken.owner, span)
    ledger.leave(span, "break")


def _drain(body: Body, handle: Handle, span: Span) -> None:
    """Wait until the consumers are done with every stage."""
    made = handle.pipeline
    role = _role(body, handle, span)
    if handle.side == "consumer":
        fail(
            "misplaced-statement",
            f"the consumer of {made.name} has nothing to drain",
            span,
            "it has taken all that was filled when its last stage is released",
            help="let the producer drain it",
        )
    if any(t.owner.pipeline is made for t in body.ledger.held()):
        fail(
            "misplaced-statement",
            f"{made.name} is drained while a stage of it is held",
            span,
            "would wait for that one for ever",
            help="drain it behind the last release",
        )
    made.ends["producer"].drained.add(role)
    index, parity = _turn(body, made, "producer", span)
    step, place, stage, phase = (Var(body.unique.take(f"{made.name}_{n}")) for n in ("step", "place", "stage", "phase"))
    outer, body.out = body.out, []
    wraps = Binary("ge", place, integer(made.stages), BOOL)
    body.out += [
        Bind(place, Binary("add", index, step, INT32), span),
        Bind(stage, Select(wraps, Binary("sub", place, integer(made.stages), INT32), place, INT32), span),
        Bind(phase, Select(wraps, _other(parity), parity, INT32), span),
    ]
    body.out.append(
        tile_op("await_barrier", (), span, barrier=Load(made.empty, (stage,)), parity=phase, drains=made.name)
    )
    inside, body.out = tuple(body.out), outer
    body.out.append(For("serial", step, integer(0), integer(made.stages), 1, inside, span=span))


def _expect(body: Body, stage: Stage, call: Call) -> None:
    """Announce bytes to the stage: those of its payload, or as many as are said."""
    _used(body, stage, call.span)
    if stage.side == "consumer":
        fail(
            "misplaced-statement",
            "a consumer's stage expects no bytes",
            call.span,
            secondary=(Label(stage.taken.span, "acquired here, full"),),
            help="the producer announces what it copies",
        )
    announced = payload_bytes(stage.pipeline) if call["bytes"].value is None else call.integer("bytes")
    if not 0 < announced <= MOST_ARRIVALS:
        call.refuse("bytes", f"a number of bytes, 1 to {MOST_ARRIVALS:,}")
    element = Load(stage.barrier.buffer, (stage.index,))
    op = tile_op("expect_tx", (), call.span, barrier=element, bytes=announced, arrives=False)
    body.out.append(_by_threads(body, op))


def payload_bytes(made: Pipeline) -> int:
    """Of one stage."""
    return sum(tile.size // made.stages * tile.dtype.bits // 8 for tile in made.tiles.values())


def _by_threads(body: Body, op: TileOp) -> TileOp:
    from tilec.passes import teams

    made = teams.by_threads(body, op)
    assert made is not None
    return made


def element(tile: StageTile, span: Span) -> None:
    """An element of a stage's tile is read."""
    _refuse_reading(tile, span)


def _refuse_reading(tile: StageTile, span: Span) -> None:
    """What a producer of copies has begun is not there yet."""
    stage = tile.stage
    if stage.side == "producer" and stage.pipeline.function == "T.InputTilePipeline":
        fail(
            "stage-side",
            "a producer reads the stage that it fills",
            span,
            "its copies need not have landed",
            secondary=(Label(stage.taken.span, "acquired here, by the producer"),),
            help=f"read it where the consumer has acquired it: `with {stage.pipeline.name}.consumer().acquire() as …:`",
        )


# ---- operations on stages --------------------------------------------------------------------------------------------


def with_barrier(path: str, arguments: tuple[list[Argument], dict[str, Argument]]) -> None:
    """T.tma_copy into a stage signals the stage's barrier, unless it names one."""
    positional, keywords = arguments
    destination = keywords.get("dst") or (positional[1] if len(positional) > 1 else None)
    if path != "T.tma_copy" or destination is None or "barrier" in keywords:
        return
    if isinstance(destination.value, StageTile) and destination.value.stage.side == "producer":
        keywords["barrier"] = Argument(destination.value.stage.barrier, destination.span)


def on_stages(body: Body, op: TileOp, arguments: tuple[list[Argument], dict[str, Argument]]) -> TileOp:
    """The operation, if it does with the stages' tiles among its arguments what their sides may. A T.copy from a tensor
    by which a producer fills its stage may signal the stage's barrier, where the target can do that. Errors:
    `stage-side`."""
    given = [(a.value, a.span) for a in (*arguments[0], *arguments[1].values()) if isinstance(a.value, StageTile)]
    loads = op.name == "copy" and op.regions[0].buffer.scope == "global"
    for tile, span in given:
        if any(tile.buffer == b for b in reads(op)):
            _refuse_reading(tile, span)
        stage = tile.stage
        if loads and stage.side == "consumer":
            fail(
                "stage-side",
                "a consumer fills the stage that it has been handed",
                span,
                "nobody waits for this copy",
                secondary=(Label(stage.taken.span, "acquired here, by the consumer"),),
                help=f"fill it where the producer has acquired it: `with {stage.pipeline.name}.producer().acquire() as …:`",
            )
        if loads and not any(key in ("barrier", "asynchronous") for key, _ in op.attrs):
            element = Load(stage.barrier.buffer, (stage.index,))
            return with_attr(with_attr(op, "signals", element), "leader", _leader(body, span))
    return op


def _leader(body: Body, span: Span) -> int:
    from tilec.passes import teams

    return teams.leader(body, span)
