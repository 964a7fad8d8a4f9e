"""Run a built kernel in the emulator, and compare its outputs with the tile-level reference.

In `.npz` files and here, a tensor is an array under its parameter's name, and a scalar is a 0-d array. bfloat16 is
stored as its raw bits (uint16), an 8-bit float as its own (uint8). Arrays of ml_dtypes, which numpy stores as void of
the same size, are taken as raw bits too.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tilec.driver.emulation.array_files import ArrayFile
from tilec.driver.emulation.compare import KernelArguments as KernelArguments, compare_arguments as compare_arguments
from tilec.driver.emulation.fault_elements import name_elements
from tilec.driver.launch_sizes import launch_sizes
from tilec.emu import AddressTable, Columns, Fault, Report, TensorMap, launch
from tilec.interp import run as interp
from tilec.ir import tile
from tilec.ir.elements import (
    Array,
    copy_with_strides,
    encode_values,
    fill_with_poison,
    is_stored_as_bits,
    largest_finite,
    numpy_storage_type,
    storage_shape,
)
from tilec.ir.expr import extent_to_size, integer_range
from tilec.ir.manifest import Im2colMapParam, Manifest, PointerParam, ScalarParam, TensorMapParam
from tilec.ir.types import BFLOAT16, BOOL, TYPES_BY_NAME, DType
from tilec.ops.copies.copy import Copy
from tilec.ops.products.gemm import Gemm
from tilec.ops.products.sparse import draw_metadata
from tilec.support import progress
from tilec.support.diagnostics import Diagnostic, Label, raise_error
from tilec.support.records import dataclass
from tilec.support.sizes import evaluate_shape, evaluate_size
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from tilec.driver.build import Build

ShowProgress = Callable[[int, int], None]
"""Called with the number of blocks that have run, and that are to run."""


# ---- arguments -------------------------------------------------------------------------------------------------------


def _find_metadata_tensors(body: tuple[tile.Stmt, ...]) -> dict[str, DType]:
    """Return, by name, the tensors that are copied to sparse products' metadata, with the type of the product's A."""
    products = [s for s in tile.walk_statements(body) if isinstance(s, Gemm)]
    tiles = {op.metadata.buffer: op.a.buffer.dtype for op in products if op.metadata is not None}
    copies = (s for s in tile.walk_statements(body) if isinstance(s, Copy) and s.destination.buffer in tiles)
    return {copy.source.buffer.name: tiles[copy.destination.buffer] for copy in copies}


def draw_arguments(
    kernel: tile.Kernel, manifest: Manifest, seed: int, sizes: Mapping[str, int] | None = None
) -> KernelArguments:
    """Draw random arguments: normal floats, small integers, legal sparse metadata; outputs are filled with poison.

    Equal seeds give equal arguments. `sizes` are the values of launch-time sizes.
    """
    generator = np.random.default_rng(seed)
    known = {**(sizes or {}), **launch_sizes(manifest, {}, sizes or {})}
    sparse = _find_metadata_tensors(kernel.body)
    arguments = KernelArguments({}, {})
    for param in kernel.params:
        if isinstance(param, tile.Var) and param.name in known:
            arguments.scalars[param.name] = known[param.name]
        elif isinstance(param, tile.Var):
            drawn = generator.normal() if param.dtype.is_float else generator.integers(1, 5)
            arguments.scalars[param.name] = drawn.item() if isinstance(drawn, np.generic) else drawn
        elif manifest.tensor(param.name).role == "out":
            arguments.tensors[param.name] = make_poisoned_array(param, known)
        elif param.name in sparse:
            drawn_shape, places = _evaluate_shape(param, known), sparse[param.name]
            arguments.tensors[param.name] = draw_metadata(drawn_shape, param.dtype, places, generator)
        else:
            arguments.tensors[param.name] = _draw_array(param.dtype, _evaluate_shape(param, known), generator)
    return arguments


def make_blank_arguments(
    kernel: tile.Kernel, manifest: Manifest, sizes: Mapping[str, int] | None = None
) -> KernelArguments:
    """Return arguments of zero tensors, without memory until touched, and of scalars 1 except known sizes."""
    known = {**(sizes or {}), **launch_sizes(manifest, {}, sizes or {})}
    arguments = KernelArguments({}, {})
    for param in kernel.params:
        if isinstance(param, tile.Var):
            arguments.scalars[param.name] = known.get(param.name, 1.0 if param.dtype.is_float else 1)
        else:
            shape = storage_shape(_evaluate_shape(param, known), param.dtype)
            arguments.tensors[param.name] = np.zeros(shape, numpy_storage_type(param.dtype))
    return arguments


def _evaluate_shape(param: tile.Buffer, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a tensor for these launch-time sizes, no extent below 0."""
    extents = (extent_to_size(e) for e in param.extents)
    return tuple(max(evaluate_size(e, sizes), 0) for e in extents if e is not None)


