"""T.PersistentTileScheduler: distributes the tiles of a matrix over persistent blocks.

The loop `while s.valid(): …; s.next_tile()` becomes the serial loop over waves that T.Persistent makes. The counters of
the scheduler are binds in it, so that copies of later iterations can be issued early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from tilec.frontend.sema import evaluate, jumps, per_thread
from tilec.frontend.sema.context import Context
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.expr import cast
from tilec.ir.types import BOOL, INT32
from tilec.ops.signature import Argument, Call, Parameter, Signature, as_expr, bind
from tilec.ops.values import Method, TileScheduler, Value
from tilec.passes.analysis.fold_constants import fold_expr
from tilec.support.diagnostics import Label, fail
from tilec.support.source import Span

SCHEDULER = Signature(
    "T.PersistentTileScheduler",
    (
        Parameter("num_m_tiles"),
        Parameter("num_n_tiles"),
        Parameter("num_workers", None),
        Parameter("swizzle_size", 1),
        Parameter("column_major", True),
        Parameter("cluster_size", 1),
        Parameter("stateful", True),
        Parameter("name", None),
    ),
)
_STATE = ("m_idx", "n_idx", "linear_idx", "current_iter")
_METHODS = {
    "init": Signature("init", (Parameter("worker_id"),)),
    "coord": Signature("coord", (Parameter("tile_id"),)),
    "valid": Signature("valid", ()),
    "next_tile": Signature("next_tile", ()),
}
_LOOP = "write `s.init(block)`, and then `while s.valid():` with `s.next_tile()` at its end; or use T.Persistent"


def tile_scheduler(
    positional: Sequence[Argument], keywords: Mapping[str, Argument], span: Span, multiprocessors: int
) -> TileScheduler:
    """Make the scheduler of a call of T.PersistentTileScheduler. Its name may come first, as in older TileLang."""
    if positional and isinstance(positional[0].value, str):
        positional = positional[1:]
    call = bind(SCHEDULER, list(positional), dict(keywords), span)
    size, cluster = _positive(call, "swizzle_size"), _positive(call, "cluster_size")
    m, n = (_integer(call[name]) for name in ("num_m_tiles", "num_n_tiles"))
    m = _binary("floordiv", _binary("add", m, tile.integer(cluster - 1)), tile.integer(cluster))
    workers = call["num_workers"]
    by_columns = call.boolean("column_major")
    return TileScheduler(
        primary=m if by_columns else n,
        secondary=n if by_columns else m,
        workers=tile.integer(multiprocessors // cluster) if workers.value is None else _integer(workers),
        swizzle=size,
        by_columns=by_columns,
        is_stateful=call.boolean("stateful"),
        span=span,
    )


def attribute(scheduler: TileScheduler, node: ast.Attribute) -> Value:
    """Return the value of an attribute as `s.m_idx`, or a method."""
    if node.name in _METHODS:
        return Method(scheduler, node.name)
    if node.name not in _STATE:
        fail("unknown-attribute", f"a tile scheduler has no `{node.name}`", node.span, f"it has {', '.join(_STATE)}")
    if scheduler.now is None:
        _misplaced(f"`{node.name}` is known in the scheduler's loop only", scheduler, node.span)
    return scheduler.now[_STATE.index(node.name)]


def called(context: Context, function: Method, node: ast.Call) -> Value:
    """Evaluate `s.coord(i)` or `s.init(i)`. The other methods belong to the loop."""
    scheduler = function.owner
    assert isinstance(scheduler, TileScheduler)
    call = bind(_METHODS[function.name], *evaluate.operands(context, node), node.span)
    match function.name:
        case "coord":
            return coordinates(scheduler, _integer(call["tile_id"]))
        case "init" if scheduler.is_stateful and scheduler.now is None:
            scheduler.start = _integer(call["worker_id"])
        case name if scheduler.is_stateful:
            _misplaced(f".{name}() cannot stand here", scheduler, node.span)
        case name:
            fail(
                "misplaced-statement",
                f"a scheduler with stateful=False has no .{name}()",
                node.span,
                secondary=(Label(scheduler.span, "from here"),),
                help="use s.coord(i), or leave stateful=False out",
            )
    return None


def coordinates(scheduler: TileScheduler, tile_index: tile.Expr) -> tuple[tile.Expr, tile.Expr]:
    """Return row and column of a tile. The order is in panels of `swizzle` tiles along the secondary axis, each along
    the primary one. The last panel may be narrower."""
    width: tile.Expr = tile.integer(scheduler.swizzle)
    panel = _binary("mul", scheduler.primary, width)
    base = _binary("mul", _binary("floordiv", tile_index, panel), width)
    inside = _binary("floormod", tile_index, panel)
    if _binary("floormod", scheduler.secondary, width) != tile.integer(0):
        remaining = _binary("sub", scheduler.secondary, base)
        width = _binary("max", tile.integer(1), _binary("min", width, remaining))
    fast, slow = _binary("floordiv", inside, width), _binary("add", base, _binary("floormod", inside, width))
    return (fast, slow) if scheduler.by_columns else (slow, fast)


def of_loop(context: Context, node: ast.While) -> TileScheduler | None:
    """Return the scheduler of a loop `while s.valid():`, or None."""
    match node.condition:
        case ast.Call(function=ast.Attribute(name="valid") as function):
            owner = context.value(function.value)
            return owner if isinstance(owner, TileScheduler) else None
        case _:
            return None


def loop(context: Context, node: ast.While, scheduler: TileScheduler) -> None:
    """Elaborate the loop over a block's tiles, in waves. Excess tiles of the last wave are skipped."""
    if not scheduler.is_stateful or scheduler.start is None or scheduler.now is not None:
        _misplaced("nothing says with which tile this loop begins", scheduler, node.condition.span)
    *statements, last = node.body
    if not _moves_on(context, last, scheduler):
        _misplaced("this loop does not go on to the next tile at its end", scheduler, node.condition.span)
    per_thread.alike(context, scheduler.start, node.condition.span, "the tiles of a block")
    total = _binary("mul", scheduler.primary, scheduler.secondary)
    waves = _binary(
        "floordiv", _binary("add", total, _binary("sub", scheduler.workers, tile.integer(1))), scheduler.workers
    )
    wave = tile.Var(context.unique.take("wave"))
    linear = _binary("add", _binary("mul", wave, scheduler.workers), scheduler.start)
    with context.region("the loop", is_loop=True) as out:
        extents = (scheduler.primary, scheduler.secondary)
        extents = extents if scheduler.by_columns else extents[::-1]
        indices = []
        for name, value, extent in zip(_STATE, coordinates(scheduler, linear), extents, strict=False):
            var = tile.Var(context.unique.take(name))
            out.append(tile.Bind(var, value, node.condition.span))
            indices.append(var)
            if isinstance(extent, tile.Const):
                context.ranges[var.name] = (0, int(extent.value) - 1)
        scheduler.now = (*indices, linear, wave)
        with context.region("the loop", is_loop=False) as inner, jumps.loop(context, "while", node.condition.span):
            jumps.iteration(context, "while", node.span, tuple(statements))
        scheduler.now = scheduler.start = None
        out.append(tile.If(tile.Binary("lt", linear, total, BOOL), tuple(inner), (), node.span))
    context.out.append(tile.For("serial", wave, tile.integer(0), waves, 1, tuple(out), span=node.span))


def _moves_on(context: Context, statement: ast.Stmt, scheduler: TileScheduler) -> bool:
    match statement:
        case ast.Evaluate(value=ast.Call(function=ast.Attribute(name="next_tile") as function, args=(), keywords=())):
            return context.value(function.value) is scheduler
        case _:
            return False


def _misplaced(title: str, scheduler: TileScheduler, span: Span) -> NoReturn:
    fail("misplaced-statement", title, span, secondary=(Label(scheduler.span, "the scheduler"),), help=_LOOP)


def _positive(call: Call, name: str) -> int:
    value = call.integer(name)
    if value < 1:
        call.refuse(name, "at least 1")
    return value


def _integer(argument: Argument) -> tile.Expr:
    expr = as_expr(argument)
    if expr.dtype.is_float or expr.dtype == BOOL:
        fail("wrong-dtype", "a number of tiles or blocks must be an integer", argument.span, f"this is {expr.dtype}")
    return fold_expr(cast(expr, INT32))


def _binary(op: tile.BinaryOp, a: tile.Expr, b: tile.Expr) -> tile.Expr:
    return fold_expr(tile.Binary(op, a, b, INT32))
