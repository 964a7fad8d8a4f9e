"""The launch manifest: everything a host needs to launch a kernel, carried in its cubin as JSON in a global byte array.

`variable` makes the array for a PTX module; `in_module` reads it back from there, and `extract` from the ELF file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast, get_args

from tilec.ir.types import BY_NAME
from tilec.ptx.module import Module, Variable
from tilec.support import readers, sizes
from tilec.support.diagnostics import fail
from tilec.support.records import dataclass
from tilec.support.sizes import Shape, Size, SizeError

SCHEMA = 3
"""Raised whenever a reader of the previous version would misread a manifest. Each manifest has the lowest that says all
of it."""
DENSE_SCHEMA = 2
"""What a reader of that version still reads: nothing is asked of the launch, and rows lie one after the other."""
STATIC_SCHEMA = 1
"""What the one before still reads: every extent is a number."""

SYMBOL_PREFIX = "__tilec_manifest_"

TensorRole = Literal["in", "out", "inout", "workspace", "zeroed"]
Swizzle = Literal[0, 32, 64, 128]
Attribute = Literal["cooperative", "dependent"]
"""Of a launch: all blocks of the grid run at the same time, for they wait for each other; the grid may begin while the
one launched before it ends, for which it waits itself (programmatic stream serialization)."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor parameter of the kernel, row-major, and dense unless it has strides, in elements. Its extents may be
    made of the kernel's scalars. A workspace is memory that the launcher allocates; it holds nothing before the launch,
    and nothing of use after it.
    One that is `zeroed` holds zeros before it."""

    name: str
    dtype: str
    shape: Shape
    role: TensorRole
    strides: Shape | None = None


@dataclass(frozen=True, slots=True)
class ScalarInfo:
    name: str
    dtype: str


@dataclass(frozen=True, slots=True)
class PointerParam:
    """The address of a tensor's first element, 8 bytes."""

    tensor: str


@dataclass(frozen=True, slots=True)
class ScalarParam:
    name: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Im2col:
    """The filter places of an im2col map: `stride` pixels apart, from `lower` pixels before an image's first one up to
    `upper` pixels after its last one, in every direction."""

    lower: int
    upper: int
    stride: int


@dataclass(frozen=True, slots=True)
class TensorMapParam:
    """A 128-byte TMA descriptor to be encoded on the host. `box` is in elements, in the order of the tensor's axes;
    `swizzle` is the bank swizzle's width in bytes. Out-of-range elements are filled with zero. With `im2col` the tensor
    is (images, [depth,] height, width, channels), and `box` is how many places and channels one copy takes."""

    tensor: str
    dtype: str
    box: tuple[int, ...]
    swizzle: Swizzle
    im2col: Im2col | None = None


Param = PointerParam | ScalarParam | TensorMapParam


