"""Evaluation of calls, by the kind of what is called; and the table of names known at compile time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn, TypeVar

from tilec.frontend.prelude.read import NAMES as PRELUDE
from tilec.frontend.sema import (
    evaluate,
    functions,
    host_names,
    layout_maps,
    pipelines,
    prelude,
    reading,
    tile_scheduler,
)
from tilec.frontend.sema.context import Context, ReadsValue
from tilec.frontend.sema.layout_maps import FRAGMENT, LAYOUT, fragment_layout, index_map
from tilec.frontend.sema.vocabulary import refuse_call
from tilec.frontend.syntax import ast
from tilec.ir.tile import Buffer, LoopLayout
from tilec.ir.types import DType
from tilec.ops import python
from tilec.ops.other_languages import instead_of_method
from tilec.ops.python import CONVERTS
from tilec.ops.scalar import FUNCTIONS, convert
from tilec.ops.signature import Argument, Call, Parameter, Signature, as_expr, bind
from tilec.ops.values import (
    EXPR_TYPES,
    SWIZZLES,
    Access,
    Function,
    Handle,
    Member,
    Method,
    Pipeline,
    Stage,
    Swizzle,
    TileScheduler,
    Value,
    VectorType,
    describe,
)
from tilec.ops.vectors import converted
from tilec.ops.views import DATA
from tilec.support.diagnostics import fail

R = TypeVar("R")

_AS_TYPE = Signature(f".{CONVERTS}", (Parameter("dtype"),))
_SWIZZLED = Signature(
    "make_swizzled_layout", (Parameter("buffer"), Parameter("k_major", True), Parameter("allow_pad", True))
)


def call(context: Context, node: ast.Call) -> Value:
    """Evaluate a call and check the size of its value."""
    value = _called(context, node)
    context.budget.grow(value, node.span)
    return value


def _called(context: Context, node: ast.Call) -> Value:
    function = context.value(node.function)
    match function:
        case DType():
            return convert(_only(context, node, f"T.{function.name}"), function)
        case VectorType():
            return converted(_only(context, node, f"T.{function}"), function)
        case Method(owner=owner):
            return _METHODS.get(type(owner), _of_value)(context, function, node)
        case Function():
            return functions.called(context, function, *evaluate.arguments(context, node), node.span)
        case Member(path=path):
            reads = context.dispatch.values.get(path) or _ANYWHERE.get(path.rpartition(".")[2])
        case _:
            fail("not-callable", "this cannot be called", node.function.span, f"this is {describe(function)}")
    return (reads or context.dispatch.otherwise)(context, path, node)


def _only(context: Context, node: ast.Call, name: str) -> Argument:
    """Evaluate the one operand of a conversion."""
    if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
        fail("wrong-argument", f"{name}(x) takes one value", node.span)
    return evaluate.operand(context, node.args[0])


# ---- methods ---------------------------------------------------------------------------------------------------------


def _of_buffer(context: Context, function: Method, node: ast.Call) -> NoReturn:
    if function.name == DATA:
        fail("not-callable", f"`.{DATA}` is no function", node.function.span)
    fail("not-a-value", f".{function.name}() gives no value", node.span, help="write it as a statement")


def _of_value(context: Context, function: Method, node: ast.Call) -> Value:
    """Call a method of a Python value, or `astype`."""
    if function.name == CONVERTS:
        return _as_type(context, function, node)
    operands = _all_looked_at(context, node)
    context.budget.look(function.owner, node.span)
    result = python.method(function.owner, function.name, *operands, node.span)
    context.budget.look(result, node.span)
    return result


def _as_type(context: Context, function: Method, node: ast.Call) -> Value:
    """Evaluate `x.astype(dtype)` as T.cast."""
    call = bind(_AS_TYPE, *evaluate.operands(context, node), node.span)
    value = evaluate.read(context, Argument(function.owner, node.function.span))
    return FUNCTIONS["T.cast"].build(replace(call, arguments={"value": value, **call.arguments}))


_METHODS: dict[type, Callable[[Context, Method, ast.Call], Value]] = {
    TileScheduler: tile_scheduler.called,
    Pipeline: pipelines.called,
    Handle: pipelines.called,
    Stage: pipelines.called,
    LoopLayout: layout_maps.called,
    Buffer: _of_buffer,
    **dict.fromkeys((Access, *EXPR_TYPES), _as_type),
}
"""By the type of the method's owner."""


# ---- names of the language -------------------------------------------------------------------------------------------


