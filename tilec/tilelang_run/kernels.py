"""Kernels of a script: compiled by tilec when the script calls for them, and run on the script's arrays."""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

from tilec.driver import build as driver
from tilec.host import api
from tilec.ir.types import TYPES_BY_NAME
from tilec.support import options
from tilec.support.diagnostics import CompileError
from tilec.support.sizes import evaluate_shape
from tilec.support.source import SourceFile
from tilec.tilelang_run.arrays import (
    array_shape,
    find_strides,
    is_array,
    is_torch_tensor,
    make_empty_array,
    share_memory,
)
from tilec.tilelang_run.capture import PythonFunction, has_decorator, read_function, write_kernel
from tilec.tilelang_run.profiler import Profiler
from tilec.tilelang_run.symbols import Symbol

OutIndex = int | Sequence[int] | None
_OTHER_MACHINES = ("hip", "rocm", "metal", "llvm", "c", "cpu", "webgpu", "cutedsl")


@dataclass
class Machine:
    """The target of this run, and the device that runs its kernels."""

    target: str = "sm_90a"
    device: api.Device = "emulator"


MACHINE = Machine()
"""Set once, before the script starts."""
_COMPILED: dict[tuple[str, str, tuple[tuple[str, int], ...]], tuple[api.Kernel, ...]] = {}


def compile_text(source: SourceFile, entry: str, sizes: Mapping[str, int]) -> tuple[api.Kernel, ...]:
    """Compile each launch of the function `entry`, in order, once for a text and sizes; raise errors with drawn
    text.
    """
    key = source.text, entry, tuple(sizes.items())
    if key not in _COMPILED:
        try:
            _COMPILED[key] = tuple(_compile_launches(source, entry, sizes))
        except CompileError as error:
            raise api.draw_error(error, source).with_traceback(None) from None
    return _COMPILED[key]


def _compile_launches(source: SourceFile, entry: str, sizes: Mapping[str, int]) -> Iterator[api.Kernel]:
    """Compile and yield a kernel for each launch of a function, by its number if there are several."""

    def choose_options(name: str) -> options.CompileOptions:
        """Return the compile options for one kernel of the text, with lints off."""
        given = tuple(sizes.items())
        return options.CompileOptions(
            target=MACHINE.target, entry=name, defines=given, lint="off", cache_dir=options.cache_folder()
        )

    count = len(driver.load_kernels(source, choose_options(entry), driver.Observer()))
    for name in [entry] if count == 1 else [f"{entry}_{number + 1}" for number in range(count)]:
        build = driver.build_kernel(source, choose_options(name), driver.Observer())
        yield api.Kernel(build.manifest, build.cubin, build, is_emulated=MACHINE.device == "emulator")


# ---- a kernel --------------------------------------------------------------------------------------------------------


