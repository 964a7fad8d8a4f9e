"""A profiler for scripts: it draws inputs and compares results. Nothing is measured, and one line says so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import numpy as np

from tilec.ir.manifest import TensorInfo
from tilec.ir.types import TYPES_BY_NAME, DType
from tilec.support.sizes import evaluate_shape
from tilec.tilelang_run.arrays import copy_numbers, is_array, make_empty_array, read_numbers


class Runnable(Protocol):
    """A kernel that can be called with its inputs."""

    tensors: dict[str, TensorInfo]
    outputs: tuple[str, ...]

    def parameters(self) -> tuple[str, ...]: ...

    def __call__(self, *args: object, **named: object) -> Any: ...


TensorSupplyType = Enum("TensorSupplyType", ["Integer", "Uniform", "Normal", "Randn", "Zero", "One", "Auto"])
_SAID: set[str] = set()


def say_once(text: str) -> None:
    """Print a line on standard error, only the first time that this text is passed."""
    if text not in _SAID:
        _SAID.add(text)
        print(f"tilec: {text}", file=sys.stderr)


def do_bench(*_: object, quantiles: Sequence[float] | None = None, **__: object) -> Any:
    """Return nan as the time, or a nan for each quantile, without calling anything; one line says that nothing was
    measured.
    """
    say_once("nothing was measured, so every time is nan")
    return float("nan") if quantiles is None else [float("nan")] * len(quantiles)


class Profiler:
    """Draws inputs of a kernel and compares its results with a reference."""

    def __init__(self, kernel: Runnable, supply: Any = None) -> None:
        self.kernel = kernel
        self.supply = supply or TensorSupplyType.Auto
        self._generator = np.random.default_rng(0)

    def __call__(self, *args: object, **named: object) -> object:
        return self.kernel(*args, **named)

    @property
    def func(self) -> Runnable:
        """Return the kernel, as scripts read it."""
        return self.kernel

    def do_bench(self, *_: object, quantiles: Sequence[float] | None = None, **__: object) -> Any:
        """Return nan, or a nan for each quantile, without running the kernel."""
        return do_bench(quantiles=quantiles)

    def run_once(self, func: Callable[..., object] | None = None) -> object:
        """Run the kernel, or `func` in its place, on newly drawn inputs, and return the result."""
        return (func or self.kernel)(*self._draw_inputs())

    def assert_allclose(
        self,
        reference_program: Callable[..., object],
        input_tensors: Sequence[object] | None = None,
        atol: float = 1e-2,
        rtol: float = 1e-2,
        max_mismatched_ratio: float = 0.01,
    ) -> None:
        """Raise `AssertionError` unless the kernel and the reference give close results on the same inputs, given or
        drawn.
        """
        inputs = self._draw_inputs() if input_tensors is None else input_tensors
        expected, found = _list_results(reference_program(*inputs)), _list_results(self.kernel(*inputs))
        assert len(found) == len(expected), f"the kernel returns {len(found)} tensors, the reference {len(expected)}"
        for one, other in zip(found, expected, strict=True):
            if one is not None and other is not None:
                assert_close(one, other, rtol, atol, max_mismatched_ratio)

    def manual_assert_close(
        self,
        reference_program: Callable[..., object],
        input_tensors: Sequence[object] | None = None,
        manual_check_prog: Callable[..., object] | None = None,
    ) -> None:
        """Pass the kernel's and the reference's results, on inputs given or drawn, to the script's check; without one
        do nothing.
        """
        inputs = self._draw_inputs() if input_tensors is None else input_tensors
        if manual_check_prog is not None:
            manual_check_prog(_list_results(self.kernel(*inputs)), _list_results(reference_program(*inputs)))

    def assert_consistent(self, repeat: int = 10) -> None:
        """Raise `AssertionError` unless two runs on the same inputs give the same. The emulator repeats itself
        exactly.
        """
        inputs = self._draw_inputs()
        first, second = (_list_results(self.kernel(*inputs)) for _ in range(2))
        for one, other in zip(first, second, strict=True):
            assert_close(one, other, 0.0, 0.0, 0.0)

    def _draw_inputs(self) -> list[object]:
        """Return a drawn argument for each parameter that is no output; raise an error for sizes known only at
        launch.
        """
        kernel = self.kernel
        return [self._draw_argument(name) for name in kernel.parameters() if name not in kernel.outputs]

    def _draw_argument(self, name: str) -> object:
        """Return a new array of drawn numbers for a tensor parameter, or 1 for a scalar."""
        if name not in self.kernel.tensors:
            return 1
        tensor = self.kernel.tensors[name]
        return self._draw_arrays(evaluate_shape(tensor.shape, {}), tensor.table, TYPES_BY_NAME[tensor.dtype])

    def _draw_arrays(self, shape: tuple[int, ...], depth: int, dtype: DType) -> object:
        """Return a drawn array, or drawn arrays in lists of this depth, for a table of addresses."""
        if depth:
            return [self._draw_arrays(shape[1:], depth - 1, dtype) for _ in range(shape[0])]
        array = make_empty_array(shape, dtype, None)
        copy_numbers(array, self._draw_numbers(shape, dtype), dtype)
        return array

    def _draw_numbers(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """Return an array of float32 numbers: zeros, ones, small integers, uniform or normal, by `supply` and dtype."""
        kind, generator = self.supply.name, self._generator
        if kind in ("Zero", "One"):
            return np.full(shape, float(kind == "One"), np.float32)
        if kind == "Integer" or not dtype.is_float:
            low, high = {"uint": (0, 3), "bool": (0, 2)}.get(dtype.kind, (-2, 3))
            return generator.integers(low, high, shape).astype(np.float32)
        if kind in ("Auto", "Uniform"):
            return generator.uniform(-1.0, 1.0, shape).astype(np.float32)
        return generator.standard_normal(shape, dtype=np.float32)


def _list_results(results: Any) -> list[Any]:
    """Return a kernel's results as a list: empty for None, one item for an array, else the items."""
    return [] if results is None else [results] if is_array(results) else list(results)


def assert_close(
    actual: Any,
    expected: Any,
    rtol: float = 1e-2,
    atol: float = 1e-3,
    max_mismatched_ratio: float = 0.001,
    **_: object,
) -> None:
    """Raise `AssertionError` if shapes differ, or more than `max_mismatched_ratio` of the elements exceed the
    tolerance.
    """
    first, second = read_numbers(actual), read_numbers(expected)
    assert first.shape == second.shape, f"the shapes differ: {list(first.shape)} and {list(second.shape)}"
    wrong = ~np.isclose(first, second, rtol=rtol, atol=atol, equal_nan=True)
    if wrong.sum() > max_mismatched_ratio * wrong.size:
        worst = np.nanmax(np.abs(first - second))
        raise AssertionError(f"{wrong.sum():,} of {wrong.size:,} elements differ, the worst by {worst:.4g}")
