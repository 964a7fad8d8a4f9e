"""A launch as the driver gets it, without a driver: what is packed, and that it can be repeated."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
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


TABLES = Manifest(
    entry="k", target="sm_90a", grid=("n", 1, 1), block=(32, 1, 1), cluster=(1, 1, 1), dynamic_smem=0,
    tensors=(TensorInfo("A", "int16", ("n", 3), "in", table=1), TensorInfo("C", "int16", ("n", 3), "out", table=1)),
    scalars=(ScalarInfo("n", "int32"),), params=(PointerParam("A"), PointerParam("C"), ScalarParam("n", "int32")),
)  # fmt: skip


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> runtime.Kernel:
    """A kernel of TABLES that doubles each array, with this process's memory as that of the GPU."""
    from cuda.bindings import driver

    done = (driver.CUresult.CUDA_SUCCESS,)
    held: dict[int, Any] = {}

    def allocate(size: int, *_: Any) -> tuple[Any, int]:
        block = ctypes.create_string_buffer(size + 256)
        address = -(-ctypes.addressof(block) // 256) * 256
        held[address] = block
        return (*done, address)

    def copy(to: int, source: int, size: int, *_: Any) -> tuple[Any]:
        ctypes.memmove(to, source, size)
        return done

    def launch(config: Any, function: Any, packed: int, extra: int) -> tuple[Any]:
        pointers = ctypes.cast(packed, ctypes.POINTER(ctypes.c_void_p))
        places = [ctypes.c_uint64.from_address(pointers[i] or 0).value for i in range(2)]
        for entry in range(config.gridDimX):
            source, into = (ctypes.c_uint64.from_address(place + 8 * entry).value for place in places)
            assert source % 16 == into % 16 == 0
            for at in range(0, 6, 2):
                ctypes.c_int16.from_address(into + at).value = 2 * ctypes.c_int16.from_address(source + at).value
        return done

    fakes: dict[str, Any] = dict.fromkeys(("cuMemAlloc", "cuMemAllocAsync"), allocate)
    fakes |= dict.fromkeys(("cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyHtoDAsync"), copy)
    fakes |= dict.fromkeys(("cuMemFree", "cuMemFreeAsync"), lambda address, *_: held.pop(address) and done)
    fakes |= dict.fromkeys(("cuMemsetD8", "cuCtxSynchronize", "cuCtxPushCurrent", "cuCtxPopCurrent"), lambda *_: done)
    for name, fake in {**fakes, "cuLaunchKernelEx": launch}.items():
        monkeypatch.setattr(driver, name, fake)
    made = object.__new__(runtime.Kernel)
    made.manifest, made._function, made._context = TABLES, "function", None
    return made


def test_the_arrays_of_a_table_are_apart_and_aligned(tables: runtime.Kernel) -> None:
    for count in (0, 1, 3):
        a, c = np.arange(3 * count, dtype=np.int16).reshape(count, 3), np.zeros((count, 3), np.int16)
        tables.run({"A": a, "C": c})
        np.testing.assert_array_equal(c, 2 * a)


def test_a_call_makes_the_tables_of_lists(tables: runtime.Kernel) -> None:
    memory = np.zeros(64, np.int16)
    first = -(-memory.ctypes.data // 16) * 16
    given, made = [first, first + 16], [first + 32, first + 48]
    for place, numbers in zip(given, ((1, 2, 3), (4, 5, 6)), strict=True):
        (ctypes.c_int16 * 3).from_address(place)[:] = numbers
    table = np.array(given, np.uint64)
    tables.call({"A": table.ctypes.data}, {"n": 2}, 0, {"C": made})
    assert [list((ctypes.c_int16 * 3).from_address(place)) for place in made] == [[2, 4, 6], [8, 10, 12]]
