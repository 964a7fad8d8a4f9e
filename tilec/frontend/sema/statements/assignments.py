"""Elaboration of assignments to names and to elements of tiles."""

from __future__ import annotations

from tilec.frontend.sema.compile_time.functions import pair_targets
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate, fragment_elements, reading
from tilec.frontend.sema.expressions.bounds import check_access
from tilec.frontend.sema.expressions.vectors import snapshot_vector, store_vector
from tilec.frontend.sema.loops.schedule_lists import ElidedBind
from tilec.frontend.sema.roles import pipelines
from tilec.frontend.sema.statements import per_thread
from tilec.frontend.sema.statements.allocations import elaborate_allocation
from tilec.frontend.sema.statements.stores import emit_store, set_variable
from tilec.frontend.sema.vocabulary import ALLOCATION_NAMES
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.affine import reads_elements
from tilec.ir.types import DType
from tilec.ops.language import arithmetic, values
from tilec.ops.language.signature import Argument, as_dtype, as_expr
from tilec.support.diagnostics import Label, make_warning, raise_error
from tilec.support.source import Span


def _find_value(context: Context, name: str) -> values.Value:
    """Return the value of a name without counting it as read, or None if it is unknown or out of scope."""
    binding = context.scope.find(name)
    return None if binding is None or binding.ended is not None else binding.value


def _find_variable(context: Context, name: str) -> tile.Buffer | None:
    """Return the buffer of the T.alloc_var variable that a name stands for, or None."""
    value = _find_value(context, name)
    return value if isinstance(value, tile.Buffer) and value.name in context.variable_names else None


def elaborate_assign(context: Context, node: ast.Assign) -> None:
    """Elaborate `a = b = value`: evaluate the value once, and bind or store it in each target."""
    _assign_targets(context, node.targets, node.value, node.span)


def _assign_targets(context: Context, targets: tuple[ast.Expr, ...], node: ast.Expr, span: Span) -> None:
    """Evaluate a value once and assign it to all targets; allocate under the only target's name; refuse names for
    stages.
    """
    if isinstance(node, ast.Call) and len(targets) == 1 and isinstance(targets[0], ast.Name):
        path = evaluate.find_callee(context, node)
        if path in ALLOCATION_NAMES:
            name = targets[0]
            context.scope.bind(name.id, elaborate_allocation(context, name.id, path, node), name.span)
            return
    if (pairs := _pair_allocations(context, targets, node)) is not None:
        for allocated, call in pairs:
            _assign_targets(context, (allocated,), call, span)
        return
    argument = evaluate.evaluate_operand(context, node)
    moment = reading.mark_moment(context)
    pipelines.check_stage_names(argument.value, targets, node)
    for target in targets:
        _store_target(context, target, argument, moment, span)


def _pair_allocations(
    context: Context, targets: tuple[ast.Expr, ...], node: ast.Expr
) -> list[tuple[ast.Name, ast.Call]] | None:
    """Return each name of `a, b = T.alloc_…(…), T.alloc_…(…)` with its allocation; None of any other assignment."""
    match targets, node:
        case (ast.Tuple(items=names) | ast.List(items=names),), ast.Tuple(items=calls) if len(names) == len(calls):
            pairs: list[tuple[ast.Name, ast.Call]] = []
            for name, call in zip(names, calls, strict=True):
                if not isinstance(name, ast.Name) or not isinstance(call, ast.Call):
                    return None
                if evaluate.find_callee(context, call) not in ALLOCATION_NAMES:
                    return None
                pairs.append((name, call))
            return pairs
        case _:
            return None