@dataclass(frozen=True, slots=True)
class Manifest:
    """`params` are the kernel's parameters in order; `tensors` and `scalars` are what the kernel's author declared.
    `grid`, `block` and `cluster` are x, y, z; a cluster of (1, 1, 1) is launched without the cluster attribute. A grid
    with an extent of 0 has nothing to launch. `outputs` are the tensors that the kernel's file says it returns, in that
    order: a caller that hands results back allocates these. `attributes` are what the launch must be."""

    entry: str
    target: str
    grid: tuple[Size, Size, Size]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem: int
    tensors: tuple[TensorInfo, ...]
    scalars: tuple[ScalarInfo, ...]
    params: tuple[Param, ...]
    outputs: tuple[str, ...] = ()
    attributes: tuple[Attribute, ...] = ()

    def tensor(self, name: str) -> TensorInfo:
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)

    def sizes(self, arrays: Mapping[str, tuple[int, ...]], given: Mapping[str, int | float]) -> dict[str, int]:
        """The scalars that extents are made of: those given, and those that the shapes of the arrays say.

        Raises `SizeError` where these disagree, or do not say one. Whether each array has its shape is not looked at.
        """
        values = sizes.found({t.name: t.shape for t in self.tensors}, arrays)
        for name in self.made_of():
            if name in given and values.setdefault(name, int(given[name])) != given[name]:
                raise SizeError(f"{name} is given as {given[name]}, but the arrays make it {values[name]}")
            if name not in values:
                raise sizes.UnknownSize(name)
        return values

    def made_of(self) -> tuple[str, ...]:
        """The scalars in grid and shapes, in order."""
        found = {name for size in self.extents() for name in sizes.names(size)}
        return tuple(s.name for s in self.scalars if s.name in found)

    def extents(self) -> Iterator[Size]:
        """Everything that is to be computed at launch."""
        yield from self.grid
        for tensor in self.tensors:
            yield from tensor.shape
            yield from tensor.strides or ()

    def blocks(self, scalars: Mapping[str, int]) -> tuple[int, int, int]:
        """The grid of a launch with these sizes. Raises `SizeError` where it is not made of whole clusters."""
        x, y, z = (max(sizes.evaluate(size, scalars), 0) for size in self.grid)
        if any(extent % size for extent, size in zip((x, y, z), self.cluster, strict=True)):
            raise SizeError(f"a grid of {x} x {y} x {z} blocks is not made of clusters of {_by(self.cluster)}")
        return x, y, z


# ---- JSON ------------------------------------------------------------------------------------------------------------


def to_json(manifest: Manifest, *, indent: int | None = None) -> str:
    """One deterministic text per manifest: keys in this order, no spaces unless indented."""
    record: dict[str, object] = {
        "schema": _schema(manifest),
        "entry": manifest.entry,
        "target": manifest.target,
        "grid": manifest.grid,
        "block": manifest.block,
        "cluster": manifest.cluster,
        "dynamic_smem": manifest.dynamic_smem,
        "tensors": [_tensor_record(t) for t in manifest.tensors],
        "scalars": [{"name": s.name, "dtype": s.dtype} for s in manifest.scalars],
        "params": [_param_record(p) for p in manifest.params],
    }
    if manifest.outputs:
        record["outputs"] = manifest.outputs
    if manifest.attributes:
        record["attributes"] = manifest.attributes
    return json.dumps(record, indent=indent, separators=(",", ":") if indent is None else None)


def _schema(manifest: Manifest) -> int:
    """The oldest whose readers take the manifest for what it is."""
    if manifest.attributes or any(t.strides is not None or t.role == "zeroed" for t in manifest.tensors):
        return SCHEMA
    return DENSE_SCHEMA if any(not isinstance(e, int) for e in manifest.extents()) else STATIC_SCHEMA


def _tensor_record(tensor: TensorInfo) -> dict[str, object]:
    record: dict[str, object] = {
        "name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape, "role": tensor.role
    }  # fmt: skip
    return record if tensor.strides is None else {**record, "strides": tensor.strides}


def _param_record(param: Param) -> dict[str, object]:
    match param:
        case PointerParam(tensor):
            return {"kind": "pointer", "tensor": tensor}
        case ScalarParam(name, dtype):
            return {"kind": "scalar", "name": name, "dtype": dtype}
        case TensorMapParam(tensor, dtype, box, swizzle, places):
            what: dict[str, object] = {"tensor": tensor, "dtype": dtype, "box": box, "swizzle": swizzle}
            if places is None:
                return {"kind": "tensor-map", **what}
            corners = {"lower": places.lower, "upper": places.upper, "stride": places.stride}
            return {"kind": "im2col-map", **what, **corners}


