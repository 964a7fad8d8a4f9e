"""Runs a built kernel in the emulator: arrays in, arrays out, and a comparison with the tile-level reference.

In `.npz` files and here, a tensor is an array under its parameter's name. bfloat16 travels as its raw bits (uint16), an
8-bit float as its own (uint8);
arrays of ml_dtypes, which numpy stores as void of the same size, are taken as raw bits too. A scalar is a 0-d array.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tilec.driver import emulate_compare
from tilec.driver.array_files import ArrayFile
from tilec.driver.emulate_compare import Comparison
from tilec.driver.fault_elements import name_elements
from tilec.emu import Columns, Fault, Report, TensorMap, launch
from tilec.interp import run as interp
from tilec.ir import tile
from tilec.ir.elements import is_raw, largest, poison, storage_shape, storage_type, stored, strided_copy
from tilec.ir.expr import as_size, integer_range
from tilec.ir.manifest import Im2colMapParam, Manifest, PointerParam, ScalarParam, TensorInfo, TensorMapParam
from tilec.ir.types import BFLOAT16, BOOL, BY_NAME, DType
from tilec.ops.copy import Copy
from tilec.ops.gemm import Gemm
from tilec.ops.gemm.sparse import random_metadata
from tilec.support import progress
from tilec.support.diagnostics import Diagnostic, Label, fail
from tilec.support.records import dataclass
from tilec.support.sizes import SizeError, UnknownSize, evaluate, shape_of
from tilec.support.source import SourceFile

if TYPE_CHECKING:
    from tilec.driver.build import Build

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Arguments:
    """One array per tensor parameter, written in place by a run, and one number per scalar parameter."""

    tensors: dict[str, Array]
    scalars: dict[str, int | float]

    def copy(self) -> Arguments:
        return Arguments({name: array.copy() for name, array in self.tensors.items()}, dict(self.scalars))


# ---- arguments -------------------------------------------------------------------------------------------------------


def _metadata_tensors(body: tuple[tile.Stmt, ...]) -> dict[str, DType]:
    """The tensors from which a sparse product's metadata is copied, and what the product multiplies."""
    products = [s for s in tile.walk(body) if isinstance(s, Gemm)]
    tiles = {op.metadata.buffer: op.a.buffer.dtype for op in products if op.metadata is not None}
    copies = (s for s in tile.walk(body) if isinstance(s, Copy) and s.destination.buffer in tiles)
    return {copy.source.buffer.name: tiles[copy.destination.buffer] for copy in copies}


def random_arguments(
    kernel: tile.Kernel, manifest: Manifest, seed: int, sizes: Mapping[str, int] | None = None
) -> Arguments:
    """Normal floats and small integers, and of sparse products metadata that is legal; the same for the same seed. Pure
    outputs are poisoned. `sizes` are those that the kernel learns at launch."""
    generator = np.random.default_rng(seed)
    known = {**(sizes or {}), **_sizes(manifest, {}, sizes or {})}
    sparse = _metadata_tensors(kernel.body)
    arguments = Arguments({}, {})
    for param in kernel.params:
        if isinstance(param, tile.Var) and param.name in known:
            arguments.scalars[param.name] = known[param.name]
        elif isinstance(param, tile.Var):
            drawn = generator.normal() if param.dtype.is_float else generator.integers(1, 5)
            arguments.scalars[param.name] = drawn.item() if isinstance(drawn, np.generic) else drawn
        elif manifest.tensor(param.name).role == "out":
            arguments.tensors[param.name] = poisoned(param, known)
        elif param.name in sparse:
            drawn_shape, places = _shape(param, known), sparse[param.name]
            arguments.tensors[param.name] = random_metadata(drawn_shape, param.dtype, places, generator)
        else:
            arguments.tensors[param.name] = _random(param.dtype, _shape(param, known), generator)
    return arguments


def blank_arguments(kernel: tile.Kernel, manifest: Manifest, sizes: Mapping[str, int] | None = None) -> Arguments:
    """Tensors of zeros, which take no memory until they are touched, and numbers that are one."""
    known = {**(sizes or {}), **_sizes(manifest, {}, sizes or {})}
    arguments = Arguments({}, {})
    for param in kernel.params:
        if isinstance(param, tile.Var):
            arguments.scalars[param.name] = known.get(param.name, 1.0 if param.dtype.is_float else 1)
        else:
            shape = storage_shape(_shape(param, known), param.dtype)
            arguments.tensors[param.name] = np.zeros(shape, storage_type(param.dtype))
    return arguments


