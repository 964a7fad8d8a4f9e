"""Elaboration of assignments to names and to elements of tiles."""

from __future__ import annotations

from tilec.frontend.sema import evaluate, fragment_elements, per_thread, pipelines, reading
from tilec.frontend.sema.allocations import allocate
from tilec.frontend.sema.bounds import check_access
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.functions import unpack
from tilec.frontend.sema.listed_statements import Named
from tilec.frontend.sema.stores import put, set_variable
from tilec.frontend.sema.vectors import kept, stored
from tilec.frontend.sema.vocabulary import ALLOCATIONS
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.types import DType
from tilec.ops import arithmetic
from tilec.ops.signature import Argument, as_dtype, as_expr
from tilec.ops.values import EXPR_TYPES, Access, Lanes, Member, Reference, Stage, StageTile, Value, describe
from tilec.support.diagnostics import Label, fail, warning
from tilec.support.source import Span


def _mutable(context: Context, name: str) -> tile.Buffer | None:
    binding = context.scope.find(name)
    value = None if binding is None or binding.ended is not None else binding.value
    return value if isinstance(value, tile.Buffer) and value.name in context.mutable else None


def _referred(context: Context, name: str) -> Access | None:
    binding = context.scope.find(name)
    value = None if binding is None or binding.ended is not None else binding.value
    return value.access if isinstance(value, Reference) else None


def assign(context: Context, node: ast.Assign) -> None:
    """Elaborate `a = b = value`."""
    _assign(context, node.targets, node.value, node.span)


def _assign(context: Context, targets: tuple[ast.Expr, ...], node: ast.Expr, span: Span) -> None:
    if isinstance(node, ast.Call) and len(targets) == 1 and isinstance(targets[0], ast.Name):
        path = evaluate.callee(context, node)
        if path in ALLOCATIONS:
            name = targets[0]
            context.scope.bind(name.id, allocate(context, name.id, path, node), name.span)
            return
    argument = evaluate.operand(context, node)
    moment = reading.now(context)
    pipelines.named(argument.value, targets, node)
    for target in targets:
        _store(context, target, argument, moment, span)


def _store(context: Context, target: ast.Expr, argument: Argument, moment: reading.Moment, span: Span) -> None:
    """Store the value of this moment in a target. Of `a, b = b, a` all is read before anything is stored."""
    match target:
        case ast.Name(id=name) if (variable := _mutable(context, name)) is not None:
            set_variable(context, variable, _value(context, argument, moment), span)
        case ast.Name(id=name) if (place := _referred(context, name)) is not None:
            check_access(context, place, target.span, "written")
            put(context, place, _value(context, argument, moment), span)
        case ast.Name(id=name):
            argument = _value(context, argument, moment)
            _warn_of_name(context, name, argument, target.span)
            context.scope.bind(name, _bound(context, name, argument, None, span), target.span)
        case ast.Tuple(items=items) | ast.List(items=items):
            if isinstance(argument.value, Stage):
                argument = Argument(pipelines.tiles(context, argument.value, argument.span), argument.span)
            for item, value in zip(items, unpack(items, argument, target.span), strict=True):
                if isinstance(item, ast.Starred):
                    fail("bad-target", "this cannot be assigned to", item.span)
                _store(context, item, Argument(value, argument.span), moment, span)
        case ast.Subscript():
            access = _check_place(context, target, isinstance(argument.value, Lanes))
            _store_element(context, access, _value(context, argument, moment), target.span, span)
        case _:
            fail("bad-target", "this cannot be assigned to", target.span)


def _value(context: Context, argument: Argument, moment: reading.Moment) -> Argument:
    """Return the value to store, as it was at this moment."""
    return evaluate.read(context, reading.settled(context, argument, moment))


def _warn_of_name(context: Context, name: str, argument: Argument, span: Span) -> None:
    """Warn of `C = tile`, where C is a tensor: it copies nothing."""
    binding, value = context.scope.find(name), argument.value
    tensor = binding.value if binding is not None and binding.ended is None else None
    if isinstance(tensor, tile.Buffer) and isinstance(value, tile.Buffer) and tensor.scope == "global" != value.scope:
        context.warn(
            warning(
                "rebound-tensor",
                f"`{name}` gets another meaning, and nothing is copied",
                span,
                f"from here on this is {describe(value)}",
                secondary=(Label(tensor.span, "the tensor stays as it is"),),
                help=f"write T.copy({value.name}, {name})",
            )
        )


