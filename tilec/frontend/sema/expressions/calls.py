"""Evaluation of calls, by the kind of what is called, the prelude's functions too; and the table of names known at
compile time.

Diagnostics in a prelude function point into the kernel: at an argument of the call, or else at the call itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NoReturn, TypeVar

from tilec.frontend.prelude import read
from tilec.frontend.prelude.read import FILE_BY_NAME as PRELUDE
from tilec.frontend.sema.compile_time import functions
from tilec.frontend.sema.context import CallEvaluator, Context
from tilec.frontend.sema.expressions import evaluate, host_names, layout_maps, reading
from tilec.frontend.sema.expressions.emitters import EMITTER_SIGNATURE, make_emitter
from tilec.frontend.sema.expressions.layout_maps import (
    FRAGMENT_SIGNATURE,
    LAYOUT_SIGNATURE,
    make_fragment_layout,
    make_index_map,
)
from tilec.frontend.sema.launch.schedule_descriptions import SCHEDULE_SIGNATURES, make_schedule_description
from tilec.frontend.sema.loops import tile_scheduler
from tilec.frontend.sema.roles import pipelines
from tilec.frontend.sema.scope import Binding, Scope, make_language_scope
from tilec.frontend.sema.vocabulary import refuse_call
from tilec.frontend.syntax import ast
from tilec.ir.tile import Buffer, LoopLayout
from tilec.ir.types import DType
from tilec.ops.functions import python
from tilec.ops.functions.python import CONVERSION_METHOD
from tilec.ops.functions.scalar import FUNCTIONS, build_cast, convert_to_dtype
from tilec.ops.functions.signatures import DATA
from tilec.ops.language import values
from tilec.ops.language.other_languages import suggest_method_replacement
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_expr, bind_arguments
from tilec.ops.language.vectors import convert_vector
from tilec.support.diagnostics import CompileError, raise_error
from tilec.support.source import NOWHERE, Span

REFUSE_PATH = "prelude.refuse"
"""The path of `refuse(parameter, "a tuple")`, by which the prelude refuses an argument. Kernels cannot call it."""


def call_prelude_function(context: Context, path: str, node: ast.Call) -> values.Value:
    """Run the body of a prelude function at compile time on a call's arguments, with spans in the kernel's text."""
    definition = read.find_definition(path)
    call = evaluate.bind_operands(context, definition.signature, node)
    given = call.arguments
    if definition.signature.variadic:
        (name,) = definition.parameters
        given = {name: Argument(tuple(a.value for a in call.variadic), node.span)}
    scope = Scope(_make_prelude_scope(), path, is_function=True)
    for name, argument in given.items():
        scope.bind(name, argument.value, argument.span)

    def find_span(part: ast.Node) -> Span:
        """Return the span of the argument that a name stands for, or that of the whole call."""
        argument = given.get(part.id) if isinstance(part, ast.Name) else None
        return node.span if argument is None else argument.span

    with context.enter_scope(scope):
        return functions.run_body(
            context, tuple(ast.replace_spans(statement, find_span) for statement in definition.body)
        )


@cache
def _make_prelude_scope() -> Scope:
    """Make, once, the scope of prelude functions: the language's names and `refuse`."""
    return Scope(make_language_scope(), "the prelude", names={"refuse": Binding(values.Member(REFUSE_PATH), NOWHERE)})


def refuse_argument(context: Context, path: str, node: ast.Call) -> values.Value:
    """Raise `wrong-argument` for the prelude's `refuse(parameter, wanted)`, pointing at the kernel's argument."""
    parameter, wanted = evaluate.evaluate_items(context, node.args)
    name = node.args[0].id if isinstance(node.args[0], ast.Name) else "an argument"
    title = f"{context.scope.region}: `{name}` must be {wanted.value}"
    raise_error("wrong-argument", title, parameter.span, f"this is {values.describe_value(parameter.value)}")


R = TypeVar("R")
_ASTYPE_SIGNATURE = Signature(f".{CONVERSION_METHOD}", (Parameter("dtype"),))
_SWIZZLED_SIGNATURE = Signature(
    "make_swizzled_layout", (Parameter("buffer"), Parameter("k_major", True), Parameter("allow_pad", True))
)


def evaluate_call(context: Context, node: ast.Call) -> values.Value:
    """Evaluate a call expression and return its value; raise an error if it is too large a run-time expression."""
    return context.budget.check_expression_size(_dispatch_call(context, node), node.span)


def _dispatch_call(context: Context, node: ast.Call) -> values.Value:
    """Evaluate a call as a conversion, method, function of the file or named operation, by its callee's value; refuse
    others.
    """
    function = context.value(node.function)
    match function:
        case DType():
            return convert_to_dtype(_evaluate_only_operand(context, node, f"T.{function.name}"), function)
        case values.VectorType():
            return convert_vector(_evaluate_only_operand(context, node, f"T.{function}"), function)
        case values.Method(owner=owner):
            return _METHOD_EVALUATORS.get(type(owner), _call_value_method)(context, function, node)
        case values.Function():
            return functions.call_function(context, function, *evaluate.evaluate_arguments(context, node), node.span)
        case values.Member(path=path):
            reads = context.dispatch.values.get(path) or _CALLS_BY_LAST_WORD.get(path.rpartition(".")[2])
        case _:
            title = "this cannot be called"
            raise_error("not-callable", title, node.function.span, f"this is {values.describe_value(function)}")
    return (reads or context.dispatch.default_call)(context, path, node)


