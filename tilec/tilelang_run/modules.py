"""The modules that a script imports as `tilelang`, for as long as it runs."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.machinery import ModuleSpec
from inspect import getsourcefile
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from tilec.tilelang_run import kernels, profiler, symbols
from tilec.tilelang_run.symbols import Symbol
from tilec.tilelang_run.torch_without_gpu import MULTIPROCESSORS

_OPEN_MODULES = ("tilelang.layout", "tvm")
"""Modules whose other names are left to the kernels."""


class ServedModule(ModuleType):
    """A module of TileLang with the names that tilec serves."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__.startswith("tilelang.language"):
            return symbols.find_language_name(name)
        if self.__name__.startswith(_OPEN_MODULES):
            return Symbol(f"{self.__name__}.{name}")
        raise AttributeError(
            f"{self.__name__}.{name} is not served by tilec, which runs the script in TileLang's place"
        )


# ---- tuning ----------------------------------------------------------------------------------------------------------


def make_tuned_function(func: Any = None, configs: Any = None, **_: object) -> Any:
    """Wrap a `JITFunction`, as `@tilelang.autotune` does, to use its first configuration without measuring. For None,
    return a decorator that does so.
    """

    def wrap_function(function: Any) -> Any:
        """Wrap a `JITFunction` with the configurations; raise `TypeError` for anything else."""
        if not isinstance(function, kernels.JITFunction):
            raise TypeError("@tilelang.autotune stands above @tilelang.jit")
        return _TunedFunction(function, configs)

    return wrap_function if func is None else wrap_function(func)


class _TunedFunction:
    """A function that TileLang would tune. A call takes the first configuration, without trying another."""

    def __init__(self, function: kernels.JITFunction, configs: Any) -> None:
        self.function, self.configs = function, configs

    def __call__(self, *args: object, **named: object) -> Any:
        return self._choose_config(args, named)(*args, **named)

    def compile(self, *args: object, **named: object) -> kernels.JITKernel:
        """Compile the kernel for these arguments with the first configuration, and return it."""
        return self._choose_config(args, named).compile(*args, **named)

    def _choose_config(self, args: Sequence[object], named: Mapping[str, object]) -> kernels.JITFunction:
        """Return a copy of the function with the first configuration, unless the call names all of that itself. A line
        says that nothing was tuned.
        """
        listed = list(self.configs(*args, **named) if callable(self.configs) else self.configs or [])
        chosen = kernels.JITFunction(self.function.source, self.function.out_idx)
        positional = list(chosen.signature.parameters)[: len(args)]
        first = {name: value for name, value in (listed[0] if listed else {}).items() if name not in positional}
        if set(first) - set(named):
            profiler.say_once(f"nothing was tuned: the first of {len(listed)} configurations is taken")
            chosen.configs = [first]
        return chosen


class AutoTuner:
    """Serves `AutoTuner`: it returns the kernel of the first configuration."""

    def __init__(self, kernel: Any, configs: Any) -> None:
        self.kernel, self.configs = kernel, list(configs)
        self.out_idx: kernels.OutIndex = None

    @classmethod
    def from_kernel(cls, kernel: Any, configs: Any) -> AutoTuner:
        """Return a tuner of a function that makes kernels, with these configurations."""
        return cls(kernel, configs)

    def set_compile_args(self, out_idx: kernels.OutIndex = None, **_: object) -> AutoTuner:
        """Keep `out_idx` for the compilation, ignore other arguments, and return the tuner."""
        self.out_idx = out_idx
        return self

    def set_profile_args(self, *_: object, **__: object) -> AutoTuner:
        """Ignore how to measure, since nothing is measured, and return the tuner."""
        return self

    def run(self, *_: object, **__: object) -> kernels.JITKernel:
        """Compile the first configuration and return its kernel, with a latency of nan, and say so; raise `TypeError`
        without one.
        """
        profiler.say_once(f"nothing was tuned: the first of {len(self.configs)} configurations is taken")
        made = self.kernel(**self.configs[0])
        kernel = made.compile(self.out_idx) if isinstance(made, kernels.PrimFunction) else made
        if not isinstance(kernel, kernels.JITKernel):
            raise TypeError(f"a function to be tuned returns a kernel, not {type(kernel).__name__}")
        kernel.latency, kernel.config = float("nan"), self.configs[0]
        return kernel


# ---- testing ---------------------------------------------------------------------------------------------------------


def set_random_seed(seed: int = 42) -> None:
    """Seed the random generators of Python, numpy and, if imported, torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "manual_seed"):
        torch.manual_seed(seed)


def run_tests_of_caller() -> None:
    """Run pytest on the calling file, and exit the process with its code."""
    pytest = importlib.import_module("pytest")
    sys.exit(pytest.main([str(getsourcefile(sys._getframe(1))), *sys.argv[1:]]))


def _keep_function(function: Any = None, *_: object, **__: object) -> Any:
    """Return a decorated function unchanged, or this decorator itself when called with arguments only. It serves
    decorators that ask for a machine which tilec stands for.
    """
    return function if callable(function) else _keep_function


def _serve_capability_check(compare: Callable[[tuple[int, int], tuple[int, int]], bool]) -> Callable[..., Any]:
    """Return a decorator that skips a test if the target's compute capability does not compare as given with a
    version.
    """

    def make_decorator(major: int, minor: int = 0, **_: object) -> Any:
        """Return a decorator for tests that need a compute capability compared with `major` and `minor`."""

        def keep_or_skip(function: Any) -> Any:
            """Return the test unchanged if the target's capability fits, else marked to be skipped by pytest."""
            if compare(find_capability(kernels.MACHINE.target), (major, minor)):
                return function
            pytest = importlib.import_module("pytest")
            return pytest.mark.skip(reason=f"not for {kernels.MACHINE.target}")(function)

        return keep_or_skip

    return make_decorator


