"""A launch as the driver gets it, without a driver: what is packed, and that it can be repeated."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tilec.host import runtime
from tilec.ir.manifest import Manifest, PointerParam, ScalarInfo, ScalarParam, TensorInfo

MANIFEST = Manifest(
    entry="k", target="sm_90a", grid=(("floordiv", "n", 4), 2, 1), block=(64, 1, 1), cluster=(2, 1, 1),
    dynamic_smem=4096, tensors=(TensorInfo("A", "float32", ("n",), "inout"),),
    scalars=(ScalarInfo("n", "int32"), ScalarInfo("x", "float32")),
    params=(PointerParam("A"), ScalarParam("n", "int32"), ScalarParam("x", "float32")), attributes=("dependent",),
)  # fmt: skip


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    from cuda.bindings import driver

    seen: list[Any] = []

    def launch(config: Any, function: Any, packed: int, extra: int) -> tuple[Any]:
        pointers = ctypes.cast(packed, ctypes.POINTER(ctypes.c_void_p))
        values = [
            kind.from_address(pointers[i] or 0).value
            for i, kind in enumerate((ctypes.c_uint64, ctypes.c_int32, ctypes.c_float))
        ]
        extents = (config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX, config.sharedMemBytes)
        seen.append((function, extents, len(config.attrs), values, int(config.hStream)))
        return (driver.CUresult.CUDA_SUCCESS,)

    monkeypatch.setattr(driver, "cuLaunchKernelEx", launch)
    return seen


def kernel() -> runtime.Kernel:
    made = object.__new__(runtime.Kernel)
    made.manifest, made._function = MANIFEST, "function"
    return made


def test_a_bound_launch_is_repeated_on_any_stream(launches: list[Any]) -> None:
    launch = kernel().bound({"A": 0x1000}, {"n": 16, "x": 0.5})
    launch(0)
    launch(7)
    whole = ("function", (4, 2, 1, 64, 4096), 2, [0x1000, 16, 0.5])
    assert launches == [(*whole, 0), (*whole, 7)]


def test_a_grid_of_nothing_is_not_launched(launches: list[Any]) -> None:
    kernel().launch({"A": 0}, {"n": 0, "x": 0.5})
    assert launches == []
