"""The launch manifest: everything a host needs to launch a kernel, carried in its cubin as JSON in a global byte array.

`manifest_variable` makes the array for a PTX module; `manifests_in_module` reads it back from there, and
`extract_from_cubin` from the ELF file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from tilec.ir.types import TYPES_BY_NAME
from tilec.ptx.module import Module, Variable
from tilec.support import readers, schema, sizes
from tilec.support.diagnostics import raise_error
from tilec.support.records import dataclass
from tilec.support.sizes import Shape, Size, SizeError

SCHEMA = 4
"""Raised whenever a reader of the previous version would misread a manifest. Each manifest has the lowest version that
can express it."""
TABLELESS_SCHEMA = 3
"""The version before: no tables of addresses."""
DENSE_SCHEMA = 2
"""The second version: no launch attributes, and all rows contiguous."""
STATIC_SCHEMA = 1
"""The first version: every extent is a number."""

SYMBOL_PREFIX = "__tilec_manifest_"

TensorRole = Literal["in", "out", "inout", "workspace", "zeroed"]
Swizzle = Literal[0, 32, 64, 128]
Attribute = Literal["cooperative", "dependent"]
"""Of a launch. `cooperative`: all blocks of the grid run at the same time, because they wait for each other.
`dependent`: the grid may begin before the previous one ends, and waits for it itself (programmatic stream
serialization)."""


_MOST = (1 << 31) - 1
"""The largest value that the driver takes as an int."""

_Count = Annotated[int, schema.Range(1, _MOST)]
_Pixels = Annotated[int, schema.Range(-_MOST, _MOST)]
_Size = Annotated[Size, schema.Conversion(Any, sizes.read_size)]
_Dtype = Annotated[str, schema.Constraint(TYPES_BY_NAME.__contains__, "an element type")]
_Name = Annotated[str, schema.Constraint(lambda name: bool(name) and name.isprintable(), "a name")]
"""A name that is shown to people, and passed to the driver as it is."""
_Identifier = Annotated[str, schema.Constraint(lambda name: name.replace("$", "_").isidentifier(), "a name as in C")]
"""A name of a file, or of a function in a header."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor parameter of the kernel, row-major, and dense unless it has strides, in elements. Its extents may depend
    on the kernel's scalars. A workspace is memory that the launcher allocates, with undefined contents before and after
    the launch. A `zeroed` tensor holds zeros before the launch. The first `table` dimensions are those of a table of
    addresses, which is what is passed: each entry is the address of a tensor with the other dimensions."""

    name: _Name
    dtype: _Dtype
    shape: tuple[_Size, ...]
    role: TensorRole
    strides: tuple[_Size, ...] | None = None
    table: Annotated[int, schema.Range(0, _MOST)] = 0

    def passed_shape(self, rank: int) -> tuple[Size, ...]:
        """Return the shape that an argument of this rank has: that of a table alone if it holds addresses only."""
        return self.shape[: self.table] if self.table == rank else self.shape


@dataclass(frozen=True, slots=True)
class ScalarInfo:
    """A scalar parameter that the kernel declares, and its type's name."""

    name: _Name
    dtype: _Dtype


@dataclass(frozen=True, slots=True)
class PointerParam:
    """The address of a tensor's first element, 8 bytes."""

    KIND: ClassVar[str] = "pointer"
    tensor: _Name


@dataclass(frozen=True, slots=True)
class ScalarParam:
    """A parameter of the entry that is passed by value."""

    KIND: ClassVar[str] = "scalar"
    name: _Name
    dtype: _Dtype


@dataclass(frozen=True, slots=True)
class TensorMapParam:
    """A 128-byte TMA descriptor to be encoded on the host. `box` is in elements, in the order of the tensor's axes;
    `swizzle` is the bank swizzle's width in bytes. Out-of-range elements are filled with zero."""

    KIND: ClassVar[str] = "tensor-map"
    tensor: _Name
    dtype: _Dtype
    box: tuple[_Count, ...]
    swizzle: Swizzle


@dataclass(frozen=True, slots=True)
class Im2colMapParam(TensorMapParam):
    """A TMA descriptor for im2col. The tensor is (images, [depth,] height, width, channels), and `box` is the number of
    pixels and channels of one copy. Filter positions are `stride` pixels apart, from `lower` pixels before an image's
    first one up to `upper` pixels after its last one, in every direction."""

    KIND: ClassVar[str] = "im2col-map"
    lower: _Pixels
    upper: _Pixels
    stride: _Pixels