def _store_target(context: Context, target: ast.Expr, argument: Argument, moment: reading.Moment, span: Span) -> None:
    """Assign a value, as it was at a moment, to a variable, element or name, or item by item to a tuple; refuse other
    targets. Of `a, b = b, a` all is read before anything is stored. Errors: `bad-target`.
    """
    match target:
        case ast.Name(id=name) if (variable := _find_variable(context, name)) is not None:
            set_variable(context, variable, _settle_value(context, argument, moment), span)
        case ast.Name(id=name) if isinstance(reference := _find_value(context, name), values.ElementReference):
            check_access(context, reference.access, target.span, "written")
            emit_store(context, reference.access, _settle_value(context, argument, moment), span)
        case ast.Name(id=name):
            argument = _settle_value(context, argument, moment)
            _warn_of_rebound_tensor(context, name, argument, target.span)
            context.scope.bind(name, _make_bound_value(context, name, argument, None, span), target.span)
        case ast.Tuple(items=items) | ast.List(items=items):
            if isinstance(argument.value, values.PipelineStage):
                argument = Argument(pipelines.unpack_stage(context, argument.value, argument.span), argument.span)
            for item, value in pair_targets(items, argument, target.span):
                _store_target(context, item, value, moment, span)
        case ast.Subscript():
            access = _evaluate_stored_access(context, target, isinstance(argument.value, values.Lanes))
            store_element(context, access, _settle_value(context, argument, moment), target.span, span)
        case _:
            raise_error("bad-target", "this cannot be assigned to", target.span)


def _settle_value(context: Context, argument: Argument, moment: reading.Moment) -> Argument:
    """Return a value to store as it was at this moment, with an indexed buffer read as its element."""
    return evaluate.read_element(context, reading.read_if_changed_since(context, argument, moment))


def _warn_of_rebound_tensor(context: Context, name: str, argument: Argument, span: Span) -> None:
    """Warn if an assignment rebinds a tensor's name to a tile, as in `C = tile`, which copies nothing."""
    tensor, value = _find_value(context, name), argument.value
    if isinstance(tensor, tile.Buffer) and isinstance(value, tile.Buffer) and tensor.scope == "global" != value.scope:
        title = f"`{name}` is rebound to a tile, and nothing is copied"
        note = f"from here on this is {values.describe_value(value)}"
        place = Label(tensor.span, "the tensor stays as it is")
        way_out = f"write T.copy({value.name}, {name})"
        context.warn(make_warning("rebound-tensor", title, span, note, secondary=(place,), help=way_out))


def _make_bound_value(context: Context, name: str, argument: Argument, dtype: DType | None, span: Span) -> values.Value:
    """Return the value to bind to a name: Python values and constants as they are, others by a bind, converted if
    `dtype`. Buffers and boxes stay as they are. Names without a bind are recorded.
    """
    value = argument.value
    if dtype is None and isinstance(value, values.Lanes):
        return snapshot_vector(context, name, value, span)
    if dtype is None and isinstance(value, values.StageTile) and value.has_extent:
        return value
    if dtype is None and isinstance(value, values.Access) and not value.is_one_value:
        return reading.snapshot_value(context, value, argument.span)
    if dtype is None and not isinstance(value, (*values.EXPR_TYPES, values.Access)):
        return reading.snapshot_lazily(context, value, argument.span)
    expr = as_expr(argument, dtype)
    if isinstance(expr, tile.Const) or (isinstance(expr, tile.Var) and dtype is None):
        context.names.append(ElidedBind(context.out, len(context.out), name, span))
        return expr
    if not context.is_parallel and (per_thread.is_varying(context, expr) or context.is_divergent):
        count = len(context.out)
        bound_value = per_thread.bind_thread_value(context, name, expr, span)
        if len(context.out) == count:
            context.names.append(ElidedBind(context.out, count, name, span))
        return bound_value
    if not context.is_launched and not reads_elements(expr):
        return expr  # each launch computes it where it is used
    var = per_thread.emit_bind(context, name, expr, span)
    if not reads_elements(expr):
        context.definitions[var] = expr
    return var


