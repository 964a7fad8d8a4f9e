"""T.assume: promises about a variable, rewritten into its later reads.

A read of a variable that is a multiple of 8 becomes `x // 8 * 8`, and a read of one that is never negative
`max(x, 0)`. So the analysis of divisibility sees the 8, and a broken promise makes a copy address another element
instead of faulting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from tilec.frontend.sema.context import Context
from tilec.ir import tile
from tilec.ir.types import INT32
from tilec.ops.language.signature import Argument, as_expr


def record_promises(context: Context, condition: Argument) -> None:
    """Record the promises in a T.assume condition, for later reads of int32 variables that are no tensor's extents."""
    if isinstance(condition.value, bool | int):
        return
    for value, op, number in _parse_promises(as_expr(condition)):
        var = context.scope.strip_promise(value)
        if not isinstance(var, tile.Var) or var.dtype != INT32 or _is_tensor_extent(context, var):
            continue
        if op == "mul" or context.ranges.get(var.name, (-1, 0))[0] < 0:
            operand = tile.int32_const(number)
            read = as_expr(Argument(context.scope.apply_promise(var), condition.span))
            read = read if op == "max" else tile.Binary("floordiv", read, operand, INT32)
            context.scope.promises.append((var, tile.Binary(op, read, operand, INT32)))


def _parse_promises(condition: tile.Expr) -> Iterator[tuple[tile.Expr, Literal["mul", "max"], int]]:
    """Yield value, operator and number of each promise: "mul" and 8 for `x % 8 == 0`, "max" and 0 for `x >= 0`."""
    match condition:
        case tile.Binary(op="and", a=a, b=b):
            yield from _parse_promises(a)
            yield from _parse_promises(b)
        case tile.Binary(
            op="eq", a=tile.Binary(op="floormod", a=value, b=tile.Const(value=int(multiple))), b=tile.Const(value=0)
        ) if multiple > 1:
            yield value, "mul", multiple
        case (
            tile.Binary(op="ge", a=value, b=tile.Const(value=0)) | tile.Binary(op="le", a=tile.Const(value=0), b=value)
        ):
            yield value, "max", 0
        case _:
            return


def _is_tensor_extent(context: Context, var: tile.Var) -> bool:
    """Return whether a variable occurs in a visible tensor's extents, which keep it as it is to stay comparable."""
    bindings = (context.scope.find(name) for name in context.scope.list_visible_names())
    tensors = (b.value for b in bindings if b is not None and isinstance(b.value, tile.Buffer))
    extents = (extent for tensor in tensors for extent in tensor.extents if not isinstance(extent, int))
    return any(var in tile.walk_expr(extent) for extent in extents)
