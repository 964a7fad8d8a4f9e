"""Arrays of any library, on a GPU or not, by the protocols they share: DLPack and `__cuda_array_interface__`.

DLPack comes first, because it supports bfloat16. Only address and layout are read; nothing is copied.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.support.records import dataclass

CPU, GPU = 1, 2
"""Kinds of DLPack devices, as numbered in `dlpack.h`; memory that both reach counts as its owner's kind."""

_HOST, _MANAGED = 3, 13

# Codes and bits of dlpack.h (version 1.1), with their names in the kernel language.
_KINDS = {0: "int", 1: "uint", 2: "float", 5: "complex"}
_NAMED = {
    (4, 16): "bfloat16", (6, 8): "bool", (10, 8): "float8_e4m3fn", (12, 8): "float8_e5m2", (14, 8): "float8_e8m0fnu",
    (17, 4): "float4_e2m1fn",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class View:
    """The place of an array: the address of its first element, extents, and the stride of each axis in elements.
    `device` is the kind, and the number of the device among its kind."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: tuple[int, int]
    is_read_only: bool = False

    def has_steps(self, steps: tuple[int, ...]) -> bool:
        """Return whether the array has these strides in elements, ignoring axes of one element and empty arrays."""
        axes = zip(self.shape, self.strides, steps, strict=True)
        return 0 in self.shape or all(mine == other for extent, mine, other in axes if extent > 1)

    def as_numpy(self, storage: np.dtype[Any]) -> NDArray[Any]:
        """Return a numpy array on this CPU memory, of numpy's type `storage`; a copy if the memory is read-only. The
        emulator writes its arguments back.
        """
        steps = tuple(step * storage.itemsize for step in self.strides)
        reach = 1 + sum((extent - 1) * step for extent, step in zip(self.shape, self.strides, strict=True))
        if 0 in self.shape:
            return np.empty(self.shape, storage)
        held = memoryview((ctypes.c_char * (reach * storage.itemsize)).from_address(self.address))
        array: NDArray[Any] = np.ndarray(self.shape, storage, buffer=held, strides=steps)
        return array.copy() if self.is_read_only else array


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense row-major array of this shape."""
    steps = [1]
    for extent in reversed(shape[1:]):
        steps.append(steps[-1] * extent)
    return tuple(reversed(steps))[: len(shape)]


def view_array(array: object, stream: int = 0) -> View | None:
    """Return the address and layout of an array, by DLPack or its CUDA interface; None for other objects. `stream`
    waits for the owner's queued work. Raises `BufferError` or `ValueError` where the owner refuses, or the layout is
    not supported.
    """
    if isinstance(array, np.ndarray):
        return _view_numpy(array)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _view_dlpack(array, stream)
    if hasattr(array, "__cuda_array_interface__"):
        return _view_cuda_interface(array.__cuda_array_interface__)
    return None


_NARROW = ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "int2", "int4", "uint2", "uint4")
"""Types of ml_dtypes that store each number in a byte of its own; kernels store several in one."""


def _view_numpy(array: NDArray[Any]) -> View:
    """Return the address and layout of a numpy array; raise `ValueError` for strides that split elements. numpy's
    DLPack supports neither read-only arrays nor foreign types (ml_dtypes).
    """
    dtype = array.dtype
    name = dtype.name if dtype.isnative else str(dtype)
    if name in _NARROW:
        name += ", one in a byte"
    if array.size and any(step % dtype.itemsize for step in array.strides):
        raise ValueError(f"its elements are {list(array.strides)} bytes apart, of {dtype.itemsize} each")
    steps = tuple(step // dtype.itemsize for step in array.strides)
    return View(array.ctypes.data, name, array.shape, steps, (CPU, 0), not array.flags.writeable)


def _view_cuda_interface(record: dict[str, Any]) -> View:
    """Return the address and layout of a GPU array from its `__cuda_array_interface__` record, version 3. The record
    names no device: it counts as GPU 0.
    """
    shape = tuple(map(int, record["shape"]))
    dtype = np.dtype(record["typestr"])
    given = record.get("strides")
    steps = dense_strides(shape) if given is None else tuple(int(step) // dtype.itemsize for step in given)
    address, is_read_only = record["data"]
    return View(int(address or 0), dtype.name, shape, steps, (GPU, 0), bool(is_read_only))


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """`DLTensor`, the first field of a `DLManagedTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", _Device), ("rank", ctypes.c_int32), ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )  # fmt: skip


_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype = ctypes.c_void_p
_pointer_in.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _view_dlpack(array: Any, stream: int) -> View:
    """Return the address and layout of an array from the DLPack capsule that it exports for this stream."""
    kind, number = (int(part) for part in array.__dlpack_device__())
    # 1 is the default stream there, and 0 is not allowed.
    capsule = array.__dlpack__(stream=stream or 1) if kind in (GPU, _MANAGED) else array.__dlpack__()
    tensor = _Tensor.from_address(_pointer_in(capsule, b"dltensor"))
    shape = tuple(tensor.shape[axis] for axis in range(tensor.rank))
    steps = tuple(tensor.strides[axis] for axis in range(tensor.rank)) if tensor.strides else dense_strides(shape)
    code, bits = tensor.dtype.code, tensor.dtype.bits * tensor.dtype.lanes
    name = _NAMED.get((code, bits)) or f"{_KINDS.get(code, 'type')}{bits}"
    place = {_HOST: CPU, _MANAGED: GPU}.get(kind, kind)
    return View((tensor.data or 0) + tensor.offset, name, shape, steps, (place, number))