def _draw_array(dtype: DType, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Return an array of random elements, encoded for the type: normal floats, or small integers."""
    if dtype.is_float:
        drawn = generator.standard_normal(shape, dtype=np.float32)
        return encode_values(drawn, dtype)
    low, high = (0, 2) if dtype == BOOL else (-4, 5) if dtype.kind == "int" else (0, 9)
    return encode_values(generator.integers(low, high, shape), dtype)


def make_poisoned_array(param: tile.Buffer, sizes: Mapping[str, int] | None = None) -> Array:
    """Return an array filled with the poison pattern, which no correct kernel would write."""
    array = np.empty(storage_shape(_evaluate_shape(param, sizes or {}), param.dtype), numpy_storage_type(param.dtype))
    fill_with_poison(array, param.dtype)
    return array


def read_arguments(
    data: bytes, path: str, kernel: tile.Kernel, manifest: Manifest, sizes: Mapping[str, int] | None = None
) -> KernelArguments:
    """Return a kernel's arguments from an `.npz` file; raise an error for one that is missing or does not fit.

    Pure outputs that the file lacks are poisoned. Launch-time sizes follow from the arrays' shapes, from the file or
    from `sizes`.
    """
    given = ArrayFile(data, path)
    unknown = sorted(given.headers.keys() - {p.name for p in kernel.params})
    if unknown:
        names = ", ".join(p.name for p in kernel.params)
        raise_error("bad-inputs", f"{path} has '{unknown[0]}', which is not a parameter of {kernel.name}",
             help=f"its parameters are {names}")  # fmt: skip
    scalars = [p for p in kernel.params if isinstance(p, tile.Var)]
    numbers: dict[str, int | float] = {**(sizes or {})}
    numbers |= {p.name: _read_scalar(p, given) for p in scalars if p.name in given.headers}
    shapes = {t.name: given.headers[t.name].shape for t in manifest.tensors if t.name in given.headers}
    known = launch_sizes(manifest, shapes, numbers, path)
    arguments = KernelArguments({}, {})
    for param in kernel.params:
        if isinstance(param, tile.Var) and param.name in known:
            arguments.scalars[param.name] = known[param.name]
        elif isinstance(param, tile.Var):
            arguments.scalars[param.name] = _read_scalar(param, given)
        elif param.name in given.headers:
            arguments.tensors[param.name] = _read_tensor(param, _evaluate_shape(param, known), given)
        elif manifest.tensor(param.name).role == "out" or param.name in manifest.outputs:
            arguments.tensors[param.name] = make_poisoned_array(param, known)
        else:
            raise_error("missing-input", f"{path} has no array '{param.name}', which the kernel reads")
    return arguments


def _read_tensor(param: tile.Buffer, shape: tuple[int, ...], given: ArrayFile) -> Array:
    """Return a tensor's array from a file; raise `wrong-input`, before unpacking, for another shape or type."""
    wanted, shape = numpy_storage_type(param.dtype), storage_shape(shape, param.dtype)
    header = given.headers[param.name]
    is_bits = header.dtype.kind == "V" and header.dtype.itemsize == wanted.itemsize
    if header.shape != shape or not (is_bits or header.dtype == wanted):
        found = f"{header.dtype} {list(header.shape)}"
        note = f" (the raw bits of {param.dtype})" if is_stored_as_bits(param.dtype) else ""
        raise_error("wrong-input", f"{given.path}: {param.name} is {found}, expected {wanted} {list(shape)}{note}")
    array = np.array(given.read(param.name), order="C")
    return array.view(wanted) if is_bits else array


def _read_scalar(param: tile.Var, given: ArrayFile) -> int | float:
    """Return a scalar from a file, converted to the parameter's type; raise an error if it is absent or misfits."""
    path, header = given.path, given.headers.get(param.name)
    if header is None:
        raise_error("missing-input", f"{path} has no value for the scalar '{param.name}'")
    kind = header.dtype.kind
    if header.size != 1 or kind not in "iufb" or (kind == "f" and not param.dtype.is_float):
        raise_error(
            "wrong-input", f"{path}: {param.name} is {header.dtype} {list(header.shape)}, expected one {param.dtype}"
        )
    array = given.read(param.name)
    value = array.reshape(())
    if param.dtype.is_float:
        with np.errstate(over="ignore"):
            number = float(interp.convert_values(value, param.dtype))
        if np.isfinite(value) and not math.isfinite(number):
            limit = f"{param.dtype}: at most {largest_finite(param.dtype):.6g} in size"
            raise_error("wrong-input", f"{path}: {param.name} is {value.item():.6g}, expected {limit}")
        return number
    low, high = integer_range(param.dtype)
    if not low <= int(value) <= high:
        raise_error("wrong-input", f"{path}: {param.name} is {int(value)}, expected {param.dtype}: {low} to {high}")
    return int(value)


def pack_arrays(arrays: Mapping[str, Array]) -> bytes:
    """Return arrays by name, as the bytes of an `.npz` file."""
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, **arrays)
    return out.getvalue()


