"""T.Fragment and T.Layout: formulas, made by applying their lambdas to variables."""

from __future__ import annotations

from dataclasses import replace

from tilec.frontend.sema.compile_time import functions
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate
from tilec.frontend.syntax import ast
from tilec.ir import tile
from tilec.ir.expr import cast_expr
from tilec.ir.types import INT32
from tilec.ops.language.signature import Argument, Call, Parameter, Signature, as_expr, as_shape
from tilec.ops.language.values import Function, IndexMap, Method, Value
from tilec.passes.layout.fragments.loop_layout import build_iteration_table
from tilec.rewriting.fold_constants import fold_binary, fold_expr
from tilec.support.diagnostics import Label, raise_error

FRAGMENT_SIGNATURE = Signature("T.Fragment", (
    Parameter("shape"), Parameter("forward_fn", None), Parameter("forward_thread_fn", None), Parameter("replicate", 1),
    Parameter("forward_index_fn", None),
))  # fmt: skip
LAYOUT_SIGNATURE = Signature("T.Layout", (Parameter("shape"), Parameter("forward_fn")))


def make_fragment_layout(context: Context, call: Call) -> tile.LoopLayout:
    """Build T.Fragment's loop layout: formulas of each element's thread and index there, by its lambdas; refuse missing
    ones. Copies by `replicate=` are dropped where the formulas do not use the copy's number.
    """
    shape = as_shape(call["shape"], "the shape of a layout")
    copies = call.read_integer("replicate")
    if copies < 1:
        call.refuse("replicate", "a number of copies, at least 1")
    variables = tuple(tile.Var(f"%{d}") for d in range(len(shape)))
    copy_var = tile.Var(f"%{len(shape)}") if copies > 1 else None
    keys = [key for key in ("forward_fn", "forward_thread_fn", "forward_index_fn") if call[key].value is not None]
    values = tuple(_apply_lambda(context, call, key, variables, copy_var) for key in keys)
    pair = values[0] if keys == ["forward_fn"] else (*values, None) if keys == ["forward_thread_fn"] else values
    if not isinstance(pair, tuple) or len(pair) != 2:
        way_out = "write forward_fn=lambda i, j: (thread, index), or forward_thread_fn= and forward_index_fn="
        raise_error("loop-layout", "T.Fragment needs a thread and an index for each element", call.span, help=way_out)
    thread, index = (None if v is None else fold_expr(cast_expr(as_expr(Argument(v, call.span)), INT32)) for v in pair)
    assert thread is not None
    if copy_var is not None and not any(copy_var in tile.walk_expr(e) for e in (thread, index) if e is not None):
        copies, copy_var = 1, None  # the layout does not depend on the copy
    return tile.LoopLayout(shape, (*variables, *((copy_var,) if copy_var else ())), thread, index, call.span, copies)


_REPEAT_PARAMETERS = (Parameter("repeats"), Parameter("repeat_on_thread", False), Parameter("lower_dim_first", True))
LAYOUT_METHODS = {
    "repeat": Signature(".repeat", _REPEAT_PARAMETERS),
    "replicate": Signature(".replicate", (Parameter("replicate"),)),
}
"""`layout.repeat([4, 1])` and `layout.replicate(2)`."""


def call_layout_method(context: Context, method: Method, node: ast.Call) -> tile.LoopLayout:
    """Return the new layout that `layout.repeat(…)` or `layout.replicate(…)` makes."""
    layout = method.owner
    assert isinstance(layout, tile.LoopLayout)
    call = evaluate.bind_call(context, LAYOUT_METHODS[method.name], node)
    return _repeat_layout(layout, call) if method.name == "repeat" else _replicate_layout(layout, call)


