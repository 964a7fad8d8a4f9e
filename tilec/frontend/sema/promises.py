"""T.assume: what it promises of a variable stands in its value wherever that is read from there on.

A variable that is promised to be a multiple of 8 is written `x // 8 * 8`: whoever asks what divides a coordinate finds
the 8 there, and a promise that does not hold moves a copy instead of faulting.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from tilec.frontend.sema.context import Context
from tilec.ir import tile
from tilec.ir.types import INT32
from tilec.ops.signature import Argument, as_expr


def keep(context: Context, condition: Argument) -> None:
    """Note what the condition promises, for whatever reads the variables in this scope from here on."""
    if isinstance(condition.value, bool | int):
        return
    for value, multiple in _multiples(as_expr(condition)):
        match value:
            case tile.Binary(
                op="mul", a=tile.Binary(op="floordiv", a=tile.Var() as var, b=by), b=tile.Const() as again
            ):
                multiple = lcm(multiple, int(again.value)) if by == again else 1  # promised before
            case tile.Var() as var:
                pass
            case _:
                continue
        if multiple > 1 and var.dtype == INT32 and not _is_an_extent(context, var):
            factor = tile.integer(multiple)
            rounded = tile.Binary("mul", tile.Binary("floordiv", var, factor, INT32), factor, INT32)
            context.scope.promises.append((var, rounded))


def _multiples(condition: tile.Expr) -> Iterator[tuple[tile.Expr, int]]:
    """What is promised to be a multiple, as in `x % 8 == 0`, and of what."""
    match condition:
        case tile.Binary(op="and", a=a, b=b):
            yield from _multiples(a)
            yield from _multiples(b)
        case tile.Binary(
            op="eq",
            a=tile.Binary(op="floormod", a=value, b=tile.Const(value=int(multiple))),
            b=tile.Const(value=0),
        ):
            yield value, multiple
        case _:
            return


def _is_an_extent(context: Context, var: tile.Var) -> bool:
    """Whether extents of a tensor are made of it: these it is compared with, as it is."""
    bindings = (context.scope.find(name) for name in context.scope.visible())
    tensors = (b.value for b in bindings if b is not None and isinstance(b.value, tile.Buffer))
    extents = (extent for tensor in tensors for extent in tensor.extents if not isinstance(extent, int))
    return any(var in tile.walk_expr(extent) for extent in extents)