class JITKernel:
    """A compiled kernel of a script. A call takes the inputs, makes the outputs and returns them."""

    latency: float | None = None
    ref_latency: float | None = None
    config: Mapping[str, object] | None = None
    kernel: JITKernel
    """Itself: scripts read it of what a tuner returns."""

    def __init__(self, launches: tuple[api.Kernel, ...], out_idx: OutIndex = None) -> None:
        self.launches, self.kernel = launches, self
        self.tensors = {tensor.name: tensor for kernel in launches for tensor in kernel.manifest.tensors}
        self.outputs = tuple(dict.fromkeys(name for kernel in launches for name in kernel.manifest.outputs))
        if out_idx is not None and not self.outputs:
            self.outputs = self._count_outputs([out_idx] if isinstance(out_idx, int) else out_idx)

    def _count_outputs(self, indices: Sequence[int]) -> tuple[str, ...]:
        """Return the names of the parameters at these positions; raise `ValueError` for a position out of range."""
        names = self.parameters()
        if bad := [index for index in indices if not -len(names) <= index < len(names)]:
            raise ValueError(f"out_idx is {bad[0]}, and the kernel has {len(names)} parameters: {', '.join(names)}")
        return tuple(names[index] for index in indices)

    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters as declared, without the trailing sizes that follow from arrays."""
        names = self.launches[0].parameters()
        deduced = self.launches[0].list_shape_scalars()
        while names and names[-1] in deduced:
            names = names[:-1]
        return names

    @property
    def out_idx(self) -> list[int]:
        """Return the positions of the outputs among the parameters."""
        return [self.parameters().index(name) for name in self.outputs]

    def __call__(self, *args: object, **named: object) -> Any:
        """Run the kernel on its inputs and return its outputs; raise `TypeError` or `ValueError` where arguments do not
        fit.
        """
        wanted = [name for name in self.parameters() if name not in self.outputs and name not in named]
        if len(args) > len(wanted):
            listed = ", ".join(wanted)
            raise TypeError(f"{self._name()} takes {len(wanted)} arguments ({listed}), and {len(args)} are given")
        return self.call_by_name(dict(zip(wanted, args, strict=False)) | named)

    def call_by_name(self, given: Mapping[str, object]) -> Any:
        """Run all launches on arguments by name, allocating missing outputs; return the outputs: one, a list, or
        None.
        """
        values = {name: self._convert_argument(name, value) for name, value in given.items()}
        values |= {name: self._make_output(name, values) for name in self.outputs if name not in values}
        stream = 0 if MACHINE.device == "emulator" else None
        for kernel in self.launches:
            names = kernel.parameters()
            kernel(stream=stream, **{name: value for name, value in values.items() if name in names})
        results = [values[name] for name in self.outputs]
        return None if not results else results[0] if len(results) == 1 else results

    def _convert_argument(self, name: str, value: object) -> object:
        """Return a scalar's torch tensor as a number, and a tensor argument without gradients on the same memory."""
        if name not in self.tensors and is_torch_tensor(value):
            tensor: Any = value
            return tensor.item()
        return share_memory(value)

    def _make_output(self, name: str, values: Mapping[str, object]) -> object:
        """Return a new array for an output, of the shape that follows from the other arguments' sizes."""
        sizes = self.find_sizes(values)
        like = next((value for value in values.values() if is_array(value)), None)
        tensor = self.tensors[name]
        return make_empty_array(evaluate_shape(tensor.shape, sizes), TYPES_BY_NAME[tensor.dtype], like)

    def find_sizes(self, values: Mapping[str, object]) -> dict[str, int]:
        """Return the values of the kernel's sizes that follow from the arrays' shapes and the numbers given."""
        shapes = {}
        for name, value in values.items():
            if name in self.tensors and is_array(value):
                shape, packed = array_shape(value), TYPES_BY_NAME[self.tensors[name].dtype].per_byte
                shapes[name] = shape if packed == 1 or not shape else (*shape[:-1], shape[-1] * packed)
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        return self.launches[0].manifest.sizes(shapes, numbers)

    def _name(self) -> str:
        """Return the name of the first launch's kernel."""
        return self.launches[0].manifest.entry

    def __repr__(self) -> str:
        return f"<kernel {self._name()} for {MACHINE.target}>"

    # ---- what scripts ask of a kernel

    def get_kernel_source(self, **_: object) -> str:
        """Return the PTX of all launches, in place of TileLang's CUDA C."""
        return "\n".join(kernel.ptx or "" for kernel in self.launches)

    @property
    def kernel_source(self) -> str:
        """Return the PTX of all launches."""
        return self.get_kernel_source()

    def show_source(self, which: str = "kernel") -> None:
        """Print the PTX of all launches."""
        print(self.get_kernel_source())

    print_source_code = show_source

    def export_sources(self, kernel_path: str | None = None, host_path: str | None = None) -> None:
        """Write the PTX to the file `kernel_path`, if one is given; `host_path` is ignored."""
        if kernel_path is not None:
            Path(kernel_path).write_text(self.get_kernel_source(), encoding="utf-8")

    def get_profiler(self, tensor_supply_type: Any = None, **_: object) -> Profiler:
        """Return a profiler that draws inputs and compares results, but measures nothing."""
        return Profiler(self, tensor_supply_type)

    def run_once(self, func: Callable[..., object] | None = None) -> object:
        """Run the kernel, or `func` in its place, once on drawn inputs, and return the result."""
        return self.get_profiler().run_once(func)


# ---- what makes kernels ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Macro:
    """A function under `@T.macro`: its text goes into the kernels that name it."""

    source: PythonFunction
    is_macro: bool = True

    def __call__(self, *args: object, **named: object) -> object:
        raise TypeError(f"{self.source.function.__name__} is a macro: only kernels call it")


