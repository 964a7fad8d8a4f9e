"""T.fill and T.clear of tensors in global memory, and atomic updates by values that are in no tile.

Each becomes a nest over the elements of the box. Elements outside a tensor are not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions.bounds import check_box, check_loads
from tilec.frontend.sema.statements import per_thread
from tilec.ir import tile
from tilec.ops import registry
from tilec.ops.fill import Fill
from tilec.ops.language.signature import Argument, Call
from tilec.ops.language.values import Access
from tilec.ops.lowering import index_element
from tilec.support.source import Span


def try_fill_tensor(context: Context, op: tile.TileOp, path: str) -> bool:
    """Emit a fill of a tensor in global memory as a nest of stores, checked; return False for any other operation."""
    if not isinstance(op, Fill) or op.tile.buffer.scope != "global":
        return False
    variables = _make_variables(context, op.tile)
    place = index_element(op.tile, variables, op.tile.shape)
    _emit_nest(context, variables, op.tile.shape, (op.element(place, ()),), op.span, path)
    return True


def try_update_by_values(context: Context, spelling: registry.Spelling, call: Call, path: str) -> bool:
    """Emit an atomic update of a box by a number or a tensor's box as a checked nest; return False for any other
    call.
    """
    if spelling.element is None or "value" not in call.arguments:
        return False
    value, target = call["value"].value, call["dst"].value
    is_box = isinstance(value, tile.Buffer) or (isinstance(value, Access) and value.has_extent)
    if is_box and (source := call.buffer("value")) is not None and source.scope != "global":
        return False
    if not is_box and not (isinstance(target, tile.Buffer) or (isinstance(target, Access) and target.has_extent)):
        return False
    if not is_box:
        destination, given = call.read_region("dst"), None
    else:
        checked = spelling.check
        assert checked is not None
        given, destination = checked(call).regions
    if not context.guards and destination.buffer.scope != "global":
        check_box(context, destination)
    variables = _make_variables(context, destination)
    changed: dict[str, Argument] = {"dst": _get_element(destination, variables, call["dst"].span)}
    if given is not None:
        changed["value"] = _get_element(given, variables, call["value"].span)
    stores = spelling.element(_replace_arguments(call, changed))
    _emit_nest(context, variables, destination.shape, stores, call.span, path)
    return True


def _make_variables(context: Context, region: tile.Region) -> tuple[tile.Var, ...]:
    """Make one new loop variable for each dimension of a region's shape."""
    return tuple(tile.Var(context.unique.take("element")) for _ in region.shape)


def _get_element(region: tile.Region, variables: tuple[tile.Var, ...], span: Span) -> Argument:
    """Return, as an argument, the element of a region at these loop variables."""
    return Argument(Access(region.buffer, index_element(region, variables, region.shape)), span)


def _replace_arguments(call: Call, changed: Mapping[str, Argument]) -> Call:
    """Return a call with some of its arguments replaced."""
    return Call(call.name, {**call.arguments, **changed}, call.variadic, call.span)


def _emit_nest(
    context: Context,
    variables: tuple[tile.Var, ...],
    extents: tuple[int, ...],
    stores: tuple[tile.Store, ...],
    span: Span,
    path: str,
) -> None:
    """Emit a T.Parallel nest of stores after checking that all threads run it with uniform operands."""
    per_thread.require_all_threads(context, span, path)
    check = partial(per_thread.require_uniform, context, span=span, what=f"the indices and arguments of {path}")
    for store in stores:
        for expr in (*store.indices, store.value):
            check(expr)
        check_loads(context, store.value, span)
    context.out.append(tile.Parallel(variables, extents, stores, span))