def _repeat_layout(layout: tile.LoopLayout, call: Call) -> tile.LoopLayout:
    """Return a layout repeated along its dimensions, at further indices or on further threads; refuse `repeats` of
    another rank. The repetitions of the last dimension follow each other first, or those of the first one.
    """
    repeats = as_shape(call["repeats"], "the repetitions of a layout")
    if len(repeats) != len(layout.shape):
        note = f"{len(repeats)} for {len(layout.shape)} dimension{'s' * (len(layout.shape) != 1)}"
        raise_error("loop-layout", "a number of repetitions for each dimension is needed", call["repeats"].span, note)
    variables = layout.vars[: len(repeats)]
    wrapped = {v: fold_binary("floormod", v, e) for v, e in zip(variables, layout.shape, strict=True)}
    repetition: tile.Expr = tile.int32_const(0)
    stride = 1
    dims = range(len(repeats))
    for d in reversed(dims) if call.read_boolean("lower_dim_first") else dims:
        part = fold_binary("mul", fold_binary("floordiv", variables[d], layout.shape[d]), stride)
        repetition, stride = fold_binary("add", repetition, part), stride * repeats[d]
    thread = tile.substitute_variables(layout.thread, wrapped)
    index = layout.index and tile.substitute_variables(layout.index, wrapped)
    threads, numbers = (1 + max(place[side] for place in build_iteration_table(layout)) for side in (0, 1))
    if call.read_boolean("repeat_on_thread"):
        thread = fold_binary("add", thread, fold_binary("mul", repetition, threads))
    elif index is not None:
        index = fold_binary("add", index, fold_binary("mul", repetition, numbers))
    shape = tuple(e * r for e, r in zip(layout.shape, repeats, strict=True))
    return replace(layout, shape=shape, thread=fold_expr(thread), index=index, span=call.span)


def _replicate_layout(layout: tile.LoopLayout, call: Call) -> tile.LoopLayout:
    """Return a layout with `replicate` times the copies of each element, in further threads; itself for 1; refuse less
    than 1.
    """
    times = call.read_integer("replicate")
    if times < 1:
        call.refuse("replicate", "a number of copies, at least 1")
    if times == 1:
        return layout
    threads = 1 + max(thread for thread, _ in build_iteration_table(layout))
    copy = tile.Var(f"%{len(layout.shape)}")
    copy_index: tile.Expr = copy
    thread, index = layout.thread, layout.index
    if layout.copies > 1:
        copy_index = fold_binary("floordiv", copy, layout.copies)
        wrapped = {copy: fold_binary("floormod", copy, layout.copies)}
        thread, index = tile.substitute_variables(thread, wrapped), index and tile.substitute_variables(index, wrapped)
    thread = fold_binary("add", thread, fold_binary("mul", copy_index, threads))
    variables = (*layout.vars[: len(layout.shape)], copy)
    return replace(layout, vars=variables, thread=thread, index=index, copies=layout.copies * times, span=call.span)


def make_index_map(context: Context, call: Call) -> IndexMap:
    """Build the index map of T.Layout: the int32 coordinates that its lambda gives an element of the shape."""
    shape = as_shape(call["shape"], "the shape of a layout")
    variables = tuple(tile.Var(f"%{d}") for d in range(len(shape)))
    value = _apply_lambda(context, call, "forward_fn", variables)
    places = value if isinstance(value, tuple) else (value,)
    exprs = (as_expr(Argument(v, call.span)) for v in places)
    return IndexMap(shape, variables, tuple(fold_expr(cast_expr(e, INT32)) for e in exprs))


def _apply_lambda(
    context: Context, call: Call, key: str, variables: tuple[tile.Var, ...], copy_var: tile.Var | None = None
) -> Value:
    """Call a layout's lambda on index variables, and on `copy_var` for one parameter more; refuse another number of
    parameters. Refused is also a value that is no function.
    """
    function = call[key].value
    if not isinstance(function, Function):
        call.refuse(key, "a lambda")
    node = function.node
    if not isinstance(node, ast.Lambda):
        if copy_var is not None and len(node.params) > len(variables):
            variables = (*variables, copy_var)
        values = [Argument(v, call[key].span) for v in variables]
        return functions.call_function(context, function, values, {}, call[key].span)
    if any(p.kind == "*" for p in node.params):
        return functions.call_function(context, function, [Argument(v, node.span) for v in variables], {}, node.span)
    needed = [p for p in node.params if p.default is None]
    if copy_var is not None and len(needed) == len(variables) + 1:
        variables = (*variables, copy_var)
    if len(needed) != len(variables):
        count = f"{len(needed)} parameter{'s' * (len(needed) != 1)}"
        title = f"the lambda has {count}, the shape {len(variables)} dimension{'s' * (len(variables) != 1)}"
        raise_error("loop-layout", title, node.span, secondary=(Label(call["shape"].span, "the shape"),))
    return functions.call_function(context, function, [Argument(v, node.span) for v in variables], {}, node.span)
