"""Functions of a kernel file that run at compile time: arguments bound, statements run.

All their values are known then, so that nothing of them is left in the kernel. A budget bounds their steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal, NoReturn

from tilec.frontend.sema.compile_time import macros, mutation
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.expressions import evaluate, reading
from tilec.frontend.sema.recover import poison_names
from tilec.frontend.sema.scope import Scope
from tilec.frontend.syntax import ast
from tilec.ops.functions import python
from tilec.ops.language import arithmetic
from tilec.ops.language.signature import Argument, find_nearest_name
from tilec.ops.language.values import Function, Member, Value, describe_value
from tilec.support.diagnostics import CompileError, Label, raise_error, suggest_replacement
from tilec.support.source import Span


def _bind_arguments(
    context: Context, function: Function, positional: Sequence[Argument], keywords: dict[str, Argument], span: Span
) -> Scope:
    """Return a new scope with the parameters bound to arguments or defaults; refuse wrong calls as Python does."""
    parameters, name = function.node.params, function.name
    scope = Scope(function.scope, name, is_function=True)
    rest, unbound, only_keywords = list(positional), dict(keywords), False
    for p in parameters:
        if p.kind == "**":
            raise_error("unsupported-syntax", "`**` cannot collect arguments here", p.span, help="name the parameters")
        if p.kind == "*":
            only_keywords = True
            if p.name:
                collected = tuple(a.value for a in rest)
                context.budget.look(collected, p.span)
                scope.bind(p.name, reading.snapshot_lazily(context, collected, span), p.span)
                rest = []
        elif rest and not only_keywords:
            if p.name in unbound:
                raise_error("duplicate-argument", f"{name} is given `{p.name}` twice", unbound[p.name].span)
            scope.bind(p.name, _hold_argument(context, rest.pop(0)).value, p.span)
        elif p.name in unbound:
            scope.bind(p.name, _hold_argument(context, unbound.pop(p.name)).value, p.span)
        elif p.default is not None:
            scope.bind(p.name, _evaluate_default(context, function, p), p.span)
        else:
            title = f"{name} needs `{p.name}`"
            raise_error("missing-argument", title, span, secondary=(Label(p.span, "declared here"),))
    if rest:
        raise_error("too-many-arguments", f"{name} takes {len(parameters)} arguments", rest[0].span)
    for key, argument in unbound.items():
        near = find_nearest_name(key, [p.name for p in parameters])
        help_text = f"did you mean {near}?" if near else None
        title = f"{name} has no parameter `{key}`"
        raise_error("unknown-keyword", title, argument.span, help=help_text, fix=suggest_replacement(key, near))
    return scope


def make_function(
    context: Context, node: ast.Function | ast.Lambda, kind: Literal["function", "macro", "kernel"] = "function"
) -> Function:
    """Return the function value of a `def` or `lambda`, with defaults evaluated now, except those that fail. A mistake
    in a default is reported by the calls that need it. Kernels keep no defaults.
    """
    defaults: dict[str, Value] = {}
    for p in node.params if kind != "kernel" else ():
        if p.default is not None:
            with suppress(CompileError):
                defaults[p.name] = reading.snapshot_lazily(context, context.value(p.default), p.span)
    return Function(node, context.scope, kind, defaults)


def _evaluate_default(context: Context, function: Function, p: ast.Parameter) -> Value:
    """Return a parameter's default: the value kept at the definition, else evaluated now in the function's scope."""
    assert p.default is not None
    if function.defaults and p.name in function.defaults:
        value: Value = function.defaults[p.name]
        return value
    with context.enter_scope(function.scope):
        return context.value(p.default)


def run_body(context: Context, body: Sequence[ast.Stmt]) -> Value:
    """Run statements at compile time up to a `return`, and return its value, or None without one."""
    try:
        for statement in body:
            run_statement(context, statement)
    except _FunctionReturn as returned:
        return returned.value
    return None


class _LoopJump(Exception):
    """A `break` or `continue`, on its way to the loop."""

    def __init__(self, is_break: bool) -> None:
        self.is_break = is_break


class _FunctionReturn(Exception):
    """A `return`, on its way to the call."""

    def __init__(self, value: Value) -> None:
        self.value = value


def run_function(context: Context, node: ast.Function) -> Value:
    """Run a function's body and return its value; the outermost function records mistakes and goes on. In a nested call
    the first mistake ends it.
    """
    is_outermost = context.budget.calls == 0
    try:
        for statement in node.body:
            try:
                run_statement(context, statement)
            except CompileError as error:
                if not is_outermost or isinstance(statement, ast.Return):
                    raise
                context.mistakes.add(error)
                poison_names(context.scope, statement)
    except _FunctionReturn as returned:
        return returned.value
    return None


def run_statement(context: Context, node: ast.Stmt) -> None:
    """Run one statement of a function at compile time; jumps unwind by exceptions, kernel-only statements are refused.
    Errors: `misplaced-statement`.
    """
    context.budget.step(node.span)
    match node:
        case ast.Return(value=value):
            raise _FunctionReturn(None if value is None else context.value(value))
        case ast.Assign(targets=targets, value=value):
            argument = evaluate.evaluate_operand(context, value)
            for target in targets:
                _assign_target(context, target, argument)
        case ast.AnnotatedAssign(target=target, value=value):
            if value is not None:
                _assign_target(context, target, evaluate.evaluate_operand(context, value))
        case ast.AugmentedAssign(target=target, op=op, value=value):
            old, moment = evaluate.evaluate_operand(context, target), reading.mark_moment(context)
            added = evaluate.evaluate_operand(context, value)
            result = arithmetic.apply_binary(op, reading.read_if_changed_since(context, old, moment), added, node.span)
            _assign_target(context, target, Argument(result, node.span))
        case ast.Import() if context.imports is not None:
            context.imports(context, node)
        case ast.If(condition=condition, then=then, orelse=orelse):
            for statement in then if evaluate.decide_condition(context, condition) else orelse:
                run_statement(context, statement)
        case ast.For(target=target, iterable=iterable, body=body):
            iterated = _hold_argument(context, evaluate.evaluate_operand(context, iterable))
            context.scope.iterated.append(iterated.value)
            for item in python.list_items(iterated.value, iterated.span):
                bind_target(context.scope, target, Argument(item, iterated.span))
                if not _run_iteration(context, body):
                    break
            context.scope.iterated.pop()
        case ast.While(condition=condition, body=body):
            while evaluate.decide_condition(context, condition) and _run_iteration(context, body):
                pass
        case ast.Break() | ast.Continue():
            raise _LoopJump(isinstance(node, ast.Break))
        case ast.Assert():
            check_assert(context, node)
        case ast.Raise():
            refuse_raise(context, node)
        case ast.Function():
            context.scope.bind(node.name, make_function(context, node, find_function_kind(node)), node.name_span)
        case ast.Evaluate(value=ast.Call() as call):
            if not mutation.try_mutating_call(context, call) and not _is_host_call(context, call):
                context.value(call)
        case ast.Evaluate(value=ast.String() | ast.Constant(name="...")) | ast.Pass():
            return
        case _:
            title = "this statement cannot run at compile time"
            way_out = "put it into a function under @T.prim_func or @T.macro"
            raise_error("misplaced-statement", title, node.span.first_line(), help=way_out)


def _hold_argument(context: Context, argument: Argument) -> Argument:
    """Return the argument with its value snapshotted, so that later changes of buffers do not show in it."""
    return Argument(reading.snapshot_lazily(context, argument.value, argument.span), argument.span)


def _assign_target(context: Context, target: ast.Expr, argument: Argument) -> None:
    """Assign a snapshot of a value to a name, a tuple of names, or an item of a list or dictionary."""
    if isinstance(target, ast.Subscript | ast.Attribute):
        argument = Argument(reading.snapshot_value(context, argument.value, argument.span), argument.span)
        mutation.assign_item(context, target, argument)
    else:
        bind_target(context.scope, target, _hold_argument(context, argument))


def _is_host_call(context: Context, call: ast.Call) -> bool:
    """Return whether a call is of a host module's member, as `tilelang.disable_cache()`, and not of `T.` or the
    prelude.
    """
    callee = context.value(call.function)
    return isinstance(callee, Member) and not callee.path.startswith(("T.", "prelude."))


def _run_iteration(context: Context, body: tuple[ast.Stmt, ...]) -> bool:
    """Run a loop body once at compile time, and return False if it ended with `break`."""
    try:
        for statement in body:
            run_statement(context, statement)
    except _LoopJump as left:
        return not left.is_break
    return True


def bind_target(scope: Scope, target: ast.Expr, argument: Argument) -> None:
    """Bind a name, or the names of a tuple target, to a value; raise `bad-target` for other targets."""
    match target:
        case ast.Name(id=name):
            scope.bind(name, argument.value, target.span, argument.span)
        case ast.Tuple(items=items) | ast.List(items=items):
            for item, value in pair_targets(items, argument, target.span):
                bind_target(scope, item, value)
        case _:
            raise_error("bad-target", "this cannot be assigned to", target.span, "at compile time, only names can")


def pair_targets(
    items: Sequence[ast.Expr | ast.Starred], argument: Argument, span: Span
) -> Iterator[tuple[ast.Expr, Argument]]:
    """Yield each target of `a, b = value` with its item of the value; refuse unequal counts and starred targets.
    Errors: `bad-target`.
    """
    value = argument.value
    if not isinstance(value, tuple):
        title = f"one value for {len(items)} names"
        raise_error("bad-target", title, span, secondary=(Label(argument.span, describe_value(value)),))
    if len(value) != len(items):
        raise_error("bad-target", f"{len(value)} values for {len(items)} names", span)
    for item, part in zip(items, value, strict=True):
        if isinstance(item, ast.Starred):
            raise_error("bad-target", "this cannot be assigned to", item.span)
        yield item, Argument(part, argument.span)


def check_assert(context: Context, node: ast.Assert) -> None:
    """Raise `assertion-failed` if an assertion's condition is false; refuse one not known at compile time."""
    condition = arithmetic.as_condition(evaluate.evaluate_argument(context, node.condition))
    if not isinstance(condition, bool):
        raise_error("not-a-constant", "an assertion must be known at compile time", node.condition.span)
    if not condition:
        message = None if node.message is None else context.value(node.message)
        note = (str(message),) if isinstance(message, str) else ()
        raise_error("assertion-failed", "the assertion does not hold", node.condition.span, notes=note)


