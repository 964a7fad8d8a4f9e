"""Elaboration of kernel statements to tile IR: resolves names, decides static conditions, checks operations."""

from __future__ import annotations

import math
from typing import NoReturn

from tilec.frontend.sema import (
    assignments,
    branches,
    evaluate,
    explicit_roles as roles,
    functions,
    jumps,
    loop_statements,
    operations,
    per_thread,
    pipelines,
    promises,
)
from tilec.frontend.sema.context import Context, ReadsStatement
from tilec.frontend.sema.functions import check_assert, kind, refuse_raise
from tilec.frontend.sema.hints import HINTS, PIPELINE, staged
from tilec.frontend.sema.loops import LOOP_BREAK
from tilec.frontend.sema.vocabulary import refuse_name, supported_names
from tilec.frontend.syntax import ast
from tilec.ir.tile import Buffer
from tilec.ops import arithmetic
from tilec.ops.device_assert import DEVICE_ASSERT, DeviceAssert
from tilec.ops.signature import Argument, Parameter, Signature, bind
from tilec.ops.values import Function, Member, Method, TileScheduler, describe
from tilec.support.diagnostics import Fix, fail, warning

EVALUATE = Signature("T.evaluate", (Parameter("value"),))


# ---- expressions that stand alone ------------------------------------------------------------------------------------


def _evaluate(context: Context, node: ast.Evaluate) -> None:
    _carry_out(context, node.value)


def _carry_out(context: Context, node: ast.Expr) -> None:
    if isinstance(node, ast.String) or (isinstance(node, ast.Constant) and node.name == "..."):
        return
    if not isinstance(node, ast.Call):
        value = context.value(node)
        called = f"write `{value.path}(…)`" if isinstance(value, Member) else None
        fail("unused-value", "this statement does nothing", node.span, f"this is {describe(value)}", help=called)
    function = context.value(node.function)
    if isinstance(function, Function):
        functions.called(context, function, *evaluate.arguments(context, node), node.span)
    elif isinstance(function, Method) and _is_statement(context, function, node):
        context.value(node)
    elif isinstance(function, Method) and isinstance(function.owner, Buffer):
        staged(context.hints, function.owner, bind(PIPELINE, *evaluate.arguments(context, node), node.span))
    else:
        _named(context, function.path if isinstance(function, Member) else "", node)


def _is_statement(context: Context, function: Method, node: ast.Call) -> bool:
    """Return whether the method returns no value."""
    if isinstance(function.owner, TileScheduler):
        return function.name == "init"
    return function.name in pipelines.STATEMENTS and pipelines.is_entered(context, node)


def _named(context: Context, path: str, node: ast.Call) -> None:
    """Elaborate a call of a name of the language."""
    if (does := context.dispatch.actions.get(path)) is not None:
        does(context, path, node)
    elif (spelling := operations.spelling_of(path)) is not None:
        operations.operation(context, spelling, path, node)
    else:
        name = node.function.id if isinstance(node.function, ast.Name) else ""
        if path == "print":
            title = "`print` prints nothing in a kernel"
            context.warn(
                warning("unused-value", title, node.span, "left out", help="write T.print to print on the GPU")
            )
            return
        if f"T.{name}" in supported_names():
            title = f"`{name}` does nothing in a kernel"
            fail("unused-value", title, node.span, help=f"did you mean T.{name}?", fix=Fix(name, f"T.{name}"))
        context.value(node)
        fail("unused-value", "the value of this call is not used", node.span)


def evaluated(context: Context, path: str, node: ast.Call) -> None:
    """Elaborate T.evaluate: the call in it, as a statement."""
    (inner,) = node.args if len(node.args) == 1 and not node.keywords else (None,)
    if not isinstance(inner, ast.Call):
        fail("wrong-argument", "T.evaluate takes a call", node.span, help="write the call as a statement")
    _carry_out(context, inner)