Param = PointerParam | ScalarParam | TensorMapParam | Im2colMapParam


@dataclass(frozen=True, slots=True)
class Manifest:
    """The launch parameters of one kernel.

    `params` are the kernel's parameters in order; `tensors` and `scalars` are those that its author declared. `grid`,
    `block` and `cluster` are x, y, z; a cluster of (1, 1, 1) is launched without the cluster attribute. A grid with an
    extent of 0 is not launched. `outputs` are the tensors that the kernel's file says it returns, in that order: a
    caller that returns results allocates these. `attributes` are required of the launch.
    """

    entry: _Identifier
    target: _Identifier
    grid: tuple[_Size, _Size, _Size]
    block: tuple[_Count, _Count, _Count]
    cluster: tuple[_Count, _Count, _Count]
    dynamic_smem: Annotated[int, schema.Range(0, _MOST)]
    tensors: tuple[TensorInfo, ...]
    scalars: tuple[ScalarInfo, ...]
    params: tuple[Param, ...]
    outputs: tuple[_Name, ...] = ()
    attributes: tuple[Attribute, ...] = ()

    def tensor(self, name: str) -> TensorInfo:
        """Return the tensor of this name; raises `KeyError` if there is none."""
        return {tensor.name: tensor for tensor in self.tensors}[name]

    def sizes(self, arrays: Mapping[str, tuple[int, ...]], given: Mapping[str, int | float]) -> dict[str, int]:
        """Return the scalars that sizes depend on, from those given and the arrays' shapes; raises `SizeError` on a
        conflict. It raises it too where one stays undetermined, or a size exceeds int32. Whether each array has its
        shape is not checked."""
        shapes = {t.name: t.passed_shape(len(arrays.get(t.name, t.shape))) for t in self.tensors}
        values = sizes.solve_scalars(shapes, arrays)
        for name in self.size_scalars():
            if name in given and values.setdefault(name, int(given[name])) != given[name]:
                raise SizeError(f"{name} is given as {given[name]}, but the arrays make it {values[name]}")
        if missing := [name for name in self.size_scalars() if name not in values]:
            self._require_ranks(arrays)
            raise sizes.UnknownSize(*missing)
        for tensor in self.tensors:
            for what, found in (("extent", tensor.shape), ("stride", tensor.strides or ())):
                for axis, size in enumerate(found):
                    _check_range(f"{what} {axis} of {tensor.name}", size, values)
        return values

    def _require_ranks(self, arrays: Mapping[str, tuple[int, ...]]) -> None:
        """Raise `SizeError` for the first array that has more or fewer dimensions than its tensor."""
        for tensor in self.tensors:
            found = arrays.get(tensor.name, tensor.shape)
            wanted = tensor.passed_shape(len(found))
            if len(found) != len(wanted):
                taken = ", ".join(map(sizes.format_size, wanted))
                raise SizeError(f"{tensor.name} has the shape {list(found)}, the kernel takes [{taken}]")

    def size_scalars(self) -> tuple[str, ...]:
        """Return the names of the scalars that grid, shapes and strides depend on, in order of declaration."""
        found = {name for size in self.extents() for name in sizes.scalar_names(size)}
        return tuple(s.name for s in self.scalars if s.name in found)

    def extents(self) -> Iterator[Size]:
        """Yield every size of the launch: the grid's, then each tensor's extents and strides; numbers too."""
        yield from self.grid
        for tensor in self.tensors:
            yield from tensor.shape
            yield from tensor.strides or ()

    def blocks(self, scalars: Mapping[str, int]) -> tuple[int, int, int]:
        """Return the grid's x, y and z for these scalars, none negative; raises `SizeError` where it is not whole
        clusters."""
        x, y, z = (max(sizes.evaluate_size(size, scalars), 0) for size in self.grid)
        if any(extent % size for extent, size in zip((x, y, z), self.cluster, strict=True)):
            raise SizeError(
                f"a grid of {x} x {y} x {z} blocks is not made of clusters of {_join_extents(self.cluster)}"
            )
        return x, y, z


def _check_range(what: str, size: Size, values: Mapping[str, int]) -> None:
    """Raise `SizeError` for a size, or a part of its computation, that is larger than int32 holds."""
    for part in sizes.nested_sizes(size):
        if (value := sizes.evaluate_size(part, values)) > sizes.MOST_ELEMENTS:
            place = f", {what}," if part == size else f", from which {what} is computed,"
            raise SizeError(f"{sizes.format_size(part)}{place} is {value}, more than {sizes.MOST_ELEMENTS}")


