"""Tensor maps: what `cuTensorMapEncodeTiled` would make, in an encoding of our own, and the boxes they describe."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.memory import Memory
from tilec.emu.numbers import Array, bf16_to_f32, f32_to_bf16
from tilec.records import dataclass

_MAGIC = b"tilecmap"
_LAYOUT = struct.Struct("<8sQBBBB5I5Q5H")
MAP_BYTES = 128

_ELEMENTS = (
    *("uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "bfloat16"),
    *("int8", "int16", "bool"),
)
_SIZES = {"uint8": 1, "uint16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8, "float16": 2, "float32": 4}
_SIZES |= {"float64": 8, "bfloat16": 2, "int8": 1, "int16": 2, "bool": 1}


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A kernel argument: boxes of `array`. `box` is in the order of the axes; sizes and strides are those of the array.

    `element` names the type where numpy has none, such as "bfloat16" in uint16; `fill` is "zero" or "nan".
    """

    array: Array
    box: Sequence[int]
    swizzle: int = 0
    element: str | None = None
    fill: str = "zero"


@dataclass(frozen=True, slots=True)
class Layout:
    """A decoded map; all sequences run from the fastest dimension to the slowest, strides in bytes."""

    address: int
    element: str
    swizzle: int
    fill: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    @property
    def element_bytes(self) -> int:
        return _SIZES[self.element]

    @property
    def box_bytes(self) -> int:
        return math.prod(self.box) * self.element_bytes


def encode(tensor_map: TensorMap, address: int) -> bytes:
    """The 128 bytes of a map whose array lies at `address`. Raises `ValueError` on what the driver refuses."""
    array = tensor_map.array
    element = tensor_map.element or array.dtype.name
    rank = array.ndim
    if element not in _SIZES or _SIZES[element] != array.dtype.itemsize:
        raise ValueError(f"a tensor map of {element} over an array of {array.dtype}")
    size = array.dtype.itemsize
    box = tuple(reversed([int(extent) for extent in tensor_map.box]))
    sizes, strides = tuple(reversed(array.shape)), tuple(reversed(array.strides))
    if not 1 <= rank <= 5 or len(box) != rank:
        raise ValueError(f"a tensor map of rank {rank} with a box of rank {len(box)}")
    if strides[0] != size and sizes[0] > 1:
        raise ValueError("the last axis of a tensor map's array must be contiguous")
    if address % 16 or any(stride % 16 or stride < 0 for stride in strides[1:]):
        raise ValueError("address and strides of a tensor map must be multiples of 16 bytes")
    if not all(1 <= extent <= 256 for extent in box):
        raise ValueError(f"a box of {tuple(tensor_map.box)}: each extent must be 1 to 256 elements")
    inner = box[0] * size
    if inner % 16:
        raise ValueError(f"the box is {inner} bytes wide, which is not a multiple of 16")
    if tensor_map.swizzle not in (0, 32, 64, 128):
        raise ValueError(f"swizzle {tensor_map.swizzle}; there are 0, 32, 64 and 128")
    if tensor_map.swizzle and inner > tensor_map.swizzle:
        raise ValueError(f"the box is {inner} bytes wide, more than its swizzle of {tensor_map.swizzle}")
    if tensor_map.fill not in ("zero", "nan"):
        raise ValueError(f"fill {tensor_map.fill}")

    def padded(values: tuple[int, ...]) -> tuple[int, ...]:
        return values + (0,) * (5 - rank)

    header = (_MAGIC, address, rank, _ELEMENTS.index(element), tensor_map.swizzle, tensor_map.fill == "nan")
    packed = _LAYOUT.pack(*header, *padded(sizes), *padded((size, *strides[1:])), *padded(box))
    return packed.ljust(MAP_BYTES, b"\0")


@lru_cache(maxsize=256)
def decode(data: bytes) -> Layout:
    """The map in 128 bytes that a kernel points to."""
    magic, address, rank, element, swizzle, is_nan, *numbers = _LAYOUT.unpack(data[: _LAYOUT.size])
    if magic != _MAGIC:
        raise Fault("bad-descriptor", "the address does not hold a tensor map")
    sizes, strides, box = (tuple(numbers[start : start + rank]) for start in (0, 5, 10))
    return Layout(address, _ELEMENTS[element], swizzle, "nan" if is_nan else "zero", sizes, strides, box)