def _sizes(
    manifest: Manifest, arrays: Mapping[str, tuple[int, ...]], given: Mapping[str, int | float], path: str = ""
) -> dict[str, int]:
    """The sizes that the kernel learns at launch."""
    where = f"{path}: " if path else ""
    for name in given:
        if name not in {s.name for s in manifest.scalars}:
            known = ", ".join(manifest.made_of())
            fail("bad-inputs", f"{manifest.entry} has no size {name}", help=f"it has {known}" if known else None)
    try:
        values = manifest.sizes(arrays, given)
        manifest.blocks(values)
        return values
    except UnknownSize as error:
        fail("missing-input", f"{where}{error}", help=f"give {' '.join(f'--size {n}=…' for n in error.names)}")
    except SizeError as error:
        fail("wrong-input", f"{where}{error}")


def _shape(param: tile.Buffer, sizes: Mapping[str, int]) -> tuple[int, ...]:
    extents = (as_size(e) for e in param.extents)
    return tuple(max(evaluate(e, sizes), 0) for e in extents if e is not None)


def _random(dtype: DType, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    if dtype.is_float:
        drawn = generator.standard_normal(shape, dtype=np.float32)
        return stored(drawn, dtype)
    low, high = (0, 2) if dtype == BOOL else (-4, 5) if dtype.kind == "int" else (0, 9)
    return stored(generator.integers(low, high, shape), dtype)


def poisoned(param: tile.Buffer, sizes: Mapping[str, int] | None = None) -> Array:
    """An array whose elements no correct kernel would write."""
    array = np.empty(storage_shape(_shape(param, sizes or {}), param.dtype), storage_type(param.dtype))
    poison(array, param.dtype)
    return array


def read_arguments(
    data: bytes, path: str, kernel: tile.Kernel, manifest: Manifest, sizes: Mapping[str, int] | None = None
) -> Arguments:
    """The arguments in an `.npz` file; a pure output that is not in it is poisoned. Sizes that the kernel learns at
    launch follow from the arrays; what does not, is in the file or in `sizes`."""
    given = ArrayFile(data, path)
    unknown = sorted(given.headers.keys() - {p.name for p in kernel.params})
    if unknown:
        names = ", ".join(p.name for p in kernel.params)
        fail("bad-inputs", f"{path} has '{unknown[0]}', which is no parameter of {kernel.name}",
             help=f"its parameters are {names}")  # fmt: skip
    scalars = [p for p in kernel.params if isinstance(p, tile.Var)]
    numbers: dict[str, int | float] = {**(sizes or {})}
    numbers |= {p.name: _scalar(p, given) for p in scalars if p.name in given.headers}
    shapes = {t.name: given.headers[t.name].shape for t in manifest.tensors if t.name in given.headers}
    known = _sizes(manifest, shapes, numbers, path)
    arguments = Arguments({}, {})
    for param in kernel.params:
        if isinstance(param, tile.Var) and param.name in known:
            arguments.scalars[param.name] = known[param.name]
        elif isinstance(param, tile.Var):
            arguments.scalars[param.name] = _scalar(param, given)
        elif param.name in given.headers:
            arguments.tensors[param.name] = _tensor(param, _shape(param, known), given)
        elif manifest.tensor(param.name).role == "out" or param.name in manifest.outputs:
            arguments.tensors[param.name] = poisoned(param, known)
        else:
            fail("missing-input", f"{path} has no array '{param.name}', which the kernel reads")
    return arguments


def _tensor(param: tile.Buffer, shape: tuple[int, ...], given: ArrayFile) -> Array:
    """Read a tensor of this shape; nothing is unpacked for one of another shape or type."""
    wanted, shape = storage_type(param.dtype), storage_shape(shape, param.dtype)
    header = given.headers[param.name]
    is_bits = header.dtype.kind == "V" and header.dtype.itemsize == wanted.itemsize
    if header.shape != shape or not (is_bits or header.dtype == wanted):
        found = f"{header.dtype} {list(header.shape)}"
        note = f" (the raw bits of {param.dtype})" if is_raw(param.dtype) else ""
        fail("wrong-input", f"{given.path}: {param.name} is {found}, expected {wanted} {list(shape)}{note}")
    array = np.array(given.read(param.name), order="C")
    return array.view(wanted) if is_bits else array


def _scalar(param: tile.Var, given: ArrayFile) -> int | float:
    path, header = given.path, given.headers.get(param.name)
    if header is None:
        fail("missing-input", f"{path} has no value for the scalar '{param.name}'")
    kind = header.dtype.kind
    if header.size != 1 or kind not in "iufb" or (kind == "f" and not param.dtype.is_float):
        fail("wrong-input", f"{path}: {param.name} is {header.dtype} {list(header.shape)}, expected one {param.dtype}")
    array = given.read(param.name)
    value = array.reshape(())
    if param.dtype.is_float:
        with np.errstate(over="ignore"):
            number = float(interp.convert(value, param.dtype))
        if np.isfinite(value) and not math.isfinite(number):
            limit = f"{param.dtype}: at most {largest(param.dtype):.6g} in size"
            fail("wrong-input", f"{path}: {param.name} is {value.item():.6g}, expected {limit}")
        return number
    low, high = integer_range(param.dtype)
    if not low <= int(value) <= high:
        fail("wrong-input", f"{path}: {param.name} is {int(value)}, expected {param.dtype}: {low} to {high}")
    return int(value)


def write_arguments(arguments: Arguments) -> bytes:
    """Every tensor by name, as an `.npz` file."""
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, **arguments.tensors)
    return out.getvalue()


