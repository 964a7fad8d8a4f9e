"""Elaboration of kernel statements to tile IR: resolves names, decides static conditions, checks operations."""

from __future__ import annotations

import math
from functools import partial
from typing import NoReturn

from tilec.frontend.sema.compile_time import functions, mutation
from tilec.frontend.sema.compile_time.functions import check_assert, find_function_kind, refuse_raise
from tilec.frontend.sema.context import Context, StatementElaborator
from tilec.frontend.sema.expressions import evaluate, host_names
from tilec.frontend.sema.launch.hints import HINTS, PIPELINE_METHOD, keep_pipeline_method
from tilec.frontend.sema.launch.schedule_descriptions import NAMED_STATEMENTS, make_schedule_description
from tilec.frontend.sema.loops import loops
from tilec.frontend.sema.loops.loop_headers import LOOP_BREAK
from tilec.frontend.sema.operations import emitter_methods, operations
from tilec.frontend.sema.roles import explicit_roles as roles, pipelines
from tilec.frontend.sema.statements import assignments, branches, jumps, per_thread, promises
from tilec.frontend.sema.vocabulary import list_supported_names, refuse_name
from tilec.frontend.syntax import ast
from tilec.ir.tile import Buffer
from tilec.ops.device_assert import DEVICE_ASSERT, DeviceAssert
from tilec.ops.language import arithmetic
from tilec.ops.language.signature import Argument, Parameter, Signature, bind_arguments
from tilec.ops.language.values import Function, Member, Method, MmaEmitter, TileScheduler, describe_value
from tilec.support.diagnostics import Fix, make_warning, raise_error

EVALUATE_SIGNATURE = Signature("T.evaluate", (Parameter("value"),))


# ---- expressions that stand alone ------------------------------------------------------------------------------------


def _elaborate_expression(context: Context, node: ast.Expr) -> None:
    """Elaborate a call that stands as a statement, or `items.append(value)` for a list of the kernel. Ignore a string,
    also `...`, and refuse any other expression.
    """
    if isinstance(node, ast.String) or (isinstance(node, ast.Constant) and node.name == "..."):
        return
    if not isinstance(node, ast.Call):
        value = context.value(node)
        called = f"write `{value.path}(…)`" if isinstance(value, Member) else None
        title = "this statement does nothing"
        raise_error("unused-value", title, node.span, f"this is {describe_value(value)}", help=called)
    if mutation.try_mutating_call(context, node):
        return
    function = context.value(node.function)
    if isinstance(function, Function):
        arguments = evaluate.evaluate_arguments(context, node)
        if isinstance(function.node, ast.Lambda) and isinstance(function.node.body, ast.Call):
            functions.run_lambda(context, function, *arguments, node.span, partial(_elaborate_expression, context))
        else:
            functions.call_function(context, function, *arguments, node.span)
    elif isinstance(function, Method) and _is_statement_method(context, function, node):
        context.value(node)
    elif isinstance(function, Method) and isinstance(function.owner, MmaEmitter):
        emitter_methods.elaborate_emitter_call(context, function, node)
    elif isinstance(function, Method) and isinstance(function.owner, Buffer):
        keep_pipeline_method(context.hints, function.owner, evaluate.bind_call(context, PIPELINE_METHOD, node))
    else:
        _elaborate_named_call(context, function.path if isinstance(function, Member) else "", node)


def _is_statement_method(context: Context, function: Method, node: ast.Call) -> bool:
    """Return whether a method call gives no value and so stands as a statement: of a pipeline, or a scheduler's
    `init`.
    """
    if isinstance(function.owner, TileScheduler):
        return function.name == "init"
    return function.name in pipelines.STATEMENT_METHODS and pipelines.is_pipeline_call(context, node)


def _elaborate_named_call(context: Context, path: str, node: ast.Call) -> None:
    """Elaborate a call of a language name as a statement: by its action or operation; warn of `print`, refuse
    others.
    """
    if (does := context.dispatch.actions.get(path)) is not None:
        does(context, path, node)
    elif (spelling := operations.find_spelling(path)) is not None:
        operations.elaborate_operation(context, spelling, path, node)
    else:
        name = node.function.id if isinstance(node.function, ast.Name) else ""
        if path == "print":
            title = "`print` prints nothing in a kernel"
            note = "left out"
            context.warn(make_warning("unused-value", title, node.span, note, help="write T.print to print on the GPU"))
            return
        if f"T.{name}" in list_supported_names():
            title = f"`{name}` does nothing in a kernel"
            raise_error("unused-value", title, node.span, help=f"did you mean T.{name}?", fix=Fix(name, f"T.{name}"))
        context.value(node)
        raise_error("unused-value", "the value of this call is not used", node.span)


def elaborate_evaluate_call(context: Context, path: str, node: ast.Call) -> None:
    """Elaborate the one argument of `T.evaluate(…)`: a call as a statement, any other value for its errors only;
    refuse any other number of arguments.
    """
    (inner,) = node.args if len(node.args) == 1 and not node.keywords else (None,)
    if inner is None or isinstance(inner, ast.Starred):
        raise_error("wrong-argument", "T.evaluate needs one value", node.span, help="write the call as a statement")
    if isinstance(inner, ast.Call):
        _elaborate_expression(context, inner)
    else:
        evaluate.evaluate_operand(context, inner)


