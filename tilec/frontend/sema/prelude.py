"""Calls of functions that the prelude defines.

Diagnostics in a prelude function point into the kernel: at an argument of the call, or else at the call itself.
"""

from __future__ import annotations

from functools import cache

from tilec.frontend.prelude import read
from tilec.frontend.sema import evaluate, functions
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.scope import Binding, Scope, make_language_scope
from tilec.frontend.syntax import ast
from tilec.ops.signature import Argument, bind_arguments
from tilec.ops.values import Member, Value, describe_value
from tilec.support.diagnostics import raise_error
from tilec.support.source import NOWHERE, Span

REFUSE_PATH = "prelude.refuse"
"""The path of `refuse(parameter, "a tuple")`, by which the prelude refuses an argument. Kernels cannot call it."""


def call_prelude_function(context: Context, path: str, node: ast.Call) -> Value:
    """Evaluate a call of a prelude function."""
    definition = read.find_definition(path)
    call = bind_arguments(definition.signature, *evaluate.evaluate_operands(context, node), node.span)
    given = call.arguments
    if definition.signature.variadic:
        (name,) = definition.parameters
        given = {name: Argument(tuple(a.value for a in call.variadic), node.span)}
    scope = Scope(_make_prelude_scope(), path, is_function=True)
    for name, argument in given.items():
        scope.bind(name, argument.value, argument.span)

    def find_span(part: ast.Node) -> Span:
        argument = given.get(part.id) if isinstance(part, ast.Name) else None
        return node.span if argument is None else argument.span

    with context.enter_scope(scope):
        return functions.run_body(
            context, tuple(ast.replace_spans(statement, find_span) for statement in definition.body)
        )


@cache
def _make_prelude_scope() -> Scope:
    return Scope(make_language_scope(), "the prelude", names={"refuse": Binding(Member(REFUSE_PATH), NOWHERE)})


def refuse_argument(context: Context, path: str, node: ast.Call) -> Value:
    """Refuse an argument of a prelude function, as `refuse(parameter, wanted)` says."""
    parameter, wanted = evaluate.evaluate_items(context, node.args)
    name = node.args[0].id if isinstance(node.args[0], ast.Name) else "an argument"
    raise_error(
        "wrong-argument",
        f"{context.scope.region}: `{name}` must be {wanted.value}",
        parameter.span,
        f"this is {describe_value(parameter.value)}",
    )