def _bound(context: Context, name: str, argument: Argument, dtype: DType | None, span: Span) -> Value:
    """Return the value of a name: Python values, buffers and constants as they are, others through a `Bind`."""
    value = argument.value
    if dtype is None and isinstance(value, Lanes):
        return kept(context, name, value, span)
    if dtype is None and isinstance(value, StageTile) and value.has_extent:
        return value
    if dtype is None and not isinstance(value, (*EXPR_TYPES, Access)):
        return reading.held(context, value, argument.span)
    expr = as_expr(argument, dtype)
    if isinstance(expr, tile.Const) or (isinstance(expr, tile.Var) and dtype is None):
        context.names.append(Named(context.out, len(context.out), name, span))
        return expr
    if not context.is_parallel and (per_thread.is_varying(context, expr) or context.masks):
        count = len(context.out)
        bound_value = per_thread.named(context, name, expr, span)
        if len(context.out) == count:
            context.names.append(Named(context.out, count, name, span))
        return bound_value
    var = tile.Var(context.unique.take(name), expr.dtype)
    if per_thread.is_varying(context, expr):
        context.varying.add(var)
    if not any(isinstance(e, tile.Load) for e in tile.walk_expr(expr)):
        context.definitions[var] = expr
    context.out.append(tile.Bind(var, expr, span))
    return var


def annotated(context: Context, node: ast.AnnotatedAssign) -> None:
    """Elaborate `a: dtype = value`."""
    if node.value is None:
        fail("missing-value", "a declaration needs a value", node.span, help="write `name: T.int32 = value`")
    annotation = evaluate.argument(context, node.annotation)
    if isinstance(annotation.value, Member) and annotation.value.path in ("int", "float", "bool"):
        _assign(context, (node.target,), node.value, node.span)
        return
    dtype = as_dtype(annotation)
    if not isinstance(node.target, ast.Name):
        fail("bad-target", "only a name can be declared with a type", node.target.span)
    name = node.target.id
    bound = _bound(context, name, evaluate.operand(context, node.value), dtype, node.span)
    context.scope.bind(name, bound, node.target.span)


def augmented(context: Context, node: ast.AugmentedAssign) -> None:
    """Elaborate `a += value`. The target is evaluated once, and read before the value."""
    target = node.target
    if not isinstance(target, ast.Subscript):
        if not isinstance(target, ast.Name):
            fail("bad-target", "this cannot be assigned to", target.span)
        old = evaluate.operand(context, target)
        result, moment = _combined(context, node, old, reading.now(context))
        _store(context, target, result, moment, node.span)
        return
    access = _check_place(context, target)
    moment = reading.now(context)
    if fragment_elements.is_spread(context, access):
        added = evaluate.operand(context, node.value)
        if not reading.is_changed(context, access, moment):
            fragment_elements.put(
                context, access, lambda old: _of_both(node, Argument(old, target.span), added), node.span
            )
            return
        old = evaluate.read(context, reading.settled(context, Argument(access, target.span), moment))
        result = _of_both(node, old, added)
    else:
        old = evaluate.read(context, Argument(access, target.span))
        result, _ = _combined(context, node, old, moment)
    access = reading.settled_place(context, access, moment, target.span)
    _store_element(context, access, result, target.span, node.span)


def _combined(
    context: Context, node: ast.AugmentedAssign, old: Argument, moment: reading.Moment
) -> tuple[Argument, reading.Moment]:
    """Return the new value of the target, and the moment when it was known."""
    added = evaluate.operand(context, node.value)
    result = _of_both(node, reading.settled(context, old, moment), added)
    return result, reading.now(context)


def _of_both(node: ast.AugmentedAssign, old: Argument, added: Argument) -> Argument:
    return Argument(arithmetic.binary(node.op, old, added, node.span), node.span)


def _store_element(context: Context, access: Access, argument: Argument, place: Span, span: Span) -> None:
    if access.has_extent:
        stored(context, access, argument, span)
        return
    if fragment_elements.is_spread(context, access):
        fragment_elements.put(context, access, lambda _: argument, span)
        return
    check_access(context, access, place, "written")
    put(context, access, argument, span)


def _check_place(context: Context, target: ast.Subscript, is_vector: bool = False) -> Access:
    buffer = context.value(target.value)
    if isinstance(buffer, StageTile):
        return pipelines.part(context, buffer, target)
    if not isinstance(buffer, tile.Buffer):
        fail("bad-target", "this cannot be assigned to", target.span, f"this is {describe(buffer)}")
    access = evaluate.access(context, buffer, target)
    if access.has_extent and not is_vector and not access.is_vector:
        fail("bad-target", "a slice cannot be assigned to", target.span, help="use T.copy or T.fill")
    return access
