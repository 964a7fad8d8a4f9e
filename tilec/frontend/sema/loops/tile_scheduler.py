"""T.PersistentTileScheduler: distributes the tiles of a matrix over persistent blocks.

The loop `while s.valid(): …; s.next_tile()` becomes the serial loop over waves that T.Persistent makes. The counters of
the scheduler are binds in it, so that copies of later iterations can be issued early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.sema.launch.schedule_descriptions import NAMED_STATEMENTS
from tilec.frontend.sema.loops.loop_headers import fold_ceildiv
from tilec.frontend.sema.statements import jumps, per_thread
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.expr import cast_expr
from tilec.ir.types import BOOL, INT32
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_expr, bind_arguments
from tilec.ops.language.values import Method, TileScheduler, Value
from tilec.rewriting.fold_constants import fold_binary, fold_expr
from tilec.support.diagnostics import Label, raise_error
from tilec.support.source import Span

SCHEDULER_SIGNATURE = Signature("T.PersistentTileScheduler", (
    Parameter("num_m_tiles"), Parameter("num_n_tiles"), Parameter("num_workers", None), Parameter("swizzle_size", 1),
    Parameter("column_major", True), Parameter("cluster_size", 1), Parameter("stateful", True), Parameter("name", None),
))  # fmt: skip
_STATE_ATTRIBUTES = ("m_idx", "n_idx", "linear_idx", "current_iter")
_METHOD_SIGNATURES = {
    name: Signature(name, tuple(map(Parameter, names)))
    for name, names in {"init": ["worker_id"], "coord": ["tile_id"], "valid": [], "next_tile": []}.items()
}
_LOOP_HELP = "write `s.init(block)`, and then `while s.valid():` with `s.next_tile()` at its end; or use T.Persistent"


def make_tile_scheduler(
    positional: Sequence[Argument], keywords: Mapping[str, Argument], span: Span, multiprocessors: int
) -> TileScheduler:
    """Make the tile scheduler of a call; workers default to the GPU's multiprocessors divided by the cluster size. Its
    name may come first, as in older TileLang.
    """
    if positional and isinstance(positional[0].value, str):
        positional = positional[1:]
    call = bind_arguments(SCHEDULER_SIGNATURE, list(positional), dict(keywords), span)
    size, cluster = _read_positive(call, "swizzle_size"), _read_positive(call, "cluster_size")
    m, n = (_read_integer(call[name]) for name in ("num_m_tiles", "num_n_tiles"))
    m = fold_ceildiv(m, tile.int32_const(cluster))
    workers = call["num_workers"]
    by_columns = call.read_boolean("column_major")
    return TileScheduler(
        primary=m if by_columns else n,
        secondary=n if by_columns else m,
        workers=tile.int32_const(multiprocessors // cluster) if workers.value is None else _read_integer(workers),
        swizzle=size,
        by_columns=by_columns,
        is_stateful=call.read_boolean("stateful"),
        span=span,
    )


def resolve_attribute(scheduler: TileScheduler, node: ast.Attribute) -> Value:
    """Return a scheduler's method, or its counter such as `s.m_idx`; refuse a counter outside the scheduler's loop."""
    if node.name in _METHOD_SIGNATURES:
        return Method(scheduler, node.name)
    if node.name not in _STATE_ATTRIBUTES:
        title = f"a tile scheduler has no `{node.name}`"
        raise_error("unknown-attribute", title, node.span, f"it has {', '.join(_STATE_ATTRIBUTES)}")
    if scheduler.now is None:
        _refuse_misplaced(f"`{node.name}` is known in the scheduler's loop only", scheduler, node.span)
    return scheduler.now[_STATE_ATTRIBUTES.index(node.name)]


def call_scheduler_method(context: Context, function: Method, node: ast.Call) -> Value:
    """Return the tile coordinates of `s.coord(i)`, or record the start of `s.init(i)`; refuse other calls here."""
    scheduler = function.owner
    assert isinstance(scheduler, TileScheduler)
    call = evaluate.bind_operands(context, _METHOD_SIGNATURES[function.name], node)
    match function.name:
        case "coord":
            return compute_coordinates(scheduler, _read_integer(call["tile_id"]))
        case "init" if scheduler.is_stateful and scheduler.now is None:
            scheduler.start = _read_integer(call["worker_id"])
        case name if scheduler.is_stateful:
            _refuse_misplaced(f".{name}() is not allowed here", scheduler, node.span)
        case name:
            title = f"a scheduler with stateful=False has no .{name}()"
            place = Label(scheduler.span, "from here")
            way_out = "use s.coord(i), or remove stateful=False"
            raise_error("misplaced-statement", title, node.span, secondary=(place,), help=way_out)
    return None


def compute_coordinates(scheduler: TileScheduler, tile_index: tile.Expr) -> tuple[tile.Expr, tile.Expr]:
    """Return the row and column of the tile with this number, in panels of `swizzle` tiles across the secondary axis.
    The order is in panels of `swizzle` tiles along the secondary axis, each along the primary one. The last panel may
    be narrower.
    """
    width: tile.Expr = tile.int32_const(scheduler.swizzle)
    panel = fold_binary("mul", scheduler.primary, width)
    base = fold_binary("mul", fold_binary("floordiv", tile_index, panel), width)
    inside = fold_binary("floormod", tile_index, panel)
    if fold_binary("floormod", scheduler.secondary, width) != tile.int32_const(0):
        remaining = fold_binary("sub", scheduler.secondary, base)
        width = fold_binary("max", tile.int32_const(1), fold_binary("min", width, remaining))
    fast = fold_binary("floordiv", inside, width)
    slow = fold_binary("add", base, fold_binary("floormod", inside, width))
    return (fast, slow) if scheduler.by_columns else (slow, fast)


def find_loop_scheduler(context: Context, node: ast.While) -> TileScheduler | None:
    """Return the tile scheduler `s` of a loop `while s.valid():`, or None for any other loop."""
    match node.condition:
        case ast.Call(function=ast.Attribute(name="valid") as function):
            owner = context.value(function.value)
            return owner if isinstance(owner, TileScheduler) else None
        case _:
            return None


def elaborate_scheduler_loop(context: Context, node: ast.While, scheduler: TileScheduler) -> None:
    """Emit `while s.valid():` as a serial loop over waves that skips tiles past the end; refuse it without init or
    next_tile. Afterwards the scheduler has no start, and needs another `s.init(…)`. `s.next_tile()` ends the body.
    """
    if not scheduler.is_stateful or scheduler.start is None or scheduler.now is not None:
        _refuse_misplaced("s.init(…) is missing before this loop", scheduler, node.condition.span)
    *statements, last = _open_last_statement(context, node.body)
    if not _is_next_tile_call(context, last, scheduler):
        _refuse_misplaced("s.next_tile() must be the last statement of this loop", scheduler, node.condition.span)
    per_thread.require_uniform(context, scheduler.start, node.condition.span, "the tiles of a block")
    total = fold_binary("mul", scheduler.primary, scheduler.secondary)
    waves = fold_ceildiv(total, scheduler.workers)
    wave = tile.Var(context.unique.take("wave"))
    linear = fold_binary("add", fold_binary("mul", wave, scheduler.workers), scheduler.start)
    with context.region("the loop", is_loop=True) as out:
        extents = (scheduler.primary, scheduler.secondary)
        extents = extents if scheduler.by_columns else extents[::-1]
        indices = []
        coordinates = compute_coordinates(scheduler, linear)
        for name, value, extent in zip(_STATE_ATTRIBUTES, coordinates, extents, strict=False):
            var = context.bind_value(name, value, node.condition.span)
            indices.append(var)
            if isinstance(extent, tile.Const):
                context.ranges[var.name] = (0, int(extent.value) - 1)
        scheduler.now = (*indices, linear, wave)
        with (
            context.region("the loop", is_loop=False) as inner,
            jumps.enter_loop(context, "while", node.condition.span),
        ):
            jumps.elaborate_iteration(context, "while", tuple(statements))
        scheduler.now = scheduler.start = None
        out.append(tile.If(tile.Binary("lt", linear, total, BOOL), tuple(inner), (), node.span))
    context.out.append(tile.For("serial", wave, tile.int32_const(0), waves, 1, tuple(out), span=node.span))


def _open_last_statement(context: Context, body: tuple[ast.Stmt, ...]) -> tuple[ast.Stmt, ...]:
    """Return a body whose last statement is no `with T.ws_op(…):`: what stands under it takes its place."""
    match body[-1]:
        case ast.With(context=ast.Call() as call, body=named) if (
            evaluate.find_callee(context, call) == NAMED_STATEMENTS.name
        ):
            return _open_last_statement(context, (*body[:-1], *named))
        case _:
            return body


def _is_next_tile_call(context: Context, statement: ast.Stmt, scheduler: TileScheduler) -> bool:
    """Return whether a statement is a call `s.next_tile()` of this scheduler."""
    match statement:
        case ast.Evaluate(value=ast.Call(function=ast.Attribute(name="next_tile") as function, args=(), keywords=())):
            return context.value(function.value) is scheduler
        case _:
            return False


def _refuse_misplaced(title: str, scheduler: TileScheduler, span: Span) -> NoReturn:
    """Raise `misplaced-statement` with this title, pointing at the scheduler and saying how its loop is written."""
    place = Label(scheduler.span, "the scheduler")
    raise_error("misplaced-statement", title, span, secondary=(place,), help=_LOOP_HELP)


def _read_positive(call: Call, name: str) -> int:
    """Return a call's integer argument; refuse one below 1."""
    value = call.read_integer(name)
    if value < 1:
        call.refuse(name, "at least 1")
    return value


def _read_integer(argument: Argument) -> tile.Expr:
    """Return a number of tiles or blocks as an int32 expression with constants folded; refuse floats and truth
    values.
    """
    expr = as_expr(argument)
    if expr.dtype.is_float or expr.dtype == BOOL:
        title = "a number of tiles or blocks must be an integer"
        raise_error("wrong-dtype", title, argument.span, f"this is {expr.dtype}")
    return fold_expr(cast_expr(expr, INT32))