def _evaluate_only_operand(context: Context, node: ast.Call, name: str) -> Argument:
    """Return the single positional operand of a conversion, with elements read; refuse any other arguments."""
    if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
        raise_error("wrong-argument", f"{name}(x) takes one value", node.span)
    return evaluate.evaluate_operand(context, node.args[0])


# ---- methods ---------------------------------------------------------------------------------------------------------


def _refuse_statement_method(context: Context, function: values.Method, node: ast.Call) -> NoReturn:
    """Raise an error for a method used as a value: `tile.pipeline(…)`, `emitter.mma(…)` or `tile.data(…)`."""
    if function.name == DATA:
        raise_error("not-callable", f"`.{DATA}` is not a function", node.function.span)
    raise_error("not-a-value", f".{function.name}() gives no value", node.span, help="write it as a statement")


def _call_value_method(context: Context, function: values.Method, node: ast.Call) -> values.Value:
    """Call a method of a Python value, as `text.upper()`, and charge the budget; `astype` is a cast instead."""
    if function.name == CONVERSION_METHOD:
        return _evaluate_astype(context, function, node)
    operands = _evaluate_counted_operands(context, node)
    context.budget.look(function.owner, node.span)
    return context.budget.look(python.call_method(function.owner, function.name, *operands, node.span), node.span)


def _evaluate_astype(context: Context, function: values.Method, node: ast.Call) -> values.Value:
    """Return the cast that `x.astype(dtype)` asks for, as T.cast does."""
    call = evaluate.bind_operands(context, _ASTYPE_SIGNATURE, node)
    value = evaluate.read_element(context, Argument(function.owner, node.function.span))
    return build_cast(replace(call, arguments={"value": value, **call.arguments}))


_METHOD_EVALUATORS: dict[type, Callable[[Context, values.Method, ast.Call], values.Value]] = {
    values.TileScheduler: tile_scheduler.call_scheduler_method,
    **dict.fromkeys((values.Pipeline, values.PipelineHandle, values.PipelineStage), pipelines.call_pipeline_method),
    LoopLayout: layout_maps.call_layout_method,
    **dict.fromkeys((Buffer, values.MmaEmitter), _refuse_statement_method),
    **dict.fromkeys((values.Access, *values.EXPR_TYPES), _evaluate_astype),
}
"""By the type of the method's owner."""


# ---- names of the language -------------------------------------------------------------------------------------------


def bind_signatures(
    evaluate_bound: Callable[[Context, Call], R], *signatures: Signature, takes_values: bool = False
) -> dict[str, Callable[[Context, str, ast.Call], R]]:
    """Make, by the name of each signature, a call evaluator that binds the arguments to it and passes the bound call
    on. `takes_values`: an indexed buffer among them is read as an element.
    """
    bind = evaluate.bind_operands if takes_values else evaluate.bind_call

    def bind_signature(signature: Signature) -> Callable[[Context, str, ast.Call], R]:
        """Make the call evaluator of one signature."""
        return lambda context, path, node: evaluate_bound(context, bind(context, signature, node))

    return {signature.name: bind_signature(signature) for signature in signatures}


def _evaluate_swizzled_layout(context: Context, path: str, node: ast.Call) -> values.Swizzle:
    """Return the swizzle that a `make_…swizzled_layout(buffer)` call names by its function's name."""
    evaluate.bind_call(context, _SWIZZLED_SIGNATURE, node)
    return values.Swizzle(values.SWIZZLES[path.rpartition(".")[2]])


def _evaluate_tile_scheduler(context: Context, path: str, node: ast.Call) -> values.TileScheduler:
    """Make the tile scheduler of a call, with the GPU's number of multiprocessors as its default."""
    operands = evaluate.evaluate_operands(context, node)
    return tile_scheduler.make_tile_scheduler(*operands, node.span, context.machine.multiprocessors())


def _evaluate_scalar_function(context: Context, path: str, node: ast.Call) -> values.Value:
    """Evaluate a scalar function such as T.max; refuse tiles for T.max and T.min, and side effects in T.if_then_else's
    sides.
    """
    function = FUNCTIONS[path]
    if not function.is_guarded:
        positional, keywords = evaluate.evaluate_operands(context, node)
        if path in ("T.max", "T.min"):
            _refuse_tile_operand(path, positional, node)
        return function.build(bind_arguments(function.signature, positional, keywords, node.span))
    with context.guarded():
        arguments = _evaluate_guarded_operands(context, function.signature, node)
    return function.build(bind_arguments(function.signature, *arguments, node.span))