# ---- running ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of the emulated machine, described at `launch`. `sample` is a number of blocks, 0 for all."""

    adversary: int | None = None
    sample: int = 0
    seed: int = 0
    jobs: int = 1
    timeline: bool = False
    step_limit: int | None = None
    on_fault: Literal["raise", "report"] = "raise"
    allow: tuple[str, ...] = ()

    def to_launch_keywords(self) -> dict[str, Any]:
        """Return the options as keyword arguments of `launch`."""
        sample = (self.sample, self.seed) if self.sample else None
        given = {name: getattr(self, name) for name in ("adversary", "jobs", "timeline", "on_fault", "allow")}
        limit = {} if self.step_limit is None else {"step_limit": self.step_limit}
        return {**given, "sample": sample, **limit}


def emulate_build(
    build: Build, arguments: KernelArguments, progress: ShowProgress | None = None, options: RunOptions | None = None
) -> Report:
    """Run a built kernel's PTX on the CPU emulator, writing tensors in place; raise `Fault` or report it, as asked."""
    begins_early = build.program.begins_early
    return emulate_ptx_text(build.ptx, build.manifest, arguments, progress, options, begins_early=begins_early)


def emulate_ptx_text(
    ptx: str,
    manifest: Manifest,
    arguments: KernelArguments,
    progress: ShowProgress | None = None,
    options: RunOptions | None = None,
    *,
    begins_early: bool,
) -> Report:
    """Run PTX text with its manifest on the emulator, writing tensors in place, and return the report.

    `begins_early`: the grid before may still run. A grid without blocks runs nothing.
    """
    grid, arguments, dense = prepare_launch(manifest, arguments)
    if 0 in grid:
        return Report({}, 0, (), tuple(None for _ in manifest.params), ())
    given = (options or RunOptions()).to_launch_keywords() | {"begins_early": begins_early, "progress": progress}
    given |= {"cluster": manifest.cluster, "dynamic_smem": manifest.dynamic_smem}
    report = launch(ptx, manifest.entry, grid, manifest.block, build_launch_arguments(manifest, arguments), **given)
    for name, array in dense.items():
        array[...] = arguments.tensors[name]
    return report


def prepare_launch(
    manifest: Manifest, arguments: KernelArguments
) -> tuple[tuple[int, int, int], KernelArguments, dict[str, Array]]:
    """Return the grid, arguments with workspaces and strides, and dense originals; raise `wrong-input` if one misfits.

    Without blocks the arguments are as given. The caller copies results back into those originals of strided tensors.
    """
    shapes = {name: array.shape for name, array in arguments.tensors.items()}
    sizes = launch_sizes(manifest, shapes, {n: v for n, v in arguments.scalars.items() if n in manifest.size_scalars()})
    grid = manifest.blocks(sizes)
    if 0 in grid:
        return grid, arguments, {}
    arguments = KernelArguments(arguments.tensors | _allocate_workspaces(manifest), {**arguments.scalars, **sizes})
    dense = {t.name: arguments.tensors[t.name] for t in manifest.tensors if t.strides is not None}
    strided: dict[str, Array] = {}
    for tensor in manifest.tensors:
        if tensor.strides is not None:
            try:
                strided[tensor.name] = copy_with_strides(dense[tensor.name], evaluate_shape(tensor.strides, sizes))
            except ValueError as error:
                raise_error("wrong-input", f"{tensor.name} {error}")
    return grid, KernelArguments({**arguments.tensors, **strided}, arguments.scalars), dense