def bound(
    signature: Signature, evaluate_bound: Callable[[Context, Call], R], takes_values: bool = False
) -> Callable[[Context, str, ast.Call], R]:
    """Make an evaluator that binds the arguments to a signature. `takes_values`: an indexed buffer among them is read
    as an element."""
    arguments = evaluate.operands if takes_values else evaluate.arguments
    return lambda context, path, node: evaluate_bound(context, bind(signature, *arguments(context, node), node.span))


def _swizzled(context: Context, path: str, node: ast.Call) -> Swizzle:
    bind(_SWIZZLED, *evaluate.arguments(context, node), node.span)
    return Swizzle(SWIZZLES[path.rpartition(".")[2]])


def _multiprocessors(context: Context, path: str, node: ast.Call) -> int:
    return context.multiprocessors()


def _tile_scheduler(context: Context, path: str, node: ast.Call) -> TileScheduler:
    return tile_scheduler.tile_scheduler(*evaluate.operands(context, node), node.span, context.multiprocessors())


def _function(context: Context, path: str, node: ast.Call) -> Value:
    function = FUNCTIONS[path]
    if not function.is_guarded:
        positional, keywords = evaluate.operands(context, node)
        if path in ("T.max", "T.min"):
            _refuse_reduction(path, positional, node)
        return function.build(bind(function.signature, positional, keywords, node.span))
    with context.guarded():
        arguments = _of_sides(context, function.signature, node)
    return function.build(bind(function.signature, *arguments, node.span))


def _refuse_reduction(path: str, positional: list[Argument], node: ast.Call) -> None:
    """Refuse the maximum or minimum of a whole tile, or of a part of one. With two values it is one of elements."""
    for argument in positional:
        value = argument.value
        buffer = value.buffer if isinstance(value, Access) and value.has_extent else value
        if not isinstance(buffer, Buffer):
            continue
        if len(positional) > 1:
            as_expr(argument)
        help_text = instead_of_method(path.removeprefix("T."), buffer.name, len(buffer.extents))
        fail("not-a-scalar", f"{path} takes two numbers, no tile", node.span, help=help_text)


def _of_sides(context: Context, signature: Signature, node: ast.Call) -> tuple[list[Argument], dict[str, Argument]]:
    """Evaluate the operands of T.if_then_else and its like: a condition, then sides of which one runs."""
    condition = signature.parameters[0].name
    sides = replace(node, args=node.args[1:], keywords=tuple(k for k in node.keywords if k.name != condition))
    chosen = replace(node, args=node.args[:1], keywords=tuple(k for k in node.keywords if k.name == condition))
    positional, condition_keywords = evaluate.operands(context, chosen)
    way_out = "write `if` and `else` around statements that do it"
    with reading.only_reading(context, f"one side of {signature.name}", node.span, way_out):
        side_operands, keywords = evaluate.operands(context, sides)
    return [*positional, *side_operands], {**condition_keywords, **keywords}


def _of_python(context: Context, path: str, node: ast.Call) -> Value:
    if path in python.IMMEDIATE:
        return python.call(path, *evaluate.operands(context, node), node.span)
    positional, keywords = _all_looked_at(context, node)
    if path in ("max", "min"):
        _refuse_reduction(path, positional, node)
    result = python.call(path, positional, keywords, node.span)
    context.budget.look(result, node.span)
    return result


def _all_looked_at(context: Context, node: ast.Call) -> tuple[list[Argument], dict[str, Argument]]:
    """Evaluate operands, and count all their parts in the budget."""
    positional, keywords = evaluate.operands(context, node)
    for argument in (*positional, *keywords.values()):
        context.budget.look(argument.value, argument.span)
    return positional, keywords


def unknown(context: Context, path: str, node: ast.Call) -> NoReturn:
    """Refuse the call of a name that has no value here."""
    refuse_call(path, node)


_ANYWHERE: dict[str, ReadsValue] = {**dict.fromkeys(SWIZZLES, _swizzled), "get_num_sms": _multiprocessors}
"""By the last word of a dotted name, whatever its module."""

AT_COMPILE_TIME: dict[str, ReadsValue] = {
    FRAGMENT.name: bound(FRAGMENT, fragment_layout),
    LAYOUT.name: bound(LAYOUT, index_map),
    tile_scheduler.SCHEDULER.name: _tile_scheduler,
    **dict.fromkeys(FUNCTIONS, _function),
    **dict.fromkeys(PRELUDE, prelude.called),
    **dict.fromkeys(python.NAMES, _of_python),
    prelude.REFUSE: prelude.refuse,
    **host_names.CALLS,
}
"""By dotted name: calls that have a value at the top of a file, too."""