def summary(manifest: Manifest) -> str:
    """The manifest for a person to read."""
    launch: list[tuple[str, Shape]] = [("grid", manifest.grid), ("block", manifest.block)]
    if manifest.cluster != (1, 1, 1):
        launch.append(("cluster", manifest.cluster))
    lines = [f"{manifest.entry} for {manifest.target}"]
    lines += [f"  {name:8} {_by(extents)}" for name, extents in launch]
    lines += [f"  {'smem':8} {manifest.dynamic_smem} bytes, dynamic", "  parameters"]
    for index, param in enumerate(manifest.params):
        match param:
            case PointerParam(name):
                tensor = manifest.tensor(name)
                text = f"pointer to {_tensor(tensor)}, {tensor.role}"
            case ScalarParam(name, dtype):
                text = f"scalar {name}: {dtype}"
            case TensorMapParam(name, dtype, box, swizzle):
                tensor = manifest.tensor(name)
                kind = "im2col map" if param.im2col else "tensor map"
                text = f"{kind} of {_tensor(tensor)}, {tensor.role}: box {_by(box)} of {dtype}, swizzle {swizzle}"
                if param.im2col:
                    text += f", from {param.im2col.lower} to {param.im2col.upper} by {param.im2col.stride}"
        lines.append(f"    {index}: {text}")
    if manifest.attributes:
        lines.append(f"  {'launch':8} {', '.join(manifest.attributes)}")
    if manifest.outputs:
        lines.append(f"  {'returns':8} {', '.join(manifest.outputs)}")
    return "\n".join(lines)


def _tensor(tensor: TensorInfo) -> str:
    steps = "" if tensor.strides is None else f" with strides {', '.join(map(sizes.show, tensor.strides))}"
    return f"{tensor.name}: {_by(tensor.shape)} {tensor.dtype}{steps}"


def _by(extents: Shape) -> str:
    return " x ".join(sizes.show(e) if isinstance(e, int | str) else f"({sizes.show(e)})" for e in extents)


def from_json(text: str) -> Manifest:
    """The manifest written by `to_json`; anything else is refused as `bad-manifest`."""
    try:
        record = readers.json_value(text)
        schema = record["schema"]
        if schema not in (SCHEMA, DENSE_SCHEMA, STATIC_SCHEMA):
            fail("bad-manifest", f"the manifest has schema {schema!r}, this tilec reads schema {SCHEMA}")
        x, y, z = map(sizes.read, record["grid"])
        found = Manifest(
            entry=_identifier(record["entry"]),
            target=_identifier(record["target"]),
            grid=(x, y, z),
            block=_extents(record["block"]),
            cluster=_extents(record["cluster"]),
            dynamic_smem=_whole(record["dynamic_smem"], least=0),
            tensors=tuple(
                TensorInfo(
                    _name(t["name"]),
                    _dtype(t["dtype"]),
                    tuple(map(sizes.read, t["shape"])),
                    _role(t["role"]),
                    tuple(map(sizes.read, t["strides"])) if "strides" in t else None,
                )
                for t in record["tensors"]
            ),
            scalars=tuple(ScalarInfo(_name(s["name"]), _dtype(s["dtype"])) for s in record["scalars"]),
            params=tuple(_param(p) for p in record["params"]),
            outputs=tuple(map(_name, record.get("outputs", ()))),
            attributes=tuple(map(_attribute, record.get("attributes", ()))),
        )
        _check_names(found)
        return found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fail("bad-manifest", f"the manifest cannot be read: {type(error).__name__} {error}")


def _param(record: dict[str, Any]) -> Param:
    match record["kind"]:
        case "pointer":
            return PointerParam(_name(record["tensor"]))
        case "scalar":
            return ScalarParam(_name(record["name"]), _dtype(record["dtype"]))
        case "tensor-map" | "im2col-map":
            box = tuple(map(_whole, record["box"]))
            places = None
            if record["kind"] == "im2col-map":
                places = Im2col(*(_whole(record[key], least=-_MOST) for key in ("lower", "upper", "stride")))
            tensor, dtype, swizzle = _name(record["tensor"]), _dtype(record["dtype"]), _swizzle(record["swizzle"])
            return TensorMapParam(tensor, dtype, box, swizzle, places)
        case kind:
            raise ValueError(f"unknown parameter kind {kind!r}")