def elaborate_annotated_assign(context: Context, node: ast.AnnotatedAssign) -> None:
    """Elaborate `a: dtype = value`: bind the name to the value converted to the dtype; refuse a missing value. Python's
    `int`, `float` and `bool` convert nothing.
    """
    if node.value is None:
        raise_error("missing-value", "a declaration needs a value", node.span, help="write `name: T.int32 = value`")
    annotation = evaluate.evaluate_argument(context, node.annotation)
    if isinstance(annotation.value, values.Member) and annotation.value.path in ("int", "float", "bool"):
        _assign_targets(context, (node.target,), node.value, node.span)
        return
    dtype = as_dtype(annotation)
    if not isinstance(node.target, ast.Name):
        raise_error("bad-target", "only a plain name can be declared with a type", node.target.span)
    name = node.target.id
    bound = _make_bound_value(context, name, evaluate.evaluate_operand(context, node.value), dtype, node.span)
    context.scope.bind(name, bound, node.target.span)


def elaborate_augmented_assign(context: Context, node: ast.AugmentedAssign) -> None:
    """Elaborate `a += value`: evaluate the target once, read it before the value, store the result; refuse other
    targets.
    """
    target = node.target
    if not isinstance(target, ast.Subscript):
        if not isinstance(target, ast.Name):
            raise_error("bad-target", "this cannot be assigned to", target.span)
        old = evaluate.evaluate_operand(context, target)
        result, moment = _evaluate_and_combine(context, node, old, reading.mark_moment(context))
        _store_target(context, target, result, moment, node.span)
        return
    access = _evaluate_stored_access(context, target)
    moment = reading.mark_moment(context)
    if fragment_elements.is_distributed_element(context, access):
        added = evaluate.evaluate_operand(context, node.value)
        if not reading.is_changed_since(context, access, moment):
            fragment_elements.store_element(
                context, access, lambda old: _apply_operator(node, Argument(old, target.span), added), node.span
            )
            return
        old = _settle_value(context, Argument(access, target.span), moment)
        result = _apply_operator(node, old, added)
    else:
        old = evaluate.read_element(context, Argument(access, target.span))
        result, _ = _evaluate_and_combine(context, node, old, moment)
    access = reading.settle_place(context, access, moment, target.span)
    store_element(context, access, result, target.span, node.span)


def _evaluate_and_combine(
    context: Context, node: ast.AugmentedAssign, old: Argument, moment: reading.Moment
) -> tuple[Argument, reading.Moment]:
    """Evaluate the right side of `a += value`, and return the new value of `a` and the moment when it was known."""
    added = evaluate.evaluate_operand(context, node.value)
    result = _apply_operator(node, reading.read_if_changed_since(context, old, moment), added)
    return result, reading.mark_moment(context)


def _apply_operator(node: ast.AugmentedAssign, old: Argument, added: Argument) -> Argument:
    """Return the result of an augmented assignment's operator on the old and the added value."""
    return Argument(arithmetic.apply_binary(node.op, old, added, node.span), node.span)


def store_element(context: Context, access: values.Access, argument: Argument, place: Span, span: Span) -> None:
    """Emit the store of a value in an element, vector or slice, checked, also in a fragment's element outside
    T.Parallel.
    """
    if access.has_extent:
        store_vector(context, access, argument, span)
        return
    if fragment_elements.is_distributed_element(context, access):
        fragment_elements.store_element(context, access, lambda _: argument, span)
        return
    check_access(context, access, place, "written")
    emit_store(context, access, argument, span)


def _evaluate_stored_access(context: Context, target: ast.Subscript, is_vector: bool = False) -> values.Access:
    """Return the element or slice that a subscript target names; raise `bad-target` if it cannot be assigned to. Slices
    are for vectors only.
    """
    buffer = context.value(target.value)
    if isinstance(buffer, values.StageTile):
        return pipelines.access_stage_tile(context, buffer, target)
    if not isinstance(buffer, tile.Buffer):
        raise_error("bad-target", "this cannot be assigned to", target.span, f"this is {values.describe_value(buffer)}")
    access = evaluate.evaluate_access(context, buffer, target)
    if not access.is_one_value and not is_vector:
        raise_error("bad-target", "a slice cannot be assigned to", target.span, help="use T.copy or T.fill")
    return access