# ---- JSON ------------------------------------------------------------------------------------------------------------


def to_json(manifest: Manifest, *, indent: int | None = None) -> str:
    """Return the manifest as JSON with its schema version, keys in declaration order, no spaces unless indented."""
    record = {"schema": _find_oldest_schema(manifest), **schema.to_plain(manifest)}
    return json.dumps(record, indent=indent, separators=(",", ":") if indent is None else None)


def _find_oldest_schema(manifest: Manifest) -> int:
    """Return the lowest schema version that can express the manifest. It is 1, 2 where a size depends on scalars, 3
    with strides, launch attributes or zeroed tensors, 4 with a table of addresses."""
    if any(t.table for t in manifest.tensors):
        return SCHEMA
    if manifest.attributes or any(t.strides is not None or t.role == "zeroed" for t in manifest.tensors):
        return TABLELESS_SCHEMA
    return DENSE_SCHEMA if any(not isinstance(e, int) for e in manifest.extents()) else STATIC_SCHEMA


def summarise_manifest(manifest: Manifest) -> str:
    """Return the manifest as lines of text for people: launch, shared memory, parameters, attributes, outputs."""
    launch: list[tuple[str, Shape]] = [("grid", manifest.grid), ("block", manifest.block)]
    if manifest.cluster != (1, 1, 1):
        launch.append(("cluster", manifest.cluster))
    lines = [f"{manifest.entry} for {manifest.target}"]
    lines += [f"  {name:8} {_join_extents(extents)}" for name, extents in launch]
    lines += [f"  {'smem':8} {manifest.dynamic_smem} bytes, dynamic", "  parameters"]
    for index, param in enumerate(manifest.params):
        match param:
            case PointerParam(name):
                tensor = manifest.tensor(name)
                text = f"pointer to {_format_tensor(tensor)}, {tensor.role}"
            case ScalarParam(name, dtype):
                text = f"scalar {name}: {dtype}"
            case TensorMapParam(name, dtype, box, swizzle):
                tensor = manifest.tensor(name)
                kind = param.KIND.replace("-", " ")
                text = f"{kind} of {_format_tensor(tensor)}, {tensor.role}: box {_join_extents(box)} of {dtype}"
                text += f", swizzle {swizzle}"
                if isinstance(param, Im2colMapParam):
                    text += f", from {param.lower} to {param.upper} by {param.stride}"
        lines.append(f"    {index}: {text}")
    if manifest.attributes:
        lines.append(f"  {'launch':8} {', '.join(manifest.attributes)}")
    if manifest.outputs:
        lines.append(f"  {'returns':8} {', '.join(manifest.outputs)}")
    return "\n".join(lines)


def _format_tensor(tensor: TensorInfo) -> str:
    """Return a tensor as text: name, extents, type, and strides where it has some."""
    steps = "" if tensor.strides is None else f" with strides {', '.join(map(sizes.format_size, tensor.strides))}"
    entries = f"table of {_join_extents(tensor.shape[: tensor.table])} addresses, each of " if tensor.table else ""
    return f"{tensor.name}: {entries}{_join_extents(tensor.shape[tensor.table :])} {tensor.dtype}{steps}"


def _join_extents(extents: Shape) -> str:
    """Return extents as text joined by ` x `, as `m x 64 x (n * 2)`."""
    return " x ".join(
        sizes.format_size(e) if isinstance(e, int | str) else f"({sizes.format_size(e)})" for e in extents
    )


def from_json(text: str) -> Manifest:
    """Return the manifest that a JSON text of `to_json` describes; raises the error `bad-manifest` for anything
    else."""
    try:
        record = schema.check_schema_version(readers.parse_json(text), *range(STATIC_SCHEMA, SCHEMA + 1))
        found = schema.read_record(Manifest, record, "")
        _check_references(found)
        return found
    except ValueError as error:
        raise_error("bad-manifest", f"the manifest cannot be read: {error}")