def _check_names(manifest: Manifest) -> None:
    """Parameters and outputs are of what is declared."""
    tensors, scalars = {t.name for t in manifest.tensors}, {s.name for s in manifest.scalars}
    wanted = [(p.name, scalars) if isinstance(p, ScalarParam) else (p.tensor, tensors) for p in manifest.params]
    for name, known in [*wanted, *((name, tensors) for name in manifest.outputs)]:
        if name not in known:
            raise ValueError(f"{name!r} is not declared")


_MOST = (1 << 31) - 1
"""Of what the driver takes as an int."""


def _whole(value: object, least: int = 1) -> int:
    if type(value) is not int or not least <= value <= _MOST:
        raise ValueError(f"{value!r} is no whole number from {least} to {_MOST}")
    return value


def _name(value: object) -> str:
    """What is shown to people, and handed to the driver as it is."""
    if type(value) is not str or not value or not value.isprintable():
        raise ValueError(f"{value!r} is no name")
    return value


def _identifier(value: object) -> str:
    """A name of which files may be called, and functions in a header."""
    name = _name(value)
    if not name.replace("$", "_").isidentifier():
        raise ValueError(f"{name!r} is no name of a kernel or a target")
    return name


def _dtype(value: object) -> str:
    if value not in BY_NAME:
        raise ValueError(f"unknown element type {value!r}")
    return str(value)


def _extents(values: list[object]) -> tuple[int, int, int]:
    x, y, z = values
    return _whole(x), _whole(y), _whole(z)


def _role(text: str) -> TensorRole:
    if text not in get_args(TensorRole):
        raise ValueError(f"unknown tensor role {text!r}")
    return cast(TensorRole, text)


def _attribute(text: str) -> Attribute:
    if text not in get_args(Attribute):
        raise ValueError(f"unknown launch attribute {text!r}")
    return cast(Attribute, text)


def _swizzle(value: int) -> Swizzle:
    if value not in (0, 32, 64, 128):
        raise ValueError(f"unknown swizzle {value!r}")
    return cast(Swizzle, value)


# ---- in a PTX module and in a cubin ----------------------------------------------------------------------------------


def variable(manifest: Manifest) -> Variable:
    """The global array that carries the manifest through the assembler."""
    data = to_json(manifest).encode()
    return Variable("global", SYMBOL_PREFIX + manifest.entry, 1, len(data), "visible", data)


def in_module(module: Module) -> tuple[Manifest, ...]:
    """The manifests that a PTX module carries."""
    carried = (v for v in module.variables if v.name.startswith(SYMBOL_PREFIX))
    return tuple(from_json(v.data.decode()) for v in carried)


def extract(cubin: bytes) -> list[Manifest]:
    """The manifests in a cubin, sorted by entry."""
    try:
        found = dict(_symbols(cubin))
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        fail("not-a-cubin", f"this is not a cubin: {error}")
    if not found:
        fail("no-manifest", "the cubin carries no launch manifest", help="only cubins made by tilec carry one")
    return [from_json(found[name].decode(errors="replace")) for name in sorted(found)]


_SYMTAB = 2
_NOBITS = 8
_LONGEST_NAME = 1 << 16


def _symbols(elf: bytes) -> list[tuple[str, bytes]]:
    """Name and contents of each manifest symbol of a little-endian ELF64 file (`man 5 elf` for the offsets)."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it does not start like a 64-bit ELF file")
    (section_table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count = struct.unpack_from("<HH", elf, 0x3A)
    # Per section: name, type, flags, address, offset, size, link, info, alignment, size of an entry.
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, section_table + i * entry_size) for i in range(count)]
    # There is one at most; its names end soon, and what they name lies apart. A file that says otherwise would take
    # long to read, and much memory.
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