def find_capability(target: str) -> tuple[int, int]:
    """Return the compute capability in a target's name: (9, 0) for sm_90a, and without a number."""
    number = int("".join(each for each in target if each.isdecimal()) or 90)
    return number // 10, number % 10


def format_capability(*_: object) -> str:
    """Return the compute capability of this run's target as TileLang writes it: "9.0"."""
    return ".".join(map(str, find_capability(kernels.MACHINE.target)))


def choose_fp8_type(fp8_format: str = "e4m3") -> object:
    """Return the 8-bit float of NVIDIA with this format, e4m3 or e5m2."""
    return symbols.make_element_type({"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}[fp8_format])


# ---- the table -------------------------------------------------------------------------------------------------------

_CHECKS: dict[str, Callable[[tuple[int, int], tuple[int, int]], bool]] = {
    "ge": lambda a, b: a >= b, "gt": lambda a, b: a > b, "le": lambda a, b: a <= b, "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
}  # fmt: skip


def _do_nothing(*_: object, **__: object) -> None:
    """Accept any arguments and do nothing, for calls that only tell TileLang how to work."""


def list_names() -> dict[str, dict[str, object]]:
    """Return the table of the modules served as TileLang's: for each module name, what its names stand for."""
    tune: dict[str, object] = {
        "autotune": make_tuned_function,
        "AutoTuner": AutoTuner,
        "set_autotune_inputs": lambda *_, **__: nullcontext(),
    }
    supply: dict[str, object] = {"TensorSupplyType": profiler.TensorSupplyType}
    close: dict[str, object] = {"torch_assert_close": profiler.assert_close}
    numbers: dict[str, object] = {"cdiv": symbols.ceildiv, "next_power_of_2": symbols.next_power_of_2}
    configs: dict[str, object] = {"PassConfigKey": Symbol("tilelang.PassConfigKey")}
    language: dict[str, object] = {"prim_func": kernels.mark_prim_func}
    language |= {"macro": kernels.mark_macro, "inline": kernels.mark_macro}
    checks: dict[str, object] = {
        f"requires_cuda_compute_version_{name}": _serve_capability_check(f) for name, f in _CHECKS.items()
    }
    return {
        "tilelang": {
            "jit": kernels.make_jit_function, "lazy_jit": kernels.make_jit_function,
            "compile": kernels.compile_prim_func, "JITKernel": kernels.JITKernel, "do_bench": profiler.do_bench,
            "DataType": symbols.make_element_type, "disable_cache": _do_nothing, "enable_cache": _do_nothing,
            "set_log_level": _do_nothing, "__version__": "0", **numbers, **configs, **supply, **tune,
        },
        "tilelang.language": language,
        "tilelang.language.dtypes": {"dtype": symbols.make_element_type},
        "tilelang.language.fp8": {"determine_fp8_type": choose_fp8_type},
        "tilelang.contrib": {},
        "tilelang.contrib.nvcc": {"get_target_compute_version": format_capability},
        "tilelang.carver": {},
        "tilelang.carver.arch": {},
        "tilelang.carver.arch.driver": {"get_num_sms": lambda *_: MULTIPROCESSORS},
        "tilelang.jit": {"jit": kernels.make_jit_function, "JITKernel": kernels.JITKernel},
        "tilelang.math": numbers,
        "tilelang.profiler": {"do_bench": profiler.do_bench, "Profiler": profiler.Profiler, **supply},
        "tilelang.autotuner": tune,
        "tilelang.transform": configs,
        "tilelang.layout": {},
        "tilelang.utils": {**close, **supply},
        "tilelang.utils.tensor": {**close, **supply},
        "tilelang.testing": {
            "main": run_tests_of_caller, "set_random_seed": set_random_seed, "requires_cuda": _keep_function,
            "requires_package": lambda *_: _keep_function, "process_func": _do_nothing, "regression": _do_nothing,
            "requires_cuda_compute_version": _serve_capability_check(_CHECKS["ge"]), **checks, **close,
        },
        "tvm": {"DataType": symbols.make_element_type},
    }  # fmt: skip


def _name_functions(module: str, names: Mapping[str, object]) -> None:
    """Record on a module's functions their names in kernel text, as `T.ceildiv`; keep a name recorded before."""
    prefix = "T" if module == "tilelang.language" else module
    for name, function in names.items():
        if isinstance(function, FunctionType) and not hasattr(function, "tilelang_name"):
            symbols.name_function(function, f"{prefix}.{name}")


@contextmanager
def serve_modules() -> Iterator[None]:
    """Replace `tilelang` and `tvm` in `sys.modules` by the served modules for the `with`, and restore them after it."""
    before = {name: sys.modules[name] for name in list(sys.modules) if name.split(".")[0] in ("tilelang", "tvm")}
    for name in before:
        del sys.modules[name]
    table = list_names()
    for name, names in table.items():
        module = ServedModule(name, "Served by tilec.")
        module.__path__ = []
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__dict__.update(names)
        _name_functions(name, names)
        sys.modules[name] = module
    for name in table:
        parent, _, last = name.rpartition(".")
        if parent and (parent, last) != ("tilelang", "jit"):  # tilelang.jit is the decorator
            setattr(sys.modules[parent], last, sys.modules[name])
    sys.modules["tilelang"].__dict__["tvm"] = sys.modules["tvm"]
    sys.modules["tilelang.tvm"] = sys.modules["tvm"]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] in ("tilelang", "tvm")]:
            del sys.modules[name]
        sys.modules.update(before)