def hint(context: Context, path: str, node: ast.Call) -> None:
    """Record a hint of `sema.hints`."""
    found = HINTS[path]
    context.hints.threads = max(context.threads, math.prod(context.thread_extents))
    call = bind(found.signature, *evaluate.arguments(context, node), node.span)
    found.keep(context.hints, call, context.warn)
    if path == "T.assume":
        promises.keep(context, call["condition"])


def loop_break(context: Context, path: str, node: ast.Call) -> None:
    bind(LOOP_BREAK, *evaluate.arguments(context, node), node.span)
    jumps.leave(context, ast.Break(node.span))


# ---- others ----------------------------------------------------------------------------------------------------------


def _pass(context: Context, node: ast.Pass) -> None:
    return


def _function(context: Context, node: ast.Function) -> None:
    if kind(node) == "kernel":
        fail("misplaced-statement", "a kernel cannot stand in a kernel", node.name_span)
    context.scope.bind(node.name, functions.defined(context, node, kind(node)), node.name_span)


def _with(context: Context, node: ast.With) -> None:
    if not isinstance(node.context, ast.Call):
        fail("misplaced-statement", "this cannot be entered", node.context.span)
    context.withs += 1
    try:
        if pipelines.is_entered(context, node.context):
            pipelines.entered(context, node, node.context)
        elif (path := evaluate.callee(context, node.context)) in roles.SECTIONS:
            roles.section(context, node, node.context)
        elif path is not None and path.startswith("T.") and path not in ("T.Kernel", "T.ClusterKernel"):
            refuse_name(path, node.context.function.span)
        else:
            fail("misplaced-statement", "T.Kernel stands once, directly in the function", node.context.span)
    finally:
        context.withs -= 1


def _import(context: Context, node: ast.Import | ast.Foreign) -> None:
    if isinstance(node, ast.Import) and context.imports is not None:
        context.imports(context, node)
        return
    fail("misplaced-statement", "imports stand at the top of the file", node.span)


def refuse_early_return(node: ast.Return) -> NoReturn:
    fail(
        "misplaced-statement",
        "a kernel runs to its end, and cannot be left by `return`",
        node.span,
        help="put what follows under an `if`",
    )


def _return(context: Context, node: ast.Return) -> None:
    if node.value is None:
        refuse_early_return(node)
    fail("misplaced-statement", "a kernel returns nothing", node.span, help="its results are the tensors it writes")


def _assert(context: Context, node: ast.Assert) -> None:
    """Decide an assertion at compile time if it is constant, and emit a T.device_assert otherwise."""
    condition = evaluate.operand(context, node.condition)
    if isinstance(arithmetic.condition(condition), bool):
        check_assert(context, node)
        return
    if context.is_parallel:
        fail(
            "tile-op-in-parallel",
            f"an assertion about run-time values cannot stand inside {context.nest_name}",
            node.span,
            help="move it out of the loop",
        )
    message = () if node.message is None else (Argument(context.value(node.message), node.message.span),)
    given = DEVICE_ASSERT.spellings[0]
    op = given.check(bind(given.signature, [condition, *message], {}, node.span))
    assert isinstance(op, DeviceAssert)
    context.out.append(per_thread.asserted(context, op))


STATEMENTS: dict[type[ast.Stmt], ReadsStatement] = {
    ast.Evaluate: _evaluate,
    ast.Assign: assignments.assign,
    ast.AnnotatedAssign: assignments.annotated,
    ast.AugmentedAssign: assignments.augmented,
    ast.If: branches.decide,
    ast.For: loop_statements.for_,
    ast.While: loop_statements.while_,
    ast.Break: jumps.leave,
    ast.Continue: jumps.leave,
    ast.With: _with,
    ast.Function: _function,
    ast.Assert: _assert,
    ast.Raise: refuse_raise,
    ast.Pass: _pass,
    ast.Return: _return,
    ast.Import: _import,
    ast.Foreign: _import,
}
"""The elaborator of each kind of statement in a kernel."""
