"""Loads a cubin on this machine's GPU and launches it by its manifest, through cuda-python's driver API."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.host.arrays import dense_strides
from tilec.host.header_calls import EMPTY_BYTES as EMPTY_BYTES, MAP_TYPES
from tilec.ir.manifest import (
    Im2colMapParam,
    Manifest,
    PointerParam,
    ScalarParam,
    TensorInfo,
    TensorMapParam,
    extract_from_cubin,
)
from tilec.support.records import dataclass
from tilec.support.sizes import evaluate_shape

Array = NDArray[Any]
_ENTRY_ALIGNMENT = 256
"""The alignment in bytes of the arrays in a table of addresses, as that of cudaMalloc."""
_ELEMENT_BYTES = {"UINT8": 1, "UINT16": 2, "FLOAT16": 2, "BFLOAT16": 2, "UINT32": 4, "INT32": 4, "FLOAT32": 4}

_SCALARS: dict[str, Any] = {
    "int8": ctypes.c_int8, "uint8": ctypes.c_uint8, "int16": ctypes.c_int16, "uint16": ctypes.c_uint16,
    "int32": ctypes.c_int32, "uint32": ctypes.c_uint32, "int64": ctypes.c_int64, "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float, "float64": ctypes.c_double, "bool": ctypes.c_bool,
}  # fmt: skip


class GpuError(RuntimeError):
    """A call of the driver API failed."""


def has_gpu() -> bool:
    """Return whether the CUDA driver starts and finds a GPU; False, not an error, without bindings or driver."""
    try:
        from cuda.bindings import driver

        (status,) = driver.cuInit(0)
        if status != driver.CUresult.CUDA_SUCCESS:
            return False
        status, count = driver.cuDeviceGetCount()
        return bool(status == driver.CUresult.CUDA_SUCCESS and count > 0)
    except (ImportError, RuntimeError):
        # The bindings exist on every machine; the driver's library may not.
        return False


def compute_capability() -> tuple[int, int]:
    """Return the compute capability of the first GPU, (9, 0) for sm_90; raise `GpuError` without a GPU."""
    from cuda.bindings import driver

    device, known = _open_device(), driver.CUdevice_attribute
    major = _check_status(driver.cuDeviceGetAttribute(known.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    minor = _check_status(driver.cuDeviceGetAttribute(known.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
    return int(major), int(minor)


def _open_device(number: int = 0) -> Any:
    """Initialise the CUDA driver and return its handle of the GPU with this number; raise `GpuError` without it."""
    from cuda.bindings import driver

    _check_status(driver.cuInit(0))
    return _check_status(driver.cuDeviceGet(number))


@contextmanager
def hold_primary_context() -> Iterator[None]:
    """Make the first GPU's primary context current, and keep it until the end of the `with`. Without it, every kernel
    makes its own.
    """
    from cuda.bindings import driver

    device = _open_device()
    _check_status(driver.cuCtxSetCurrent(_check_status(driver.cuDevicePrimaryCtxRetain(device))))
    try:
        yield
    finally:
        driver.cuDevicePrimaryCtxRelease(device)


def wait_for_gpu() -> None:
    """Wait until all launches of the current context are done; raise `GpuError` if one has failed."""
    from cuda.bindings import driver

    _check_status(driver.cuCtxSynchronize())


@dataclass(frozen=True, slots=True)
class GpuDescription:
    """The first GPU; `driver` is the version that nvidia-smi reports, or else the newest CUDA that it supports."""

    name: str
    driver: str
    sms: int


def describe_gpu() -> GpuDescription:
    """Return the name, driver version and number of multiprocessors of GPU 0; raise `GpuError` if the driver fails."""
    from cuda.bindings import driver

    device = _open_device()
    name = bytes(_check_status(driver.cuDeviceGetName(128, device))).partition(b"\0")[0].decode()
    sms = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    return GpuDescription(name, _read_driver_version(), int(_check_status(driver.cuDeviceGetAttribute(sms, device))))


def _read_driver_version() -> str:
    """Return the driver's version as nvidia-smi prints it, or, without that, "for CUDA 12.4", the newest it
    supports.
    """
    import subprocess

    from cuda.bindings import driver

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        words = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        words = []
    if words:
        return words[0]
    version = int(_check_status(driver.cuDriverGetVersion()))
    return f"for CUDA {version // 1000}.{version % 1000 // 10}"


def _check_status(result: Sequence[Any]) -> Any:
    """Return the value of a driver call, or None if it has none; raise `GpuError` if its status is no success."""
    from cuda.bindings import driver

    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(status)
        raise GpuError(f"{status.name}: {(text or b'').decode()}")
    return values[0] if values else None


def copy_to_gpu(data: Array) -> int:
    """Copy an array to newly allocated GPU memory, which is never freed, and return the address; raise `GpuError` if it
    fails. It lives as long as the context.
    """
    from cuda.bindings import driver

    address = int(_check_status(driver.cuMemAlloc(max(data.nbytes, EMPTY_BYTES))))
    if data.nbytes:
        _check_status(driver.cuMemcpyHtoD(address, data.ctypes.data, data.nbytes))
    return address


def pad_entries(array: Array, rank: int) -> Array:
    """Return the bytes of an array's entries, counted by its first `rank` axes, as rows that begin aligned."""
    entries = math.prod(array.shape[:rank])
    width = array.nbytes // max(entries, 1)
    rows = np.zeros((entries, -(-width // _ENTRY_ALIGNMENT) * _ENTRY_ALIGNMENT), np.uint8)
    rows[:, :width] = np.ascontiguousarray(array).view(np.uint8).reshape(entries, width)
    return rows


def list_addresses(first: int, rows: Array) -> Array:
    """Return the addresses of the rows of an array of bytes whose first one is at an address."""
    return np.arange(len(rows), dtype=np.uint64) * np.uint64(rows.shape[-1]) + np.uint64(first)


def time_launch(launch: Callable[[int], None]) -> float:
    """Launch once on the default stream, and return the milliseconds between events around it; raise `GpuError` on
    failure.
    """
    from cuda.bindings import driver

    begin, end = (_check_status(driver.cuEventCreate(0)) for _ in range(2))
    try:
        _check_status(driver.cuEventRecord(begin, 0))
        launch(0)
        _check_status(driver.cuEventRecord(end, 0))
        _check_status(driver.cuEventSynchronize(end))
        return float(_check_status(driver.cuEventElapsedTime(begin, end)))
    finally:
        for event in (begin, end):
            driver.cuEventDestroy(event)


class Kernel:
    """A loaded kernel. Holds the module and the primary context of a GPU; `close` releases them."""

    def __init__(self, cubin: bytes, entry: str | None = None, number: int = 0) -> None:
        from cuda.bindings import driver

        found = extract_from_cubin(cubin)
        chosen = [m for m in found if entry in (None, m.entry)]
        if len(chosen) != 1:
            raise ValueError(f"which kernel? the cubin has {', '.join(m.entry for m in found)}")
        self.manifest: Manifest = chosen[0]
        self._device = _open_device(number)
        self._context = _check_status(driver.cuDevicePrimaryCtxRetain(self._device))
        _check_status(driver.cuCtxSetCurrent(self._context))
        self._module = _check_status(driver.cuModuleLoadData(cubin))
        self._function = _check_status(driver.cuModuleGetFunction(self._module, self.manifest.entry.encode()))
        if self.manifest.dynamic_smem > 0:
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check_status(driver.cuFuncSetAttribute(self._function, limit, self.manifest.dynamic_smem))

    def close(self) -> None:
        """Unload the kernel's module and release the GPU's primary context."""
        from cuda.bindings import driver

        _check_status(driver.cuModuleUnload(self._module))
        _check_status(driver.cuDevicePrimaryCtxRelease(self._device))

    def run(self, tensors: Mapping[str, Array], scalars: Mapping[str, int | float] | None = None) -> None:
        """Copy the tensors to the GPU, launch once, wait, and copy back what the kernel writes; raise an error for
        wrong shapes. bfloat16 is raw uint16.

        Sizes that the kernel learns at launch need not be among `scalars`. Raises `ValueError` where shapes do not fit.
        """
        from cuda.bindings import driver

        given_tensors = [tensor for tensor in self.manifest.tensors if tensor.role not in ("workspace", "zeroed")]
        arrays = {tensor.name: tensors[tensor.name] for tensor in given_tensors}
        for name, array in arrays.items():
            if not array.flags.c_contiguous:
                raise ValueError(f"{name} must be a row-major array")
        given = scalars or {}
        sizes = self.manifest.sizes({name: array.shape for name, array in arrays.items()}, given)
        for tensor in given_tensors:
            wanted = evaluate_shape(tensor.shape, sizes)
            if arrays[tensor.name].shape != wanted:
                raise ValueError(f"{tensor.name} must be a row-major array of shape {list(wanted)}")
        strided = {t.name: _copy_with_strides(t, arrays[t.name], sizes) for t in given_tensors if t.strides is not None}
        padded = {t.name: pad_entries(arrays[t.name], t.table) for t in given_tensors if t.table}
        memory: dict[str, Any] = {n: strided[n].base if n in strided else array for n, array in arrays.items()}
        memory |= padded
        addresses: dict[str, Any] = {}
        try:
            for name, array in memory.items():
                addresses[name] = _check_status(driver.cuMemAlloc(max(array.nbytes, EMPTY_BYTES)))
                if array.nbytes:
                    _check_status(driver.cuMemcpyHtoD(addresses[name], array.ctypes.data, array.nbytes))
                else:
                    _check_status(driver.cuMemsetD8(addresses[name], 0, EMPTY_BYTES))
            for tensor in self.manifest.tensors:
                if tensor.role in ("workspace", "zeroed"):
                    addresses[tensor.name] = _check_status(driver.cuMemAlloc(_compute_byte_count(tensor, sizes)))
                if tensor.role == "zeroed":
                    _check_status(driver.cuMemsetD8(addresses[tensor.name], 0, _compute_byte_count(tensor, sizes)))
            passed = {name: int(address) for name, address in addresses.items()}
            for name, rows in padded.items():
                addresses[f"the table {name}"] = passed[name] = copy_to_gpu(list_addresses(passed[name], rows))
            self.launch(passed, {**given, **sizes})
            _check_status(driver.cuCtxSynchronize())
            for tensor in given_tensors:
                array = memory[tensor.name]
                if tensor.role != "in" and array.nbytes:
                    _check_status(driver.cuMemcpyDtoH(array.ctypes.data, addresses[tensor.name], array.nbytes))
                if tensor.name in strided:
                    arrays[tensor.name][...] = strided[tensor.name]
                if tensor.name in padded and tensor.role != "in":
                    given_array = arrays[tensor.name]
                    width = given_array.nbytes // max(len(array), 1)
                    given_array[...] = array[:, :width].copy().view(given_array.dtype).reshape(given_array.shape)
        finally:
            for address in addresses.values():
                driver.cuMemFree(address)

    def call(
        self,
        addresses: Mapping[str, int],
        scalars: Mapping[str, int | float],
        stream: int,
        tables: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Launch on a stream in the kernel's own context, allocating scratch, stand-ins for empty tensors, and these
        `tables` of addresses in stream order.
        """
        from cuda.bindings import driver

        sizes = self.manifest.sizes({}, scalars)
        lent: dict[str, int] = {}
        queue = driver.CUstream(stream)
        _check_status(driver.cuCtxPushCurrent(self._context))
        try:
            for tensor in self.manifest.tensors:
                is_scratch = tensor.role in ("workspace", "zeroed")
                is_empty = not tensor.table and 0 in evaluate_shape(tensor.shape, sizes)
                if not is_scratch and not is_empty:
                    continue
                size = _compute_byte_count(tensor, sizes)
                lent[tensor.name] = int(_check_status(driver.cuMemAllocAsync(size, queue)))
                if tensor.role != "workspace":
                    _check_status(driver.cuMemsetD8Async(lent[tensor.name], 0, size, queue))
            for name, entries in (tables or {}).items():
                held = np.array(entries, np.uint64)
                size = max(held.nbytes, EMPTY_BYTES)
                lent[name] = int(_check_status(driver.cuMemAllocAsync(size, queue)))
                # From memory that is not pinned: the driver has read it when the call returns.
                _check_status(driver.cuMemcpyHtoDAsync(lent[name], held.ctypes.data, held.nbytes, queue))
            self.launch({**addresses, **lent}, scalars, stream)
        finally:
            for address in lent.values():
                driver.cuMemFreeAsync(address, queue)
            driver.cuCtxPopCurrent()

    def launch(self, addresses: Mapping[str, int], scalars: Mapping[str, int | float], stream: int = 0) -> None:
        """Launch the kernel once on device addresses and a stream, without waiting. `scalars` has every scalar of the
        manifest. The address of an empty tensor with a tensor map must be that of 16 bytes of zeros.
        """
        self.bound(addresses, scalars)(stream)

    def bound(self, addresses: Mapping[str, int], scalars: Mapping[str, int | float]) -> Callable[[int], None]:
        """Pack the parameters and encode the tensor maps once, and return a function that launches on a stream. It does
        nothing for an empty grid.
        """
        from cuda.bindings import driver

        manifest = self.manifest
        sizes = manifest.sizes({}, scalars)
        grid = manifest.blocks(sizes)
        if 0 in grid:
            return lambda stream: None
        values: list[Any] = []
        pointers: list[int] = []
        for param in manifest.params:
            match param:
                case PointerParam(tensor=name):
                    values.append(ctypes.c_uint64(addresses[name]))
                    pointers.append(ctypes.addressof(values[-1]))
                case ScalarParam(name=name, dtype=dtype):
                    values.append(_convert_to_c_scalar(dtype, scalars[name]))
                    pointers.append(ctypes.addressof(values[-1]))
                case TensorMapParam():
                    values.append(encode_tensor_map(manifest, param, addresses[param.tensor], sizes))
                    pointers.append(values[-1].getPtr())
        packed = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = manifest.block
        config.sharedMemBytes = manifest.dynamic_smem
        config.attrs = list(build_launch_attributes(manifest))
        config.numAttrs = len(config.attrs)

        return _PreparedLaunch(config, self._function, packed, values)


@dataclass(frozen=True, slots=True)
class _PreparedLaunch:
    """A prepared launch. `packed` points at `values`, which it keeps alive."""

    config: Any
    function: Any
    packed: Any
    values: list[Any]

    def __call__(self, stream: int) -> None:
        from cuda.bindings import driver

        self.config.hStream = driver.CUstream(stream)
        _check_status(driver.cuLaunchKernelEx(self.config, self.function, ctypes.addressof(self.packed), 0))


def encode_tensor_map(manifest: Manifest, param: TensorMapParam, address: int, sizes: Mapping[str, int]) -> Any:
    """Return the 128-byte tensor map of a parameter, encoded by the driver, with a row of zeros for an empty tensor. It
    takes the fastest dimension first, and no extent of 0: all reads of that row are out of bounds or read zeros.
    """
    from cuda.bindings import driver

    shape = evaluate_shape(manifest.tensor(param.tensor).shape, sizes)
    rank = len(shape)
    element = MAP_TYPES[param.dtype]
    size = _ELEMENT_BYTES.get(element, 8)
    steps = _compute_element_strides(manifest.tensor(param.tensor), sizes)
    if 0 in shape:
        shape = (*(1 for _ in shape[1:]), EMPTY_BYTES // size)
        steps = (*(EMPTY_BYTES // size for _ in shape[1:]), 1)
    strides = [size * step for step in reversed(steps)]
    swizzle = "NONE" if param.swizzle == 0 else f"{param.swizzle}B"
    tensor = (
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{element}"),
        rank,
        address,
        [driver.cuuint64_t(extent) for extent in reversed(shape)],
        # One dimension has no stride, but the driver refuses an empty array: pretend a second one.
        [driver.cuuint64_t(stride) for stride in strides[1:] or [-(-size * shape[0] // EMPTY_BYTES) * EMPTY_BYTES]],
    )
    modes = (
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if isinstance(param, Im2colMapParam):
        pixels, channels = param.box
        lower, upper = ([corner] * (rank - 2) for corner in (param.lower, param.upper))
        moves = [driver.cuuint32_t(step) for step in (1, *[param.stride] * (rank - 2), 1)]
        return _check_status(driver.cuTensorMapEncodeIm2col(*tensor, lower, upper, channels, pixels, moves, *modes))
    box = [driver.cuuint32_t(extent) for extent in reversed(param.box)]
    return _check_status(driver.cuTensorMapEncodeTiled(*tensor, box, [driver.cuuint32_t(1)] * rank, *modes))


def _copy_with_strides(tensor: TensorInfo, array: Array, sizes: Mapping[str, int]) -> Array:
    """Return a copy of an array that has the tensor's strides in memory; raise `ValueError` if they do not fit."""
    from tilec.ir.elements import copy_with_strides

    try:
        return copy_with_strides(array, _compute_element_strides(tensor, sizes))
    except ValueError as error:
        raise ValueError(f"{tensor.name} {error}") from None


def _compute_element_strides(tensor: TensorInfo, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return a tensor's strides in elements for these sizes: the declared ones, or a row-major array's."""
    if tensor.strides is not None:
        return evaluate_shape(tensor.strides, sizes)
    return dense_strides(evaluate_shape(tensor.shape, sizes))


def _compute_byte_count(tensor: TensorInfo, sizes: Mapping[str, int]) -> int:
    """Return a tensor's size in bytes for these sizes, at least `EMPTY_BYTES`."""
    from tilec.ir.types import TYPES_BY_NAME

    return max(math.prod(evaluate_shape(tensor.shape, sizes)) * TYPES_BY_NAME[tensor.dtype].bytes, EMPTY_BYTES)


def _convert_to_c_scalar(dtype: str, value: int | float) -> Any:
    """Return a scalar as a ctypes value of its dtype's size; 16-bit floats as uint16 of their bits."""
    if dtype == "float16":
        return ctypes.c_uint16(int(np.array(value, np.float16).view(np.uint16)))
    if dtype == "bfloat16":
        from tilec.ir.elements import encode_values
        from tilec.ir.types import BFLOAT16

        return ctypes.c_uint16(int(encode_values(np.array(value, np.float32), BFLOAT16)))
    return _SCALARS[dtype](value)


def build_launch_attributes(manifest: Manifest) -> Iterator[Any]:
    """Yield the driver's launch attributes that a kernel needs: cluster size, cooperative, dependent launch."""
    from cuda.bindings import driver

    def make_attribute(name: str) -> Any:
        """Make an empty launch attribute whose id has this name."""
        attribute = driver.CUlaunchAttribute()
        attribute.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
        return attribute

    if manifest.cluster != (1, 1, 1):
        attribute = make_attribute("CLUSTER_DIMENSION")
        dims = attribute.value.clusterDim
        dims.x, dims.y, dims.z = manifest.cluster
        yield attribute
    if "cooperative" in manifest.attributes:
        attribute = make_attribute("COOPERATIVE")
        attribute.value.cooperative = 1
        yield attribute
    if "dependent" in manifest.attributes:
        attribute = make_attribute("PROGRAMMATIC_STREAM_SERIALIZATION")
        attribute.value.programmaticStreamSerializationAllowed = 1
        yield attribute
