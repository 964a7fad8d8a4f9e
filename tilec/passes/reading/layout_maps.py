"""T.Fragment and T.Layout: their lambdas, applied to variables, become formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilec.diag import Label, fail
from tilec.ir.expr import cast
from tilec.ir.tile import LoopLayout, Var
from tilec.ir.types import INT32
from tilec.ops.signature import Argument, Call, Parameter, Signature, as_expr, as_shape
from tilec.ops.values import Function, IndexMap, Value
from tilec.passes.analysis.fold import fold_expr
from tilec.syntax import ast

if TYPE_CHECKING:
    from tilec.passes.reading.evaluate import Evaluator

FRAGMENT = Signature(
    "T.Fragment",
    (
        Parameter("shape"),
        Parameter("forward_fn", None),
        Parameter("forward_thread_fn", None),
        Parameter("replicate", 1, supported=False),
        Parameter("forward_index_fn", None),
    ),
)
LAYOUT = Signature("T.Layout", (Parameter("shape"), Parameter("forward_fn")))


def fragment_layout(evaluator: Evaluator, call: Call) -> LoopLayout:
    """T.Fragment: which thread has each element of a shape, and as its how-manieth."""
    shape = as_shape(call["shape"], "the shape of a layout")
    variables = tuple(Var(f"%{d}") for d in range(len(shape)))
    given = [key for key in ("forward_fn", "forward_thread_fn", "forward_index_fn") if call.is_given(key)]
    values = tuple(_applied(evaluator, call, key, variables) for key in given)
    pair = values[0] if given == ["forward_fn"] else (*values, None) if given == ["forward_thread_fn"] else values
    if not isinstance(pair, tuple) or len(pair) != 2:
        fail(
            "loop-layout",
            "T.Fragment needs a thread and an index for each element",
            call.span,
            help="write forward_fn=lambda i, j: (thread, index), or forward_thread_fn= and forward_index_fn=",
        )
    thread, index = (None if v is None else fold_expr(cast(as_expr(Argument(v, call.span)), INT32)) for v in pair)
    assert thread is not None
    return LoopLayout(shape, variables, thread, index, call.span)


def index_map(evaluator: Evaluator, call: Call) -> IndexMap:
    """T.Layout: where each element of a shape lies."""
    shape = as_shape(call["shape"], "the shape of a layout")
    variables = tuple(Var(f"%{d}") for d in range(len(shape)))
    value = _applied(evaluator, call, "forward_fn", variables)
    places = value if isinstance(value, tuple) else (value,)
    return IndexMap(shape, variables, tuple(fold_expr(cast(as_expr(Argument(v, call.span)), INT32)) for v in places))


def _applied(evaluator: Evaluator, call: Call, key: str, variables: tuple[Var, ...]) -> Value:
    """What a lambda gives for these arguments."""
    function = call[key].value
    if not isinstance(function, Function):
        call.refuse(key, "a lambda")
    assert isinstance(function, Function)
    node = function.node
    if not isinstance(node, ast.Lambda):
        return evaluator.called(function, [Argument(v, call[key].span) for v in variables], {}, call[key].span)
    needed = [p for p in node.params if p.default is None]
    if len(needed) != len(variables):
        count = f"{len(needed)} parameter{'s' * (len(needed) != 1)}"
        fail(
            "loop-layout",
            f"the lambda has {count}, the shape {len(variables)} dimension{'s' * (len(variables) != 1)}",
            node.span,
            secondary=(Label(call["shape"].span, "the shape"),),
        )
    return evaluator.called(function, [Argument(v, node.span) for v in variables], {}, node.span)
