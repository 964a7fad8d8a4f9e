"""Calls of functions that the prelude defines.

Diagnostics in a prelude function point into the kernel: at an argument of the call, or else at the call itself.
"""

from __future__ import annotations

from functools import cache

from tilec.frontend.prelude import read
from tilec.frontend.sema import evaluate, functions
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.scope import Binding, Scope, language
from tilec.frontend.syntax import ast
from tilec.ops.signature import Argument, bind
from tilec.ops.values import Member, Value, describe
from tilec.support.diagnostics import fail
from tilec.support.source import NOWHERE, Span

REFUSE = "prelude.refuse"
"""The path of `refuse(parameter, "a tuple")`, by which the prelude refuses an argument. Kernels cannot call it."""


def called(context: Context, path: str, node: ast.Call) -> Value:
    """Evaluate a call of a prelude function."""
    definition = read.definition(path)
    call = bind(definition.signature, *evaluate.operands(context, node), node.span)
    given = call.arguments
    if definition.signature.variadic:
        (name,) = definition.parameters
        given = {name: Argument(tuple(a.value for a in call.variadic), node.span)}
    scope = Scope(_names(), path, is_function=True)
    for name, argument in given.items():
        scope.bind(name, argument.value, argument.span)

    def place(part: ast.Node) -> Span:
        argument = given.get(part.id) if isinstance(part, ast.Name) else None
        return node.span if argument is None else argument.span

    with context.reading_in(scope):
        return functions.result(context, tuple(ast.placed(statement, place) for statement in definition.body))


@cache
def _names() -> Scope:
    return Scope(language(), "the prelude", names={"refuse": Binding(Member(REFUSE), NOWHERE)})


def refuse(context: Context, path: str, node: ast.Call) -> Value:
    """Refuse an argument of a prelude function, as `refuse(parameter, wanted)` says."""
    parameter, wanted = evaluate.listed(context, node.args)
    name = node.args[0].id if isinstance(node.args[0], ast.Name) else "an argument"
    fail(
        "wrong-argument",
        f"{context.scope.region}: `{name}` must be {wanted.value}",
        parameter.span,
        f"this is {describe(parameter.value)}",
    )