def _check_references(manifest: Manifest) -> None:
    """Raise `ValueError` where parameters, outputs or sizes name nothing declared, or a map's box has another rank."""
    tensors, scalars = {t.name: t for t in manifest.tensors}, {s.name for s in manifest.scalars}
    wanted = [(p.name, scalars) if isinstance(p, ScalarParam) else (p.tensor, {*tensors}) for p in manifest.params]
    wanted += [(name, {*tensors}) for name in manifest.outputs]
    wanted += [(name, scalars) for size in manifest.extents() for name in sizes.scalar_names(size)]
    for name, known in wanted:
        if name not in known:
            raise ValueError(f"{name!r} is neither a declared tensor nor a declared scalar")
    for tensor in manifest.tensors:
        if tensor.table and (tensor.table >= len(tensor.shape) or tensor.strides is not None):
            raise ValueError(f"{tensor.name} is no table of dense tensors")
    for param in manifest.params:
        if isinstance(param, TensorMapParam):
            if tensors[param.tensor].table:
                raise ValueError(f"{param.tensor} is a table of addresses, which has no tensor map")
            rank = len(tensors[param.tensor].shape)
            box = 2 if isinstance(param, Im2colMapParam) and rank in (3, 4, 5) else rank
            if len(param.box) != box:
                raise ValueError(
                    f"the box {_join_extents(param.box)} does not match {param.tensor}, which has {rank} dimensions"
                )


# ---- in a PTX module and in a cubin ----------------------------------------------------------------------------------


def manifest_variable(manifest: Manifest) -> Variable:
    """Return the visible global byte array, named after the entry, that holds the manifest's JSON in a PTX module."""
    data = to_json(manifest).encode()
    return Variable("global", SYMBOL_PREFIX + manifest.entry, 1, len(data), "visible", data)


def manifests_in_module(module: Module) -> tuple[Manifest, ...]:
    """Return the manifests that a PTX module's variables hold, in order; raises `bad-manifest` for one that is
    unreadable."""
    carried = (v for v in module.variables if v.name.startswith(SYMBOL_PREFIX))
    return tuple(from_json(v.data.decode()) for v in carried)


def extract_from_ptx(text: str) -> list[Manifest]:
    """Return the manifests in PTX text, sorted by entry; raises `ptx-syntax`, `no-manifest` or `bad-manifest`."""
    from tilec.ptx.parse import PtxSyntaxError, parse_module

    try:
        found = manifests_in_module(parse_module(text))
    except PtxSyntaxError as error:
        raise_error("ptx-syntax", f"this is not PTX: {error}")
    if not found:
        raise_error("no-manifest", "the PTX has no launch manifest", help="only PTX of tilec has one")
    return sorted(found, key=lambda manifest: manifest.entry)


def extract_from_cubin(cubin: bytes) -> list[Manifest]:
    """Return a cubin's manifests, sorted by entry; raises `not-a-cubin`, `no-manifest` or `bad-manifest`."""
    try:
        found = dict(_find_manifest_symbols(cubin))
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise_error("not-a-cubin", f"this is not a cubin: {error}")
    if not found:
        raise_error("no-manifest", "the cubin has no launch manifest", help="only cubins of tilec have one")
    return [from_json(found[name].decode(errors="replace")) for name in sorted(found)]


_SYMTAB = 2
_NOBITS = 8
_LONGEST_NAME = 1 << 16


def _find_manifest_symbols(elf: bytes) -> list[tuple[str, bytes]]:
    """Return name and contents of each manifest symbol of a little-endian ELF64 file; raises `ValueError` for a bad
    file. Offsets are those of `man 5 elf`."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it does not start like a 64-bit ELF file")
    (section_table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count = struct.unpack_from("<HH", elf, 0x3A)
    # Per section: name, type, flags, address, offset, size, link, info, alignment, size of an entry.
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, section_table + i * entry_size) for i in range(count)]
    # There is one symbol table at most, names are short, and contents do not overlap. A crafted file that breaks this
    # would take long to read, and much memory.
    _, _, _, _, offset, size, link, *_ = next((s for s in sections if s[1] == _SYMTAB), (0,) * 10)
    names, prefix = sections[link][4], SYMBOL_PREFIX.encode()
    found: list[tuple[str, bytes]] = []
    left = len(elf)
    for at in range(offset, offset + size, 24):
        name_at, _, _, section, value, length = struct.unpack_from("<IBBHQQ", elf, at)
        if not elf.startswith(prefix, names + name_at):
            continue
        name = elf[names + name_at : elf.index(b"\0", names + name_at, names + name_at + _LONGEST_NAME)]
        if not 0 < section < count or sections[section][1] == _NOBITS:
            continue
        # In an executable the value is relative to the section: nvlink leaves section addresses at zero.
        start = sections[section][4] + value - sections[section][3]
        left -= len(name) + length
        if not 0 <= start <= len(elf) - length or left < 0:
            raise ValueError(f"{name.decode(errors='replace')} runs past the end of the file")
        found.append((name.decode(errors="replace"), elf[start : start + length]))
    return found