@dataclass(frozen=True)
class PrimFunction:
    """A function under `@T.prim_func`, with the values that its names have in the script."""

    source: PythonFunction

    def __call__(self, *args: object, **named: object) -> object:
        name = self.source.function.__name__
        raise TypeError(f"{name} is not compiled yet: write tilelang.compile({name}), or @tilelang.jit on its function")

    def compile(self, out_idx: OutIndex = None) -> JITKernel:
        """Write the function as kernel text, compile it, and return the kernel, with outputs `out_idx` if it declares
        none.
        """
        launches = compile_text(write_kernel(self.source, {}), self.source.function.__name__, {})
        return JITKernel(launches, out_idx)


@dataclass
class JITFunction:
    """A function under `@tilelang.jit`: a call compiles a kernel, and runs it too if the function is the kernel."""

    source: PythonFunction
    out_idx: OutIndex = None
    configs: list[Mapping[str, object]] = field(default_factory=list)
    node: ast.FunctionDef = field(init=False)

    def __post_init__(self) -> None:
        function = self.source.function
        self.node = read_function(function).parse_function()
        self.signature = inspect.signature(function)
        self.__name__, self.__doc__, self.__wrapped__ = function.__name__, function.__doc__, function
        parts = [part for statement in self.node.body for part in ast.walk(statement)]
        inner = [part for part in parts if isinstance(part, ast.FunctionDef) and has_decorator(part, "prim_func")]
        self.is_factory = bool(inner)
        """Whether it returns a kernel that stands in it."""
        self.is_kernel = not inner and any(isinstance(part, ast.With) and _is_launch(part) for part in parts)
        """Whether it is the kernel itself."""

    def __call__(self, *args: object, **named: object) -> Any:
        """Compile the kernel for these arguments. Return it, or, if the function is the kernel, its results."""
        if not self.is_kernel:
            return self.compile(*args, **named)
        given = self._bind_arguments(args, self._take_tuned(named))
        runtime = {name: value for name, value in given.items() if self._is_runtime(name)}
        return self._compile_given(given).call_by_name(runtime)

    def compile(self, *args: object, **named: object) -> JITKernel:
        """Compile the kernel for these arguments and return it; sizes may be given in place of tensors."""
        tuned = self._take_tuned(named)
        kernel = self._compile_given(self._bind_arguments(args, tuned))
        kernel.config = dict(self.configs[0]) if self.configs else None
        return kernel

    def get_kernel_source(self, *args: object, **named: object) -> str:
        """Compile the kernel for these arguments and return its PTX."""
        return self.compile(*args, **named).get_kernel_source()

    def par_compile(self, configs: Iterable[Any], **_: object) -> list[JITKernel]:
        """Compile the kernel for each set of arguments, a dictionary or a sequence, and return the kernels."""
        return [self.compile(**each) if isinstance(each, dict) else self.compile(*each) for each in configs]

    def _take_tuned(self, named: Mapping[str, object]) -> dict[str, object]:
        """Return the first tuning configuration's arguments, replaced by the named ones, and those by
        `__tune_params`.
        """
        given = dict(named)
        tuned = given.pop("__tune_params", {})
        first = self.configs[0] if self.configs else {}
        return {**first, **given, **(tuned if isinstance(tuned, dict) else {})}

    def _bind_arguments(self, args: Sequence[object], named: Mapping[str, object]) -> dict[str, object]:
        """Return the arguments by name, or raise `TypeError`; names that are no parameters are sizes of an eager
        kernel.
        """
        known = {name: value for name, value in named.items() if name in self.signature.parameters}
        others = {name: value for name, value in named.items() if name not in known}
        if others and not self.is_kernel:
            self.signature.bind(*args, **named)
        positional = list(self.signature.parameters)[: len(args)]
        self.signature.bind_partial(*args, **{n: v for n, v in known.items() if n not in positional})
        return {**others, **known, **dict(zip(positional, args, strict=True))}

    def _compile_given(self, given: Mapping[str, object]) -> JITKernel:
        """Compile the kernel for arguments by name: the function, the one in it, or the one it returns; raise
        `TypeError` for none.
        """
        if self.is_kernel:
            constants = {n: v for n, v in given.items() if n in self.signature.parameters and not self._is_runtime(n)}
            sizes = self._deduce_sizes(given)
            text = write_kernel(self.source, constants, "@tilelang.jit")
            return JITKernel(compile_text(text, self.node.name, sizes), self.out_idx)
        if self.is_factory:
            return JITKernel(compile_text(write_kernel(self.source, given), self.node.name, {}), self.out_idx)
        made = self.source.function(**given)
        if not isinstance(made, PrimFunction):
            raise TypeError(f"{self.node.name} returns {type(made).__name__}, not a function under @T.prim_func")
        return made.compile(self.out_idx)

    # ---- a function that is the kernel

    def _types(self) -> dict[str, ast.expr]:
        """Return the type annotation of each parameter, as declared in the header or, without a value, in the body."""
        arguments = (*self.node.args.posonlyargs, *self.node.args.args, *self.node.args.kwonlyargs)
        types = {each.arg: each.annotation for each in arguments if each.annotation is not None}
        for each in self.node.body:
            if isinstance(each, ast.AnnAssign) and each.value is None and isinstance(each.target, ast.Name):
                types[each.target.id] = each.annotation
        return types

    def _is_runtime(self, name: str) -> bool:
        """Return whether a parameter is a tensor or scalar given at launch, by its type, not a compile-time value."""
        annotation = self._types().get(name)
        if annotation is None or name not in self.signature.parameters:
            return False
        statements: list[Any] = self.node.body
        declared = {each.target.id for each in statements if _declares_name(each)}
        root = annotation
        while isinstance(root, ast.Call | ast.Subscript):
            root = root.func if isinstance(root, ast.Call) else root.value
        if not isinstance(root, ast.Attribute) or not isinstance(root.value, ast.Name):
            return name in declared
        module = self.source.find_value(root.value.id)
        is_language = getattr(module, "__name__", "").startswith("tilelang.language")
        return name in declared or (is_language and root.attr != "dtype")

    def _deduce_sizes(self, given: Mapping[str, object]) -> dict[str, int]:
        """Return the values of the sizes in parameter types: those given, else extents and strides of given arrays."""
        wanted, values_by_name = set(_list_const_names(self.node)), _find_named_values(self.node)
        sizes = {n: v for n, v in given.items() if n not in self.signature.parameters and isinstance(v, int)}
        for name, annotation in self._types().items():
            array = given.get(name)
            if not is_array(array):
                continue
            shape, strides = _read_extents(annotation, values_by_name)
            for names, values in ((shape, array_shape(array)), (strides, find_strides(array) if strides else ())):
                for part, value in zip(names, values, strict=False):
                    if isinstance(part, ast.Name) and (part.id in wanted or self._is_unknown(part.id)):
                        sizes.setdefault(part.id, int(value))
        return sizes

    def _is_unknown(self, name: str) -> bool:
        """Return whether a name in a type is no parameter, not bound in the function, and no integer or symbol of the
        script.
        """
        bound = {each.id for each in ast.walk(self.node) if isinstance(each, ast.Name) and not _is_read(each)}
        known = name in self.signature.parameters or name in bound
        return not known and not isinstance(self.source.find_value(name), int | Symbol)