def refuse_raise(context: Context, node: ast.Raise) -> NoReturn:
    """Report a `raise` statement of the file as `assertion-failed`, with its message if it is a string."""
    notes: tuple[str, ...] = ()
    match node.error:
        case ast.Call(args=(message,)) if not isinstance(message, ast.Starred):
            text = context.value(message)
            notes = (text,) if isinstance(text, str) else ()
        case _:
            pass
    raise_error("assertion-failed", "a `raise` of the file rejects these values", node.span, notes=notes)


def find_function_kind(node: ast.Function) -> Literal["function", "macro", "kernel"]:
    """Return "kernel", "macro" or "function", as the decorators of a function say."""
    if _is_decorated(node, "prim_func"):
        return "kernel"
    return "macro" if _is_decorated(node, "macro", "inline") else "function"


def is_launch(node: ast.Node) -> bool:
    """Return whether a node is a `with` statement over a call named `Kernel` or `ClusterKernel`."""
    match node:
        case ast.With(context=ast.Call(function=ast.Attribute(name=name) | ast.Name(id=name))):
            return name in ("Kernel", "ClusterKernel")
        case _:
            return False


def has_launch(function: ast.Function) -> bool:
    """Return whether a function's own body, without nested functions, contains a `with T.Kernel(…)`."""
    within = (s for s in function.body if not isinstance(s, ast.Function))
    return any(is_launch(node) for statement in within for node in ast.walk_nodes(statement))


