"""Syntax tree to tile IR: constants evaluated (-D replaces them), the kernels of a file chosen and elaborated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypedDict

from tilec.frontend.sema import configs
from tilec.frontend.sema.constants import Constants, Define, Defines
from tilec.frontend.sema.context import Context
from tilec.frontend.sema.dispatch import KERNEL
from tilec.frontend.sema.eager import Eager
from tilec.frontend.sema.functions import is_eager, kind, named, run_function
from tilec.frontend.sema.launch import Incomplete, header, kernel
from tilec.frontend.sema.per_thread import settled
from tilec.frontend.sema.scope import Bound, Scope
from tilec.frontend.syntax import ast
from tilec.ir.tile import Ask, Kernel
from tilec.ops.signature import Argument, nearest
from tilec.ops.values import Function, describe
from tilec.support.diagnostics import CompileError, Label, Mistakes, Warn, fail, unheard
from tilec.support.source import SourceFile, Span

Style = Literal["bare", "factory", "eager"]
"""A kernel itself, a function that returns one, or a function under @tilelang.jit that is one."""


class _Anew(TypedDict):
    """What evaluates the top of the file and what evaluates its kernels have in common."""

    mistakes: Mistakes
    multiprocessors: Callable[[], int]
    default_cluster: tuple[int, int, int]


_NO_FILES: Mapping[str, ast.Module] = {}


def entries(module: ast.Module) -> tuple[str, ...]:
    """The names of the kernels in a file, in order."""
    return tuple(f.name for f in _kernels(module))


def elaborate(
    module: ast.Module,
    source: SourceFile,
    defines: Mapping[str, Define] | None = None,
    entry: str | None = None,
    warn: Warn = unheard,
    files: Mapping[str, ast.Module] = _NO_FILES,
    multiprocessors: Callable[[], int] = lambda: 1,
    default_cluster: tuple[int, int, int] = (1, 1, 1),
) -> Kernel:
    """The kernel `entry`, or the only one, as tile IR. `defines` replace constants of the file; `warn` is told what is
    odd but not wrong; `files` are those that it imports; `multiprocessors` says how many the GPU has, and
    `default_cluster` in what clusters of blocks a kernel runs that does not say."""
    functions = (_choose(module, source, entry),)
    (only,) = _elaborated(module, functions, defines, warn, files, multiprocessors, default_cluster)
    return only


def elaborate_all(
    module: ast.Module,
    source: SourceFile,
    defines: Mapping[str, Define] | None = None,
    entry: str | None = None,
    warn: Warn = unheard,
    files: Mapping[str, ast.Module] = _NO_FILES,
    multiprocessors: Callable[[], int] = lambda: 1,
    default_cluster: tuple[int, int, int] = (1, 1, 1),
    mistakes: Mistakes | None = None,
    bound: Bound | None = None,
) -> tuple[Kernel, ...]:
    """Every kernel of the file, or that called `entry`. Given `mistakes`, what is wrong is added there, and a kernel is
    what that leaves of it. `bound` is told what each name is given."""
    functions = _kernels(module) if entry is None else ()
    functions = functions or [_choose(module, source, entry)]
    return _elaborated(module, functions, defines, warn, files, multiprocessors, default_cluster, mistakes, bound)


# ---- which kernel ----------------------------------------------------------------------------------------------------


def _style(function: ast.Function) -> Style | None:
    if kind(function) == "kernel":
        return "bare"
    if any(isinstance(n, ast.Function) and kind(n) == "kernel" for n in ast.walk(function)):
        return "factory"
    return "eager" if is_eager(function) else None


def _kernels(module: ast.Module) -> list[ast.Function]:
    return [s for s in module.body if isinstance(s, ast.Function) and _style(s) is not None]


def _others(module: ast.Module, function: ast.Function) -> set[str]:
    """What the other kernels of the file are called. Where functions make kernels of one name, as `main`, these are
    called as the functions."""
    others = (f for f in _kernels(module) if f is not function)
    return {n.name for f in others for n in ast.walk(f) if isinstance(n, ast.Function) and kind(n) == "kernel"}


def _choose(module: ast.Module, source: SourceFile, entry: str | None) -> ast.Function:
    kernels = {f.name: f for f in _kernels(module)}
    if entry is not None:
        if entry not in kernels:
            near = nearest(entry, kernels)
            help_text = f"did you mean {near}?" if near else f"the file has {', '.join(kernels) or 'none'}"
            fail("unknown-entry", f"{source.path} has no kernel {entry}", help=help_text)
        return kernels[entry]
    if not kernels:
        function = next((s for s in module.body if isinstance(s, ast.Function)), None)
        fail(
            "no-kernel",
            f"{source.path} has no kernel",
            function.name_span if function else None,
            "a function, but not a kernel" if function else "",
            help="write @T.prim_func above the function",
        )
    if len(kernels) > 1:
        first, *others = kernels.values()
        fail(
            "ambiguous-entry",
            f"{source.path} has {len(kernels)} kernels",
            first.name_span,
            "one of them",
            secondary=tuple(Label(f.name_span, "another") for f in others),
            help=f"choose with --entry {first.name}",
        )
    (only,) = kernels.values()
    return only


# ---- the kernels -----------------------------------------------------------------------------------------------------


def _elaborated(
    module: ast.Module,
    functions: Sequence[ast.Function],
    given: Mapping[str, Define] | None,
    warn: Warn,
    files: Mapping[str, ast.Module],
    multiprocessors: Callable[[], int],
    default_cluster: tuple[int, int, int],
    known: Mistakes | None = None,
    bound: Bound | None = None,
) -> tuple[Kernel, ...]:
    """The kernels of these functions, or what is wrong with any of them and with the file around them."""
    mistakes = known or Mistakes()
    arguments = {p.name for f in functions if _style(f) != "bare" for p in named(f)}
    defines = Defines(given or {}, parameters=arguments)
    constants = Constants(defines, files, mistakes=mistakes, bound=bound)
    constants.context.multiprocessors = multiprocessors
    constants.context.default_cluster = default_cluster
    constants.run(module)
    made: list[Kernel] = []
    for function in functions:
        with mistakes.caught():
            try:
                built = _made(function, constants, warn)
            except Incomplete as error:
                mistakes.add(error)
                built = error.kernel
            made.append(replace(built, name=function.name) if built.name in _others(module, function) else built)
    if known is None:
        mistakes.end()
    if not mistakes.met:
        defines.check_all_used()
    return tuple(made)


def _made(function: ast.Function, constants: Constants, warn: Warn) -> Kernel:
    match _style(function):
        case "eager":
            built = _eager(function, constants, warn)
        case "factory":
            built = _from_factory(function, constants, warn)
        case _:
            built = _bare(function, constants.scope, constants, warn)
    return built


def _bare(function: ast.Function, scope: Scope, constants: Constants, warn: Warn) -> Kernel:
    def attempt(differing: set[Span], warn: Warn) -> Kernel:
        context = Context(Scope(scope, "the function"), KERNEL, warn=warn, differing=differing, **_anew(constants))
        params = header(context, function)
        built = kernel(function, context, lambda: params)
        constants.context.mistakes.join(context.schedule_mistakes)
        return configs.following(built, (*_asks(function, constants, warn), *context.hints.asks))

    return settled(attempt, warn)


def _anew(constants: Constants) -> _Anew:
    """What each attempt begins with."""
    context = constants.context
    return {
        "mistakes": Mistakes(),
        "multiprocessors": context.multiprocessors,
        "default_cluster": context.default_cluster,
    }


def _eager(function: ast.Function, constants: Constants, warn: Warn) -> Kernel:
    def attempt(differing: set[Span], warn: Warn) -> Kernel:
        scope = Scope(constants.scope, function.name, is_function=True)
        context = Context(scope, KERNEL, warn=warn, differing=differing, **_anew(constants))
        eager = Eager(context, constants.defines)
        eager.header(function)
        built = kernel(function, context, eager.params)
        constants.context.mistakes.join(context.schedule_mistakes)
        eager.check_returned(function)
        built = replace(built, outputs=eager.returned or ())
        return configs.following(built, (*_asks(function, constants, warn), *context.hints.asks))

    if (out := _keyword(function, "out_idx", constants)) is not None:
        fail(
            "wrong-argument",
            "out_idx is for functions that return a kernel",
            out.span,
            help="declare outputs with T.empty, and return them",
        )
    return settled(attempt, warn)


def _from_factory(function: ast.Function, constants: Constants, warn: Warn) -> Kernel:
    """The kernel that a function of the file makes, its arguments taken from -D or their defaults."""
    made = _called(function, constants)
    assert isinstance(made.node, ast.Function)
    built = _bare(made.node, made.scope, constants, warn)
    asks = (*built.asks, *_asks(function, constants, warn))
    out = _keyword(function, "out_idx", constants) or _keyword(made.node, "out_idx", constants)
    return configs.following(replace(built, outputs=configs.outputs(built, out) if out else ()), asks)


def _called(factory: ast.Function, constants: Constants) -> Function:
    context, defines = constants.context, constants.defines
    scope = Scope(constants.scope, factory.name, is_function=True)
    known = context.mistakes.met
    with context.reading_in(scope):
        for p in named(factory):
            try:
                scope.bind(p.name, defines.argument(context, factory.name, p), p.span)
            except CompileError as error:
                context.mistakes.add(error)
                scope.poison(p.name, p.span)
        made = run_function(context, factory)
    if not isinstance(made, Function) or made.kind != "kernel":
        if context.mistakes.met > known:
            raise CompileError
        fail(
            "returns-no-kernel",
            f"{factory.name} returns no kernel",
            factory.name_span,
            f"it returns {describe(made)}",
            help="return the function under @T.prim_func",
        )
    return made


def _keyword(function: ast.Function, name: str, constants: Constants) -> Argument | None:
    """A keyword of a decorator, evaluated where the file ends."""
    for decorator in function.decorators:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.name == name:
                return Argument(constants.context.value(keyword.value), keyword.span)
    return None


def _asks(function: ast.Function, constants: Constants, warn: Warn) -> tuple[Ask, ...]:
    given = _keyword(function, "pass_configs", constants)
    return () if given is None else tuple(configs.asked(given, warn))