def ignore_profiler_mark(context: Context, path: str, node: ast.Call) -> None:
    """Warn that a profiler's mark has no effect, and emit nothing for it."""
    title = f"{path.removeprefix('tilelang.tools.cuda.')} marks nothing"
    way_out = "profile the cubin by Nsight Compute"
    context.warn(make_warning("hint-not-used", title, node.span, "left out", help=way_out))


def record_hint(context: Context, path: str, node: ast.Call) -> None:
    """Record a hint call, as T.use_swizzle, in the context's hints; T.assume also makes promises."""
    found = HINTS[path]
    context.hints.threads = max(context.threads, math.prod(context.thread_extents))
    call = evaluate.bind_call(context, found.signature, node)
    found.keep(context.hints, call, context.warn)
    if path == "T.assume":
        promises.record_promises(context, call["condition"])


def elaborate_loop_break(context: Context, path: str, node: ast.Call) -> None:
    """Elaborate `T.loop_break()` as a `break` of the innermost loop."""
    evaluate.bind_call(context, LOOP_BREAK, node)
    jumps.elaborate_jump(context, ast.Break(span=node.span))


# ---- others ----------------------------------------------------------------------------------------------------------


def _elaborate_function(context: Context, node: ast.Function) -> None:
    """Bind the name of a function or macro that a kernel defines; refuse a kernel inside a kernel."""
    if find_function_kind(node) == "kernel":
        raise_error("misplaced-statement", "a kernel cannot contain another kernel", node.name_span)
    context.scope.bind(node.name, functions.make_function(context, node, find_function_kind(node)), node.name_span)


def _elaborate_with(context: Context, node: ast.With) -> None:
    """Elaborate a `with` inside the launch: of a pipeline, a role or a profiler's range; refuse any other."""
    call = node.context
    if not isinstance(call, ast.Call):
        raise_error("misplaced-statement", "this cannot be used in a `with`", call.span)
    with context.altered(with_depth=context.with_depth + 1):
        if pipelines.is_pipeline_call(context, call):
            pipelines.elaborate_pipeline_with(context, node, call)
        elif (path := evaluate.find_callee(context, call)) in roles.ROLE_SECTIONS:
            roles.elaborate_role_section(context, node, call)
        elif path == host_names.PROFILER_RANGE:
            ignore_profiler_mark(context, path, call)
            context.block(node.body)
        elif path == NAMED_STATEMENTS.name:
            make_schedule_description(evaluate.bind_call(context, NAMED_STATEMENTS, call))
            context.block(node.body)
        elif path is not None and path.startswith("T.") and path not in ("T.Kernel", "T.ClusterKernel"):
            refuse_name(path, call.function.span)
        else:
            raise_error("misplaced-statement", "T.Kernel is allowed once, directly in the function", call.span)


def _elaborate_import(context: Context, node: ast.Import | ast.Foreign) -> None:
    """Bind the names of an import in a function, or raise `misplaced-statement` where imports are not allowed."""
    if isinstance(node, ast.Import) and context.imports is not None:
        context.imports(context, node)
        return
    raise_error("misplaced-statement", "imports are allowed at the top of the file only", node.span)


def refuse_early_return(node: ast.Return) -> NoReturn:
    """Raise `misplaced-statement`: a kernel cannot be left early by `return`."""
    title = "a kernel cannot be left early by `return`"
    raise_error("misplaced-statement", title, node.span, help="put the following statements under an `if`")


def _refuse_return(context: Context, node: ast.Return) -> None:
    """Raise `misplaced-statement` for a `return` in a kernel's body, with or without a value."""
    if node.value is None:
        refuse_early_return(node)
    title = "a kernel returns nothing"
    raise_error("misplaced-statement", title, node.span, help="its results are the tensors it writes")


def _elaborate_assert(context: Context, node: ast.Assert) -> None:
    """Check an assertion known at compile time, else emit it for the threads or the T.Parallel elements that run it."""
    condition = evaluate.evaluate_operand(context, node.condition)
    if isinstance(arithmetic.as_condition(condition), bool):
        check_assert(context, node)
        return
    message = () if node.message is None else (Argument(context.value(node.message), node.message.span),)
    given = DEVICE_ASSERT.spellings[0]
    assert given.check is not None
    op = given.check(bind_arguments(given.signature, [condition, *message], {}, node.span))
    assert isinstance(op, DeviceAssert)
    per_thread.emit_assertion(context, op)


STATEMENT_ELABORATORS: dict[type[ast.Stmt], StatementElaborator] = {
    ast.Evaluate: lambda context, node: _elaborate_expression(context, node.value),
    ast.Assign: assignments.elaborate_assign,
    ast.AnnotatedAssign: assignments.elaborate_annotated_assign,
    ast.AugmentedAssign: assignments.elaborate_augmented_assign,
    ast.If: branches.elaborate_if,
    ast.For: loops.elaborate_for,
    ast.While: loops.elaborate_while,
    ast.Break: jumps.elaborate_jump,
    ast.Continue: jumps.elaborate_jump,
    ast.With: _elaborate_with,
    ast.Function: _elaborate_function,
    ast.Assert: _elaborate_assert,
    ast.Raise: refuse_raise,
    ast.Pass: lambda context, node: None,
    ast.Return: _refuse_return,
    ast.Import: _elaborate_import,
    ast.Foreign: _elaborate_import,
}
"""The elaborator of each kind of statement in a kernel."""