def _is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _declares_name(node: ast.stmt) -> bool:
    """Return whether a statement declares a name's type without a value, as `A: type`."""
    return isinstance(node, ast.AnnAssign) and node.value is None and isinstance(node.target, ast.Name)


def _is_launch(node: ast.With) -> bool:
    """Return whether a `with` statement calls `Kernel` or `ClusterKernel`."""
    called = [item.context_expr.func for item in node.items if isinstance(item.context_expr, ast.Call)]
    return any(ast.unparse(each).rpartition(".")[2] in ("Kernel", "ClusterKernel") for each in called)


def _list_const_names(node: ast.FunctionDef) -> Iterator[str]:
    """Yield the names in the strings that a function passes to `T.const`."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and ast.unparse(each.func).rpartition(".")[2] == "const" and each.args:
            first = each.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield from first.value.replace(",", " ").split()


def _find_named_values(node: ast.FunctionDef) -> dict[str, ast.expr]:
    """Return the tuples, lists and other names that a function gives a name to, by the name; none with several
    values."""
    bound = [each for each in ast.walk(node) if isinstance(each, ast.Name) and not _is_read(each)]
    counts = Counter(each.id for each in bound)
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs += zip(targets, values, strict=False)
            case ast.Assign(targets=[target], value=value):
                pairs.append((target, value))
            case _:
                pass
    kinds = ast.Name | ast.Tuple | ast.List
    return {
        target.id: value
        for target, value in pairs
        if isinstance(target, ast.Name) and counts[target.id] == 1 and isinstance(value, kinds)
    }


def _read_extents(annotation: ast.expr, named: Mapping[str, ast.expr]) -> tuple[list[ast.expr], list[ast.expr]]:
    """Return the expressions of the extents and strides in a tensor type; no strides unless it is a strided tensor.
    `named` are the values of the names that it may use.
    """
    parts: list[ast.expr]
    match annotation:
        case ast.Call(args=args, keywords=keywords):
            parts = [*args, *(each.value for each in keywords if each.arg in ("shape", "strides"))]
        case ast.Subscript(slice=ast.Tuple(elts=elts)):
            parts = elts
        case ast.Subscript(slice=only):
            parts = [only]
        case _:
            parts = []

    def resolve_name(part: ast.expr) -> ast.expr:
        """Return the value of a name, or of the name that it stands for, and anything else as it is."""
        return named.get(part.id, part) if isinstance(part, ast.Name) else part

    lists = [
        [resolve_name(extent) for extent in part.elts] if isinstance(part, ast.Tuple | ast.List) else [part]
        for part in map(resolve_name, parts)
    ]
    is_strided = "Strided" in ast.unparse(annotation).partition("[")[0].partition("(")[0]
    return lists[0] if lists else [], lists[1] if is_strided and len(lists) > 1 else []


# ---- decorators ------------------------------------------------------------------------------------------------------


def _read_definition(function: object) -> PythonFunction:
    """Return a function with the script's frame that is defining it; raise `TypeError` for anything else."""
    if not isinstance(function, FunctionType):
        raise TypeError(f"a kernel is made of a Python function, not of {type(function).__name__}")
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("tilec.tilelang_run"):
        frame = frame.f_back
    return PythonFunction(function, frame)