def swizzled(addresses: Array, swizzle: int) -> Array:
    """Shared addresses after the bank swizzle, which acts on the bits of the absolute address."""
    if not swizzle:
        return addresses
    moved: Array = addresses ^ (((addresses >> 7) & (swizzle // 16 - 1)) << 4)
    return moved


@lru_cache(maxsize=1024)
def box_rows(address: int, size: int, swizzle: int) -> Array:
    """The 16-byte rows of shared memory that a box takes, in the order of the box's bytes."""
    return swizzled(np.arange(address, address + size, 16), swizzle) // 16


class Box:
    """One box of a tensor: the part of it that lies inside, as views of global memory and of the box's bytes."""

    def __init__(self, layout: Layout, coordinates: Sequence[int], memory: Memory) -> None:
        self.layout = layout
        self._memory = memory
        self._tag = memory.tag
        self._owners: Array | None = None
        size = layout.element_bytes
        low = [max(c, 0) for c in coordinates]
        high = [min(c + b, s) for c, b, s in zip(coordinates, layout.box, layout.sizes, strict=True)]
        self.is_empty = any(h <= first for first, h in zip(low, high, strict=True))
        self._inside: tuple[slice, ...] = ()
        self._target: Array = np.zeros(0, np.uint8)
        if self.is_empty:
            return
        extents = [h - first for first, h in zip(low, high, strict=True)]
        address = layout.address + sum(first * stride for first, stride in zip(low, layout.strides, strict=True))
        last = (
            address + sum((extent - 1) * stride for extent, stride in zip(extents, layout.strides, strict=True)) + size
        )
        start = memory.offset(address, last - address, "the box")
        self._inside = tuple(
            slice(first - c, h - c) for first, h, c in reversed(list(zip(low, high, coordinates, strict=True)))
        )
        self._target = self._view(memory.bytes, start, extents)
        if memory.owner is not None:
            self._owners = self._view(memory.owner, start, extents)

    def _view(self, storage: Array, start: int, extents: list[int]) -> Array:
        size = self.layout.element_bytes
        return np.ndarray(
            tuple(reversed(extents)),
            np.dtype(f"u{size}"),
            buffer=storage.data,
            offset=start,
            strides=tuple(reversed([size, *self.layout.strides[1:]])),
        )

    def _shape(self) -> tuple[int, ...]:
        return tuple(reversed(self.layout.box))

    def load(self) -> Array:
        """The bytes of the whole box, as rows of 16; what lies outside is filled."""
        word = np.dtype(f"u{self.layout.element_bytes}")
        box = np.full(self._shape(), _nan_bits(self.layout) if self.layout.fill == "nan" else 0, word)
        if not self.is_empty:
            if self._owners is not None and self._memory.is_divided:
                self._memory.require_own(self._owners, np.zeros(0, np.int64), self._tag)
            box[self._inside] = self._target
        return box.view(np.uint8).reshape(-1, 16)

    def store(self, data: Array) -> None:
        """Put the inside part of the box where it belongs."""
        if not self.is_empty:
            part = self._part(data)
            if self._owners is not None:
                self._owners[...] = self._memory.take(self._owners, self._target, part, self._tag)
            self._target[...] = part

    def reduce(self, data: Array, operation: str) -> None:
        """Combine the inside part of the box with what is there."""
        if self.is_empty:
            return
        part = np.ascontiguousarray(self._part(data))
        old = np.ascontiguousarray(self._target)
        if self._owners is not None:
            self._owners[...] = self._memory.take(self._owners, old, old, self._tag)
        self._target[...] = combine(self.layout.element, operation, old, part)

    def _part(self, data: Array) -> Array:
        word = np.dtype(f"u{self.layout.element_bytes}")
        part: Array = (
            np.ascontiguousarray(data).view(np.uint8).reshape(-1).view(word).reshape(self._shape())[self._inside]
        )
        return part


def _nan_bits(layout: Layout) -> int:
    table = {"float16": 0x7FFF, "bfloat16": 0x7FFF, "float32": 0x7FFFFFFF, "float64": 0x7FFFFFFFFFFFFFFF}
    return table.get(layout.element, 0)


_REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def combine(element: str, operation: str, old: Array, new: Array) -> Array:
    """`old op new` on the bits of an element type, as bits."""
    function = _REDUCTIONS.get(operation)
    if function is None:
        raise Fault("unsupported", f"the reduction .{operation}")
    if element == "bfloat16":
        return f32_to_bf16(function(bf16_to_f32(old), bf16_to_f32(new)))
    dtype = np.dtype(element)
    result: Array = function(old.view(dtype), new.view(dtype)).view(old.dtype)
    return result
