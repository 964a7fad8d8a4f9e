"""Elaboration of a file to tile IR: constants evaluated (-D replaces them), kernels chosen and elaborated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from tilec.analysis.usage import find_writes
from tilec.frontend.sema.compile_time.file_evaluator import Define, Defines, FileEvaluator
from tilec.frontend.sema.compile_time.functions import find_function_kind, is_eager, list_parameters, run_function
from tilec.frontend.sema.context import Context, Findings, Machine
from tilec.frontend.sema.dispatch import KERNEL_DISPATCH
from tilec.frontend.sema.launch import configs
from tilec.frontend.sema.launch.eager import EagerKernel
from tilec.frontend.sema.launch.launch import (
    IncompleteKernel,
    elaborate_kernel,
    elaborate_parameters,
    move_declared_types,
)
from tilec.frontend.sema.scope import BindingListener, Scope
from tilec.frontend.sema.statements.per_thread import repeat_until_stable
from tilec.frontend.syntax import ast
from tilec.ir.tile import Kernel, KernelOption
from tilec.ops.language.signature import Argument, find_nearest_name
from tilec.ops.language.values import Function, describe_value
from tilec.ptx.names import is_reserved
from tilec.support.diagnostics import (
    CompileError,
    ErrorCollector,
    Label,
    Warn,
    ignore_warning,
    make_warning,
    raise_error,
)
from tilec.support.source import SourceFile

KernelStyle = Literal["bare", "factory", "eager"]
"""A kernel itself, a function that returns one, or a function under @tilelang.jit that is one."""
_NO_FILES: Mapping[str, ast.Module] = {}
_ANY_MACHINE = Machine()


def elaborate_entry(
    module: ast.Module,
    source: SourceFile,
    defines: Mapping[str, Define] | None = None,
    entry: str | None = None,
    warn: Warn = ignore_warning,
    files: Mapping[str, ast.Module] = _NO_FILES,
    machine: Machine = _ANY_MACHINE,
) -> Kernel:
    """Elaborate the kernel that `entry` names (None: the file's only one) to tile IR; refuse an unknown or ambiguous
    choice.

    `defines` replace constants of the file, `warn` receives its warnings, `files` are those that it may import.
    """
    function, number = _choose_kernel(module, source, entry)
    kernels = _elaborate_functions(module, (function,), defines, warn, files, machine, is_whole=False)
    if number is None and len(kernels) > 1:
        title = f"{function.name} launches {len(kernels)} kernels"
        way_out = f"choose with --entry {function.name}_1, or {function.name}_2"
        raise_error("ambiguous-entry", title, function.name_span, "they run one after the other", help=way_out)
    return _select_launch(kernels, number)


def elaborate_all(
    module: ast.Module,
    source: SourceFile,
    defines: Mapping[str, Define] | None = None,
    entry: str | None = None,
    warn: Warn = ignore_warning,
    files: Mapping[str, ast.Module] = _NO_FILES,
    machine: Machine = _ANY_MACHINE,
    mistakes: ErrorCollector | None = None,
    bound: BindingListener | None = None,
) -> tuple[Kernel, ...]:
    """Elaborate every kernel of the file, or only those of `entry`; errors go to `mistakes` or are raised. Given
    `mistakes`, a kernel is what the errors leave of it. `bound` is called with each value that a name gets.
    """
    if entry is None and (functions := _find_kernels(module)):
        return _elaborate_functions(module, functions, defines, warn, files, machine, mistakes, bound)
    function, number = _choose_kernel(module, source, entry)
    is_whole = number is None
    kernels = _elaborate_functions(module, (function,), defines, warn, files, machine, mistakes, bound, is_whole)
    return kernels if is_whole or not kernels else (_select_launch(kernels, number),)


# ---- which kernel ----------------------------------------------------------------------------------------------------


def _find_style(function: ast.Function) -> KernelStyle | None:
    """Return whether a function is itself a kernel, a factory of one or an eager kernel; None if it makes none."""
    if find_function_kind(function) == "kernel":
        return "bare"
    if any(isinstance(n, ast.Function) and find_function_kind(n) == "kernel" for n in ast.walk_nodes(function)):
        return "factory"
    if is_eager(function):
        return "eager"
    return "factory" if _returns_eager_kernel(function) else None


def _returns_eager_kernel(function: ast.Function) -> bool:
    """Return whether a function returns, by its name, an eager kernel that is defined inside it."""
    parts = tuple(ast.walk_nodes(function))
    inside = {n.name for n in parts if isinstance(n, ast.Function) and n is not function and is_eager(n)}
    returned = (n.value for n in parts if isinstance(n, ast.Return))
    return any(isinstance(value, ast.Name) and value.id in inside for value in returned)


def _find_kernels(module: ast.Module) -> list[ast.Function]:
    """Return the functions at the top of a file that are kernels or make one."""
    return [s for s in module.body if isinstance(s, ast.Function) and _find_style(s) is not None]


def _collect_other_names(module: ast.Module, function: ast.Function) -> set[str]:
    """Return the names of the kernels inside the file's other kernel functions, to find clashes with. A kernel whose
    name is among them is renamed after its function.
    """
    parts = (n for f in _find_kernels(module) if f is not function for n in ast.walk_nodes(f))
    return {n.name for n in parts if isinstance(n, ast.Function) and find_function_kind(n) == "kernel"}


def _select_launch(kernels: tuple[Kernel, ...], number: int | None) -> Kernel:
    """Return the kernel of the given launch, or the first without a number; raise `unknown-entry` if there is none."""
    if number is None or number < len(kernels):
        return kernels[number or 0]
    return raise_error("unknown-entry", f"there is no launch {number + 1}", help=f"the last is {kernels[-1].name}")


_FROM_TRITON = (
    "tl.load and tl.store become T.copy between a tensor and a tile, which needs no mask",
    "tl.program_id(0) becomes bx in `with T.Kernel(blocks, threads=128) as bx:`, and a grid of two is `as (bx, by)`",
    "tl.dot becomes T.gemm(A_tile, B_tile, sums), of tiles that T.alloc_shared and T.alloc_fragment make",
)


def _refuse_triton(module: ast.Module, source: SourceFile) -> None:
    """Raise `no-kernel`, with how to rewrite it, if the file imports Triton; else do nothing."""
    for node in module.body:
        if isinstance(node, ast.Import):
            names = [node.module] if node.module else [name.name for name in node.names]
            if any(name.split(".")[0] == "triton" for name in names):
                title = f"{source.path} is written in Triton, which tilec does not compile"
                way_out = "write the kernel under @T.prim_func; `tilec new` makes one to begin with"
                raise_error("no-kernel", title, node.span, "imported here", notes=_FROM_TRITON, help=way_out)


def _choose_kernel(module: ast.Module, source: SourceFile, entry: str | None) -> tuple[ast.Function, int | None]:
    """Return the function of `entry`, or the only kernel function, and the launch number in a name as `main_2`; else
    refuse. The number counts from 0, and is None without one. Errors: `unknown-entry`, `no-kernel`, `ambiguous-entry`.
    """
    kernels = {f.name: f for f in _find_kernels(module)}
    if entry is not None:
        name, _, number = entry.rpartition("_")
        if entry not in kernels and name in kernels and number.isdecimal() and int(number) > 0:
            return kernels[name], int(number) - 1
        if entry not in kernels:
            near = find_nearest_name(entry, kernels)
            help_text = f"did you mean {near}?" if near else f"the file has {', '.join(kernels) or 'none'}"
            raise_error("unknown-entry", f"{source.path} has no kernel {entry}", help=help_text)
        return kernels[entry], None
    if not kernels:
        function = next((s for s in module.body if isinstance(s, ast.Function)), None)
        _refuse_triton(module, source)
        title = f"{source.path} has no kernel"
        note = "a function, but not a kernel" if function else ""
        way_out = "write @T.prim_func above the function"
        raise_error("no-kernel", title, function.name_span if function else None, note, help=way_out)
    if len(kernels) > 1:
        first, *others = kernels.values()
        title = f"{source.path} has {len(kernels)} kernels"
        places = tuple(Label(f.name_span, "another") for f in others)
        way_out = f"choose with --entry {first.name}"
        raise_error("ambiguous-entry", title, first.name_span, "one of them", secondary=places, help=way_out)
    (only,) = kernels.values()
    return only, None


# ---- the kernels -----------------------------------------------------------------------------------------------------


def _elaborate_functions(
    module: ast.Module,
    functions: Sequence[ast.Function],
    define_values: Mapping[str, Define] | None,
    warn: Warn,
    files: Mapping[str, ast.Module],
    machine: Machine,
    collected: ErrorCollector | None = None,
    bound: BindingListener | None = None,
    is_whole: bool = True,
) -> tuple[Kernel, ...]:
    """Run the file's top, and elaborate and return these functions' kernels; raise all mistakes together, or add to
    `collected`. `is_whole`: no single launch of several is chosen.
    """
    mistakes = collected or ErrorCollector()
    arguments = {p.name for f in functions if _find_style(f) != "bare" for p in list_parameters(f)}
    defines = Defines(define_values or {}, parameters=arguments)
    constants = FileEvaluator(defines, files, mistakes=mistakes, bound=bound)
    constants.context.machine = machine
    constants.run(module)
    kernels: list[Kernel] = []
    for function in functions:
        with mistakes.caught():
            try:
                built = _elaborate_function(function, constants, warn)
            except IncompleteKernel as error:
                mistakes.add(error)
                built = (error.kernel,)
            if built[0].name in _collect_other_names(module, function):
                built = tuple(replace(each, name=function.name) for each in built)
            kernels += built if len(built) == 1 else _name_launches(built)
            _check_kernel_name(function, kernels[-1].name)
            if len(built) > 1 and is_whole:
                _warn_of_several_launches(function, kernels[-len(built) :], warn)
    if collected is None:
        mistakes.end()
    if not mistakes.met:
        defines.check_all_used()
    return tuple(kernels)


def _check_kernel_name(function: ast.Function, name: str) -> None:
    """Raise `reserved-name` if PTX or tilec reserves the kernel's name."""
    if is_reserved(name):
        title = f"a kernel cannot be called `{name}`"
        note = "PTX or tilec reserves this name"
        raise_error("reserved-name", title, function.name_span, note, help="give the function another name")


def _name_launches(built: Sequence[Kernel]) -> Iterator[Kernel]:
    """Yield the kernels of a function renamed with numbers, each with only the outputs that it writes. The last one
    also returns the outputs that none writes.
    """
    written = [{buffer.name for stmt in each.body for buffer in find_writes(stmt)} for each in built]
    all_writes = set().union(*written)
    for number, (each, own_writes) in enumerate(zip(built, written, strict=True), 1):
        is_last = number == len(built)
        outputs = tuple(n for n in each.outputs if n in own_writes or (is_last and n not in all_writes))
        yield replace(each, name=f"{each.name}_{number}", outputs=outputs)


def _warn_of_several_launches(function: ast.Function, kernels: Sequence[Kernel], warn: Warn) -> None:
    """Warn that a function becomes several kernels, naming them in the order in which a program launches them."""
    names = ", then ".join(kernel.name for kernel in kernels)
    title = f"{function.name} launches {len(kernels)} kernels"
    note = f"{names}: a program launches them in this order, with the same arguments"
    warn(make_warning("several-launches", title, function.name_span, note))


def _elaborate_function(function: ast.Function, constants: FileEvaluator, warn: Warn) -> tuple[Kernel, ...]:
    """Elaborate the kernels that a function launches, or, for a factory, those of the kernel that it returns."""
    if _find_style(function) == "factory":
        return _elaborate_factory(function, constants, warn)
    return _elaborate_launches(function, constants.scope, constants, warn)


def _elaborate_launches(
    function: ast.Function, scope: Scope, constants: FileEvaluator, warn: Warn
) -> tuple[Kernel, ...]:
    """Elaborate each launch of a function to a kernel, until its findings are stable, with options; refuse an eager
    `out_idx`. The options are the decorator's and the hints'.
    """
    is_eager_kernel = _find_style(function) == "eager"
    outer = constants.context
    out = _evaluate_decorator_keyword(function, "out_idx", constants, scope) if is_eager_kernel else None
    if out is not None and out.value is not None:
        way_out = "declare outputs with T.empty, and return them"
        raise_error("wrong-argument", "out_idx is for functions that return a kernel", out.span, help=way_out)

    def attempt_launch(number: int, findings: Findings, warn: Warn) -> tuple[Kernel, int]:
        """Elaborate launch `number` once with these findings; return its kernel and the function's number of
        launches.
        """
        inner = Scope(scope, function.name if is_eager_kernel else "the function", is_function=is_eager_kernel)
        context = Context(inner, KERNEL_DISPATCH, warn, machine=outer.machine, imports=outer.imports)
        context.findings = findings
        if is_eager_kernel:
            eager = EagerKernel(context, constants.defines)
            eager.read_header(function)
            built = elaborate_kernel(function, context, eager.params, number)
            outer.mistakes.join(context.schedule_mistakes)
            eager.check_returned()
            built = replace(built, outputs=eager.returned_names or ())
        else:
            typed = move_declared_types(function)
            params = elaborate_parameters(context, typed)
            built = elaborate_kernel(typed, context, lambda: params, number)
            outer.mistakes.join(context.schedule_mistakes)
        options = (*_read_decorator_options(function, constants, scope, warn), *context.hints.asks)
        return configs.apply_options(built, options), context.launches

    first, count = repeat_until_stable(partial(attempt_launch, 0), warn)
    return (first, *(repeat_until_stable(partial(attempt_launch, number), warn)[0] for number in range(1, count)))


def _elaborate_factory(function: ast.Function, constants: FileEvaluator, warn: Warn) -> tuple[Kernel, ...]:
    """Call a factory with -D values or defaults, and elaborate the kernel it returns, with its `out_idx` outputs."""
    returned = _call_factory(function, constants)
    assert isinstance(returned.node, ast.Function)
    built = _elaborate_launches(returned.node, returned.scope, constants, warn)
    if is_eager(returned.node):
        return built
    options = _read_decorator_options(function, constants, constants.scope, warn)
    out = _evaluate_decorator_keyword(function, "out_idx", constants, constants.scope)
    out = out or _evaluate_decorator_keyword(returned.node, "out_idx", constants, returned.scope)
    targets = (t for s in returned.node.body if isinstance(s, ast.Assign) for t in s.targets)
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    outputs = (configs.find_outputs(each, out, names) if out else () for each in built)
    whole = (replace(each, outputs=names) for each, names in zip(built, outputs, strict=True))
    return tuple(configs.apply_options(each, (*each.asks, *options)) for each in whole)


def _call_factory(factory: ast.Function, constants: FileEvaluator, enclosing: Scope | None = None) -> Function:
    """Call a factory with -D values or defaults, then any factory that it returns, and return the kernel; refuse
    others. Mistakes in the values are recorded. `enclosing` is the scope around it, the file's for None.
    """
    context, defines = constants.context, constants.defines
    scope = Scope(enclosing or constants.scope, factory.name, is_function=True)
    mistakes_before = context.mistakes.met
    with context.enter_scope(scope):
        for p in list_parameters(factory):
            try:
                scope.bind(p.name, defines.argument(context, factory.name, p), p.span, p.span)
            except CompileError as error:
                context.mistakes.add(error)
                scope.poison(p.name, p.span)
        result = run_function(context, factory)
    match result:
        case Function(node=ast.Function() as inner, scope=where, kind="function") if _find_style(inner) == "factory":
            return _call_factory(inner, constants, where)
        case _:
            pass
    is_kernel = (
        isinstance(result, Function)
        and isinstance(result.node, ast.Function)
        and (result.kind == "kernel" or is_eager(result.node))
    )
    if not isinstance(result, Function) or not is_kernel:
        if context.mistakes.met > mistakes_before:
            raise CompileError
        title = f"{factory.name} returns no kernel"
        note = f"it returns {describe_value(result)}"
        raise_error("returns-no-kernel", title, factory.name_span, note, help="return the function under @T.prim_func")
    return result


def _evaluate_decorator_keyword(
    function: ast.Function, name: str, constants: FileEvaluator, scope: Scope
) -> Argument | None:
    """Return a keyword's value, evaluated in `scope`, from the function's first decorator that has it; None if none
    has.
    """
    for decorator in function.decorators:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.name == name:
                with constants.context.enter_scope(scope):
                    return Argument(constants.context.value(keyword.value), keyword.span)
    return None


def _read_decorator_options(
    function: ast.Function, constants: FileEvaluator, scope: Scope, warn: Warn
) -> tuple[KernelOption, ...]:
    """Return the kernel options that `pass_configs=` of a function's decorator gives; none without it."""
    given = _evaluate_decorator_keyword(function, "pass_configs", constants, scope)
    return () if given is None else tuple(configs.read_pass_configs(given, warn))