def _refuse_tile_operand(path: str, positional: list[Argument], node: ast.Call) -> None:
    """Raise `not-a-scalar` if T.max or T.min is given a tile or a part of one, and suggest a reduction."""
    for argument in positional:
        value = argument.value
        buffer = value.buffer if isinstance(value, values.Access) and value.has_extent else value
        if not isinstance(buffer, Buffer):
            continue
        if len(positional) > 1:
            as_expr(argument)
        help_text = suggest_method_replacement(path.removeprefix("T."), buffer.name, len(buffer.extents))
        raise_error("not-a-scalar", f"{path} takes two numbers, not tiles", node.span, help=help_text)


def _evaluate_guarded_operands(
    context: Context, signature: Signature, node: ast.Call
) -> tuple[list[Argument], dict[str, Argument]]:
    """Evaluate the condition, then the sides, of T.if_then_else and its like; refuse side effects in a side."""
    condition = signature.parameters[0].name
    sides = replace(node, args=node.args[1:], keywords=tuple(k for k in node.keywords if k.name != condition))
    chosen = replace(node, args=node.args[:1], keywords=tuple(k for k in node.keywords if k.name == condition))
    positional, condition_keywords = evaluate.evaluate_operands(context, chosen)
    way_out = "use `if` and `else` statements instead"
    with reading.refuse_side_effects(context, f"one side of {signature.name}", node.span, way_out):
        side_operands, keywords = evaluate.evaluate_operands(context, sides)
    return [*positional, *side_operands], {**condition_keywords, **keywords}


def _evaluate_builtin(context: Context, path: str, node: ast.Call) -> values.Value:
    """Evaluate a Python built-in such as `len`, charging the budget unless it takes constant time; refuse tiles for
    `max`.
    """
    if path in python.CONSTANT_TIME_NAMES:
        return python.call_builtin(path, *evaluate.evaluate_operands(context, node), node.span)
    positional, keywords = _evaluate_counted_operands(context, node)
    if path in ("max", "min"):
        _refuse_tile_operand(path, positional, node)
    return context.budget.look(python.call_builtin(path, positional, keywords, node.span), node.span)


def _evaluate_counted_operands(context: Context, node: ast.Call) -> tuple[list[Argument], dict[str, Argument]]:
    """Evaluate a call's operands, positional and keyword, and charge the budget for all their parts."""
    positional, keywords = evaluate.evaluate_operands(context, node)
    for argument in (*positional, *keywords.values()):
        context.budget.look(argument.value, argument.span)
    return positional, keywords


def _evaluate_attribute_function(context: Context, path: str, node: ast.Call) -> values.Value:
    """Evaluate `getattr(owner, name[, default])` or `hasattr(owner, name)`; a bad owner is still an error."""
    counts = (2,) if path == "hasattr" else (2, 3)
    arguments = [a for a in node.args if not isinstance(a, ast.Starred)]
    if len(arguments) not in counts or len(arguments) < len(node.args) or node.keywords:
        takes = " or ".join(map(str, counts))
        raise_error("wrong-argument", f"{path}() takes {takes} arguments", node.span)
    owner, name, *default = arguments
    text = context.value(name)
    if not isinstance(text, str):
        note = f"this is {values.describe_value(text)}"
        raise_error("wrong-argument", f"{path}() takes the name of the attribute as a string", name.span, note)
    attribute = ast.Attribute(owner, text, span=node.span)
    if path == "getattr" and not default:
        return context.value(attribute)
    try:
        found = context.value(attribute)
    except CompileError:
        context.value(owner)  # a mistake in the owner is one
        return context.value(default[0]) if default else False
    return found if default else True


def refuse_unknown_call(context: Context, path: str, node: ast.Call) -> NoReturn:
    """Raise the error for a call of a name that has no value at the top of a file."""
    refuse_call(path, node)


_CALLS_BY_LAST_WORD: dict[str, CallEvaluator] = {
    **dict.fromkeys(values.SWIZZLES, _evaluate_swizzled_layout),
    "get_num_sms": lambda context, path, node: context.machine.multiprocessors(),
}
"""By the last word of a dotted name, whatever its module."""

COMPILE_TIME_CALLS: dict[str, CallEvaluator] = {
    **bind_signatures(make_fragment_layout, FRAGMENT_SIGNATURE),
    **bind_signatures(make_index_map, LAYOUT_SIGNATURE),
    **bind_signatures(make_emitter, EMITTER_SIGNATURE),
    **bind_signatures(lambda context, call: make_schedule_description(call), *SCHEDULE_SIGNATURES),
    tile_scheduler.SCHEDULER_SIGNATURE.name: _evaluate_tile_scheduler,
    **dict.fromkeys(FUNCTIONS, _evaluate_scalar_function),
    **dict.fromkeys(PRELUDE, call_prelude_function),
    **dict.fromkeys(python.BUILTIN_NAMES, _evaluate_builtin),
    **dict.fromkeys(("getattr", "hasattr"), _evaluate_attribute_function),
    REFUSE_PATH: refuse_argument,
    **host_names.HOST_CALLS,
}
"""By dotted name: calls that have a value at the top of a file, too."""
