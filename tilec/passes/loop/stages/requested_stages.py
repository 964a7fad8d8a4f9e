"""Stages that a kernel requests for tiles: `A_shared.pipeline(stage=3)`, `T.annotate_pipeline({A_shared: 3})`.

A loop that loads such a tile is pipelined, with as many versions of it as stages; with one stage it runs as written.
`loop.stages.register_stages` applies the stages of fragments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from tilec.analysis import rings
from tilec.analysis.rings import find_pipelined_loops, is_load
from tilec.ir.rewrite import rewrite_statements
from tilec.ir.tile import Break, Buffer, For, Kernel, Stmt, TileOp, Var, walk_statements
from tilec.ops.synchronisation.barriers import AllocBarrier
from tilec.passes.loop.stages.detect_pipelines import find_loads
from tilec.support.diagnostics import ErrorCollector, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.source import Span


@dataclass(frozen=True, slots=True)
class StageRequest:
    """A number of stages requested for a tile, and the place of the request."""

    tile: Buffer
    stages: int
    span: Span


def refuse_request(request: StageRequest, title: str, *secondary: Label, help: str) -> NoReturn:
    """Raise the error `pipeline-impossible` at a request for stages. Errors: `pipeline-impossible`."""
    label = f"{request.stages} stage{'s' * (request.stages > 1)} requested here"
    raise_error("pipeline-impossible", title, request.span, label, secondary=secondary, help=help)


def apply_requested_stages(kernel: Kernel, requests: Sequence[StageRequest], mistakes: ErrorCollector) -> Kernel:
    """Return the kernel with loops that load shared tiles pipelined in requested stages (1: not); record impossible
    ones. Errors: `pipeline-impossible`."""
    requests = [request for request in requests if not request.tile.in_registers]
    if not requests:
        return kernel
    loops = [loop for loop in walk_statements(kernel.body) if isinstance(loop, For)]
    wanted: dict[Var, int] = {}
    for request in requests:
        with mistakes.caught():
            _check_tile(kernel, request, loops)
    for loop in loops:
        tiles = {load.regions[1].buffer for load in find_loads(loop)}
        here = [request for request in requests if request.tile in tiles]
        if here:
            with mistakes.caught():
                wanted[loop.var] = _agree_on_stages(loop, here)

    def pipeline_loop(stmt: Stmt) -> Stmt:
        """Return a loop with its requested stages, or with pipelining off for one stage; others as they are."""
        if not isinstance(stmt, For) or stmt.var not in wanted:
            return stmt
        stages = wanted[stmt.var]
        return replace(stmt, kind="pipelined", num_stages=stages if stages > 1 else 0)

    made = replace(kernel, body=rewrite_statements(kernel.body, pipeline_loop)) if wanted else kernel
    for loop in find_pipelined_loops(made.body):
        tiles = {load.regions[1].buffer for load in find_loads(loop)}
        for request in requests:
            if request.tile in tiles and request.stages > 1:
                with mistakes.caught():
                    _check_versions(made, loop, request)
    return made


def _check_versions(kernel: Kernel, loop: For, request: StageRequest) -> None:
    """Refuse a request for a tile that cannot have several versions in its loop."""
    if (reason := rings.analyse_loop_body(kernel, loop).why_not_versioned(request.tile)) is not None:
        refuse_request(
            request,
            f"{request.tile.name} cannot have versions: {reason}",
            Label(loop.span, "the loop that loads it"),
            help="let one statement of the loop fill the whole tile before others read it, and nothing else use it",
        )


def _check_tile(kernel: Kernel, request: StageRequest, loops: Sequence[For]) -> None:
    """Refuse a request for a tile that is not shared, that no loop loads, or in a kernel with explicit barriers."""
    tile = request.tile
    if tile.scope != "shared":
        what = "a tensor" if tile.scope == "global" else "not a shared tile"
        refuse_request(
            request, f"{tile.name} is {what}, which has no stages", help="give stages to tiles of T.alloc_shared"
        )
    if any(isinstance(s, AllocBarrier) for s in walk_statements(kernel.body)):
        refuse_request(
            request,
            f"{tile.name} cannot be pipelined: the kernel has explicit barriers",
            help="use T.InputTilePipeline, whose stages the roles acquire and release",
        )
    if any(load.regions[1].buffer == tile for loop in loops for load in find_loads(loop)):
        return
    elsewhere = [
        s for s in walk_statements(kernel.body) if isinstance(s, TileOp) and is_load(s) and s.regions[1].buffer == tile
    ]
    refuse_request(
        request,
        f"no loop loads {tile.name} in each iteration",
        *(Label(load.span, "loaded here, under a condition or in no loop") for load in elsewhere[:1]),
        help="load it by T.copy directly in a loop: stages hold tiles of later iterations",
    )


def _agree_on_stages(loop: For, requests: Sequence[StageRequest]) -> int:
    """Return the one number of stages requested for a loop's tiles; refuse different ones, or a loop that cannot."""
    first, *others = requests
    place = Label(loop.span, "the loop that loads it")
    for other in others:
        if other.stages != first.stages:
            refuse_request(
                other,
                f"{other.tile.name} gets {other.stages} stage{'s' * (other.stages > 1)}, and {first.tile.name} "
                f"{first.stages}, in one loop",
                Label(first.span, f"{first.stages} here"),
                Label(loop.span, "the loop that loads both"),
                help="give both tiles the same number: a loop has only one",
            )
    if first.stages == 1:
        return 1
    if loop.stage is not None:
        refuse_request(first, f"the loop that loads {first.tile.name} has a manual schedule", place,
                help="remove `stage` and `order`, or this")  # fmt: skip
    if loop.num_stages is not None and loop.num_stages != first.stages:
        refuse_request(first, f"{first.tile.name} has {first.stages} stages, but its loop has "
            f"num_stages={loop.num_stages}", place,
                help="remove one of the two numbers")  # fmt: skip
    if loop.kind == "unroll":
        refuse_request(first, f"the loop that loads {first.tile.name} is unrolled", place,
                help="write T.serial or T.Pipelined")  # fmt: skip
    if left := next((s for s in walk_statements(loop.body) if isinstance(s, Break)), None):
        refuse_request(first, f"the loop that loads {first.tile.name} may end early", place,
                Label(left.span, "left here, with loads of later iterations pending"),
                help="guard the rest of the body with `if`")  # fmt: skip
    return first.stages