# ---- running ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How the emulated machine behaves: `launch` says what each means. `sample` is a number of blocks, 0 for all."""

    adversary: int | None = None
    sample: int = 0
    seed: int = 0
    jobs: int = 1
    timeline: bool = False
    step_limit: int | None = None
    on_fault: Literal["raise", "report"] = "raise"
    allow: tuple[str, ...] = ()

    def of_launch(self) -> dict[str, Any]:
        """As keyword arguments of `launch`."""
        limit = {} if self.step_limit is None else {"step_limit": self.step_limit}
        return {
            "adversary": self.adversary,
            "jobs": self.jobs,
            "sample": (self.sample, self.seed) if self.sample else None,
            "timeline": self.timeline,
            "on_fault": self.on_fault,
            "allow": self.allow,
            **limit,
        }


def run(
    build: Build,
    arguments: Arguments,
    progress: Callable[[int, int], None] | None = None,
    options: RunOptions | None = None,
) -> Report:
    """Run the PTX on the CPU; tensors are written in place. A fault is a `Fault`."""
    return run_ptx(build.ptx, build.manifest, arguments, progress, options, begins_early=build.program.begins_early)


def run_ptx(
    ptx: str,
    manifest: Manifest,
    arguments: Arguments,
    progress: Callable[[int, int], None] | None = None,
    options: RunOptions | None = None,
    *,
    begins_early: bool,
) -> Report:
    """The same of PTX text with its manifest; `begins_early` where the grid before may still run."""
    grid, arguments, dense = launched(manifest, arguments)
    if 0 in grid:
        return Report({}, 0, (), tuple(None for _ in manifest.params), ())
    report = launch(
        ptx,
        manifest.entry,
        grid,
        manifest.block,
        launch_arguments(manifest, arguments),
        cluster=manifest.cluster,
        dynamic_smem=manifest.dynamic_smem,
        begins_early=begins_early,
        progress=progress,
        **(options or RunOptions()).of_launch(),
    )
    for name, array in dense.items():
        array[...] = arguments.tensors[name]
    return report


def launched(manifest: Manifest, arguments: Arguments) -> tuple[tuple[int, int, int], Arguments, dict[str, Array]]:
    """The grid, the arguments with all that a launcher adds and the strides that the kernel wants, and the tensors that
    had to be spread for that, as they were given."""
    shapes = {name: array.shape for name, array in arguments.tensors.items()}
    sizes = _sizes(manifest, shapes, {n: v for n, v in arguments.scalars.items() if n in manifest.made_of()})
    grid = manifest.blocks(sizes)
    if 0 in grid:
        return grid, arguments, {}
    arguments = with_workspaces(manifest, Arguments(arguments.tensors, {**arguments.scalars, **sizes}))
    dense = {t.name: arguments.tensors[t.name] for t in manifest.tensors if t.strides is not None}
    strided = {t.name: _strided(t, dense[t.name], sizes) for t in manifest.tensors if t.strides is not None}
    return grid, Arguments({**arguments.tensors, **strided}, arguments.scalars), dense


