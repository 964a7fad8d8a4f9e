"""Elaboration of a file to tile IR: constants evaluated (-D replaces them), kernels chosen and elaborated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from tilec.passes.analysis.usage import writes
from tilec.ptx.names import is_reserved
from tilec.support.diagnostics import CompileError, Label, Mistakes, Warn, fail, unheard, warning
from tilec.support.source import SourceFile, Span

Style = Literal["bare", "factory", "eager"]
"""A kernel itself, a function that returns one, or a function under @tilelang.jit that is one."""


class _Anew(TypedDict):
    """The fields that the contexts of a file and of its kernels have in common."""

    mistakes: Mistakes
    multiprocessors: Callable[[], int]
    default_cluster: tuple[int, int, int]
    capability: Callable[[], tuple[int, int]]
    imports: Callable[[Context, ast.Import], None] | None


_NO_FILES: Mapping[str, ast.Module] = {}


def entries(module: ast.Module) -> tuple[str, ...]:
    """Return the names of the kernels in a file, in order."""
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
    capability: Callable[[], tuple[int, int]] = lambda: (9, 0),
) -> Kernel:
    """Elaborate the kernel `entry`, or the only one, to tile IR.

    `defines` replace constants of the file, `warn` receives its warnings, `files` are those that it may import. The GPU
    has so many `multiprocessors`, and this compute `capability`. A kernel that names no cluster gets `default_cluster`.
    """
    function, number = _choose(module, source, entry)
    machine = multiprocessors, default_cluster, capability
    kernels = _elaborated(module, (function,), defines, warn, files, *machine, is_whole=False)
    if number is None and len(kernels) > 1:
        fail(
            "ambiguous-entry",
            f"{function.name} launches {len(kernels)} kernels",
            function.name_span,
            "one after the other",
            help=f"choose with --entry {function.name}_1, or {function.name}_2",
        )
    return _launched(kernels, number)


def elaborate_all(
    module: ast.Module,
    source: SourceFile,
    defines: Mapping[str, Define] | None = None,
    entry: str | None = None,
    warn: Warn = unheard,
    files: Mapping[str, ast.Module] = _NO_FILES,
    multiprocessors: Callable[[], int] = lambda: 1,
    default_cluster: tuple[int, int, int] = (1, 1, 1),
    capability: Callable[[], tuple[int, int]] = lambda: (9, 0),
    mistakes: Mistakes | None = None,
    bound: Bound | None = None,
) -> tuple[Kernel, ...]:
    """Elaborate every kernel of the file, or that called `entry`. Given `mistakes`, errors are added there, and a
    kernel is what they leave of it. `bound` is called with each value that a name gets."""
    machine = multiprocessors, default_cluster, capability
    if entry is None and (functions := _kernels(module)):
        return _elaborated(module, functions, defines, warn, files, *machine, mistakes, bound)
    function, number = _choose(module, source, entry)
    is_whole = number is None
    kernels = _elaborated(module, (function,), defines, warn, files, *machine, mistakes, bound, is_whole=is_whole)
    return kernels if is_whole or not kernels else (_launched(kernels, number),)


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
    """Return the names of the other kernels of the file. A kernel whose name is among them is renamed after its
    function."""
    others = (f for f in _kernels(module) if f is not function)
    return {n.name for f in others for n in ast.walk(f) if isinstance(n, ast.Function) and kind(n) == "kernel"}


def _launched(kernels: tuple[Kernel, ...], number: int | None) -> Kernel:
    if number is None or number < len(kernels):
        return kernels[number or 0]
    return fail("unknown-entry", f"there is no launch {number + 1}", help=f"the last is {kernels[-1].name}")


_FROM_TRITON = (
    "tl.load and tl.store become T.copy between a tensor and a tile, which needs no mask",
    "tl.program_id(0) becomes bx in `with T.Kernel(blocks, threads=128) as bx:`, and a grid of two is `as (bx, by)`",
    "tl.dot becomes T.gemm(A_tile, B_tile, sums), of tiles that T.alloc_shared and T.alloc_fragment make",
)


def _refuse_triton(module: ast.Module, source: SourceFile) -> None:
    """Refuse a file of Triton's kernels, with how its ideas are written here."""
    for node in module.body:
        if isinstance(node, ast.Import):
            names = [node.module] if node.module else [name.name for name in node.names]
            if any(name.split(".")[0] == "triton" for name in names):
                fail(
                    "no-kernel",
                    f"{source.path} is written in Triton, which tilec does not compile",
                    node.span,
                    "imported here",
                    notes=_FROM_TRITON,
                    help="write the kernel under @T.prim_func; `tilec new` makes one to begin with",
                )