def _check_target(target: object) -> None:
    """Raise `ValueError` if a script's `target=` names a machine other than an NVIDIA GPU."""
    kind = target.get("kind") if isinstance(target, dict) else target
    name = str(kind or "").split(" ")[0]
    if name in _OTHER_MACHINES:
        raise ValueError(f"target={name!r}: tilec compiles for NVIDIA GPUs only; leave target out")


def mark_macro(function: Callable[..., object] | None = None, **_: object) -> Any:
    """Wrap a function as a `Macro`, in place of TileLang's decorator `@T.macro`; for None return the decorator
    itself.
    """
    return mark_macro if function is None else Macro(_read_definition(function))


def mark_prim_func(function: Callable[..., object] | None = None, **_: object) -> Any:
    """Wrap a function as a `PrimFunction`, in place of the decorator `@T.prim_func`; for None return the decorator
    itself.
    """
    return mark_prim_func if function is None else PrimFunction(_read_definition(function))


def make_jit_function(func: Any = None, *, out_idx: OutIndex = None, target: object = None, **_: object) -> Any:
    """Wrap a function as a `JITFunction`, as `@tilelang.jit` does; compile a `PrimFunction`; for None return a
    decorator.
    """
    _check_target(target)

    def wrap_function(function: Any) -> Any:
        """Compile a `PrimFunction` to its kernel, or wrap any other function as a `JITFunction`."""
        return (
            function.compile(out_idx)
            if isinstance(function, PrimFunction)
            else JITFunction(_read_definition(function), out_idx)
        )

    return wrap_function if func is None else wrap_function(func)


def compile_prim_func(func: Any = None, out_idx: OutIndex = None, *, target: object = None, **_: object) -> JITKernel:
    """Compile a `PrimFunction` as `tilelang.compile` does, and return the kernel; refuse anything else."""
    _check_target(target)
    if not isinstance(func, PrimFunction):
        raise TypeError(f"tilelang.compile takes a function under @T.prim_func, not {type(func).__name__}")
    return func.compile(out_idx)