def list_parameters(node: ast.Function) -> tuple[ast.Parameter, ...]:
    """Return the parameters of a function, without a bare `*` separator."""
    return tuple(p for p in node.params if p.name or p.kind != "*")


def is_eager(node: ast.Function) -> bool:
    """Return whether a function has a `jit` decorator and a launch in its own body: a kernel in the eager style."""
    return _is_decorated(node, "jit", "lazy_jit", "eager_jit") and has_launch(node)


def _is_decorated(node: ast.Function, *names: str) -> bool:
    """Return whether a decorator of the function, called or not, has one of these names as its last name."""
    return any(_get_last_name(decorator) in names for decorator in node.decorators)


def _get_last_name(node: ast.Expr) -> str | None:
    """Return the last name of a dotted name, or of the function that a call calls; None for other expressions."""
    match node:
        case ast.Attribute(name=name) | ast.Name(id=name):
            return name
        case ast.Call(function=function):
            return _get_last_name(function)
        case _:
            return None


def call_function(
    context: Context, function: Function, positional: list[Argument], keywords: dict[str, Argument], span: Span
) -> Value:
    """Call a function of the file and return its value; a macro's statements go into the kernel, kernels are refused.
    Outside a kernel a macro is refused, too.
    """
    node = function.node
    if isinstance(node, ast.Function) and function.kind == "macro" and context.dispatch.statements:
        positional, keywords = macros.resolve_reference_arguments(context, node, positional, keywords)
        inside = _enter_call(context, function, positional, keywords, span)
        with inside, context.pushed(context.calls, span), context.altered(iterations=[]):
            try:
                return macros.run_macro_body(context, node.body)
            except CompileError as error:
                raise error.called_from(span) from None
    if isinstance(node, ast.Function) and is_eager(node):
        raise_error("foreign-call", f"{function.name} is a kernel", span, "a program launches it")
    if function.kind == "kernel":
        raise_error("not-callable", f"{function.name} is a kernel", span, help="a kernel is launched, not called")
    if function.kind == "macro":
        way_out = "call a macro inside a kernel, as a statement or on the right of `=`"
        raise_error("not-a-value", f"{function.name} is a macro", span, help=way_out)
    with _enter_call(context, function, positional, keywords, span):
        if isinstance(node, ast.Lambda):
            return context.value(node.body)
        try:
            return run_function(context, node)
        except CompileError as error:
            raise error.called_from(span) from None


def run_lambda(
    context: Context,
    function: Function,
    positional: list[Argument],
    keywords: dict[str, Argument],
    span: Span,
    run: Callable[[ast.Call], None],
) -> None:
    """Call a lambda whose body is a call: bind its arguments and elaborate the body by `run`; refuse wrong ones."""
    assert isinstance(function.node, ast.Lambda) and isinstance(function.node.body, ast.Call)
    with _enter_call(context, function, positional, keywords, span):
        run(function.node.body)


@contextmanager
def _enter_call(
    context: Context, function: Function, positional: list[Argument], keywords: dict[str, Argument], span: Span
) -> Iterator[None]:
    """Bind the arguments in a new scope, and enter it and one level of the call budget for the `with`."""
    scope = _bind_arguments(context, function, positional, keywords, span)
    scope.given = {name: binding.value for name, binding in scope.names.items()}
    with context.budget.call(span), context.enter_scope(scope):
        yield