def _choose(module: ast.Module, source: SourceFile, entry: str | None) -> tuple[ast.Function, int | None]:
    """Return the function that `entry` names, or the only one with a kernel, and the number of the launch in a name
    such as `main_2`."""
    kernels = {f.name: f for f in _kernels(module)}
    if entry is not None:
        name, _, number = entry.rpartition("_")
        if entry not in kernels and name in kernels and number.isdecimal() and int(number) > 0:
            return kernels[name], int(number) - 1
        if entry not in kernels:
            near = nearest(entry, kernels)
            help_text = f"did you mean {near}?" if near else f"the file has {', '.join(kernels) or 'none'}"
            fail("unknown-entry", f"{source.path} has no kernel {entry}", help=help_text)
        return kernels[entry], None
    if not kernels:
        function = next((s for s in module.body if isinstance(s, ast.Function)), None)
        _refuse_triton(module, source)
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
    return only, None


# ---- the kernels -----------------------------------------------------------------------------------------------------


def _elaborated(
    module: ast.Module,
    functions: Sequence[ast.Function],
    define_values: Mapping[str, Define] | None,
    warn: Warn,
    files: Mapping[str, ast.Module],
    multiprocessors: Callable[[], int],
    default_cluster: tuple[int, int, int],
    capability: Callable[[], tuple[int, int]],
    collected: Mistakes | None = None,
    bound: Bound | None = None,
    is_whole: bool = True,
) -> tuple[Kernel, ...]:
    """Elaborate the kernels of these functions, or report all mistakes in them and at the top of the file. `is_whole`:
    no single launch of several is chosen."""
    mistakes = collected or Mistakes()
    arguments = {p.name for f in functions if _style(f) != "bare" for p in named(f)}
    defines = Defines(define_values or {}, parameters=arguments)
    constants = Constants(defines, files, mistakes=mistakes, bound=bound)
    constants.context.multiprocessors = multiprocessors
    constants.context.default_cluster = default_cluster
    constants.context.capability = capability
    constants.run(module)
    kernels: list[Kernel] = []
    for function in functions:
        with mistakes.caught():
            try:
                built = _made(function, constants, warn)
            except Incomplete as error:
                mistakes.add(error)
                built = (error.kernel,)
            if built[0].name in _others(module, function):
                built = tuple(replace(each, name=function.name) for each in built)
            kernels += built if len(built) == 1 else _launches(built)
            _check_name(function, kernels[-1].name)
            if len(built) > 1 and is_whole:
                _tell_of_launches(function, kernels[-len(built) :], warn)
    if collected is None:
        mistakes.end()
    if not mistakes.met:
        defines.check_all_used()
    return tuple(kernels)


def _check_name(function: ast.Function, name: str) -> None:
    """Refuse a kernel with a reserved name: programs load a kernel by its name in PTX."""
    if is_reserved(name):
        fail(
            "reserved-name",
            f"a kernel cannot be called `{name}`",
            function.name_span,
            "PTX or tilec has something else of this name",
            help="give the function another name",
        )


def _launches(built: Sequence[Kernel]) -> Iterator[Kernel]:
    """Yield the kernels of one function with a number in their names. Each returns the tensors that it writes; the last
    one also those that none writes."""
    written = [{buffer.name for stmt in each.body for buffer in writes(stmt)} for each in built]
    all_writes = set().union(*written)
    for number, (each, own_writes) in enumerate(zip(built, written, strict=True), 1):
        is_last = number == len(built)
        outputs = tuple(n for n in each.outputs if n in own_writes or (is_last and n not in all_writes))
        yield replace(each, name=f"{each.name}_{number}", outputs=outputs)


def _tell_of_launches(function: ast.Function, kernels: Sequence[Kernel], warn: Warn) -> None:
    names = ", then ".join(kernel.name for kernel in kernels)
    title = f"{function.name} launches {len(kernels)} kernels"
    note = f"{names}: a program launches them in this order, with the same arguments"
    warn(warning("several-launches", title, function.name_span, note))


def _made(function: ast.Function, constants: Constants, warn: Warn) -> tuple[Kernel, ...]:
    """Elaborate the kernels that a function launches one after the other, most often one."""
    match _style(function):
        case "eager":
            built = _eager(function, constants, warn)
        case "factory":
            built = _from_factory(function, constants, warn)
        case _:
            built = _bare(function, constants.scope, constants, warn)
    return built


Launch = tuple[Kernel, int]
"""The kernel of a launch, and the number of launches in its function."""