def _strided(tensor: TensorInfo, array: Array, sizes: Mapping[str, int]) -> Array:
    """The array as the kernel wants it in memory: its elements as far apart as the tensor's strides say."""
    try:
        return strided_copy(array, shape_of(tensor.strides or (), sizes))
    except ValueError as error:
        fail("wrong-input", f"{tensor.name} {error}")


def with_workspaces(manifest: Manifest, arguments: Arguments) -> Arguments:
    """The arguments and what a launcher adds to them."""
    return Arguments({**arguments.tensors, **_workspaces(manifest)}, arguments.scalars)


def _workspaces(manifest: Manifest) -> dict[str, Array]:
    """What a launcher allocates, full of what nobody has written, or of zeros."""
    tensors = (t for t in manifest.tensors if t.role == "workspace")
    zeroed = {
        t.name: np.zeros(shape_of(t.shape, {}), storage_type(BY_NAME[t.dtype]))
        for t in manifest.tensors
        if t.role == "zeroed"
    }
    return zeroed | {
        t.name: poisoned(tile.Buffer(t.name, shape_of(t.shape, {}), BY_NAME[t.dtype], "global"), {}) for t in tensors
    }


def blocks(manifest: Manifest, arguments: Arguments) -> tuple[int, int, int]:
    """The grid that these arguments are launched with."""
    return manifest.blocks({name: int(arguments.scalars[name]) for name in manifest.made_of()})


def launch_arguments(manifest: Manifest, arguments: Arguments) -> list[object]:
    """The kernel's parameters in order."""
    made: list[object] = []
    for param in manifest.params:
        match param:
            case PointerParam(tensor=name):
                made.append(arguments.tensors[name])
            case Im2colMapParam(tensor=name, dtype=dtype, box=(pixels, channels), swizzle=swizzle):
                array = arguments.tensors[name]
                sides = array.ndim - 2
                columns = Columns((param.lower,) * sides, (param.upper,) * sides, channels, pixels)
                steps = (1, *(param.stride,) * sides, 1)
                made.append(TensorMap(array, (), swizzle, dtype, element_strides=steps, im2col=columns))
            case TensorMapParam(tensor=name, dtype=dtype, box=box, swizzle=swizzle):
                made.append(TensorMap(_not_empty(arguments.tensors[name]), box, swizzle, dtype))
            case ScalarParam(name=name, dtype=dtype):
                value = arguments.scalars[name]
                # The emulator takes a bfloat16 as its bits.
                made.append(stored(np.array(value, np.float32), BFLOAT16).item() if dtype == "bfloat16" else value)
    return made


def _not_empty(array: Array) -> Array:
    """A tensor map has no extent of 0: an empty tensor is a row of zeros, as in `runtime.encode`."""
    return array if array.size else np.zeros((*(1 for _ in array.shape[1:]), 16 // array.itemsize), array.dtype)


def fault_diagnostic(fault: Fault, source: SourceFile, build: Build) -> Diagnostic:
    """Return the fault at the kernel's line, with elements of tensors and tiles for addresses."""
    message, addresses = name_elements(fault, build.manifest, build.program)
    primary = None
    if fault.source is not None and (place := source.whole_line(fault.source.line, fault.source.file)) is not None:
        primary = Label(place, fault.kind)
    notes = [f"in {fault.where}"] if fault.where else []
    notes += addresses
    if fault.line:
        notes.append(f"PTX line {fault.line}: {fault.text.strip()}")
    return Diagnostic("emulation-fault", f"the emulated kernel faults: {message}", primary, (), tuple(notes))


def reference(kernel: tile.Kernel, arguments: Arguments) -> None:
    """Run the tile-level reference; tensors are written in place."""
    with progress.doing(f"running {kernel.name} by numpy, to compare with"):
        interp.run(kernel, arguments.tensors, arguments.scalars)


def compare(
    kernel: tile.Kernel,
    manifest: Manifest,
    found: Arguments,
    expected: Arguments,
    written: Mapping[str, Array] | None = None,
    *,
    are_inputs_finite: bool = False,
) -> list[Comparison]:
    """Every tensor that the kernel writes, as a run left it and as the reference has it. Where all inputs are finite,
    results of which most are not do not match."""
    finite = are_inputs_finite
    return emulate_compare.compare(kernel, manifest, found.tensors, expected.tensors, written, are_inputs_finite=finite)