def _allocate_workspaces(manifest: Manifest) -> dict[str, Array]:
    """Return arrays for the tensors that a launcher adds: workspaces filled with poison, and zeroed ones."""
    made: dict[str, Array] = {}
    for tensor in manifest.tensors:
        if tensor.role in ("workspace", "zeroed"):
            shape, dtype = evaluate_shape(tensor.shape, {}), TYPES_BY_NAME[tensor.dtype]
            buffer = tile.Buffer(tensor.name, shape, dtype, "global")
            zeros = np.zeros(shape, numpy_storage_type(dtype))
            made[tensor.name] = zeros if tensor.role == "zeroed" else make_poisoned_array(buffer)
    return made


def compute_grid(manifest: Manifest, arguments: KernelArguments) -> tuple[int, int, int]:
    """Return the grid of a launch: the manifest's, for the sizes in these arguments."""
    return manifest.blocks({name: int(arguments.scalars[name]) for name in manifest.size_scalars()})


def build_launch_arguments(manifest: Manifest, arguments: KernelArguments) -> list[object]:
    """Return the kernel's parameters in order, as the emulator takes them: arrays, tensor maps and numbers."""
    parameters: list[object] = []
    for param in manifest.params:
        match param:
            case PointerParam(tensor=name):
                array, table = arguments.tensors[name], manifest.tensor(name).table
                parameters.append(AddressTable(array, table) if table else array)
            case Im2colMapParam(tensor=name, dtype=dtype, box=(pixels, channels), swizzle=swizzle):
                array = arguments.tensors[name]
                sides = array.ndim - 2
                columns = Columns((param.lower,) * sides, (param.upper,) * sides, channels, pixels)
                steps = (1, *(param.stride,) * sides, 1)
                parameters.append(TensorMap(array, (), swizzle, dtype, element_strides=steps, im2col=columns))
            case TensorMapParam(tensor=name, dtype=dtype, box=box, swizzle=swizzle):
                parameters.append(TensorMap(_pad_empty_tensor(arguments.tensors[name]), box, swizzle, dtype))
            case ScalarParam(name=name, dtype=dtype):
                value = arguments.scalars[name]
                if dtype == "bfloat16":  # the emulator takes its bits
                    value = encode_values(np.array(value, np.float32), BFLOAT16).item()
                parameters.append(value)
    return parameters


def _pad_empty_tensor(array: Array) -> Array:
    """Return the array, or a row of zeros if it is empty: a tensor map has no extent of 0.

    `runtime.encode` does the same.
    """
    return array if array.size else np.zeros((*(1 for _ in array.shape[1:]), 16 // array.itemsize), array.dtype)


def build_fault_diagnostic(fault: Fault, source: SourceFile, build: Build) -> Diagnostic:
    """Return the error for a fault: at the kernel's line, with tensor and tile elements for addresses."""
    message, addresses = name_elements(fault, build.manifest, build.program)
    primary = None
    if fault.source is not None and (place := source.whole_line(fault.source.line, fault.source.file)) is not None:
        primary = Label(place, fault.kind)
    notes = [f"in {fault.where}"] if fault.where else []
    notes += addresses
    if fault.line:
        notes.append(f"PTX line {fault.line}: {fault.text.strip()}")
    return Diagnostic("emulation-fault", f"the emulated kernel faults: {message}", primary, (), tuple(notes))


def run_reference(kernel: tile.Kernel, arguments: KernelArguments) -> None:
    """Run the kernel's tile IR in numpy, writing its tensors in place, to compare with."""
    with progress.report_during(f"running {kernel.name} in numpy, to compare"):
        interp.run_kernel(kernel, arguments.tensors, arguments.scalars)