def _each_launch(attempt: Callable[[int, set[Span], Warn], Launch], warn: Warn) -> tuple[Kernel, ...]:
    first, count = settled(partial(attempt, 0), warn)
    return (first, *(settled(partial(attempt, number), warn)[0] for number in range(1, count)))


def _bare(function: ast.Function, scope: Scope, constants: Constants, warn: Warn) -> tuple[Kernel, ...]:
    def attempt(number: int, per_thread_spans: set[Span], warn: Warn) -> Launch:
        context = Context(
            Scope(scope, "the function"), KERNEL, warn=warn, differing=per_thread_spans, **_anew(constants)
        )
        params = header(context, function)
        built = kernel(function, context, lambda: params, number)
        constants.context.mistakes.join(context.schedule_mistakes)
        options = (*_asks(function, constants, warn), *context.hints.asks)
        return configs.following(built, options), context.launches

    return _each_launch(attempt, warn)


def _anew(constants: Constants) -> _Anew:
    """Return the common fields for an attempt, with no mistakes yet."""
    context = constants.context
    return {
        "mistakes": Mistakes(),
        "multiprocessors": context.multiprocessors,
        "default_cluster": context.default_cluster,
        "capability": context.capability,
        "imports": context.imports,
    }


def _eager(function: ast.Function, constants: Constants, warn: Warn) -> tuple[Kernel, ...]:
    def attempt(number: int, per_thread_spans: set[Span], warn: Warn) -> Launch:
        scope = Scope(constants.scope, function.name, is_function=True)
        context = Context(scope, KERNEL, warn=warn, differing=per_thread_spans, **_anew(constants))
        eager = Eager(context, constants.defines)
        eager.header(function)
        built = kernel(function, context, eager.params, number)
        constants.context.mistakes.join(context.schedule_mistakes)
        eager.check_returned(function)
        built = replace(built, outputs=eager.returned or ())
        options = (*_asks(function, constants, warn), *context.hints.asks)
        return configs.following(built, options), context.launches

    if (out := _keyword(function, "out_idx", constants)) is not None:
        fail(
            "wrong-argument",
            "out_idx is for functions that return a kernel",
            out.span,
            help="declare outputs with T.empty, and return them",
        )
    return _each_launch(attempt, warn)


def _from_factory(function: ast.Function, constants: Constants, warn: Warn) -> tuple[Kernel, ...]:
    """Elaborate the kernel that a function of the file returns. Arguments come from -D, or are the defaults."""
    returned = _called(function, constants)
    assert isinstance(returned.node, ast.Function)
    built = _bare(returned.node, returned.scope, constants, warn)
    options = _asks(function, constants, warn)
    out = _keyword(function, "out_idx", constants) or _keyword(returned.node, "out_idx", constants)
    targets = (t for s in returned.node.body if isinstance(s, ast.Assign) for t in s.targets)
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return tuple(
        configs.following(
            replace(each, outputs=configs.outputs(each, out, names) if out else ()), (*each.asks, *options)
        )
        for each in built
    )


def _called(factory: ast.Function, constants: Constants, enclosing: Scope | None = None) -> Function:
    """Call a factory, and the factories that it returns, until one returns a kernel."""
    context, defines = constants.context, constants.defines
    scope = Scope(enclosing or constants.scope, factory.name, is_function=True)
    mistakes_before = context.mistakes.met
    with context.reading_in(scope):
        for p in named(factory):
            try:
                scope.bind(p.name, defines.argument(context, factory.name, p), p.span, p.span)
            except CompileError as error:
                context.mistakes.add(error)
                scope.poison(p.name, p.span)
        result = run_function(context, factory)
    match result:
        case Function(node=ast.Function() as inner, scope=where, kind="function") if _style(inner) == "factory":
            return _called(inner, constants, where)
        case _:
            pass
    if not isinstance(result, Function) or result.kind != "kernel":
        if context.mistakes.met > mistakes_before:
            raise CompileError
        fail(
            "returns-no-kernel",
            f"{factory.name} returns no kernel",
            factory.name_span,
            f"it returns {describe(result)}",
            help="return the function under @T.prim_func",
        )
    return result


def _keyword(function: ast.Function, name: str, constants: Constants) -> Argument | None:
    """Evaluate a keyword of a decorator, with the names at the end of the file."""
    for decorator in function.decorators:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.name == name:
                return Argument(constants.context.value(keyword.value), keyword.span)
    return None


def _asks(function: ast.Function, constants: Constants, warn: Warn) -> tuple[Ask, ...]:
    given = _keyword(function, "pass_configs", constants)
    return () if given is None else tuple(configs.asked(given, warn))
