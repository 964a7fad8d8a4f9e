"""Tensor maps, as of `cuTensorMapEncodeTiled` but in an encoding of our own, and the boxes that they describe, im2col
boxes too.

Filter positions run over a region inset from the edges of an image by the corners of the map: along the rows, down the
image, and on into the next image. Each gives one row of channels, at its position plus the filter tap's offset;
elements outside the image are filled.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.memory.memory import Memory
from tilec.emu.numbers import REDUCTIONS, Array, bf16_to_f32, f32_to_bf16
from tilec.support.records import dataclass

_MAP_STRUCT = struct.Struct("<8sQBBBBBB2x5I5H5B3x4Q6hHH")
"""Fields: magic, address, rank, element, swizzle, fill, interleave, mode, sizes, box, element strides, strides,
corners, channels, pixels."""
MAP_MAGIC = b"tilecmap"
_FLOAT_TYPES = ("float16", "float32", "float64", "bfloat16")
CORNER_LIMITS = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}
"""The limit of an im2col map's corners, by rank: -limit <= corner < limit, and offsets are below twice the limit."""
MAP_BYTES = 128
MAP_FIELDS = {
    "global_address": (8, 8, 1),
    "rank": (16, 1, 1),
    "elemtype": (17, 1, 1),
    "swizzle_mode": (18, 1, 1),
    "fill_mode": (19, 1, 1),
    "interleave_layout": (20, 1, 1),
    "global_dim": (24, 4, 5),
    "box_dim": (44, 2, 5),
    "element_stride": (54, 1, 5),
    "global_stride": (62, 8, 4),
}
"""Offset, bytes and number of values of the fields that `tensormap.replace` sets."""
_ELEMENT_CODES = (
    *("uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float32", "float64", "bfloat16"),
    *("float32", "float32", "int8", "int16", "bool", "float8_e4m3fn", "float8_e5m2"),
)
"""Element types by the codes of `tensormap.replace`, where 8, 11 and 12 are flushing f32 and tf32; the last five are
arrays that the driver would take as unsigned."""
_NAN_BITS = {"float16": 0x7FFF, "bfloat16": 0x7FFF, "float32": 0x7FFFFFFF, "float64": 0x7FFFFFFFFFFFFFFF}
_SWIZZLES = (0, 32, 64, 128)
ATOM_32 = 160
"""The swizzle of 128 bytes that moves pairs of 16-byte chunks, for tf32 transposes by descriptors of tcgen05."""
_ELEMENT_SIZES = {"uint8": 1, "uint16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8, "float16": 2, "float32": 4}
_ELEMENT_SIZES |= {"float64": 8, "bfloat16": 2, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "int16": 2, "bool": 1}


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A kernel argument: boxes of `array`. `box` is in the order of the axes; sizes and strides are those of the array.

    `element` names the type where numpy has none, such as "bfloat16" in uint16; `fill` is "zero" or "nan".
    With `im2col` the box is not used.
    """

    array: Array
    box: Sequence[int]
    swizzle: int = 0
    element: str | None = None
    fill: str = "zero"
    element_strides: Sequence[int] | None = None
    im2col: Columns | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """The im2col fields of a map: the corners of the region of filter positions (`lower`, `upper`, in the order of the
    axes that are neither images nor channels), and the channels and pixels of one copy."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int


@dataclass(frozen=True, slots=True)
class MapLayout:
    """A decoded map; all sequences run from the fastest dimension to the slowest, strides in bytes."""

    address: int
    element: str
    swizzle: int
    fill: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    """The extents in shared memory; of an im2col map, channels and pixels."""
    element_strides: tuple[int, ...]
    columns: Columns | None = None

    @property
    def element_bytes(self) -> int:
        """Return the bytes of an element."""
        return _ELEMENT_SIZES[self.element]

    @property
    def box_bytes(self) -> int:
        """Return the bytes that the box takes in shared memory."""
        return math.prod(self.box) * self.element_bytes

    @property
    def word(self) -> np.dtype[Any]:
        """Return the unsigned type that holds the bits of an element."""
        return np.dtype(f"u{self.element_bytes}")

    @property
    def fill_bits(self) -> int:
        """Return the bits of an element outside the tensor: NaN or zero."""
        return _NAN_BITS.get(self.element, 0) if self.fill == "nan" else 0


def encode_map(tensor_map: TensorMap, address: int) -> bytes:
    """Return the 128 bytes of a map of an array at `address`, in an encoding of our own; raise `ValueError` if the
    driver would refuse."""
    array = tensor_map.array
    element = tensor_map.element or array.dtype.name
    rank = array.ndim
    if element not in _ELEMENT_SIZES or _ELEMENT_SIZES[element] != array.dtype.itemsize:
        raise ValueError(f"a tensor map of {element} over an array of {array.dtype}")
    size = array.dtype.itemsize
    sizes, strides = tuple(reversed(array.shape)), tuple(reversed(array.strides))
    steps = tuple(reversed([int(step) for step in tensor_map.element_strides or (1,) * rank]))
    columns = tensor_map.im2col
    box = tuple(reversed([int(extent) for extent in tensor_map.box])) if columns is None else (1,) * rank
    if not 1 <= rank <= 5 or len(box) != rank or len(steps) != rank:
        raise ValueError(f"a tensor map of rank {rank} with a box of rank {len(box)}")
    if strides[0] != size and sizes[0] > 1:
        raise ValueError("the last axis of a tensor map's array must be contiguous")
    if tensor_map.swizzle not in _SWIZZLES:
        raise ValueError(f"swizzle {tensor_map.swizzle}; there are 0, 32, 64 and 128")
    if tensor_map.fill not in ("zero", "nan"):
        raise ValueError(f"fill {tensor_map.fill}")
    corners: list[int] = [0] * 6
    if columns is not None:
        if rank < 3 or len(columns.lower) != rank - 2 or len(columns.upper) != rank - 2:
            raise ValueError(f"im2col corners of rank {len(columns.lower)} for a tensor of rank {rank}")
        columns = Columns(columns.lower[::-1], columns.upper[::-1], columns.channels, columns.pixels)
        corners[: rank - 2], corners[3 : rank + 1] = columns.lower, columns.upper
    swizzle, fill, byte_strides = tensor_map.swizzle, tensor_map.fill, (size, *strides[1:])
    layout = MapLayout(address, element, swizzle, fill, sizes, byte_strides, box, steps, columns)
    if wrong := _find_refusal(layout):
        raise ValueError(wrong)

    def pad_values(values: tuple[int, ...], count: int = 5) -> tuple[int, ...]:
        """Return values with zeros behind them, `count` in all."""
        return values + (0,) * (count - len(values))

    header = (rank - 1, _ELEMENT_CODES.index(element), _SWIZZLES.index(tensor_map.swizzle), tensor_map.fill == "nan", 0)
    mode = columns is not None
    tail = (columns.channels, columns.pixels) if columns is not None else (0, 0)
    extents = (*pad_values(sizes), *pad_values(box), *pad_values(steps), *pad_values(strides[1:], 4))
    packed = _MAP_STRUCT.pack(MAP_MAGIC, address, *header, mode, *extents, *corners, *tail)
    return packed.ljust(MAP_BYTES, b"\0")


def _find_refusal(layout: MapLayout) -> str | None:
    """Return in words the rule of the driver's encode functions that a map breaks, or None if it breaks none. They are
    `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col`; `layout.box` is the driver's box, with the elements that
    strides skip."""
    rank, columns, swizzle = len(layout.sizes), layout.columns, layout.swizzle
    if layout.address % 16 or any(stride % 16 or stride < 0 for stride in layout.strides[1:]):
        return "address and strides of a tensor map must be multiples of 16 bytes"
    if any(stride >= 1 << 40 for stride in layout.strides):
        return "the strides of a tensor map must be less than 2**40 bytes"
    if not all(1 <= size <= 1 << 32 for size in layout.sizes):
        return f"a tensor map of {layout.sizes} elements: each size must be 1 to 2**32"
    if not all(1 <= step <= 8 for step in layout.element_strides):
        return f"element strides of {layout.element_strides}: each must be 1 to 8"
    if layout.fill == "nan" and layout.element not in _FLOAT_TYPES:
        return f"a tensor map of {layout.element} that is filled with NaN"
    inner = layout.box[0] * layout.element_bytes
    if columns is not None:
        if rank not in CORNER_LIMITS:
            return f"an im2col map of rank {rank}: it must be 3, 4 or 5"
        limit = CORNER_LIMITS[rank]
        if not all(-limit <= corner < limit for corner in (*columns.lower, *columns.upper)):
            return f"im2col corners of {columns.lower} and {columns.upper}: each must be {-limit} to {limit - 1}"
        sides = zip(layout.sizes[1:-1], columns.lower, columns.upper, strict=True)
        if any(size + high - low <= 0 for size, low, high in sides):
            return f"the corners {columns.lower} and {columns.upper} of an im2col map leave no filter positions"
        if not 1 <= columns.channels <= 256 or not 1 <= columns.pixels <= 1024:
            return f"{columns.channels} channels and {columns.pixels} pixels of an im2col map"
        inner = columns.channels * layout.element_bytes
    elif not all(1 <= extent <= 256 for extent in layout.box):
        return f"a box of {layout.box}: each extent must be 1 to 256 elements"
    if inner % 16:
        return f"the box is {inner} bytes wide, which is not a multiple of 16"
    if swizzle and inner > swizzle:
        return f"the box is {inner} bytes wide, more than its swizzle of {swizzle}"
    return None


@lru_cache(maxsize=256)
def decode_map(data: bytes) -> MapLayout:
    """Return the fields of an encoded map, the box as it lies in shared memory; fault if it is no map or the driver
    would refuse."""
    fields = _MAP_STRUCT.unpack(data[: _MAP_STRUCT.size])
    magic, address, rank, element, swizzle, fill, interleave, mode, *numbers = fields
    if magic != MAP_MAGIC:
        raise Fault("bad-descriptor", "the address does not hold a tensor map")
    rank += 1
    if rank > 5 or element >= len(_ELEMENT_CODES) or swizzle >= len(_SWIZZLES) or interleave:
        message = "the tensor map has a rank, element type, swizzle or interleave that is not known"
        raise Fault("bad-descriptor", message)
    sizes, box, steps = (tuple(numbers[start : start + rank]) for start in (0, 5, 10))
    name = _ELEMENT_CODES[element]
    strides = (_ELEMENT_SIZES[name], *numbers[15 : 15 + rank - 1])
    columns = None
    if mode:
        lower, upper = tuple(numbers[19 : 19 + rank - 2]), tuple(numbers[22 : 22 + rank - 2])
        columns = Columns(lower, upper, numbers[25], numbers[26])
    fill = "nan" if fill else "zero"
    layout = MapLayout(address, name, _SWIZZLES[swizzle], fill, sizes, strides, box, steps, columns)
    if wrong := _find_refusal(layout):
        raise Fault("bad-descriptor", wrong)
    steps = (1, *steps[1:])  # the stride of the fastest dimension is ignored
    # With a stride the box skips elements, and takes less shared memory.
    skipping = tuple(-(-extent // step) for extent, step in zip(box, steps, strict=True))
    box = skipping if columns is None else (columns.channels, columns.pixels)
    return replace(layout, box=box, element_strides=steps)


def apply_swizzle(addresses: Array, swizzle: int) -> Array:
    """Return shared addresses with the bank swizzle of `swizzle` bytes applied to their bits; 0 leaves them as they
    are."""
    if not swizzle:
        return addresses
    if swizzle == ATOM_32:
        # Swizzle<2,5,2> of CuTe, on the bits of the byte address.
        pairs: Array = addresses ^ (((addresses >> 7) & 3) << 5)
        return pairs
    moved: Array = addresses ^ (((addresses >> 7) & (swizzle // 16 - 1)) << 4)
    return moved


@lru_cache(maxsize=1024)
def find_box_rows(address: int, size: int, swizzle: int) -> Array:
    """Return the 16-byte rows of shared memory that hold a box, swizzled, in the order of the box's bytes."""
    return apply_swizzle(np.arange(address, address + size, 16), swizzle) // 16


class TileBox:
    """A tiled box: its part inside the tensor, as views of global memory and of the box's bytes."""

    def __init__(self, layout: MapLayout, coordinates: Sequence[int], memory: Memory) -> None:
        self.layout = layout
        self._memory = memory
        self._tag = memory.tag
        self._owners: Array | None = None
        self._readers = np.zeros(0, np.uint8)
        self._span: tuple[int, list[int], list[int]] = (0, [], [])
        size = layout.element_bytes
        steps = layout.element_strides
        # Positions of the box inside the tensor, from and to, in each dimension.
        low = [max(-(c // step), 0) if c < 0 else 0 for c, step in zip(coordinates, steps, strict=True)]
        sides = zip(coordinates, layout.box, layout.sizes, steps, strict=True)
        high = [min(extent, -(-(limit - c) // step)) for c, extent, limit, step in sides]
        self.is_empty = any(h <= first for first, h in zip(low, high, strict=True))
        self._inside: tuple[slice, ...] = ()
        self._target: Array = np.zeros(0, np.uint8)
        if self.is_empty:
            return
        extents = [h - first for first, h in zip(low, high, strict=True)]
        strides = [stride * step for stride, step in zip(layout.strides, steps, strict=True)]
        starts = [c + first * step for c, first, step in zip(coordinates, low, steps, strict=True)]
        address = layout.address + sum(start * stride for start, stride in zip(starts, layout.strides, strict=True))
        last = address + sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True)) + size
        start = memory.find_offset(address, last - address, "the box")
        self._span = (start, extents, strides)
        self._inside = tuple(slice(first, h) for first, h in reversed(list(zip(low, high, strict=True))))
        self._target = self._view_inside(memory.bytes, start, extents, strides)
        if memory.owner is not None and memory.reader is not None:
            self._owners = self._view_inside(memory.owner, start, extents, strides)
            self._readers = self._view_inside(memory.reader, start, extents, strides)

    def _view_inside(self, storage: Array, start: int, extents: list[int], strides: list[int]) -> Array:
        """Return the box's part inside the tensor, as a strided view of global memory's bytes or of marks for them."""
        shape, steps = tuple(reversed(extents)), tuple(reversed(strides))
        return np.ndarray(shape, self.layout.word, buffer=storage.data, offset=start, strides=steps)

    def _element_offset(self, position: tuple[int, ...]) -> int:
        """Return the offset in global memory of the element at a position of the part inside the tensor."""
        start, _, strides = self._span
        return start + sum(at * stride for at, stride in zip(reversed(position), strides, strict=True))

    def find_granules(self, size: int) -> Array:
        """Return the numbers of the granules of `size` bytes, 16 at most, of global memory that the box accesses."""
        if self.is_empty:
            return np.zeros(0, np.int64)
        start, extents, strides = self._span
        starts = np.array([start])
        for extent, stride in zip(extents[1:], strides[1:], strict=True):
            starts = (starts[:, None] + stride * np.arange(extent)).reshape(-1)
        # Rows begin at one place in a granule, since strides are multiples of 16.
        width = self.layout.element_bytes
        ends = strides[0] * np.arange(extents[0]) if strides[0] != width else np.arange(0, extents[0] * width, size)
        inner = np.unique((start % size + np.append(ends, (extents[0] - 1) * strides[0] + width - 1)) // size)
        granules: Array = (starts[:, None] // size + inner).reshape(-1)
        return granules

    def load(self) -> Array:
        """Return the bytes of the whole box, as rows of 16, with elements outside the tensor filled."""
        box = np.full(self.layout.box[::-1], self.layout.fill_bits, self.layout.word)
        if not self.is_empty:
            if self._owners is not None and self._memory.is_divided:
                marks = (self._owners, self._readers)
                self._readers[...] = self._memory.require_ownership(*marks, self._tag, self._element_offset)
            box[self._inside] = self._target
        return box.view(np.uint8).reshape(-1, 16)

    def store(self, data: Array) -> None:
        """Write the part of the box inside the tensor to global memory, and record the cluster as its owner."""
        if not self.is_empty:
            part = self._take_inside(data)
            self._claim_ownership(self._target, part)
            self._target[...] = part

    def reduce(self, data: Array, operation: str) -> None:
        """Combine the part of the box inside the tensor with global memory by the operation, and record the cluster as
        its owner."""
        if self.is_empty:
            return
        part = np.ascontiguousarray(self._take_inside(data))
        old = np.ascontiguousarray(self._target)
        self._claim_ownership(old, old)
        self._target[...] = combine_elements(self.layout.element, operation, old, part)

    def _claim_ownership(self, old: Array, new: Array) -> None:
        """Record that the cluster writes `new` over `old` if owners are tracked; report a race if another cluster used
        it."""
        memory, owners = self._memory, self._owners
        if owners is not None:
            owners[...] = memory.take_ownership(owners, self._readers, old, new, self._tag, self._element_offset)

    def _take_inside(self, data: Array) -> Array:
        """Return, from the box's bytes, the elements inside the tensor as unsigned integers."""
        words = np.ascontiguousarray(data).view(np.uint8).reshape(-1).view(self.layout.word)
        part: Array = words.reshape(self.layout.box[::-1])[self._inside]
        return part


class FourRows:
    """The box of `tile::gather4` and `tile::scatter4`: a column and four rows of a matrix, each a box of one row."""

    def __init__(self, layout: MapLayout, coordinates: Sequence[int], memory: Memory) -> None:
        if layout.columns is not None or len(layout.box) != 2 or layout.box[1] != 1:
            raise Fault("bad-descriptor", "four rows of a tensor map whose box is not one row of a matrix")
        column, *rows = coordinates
        self._boxes = [TileBox(layout, (column, row), memory) for row in rows]

    def find_granules(self, size: int) -> Array:
        """Return the numbers of the granules of `size` bytes of global memory that the four boxes access."""
        return np.concatenate([box.find_granules(size) for box in self._boxes])

    def load(self) -> Array:
        """Return the bytes of the four boxes one after the other, as rows of 16."""
        return np.concatenate([box.load() for box in self._boxes])

    def store(self, data: Array) -> None:
        """Write the bytes of four boxes, one after the other, to global memory."""
        for box, part in zip(self._boxes, np.split(data.reshape(-1), 4), strict=True):
            box.store(part)


INTEGER_ELEMENTS = {"u32": "uint32", "s32": "int32", "u64": "uint64", "s64": "int64", "b32": "uint32", "b64": "uint64"}
"""Element types by the PTX types of bulk reductions."""


def combine_elements(element: str, operation: str, old: Array, new: Array) -> Array:
    """Compute `old op new` on bit patterns of an element type, and return bit patterns."""
    function = REDUCTIONS[operation]
    if element == "bfloat16":
        return f32_to_bf16(function(bf16_to_f32(old), bf16_to_f32(new)))
    dtype = np.dtype(element)
    result: Array = function(old.view(dtype), new.view(dtype)).view(old.dtype)
    return result


class Im2colBox:
    """The elements of one copy. Dimensions run from the fastest: channels, then space, then images."""

    def __init__(self, layout: MapLayout, coordinates: Sequence[int], offsets: Sequence[int], memory: Memory) -> None:
        columns = layout.columns
        if columns is None:
            raise Fault("bad-descriptor", "an im2col copy through a tensor map for tiles")
        self.layout = layout
        self.memory = memory
        steps = layout.element_strides[1:-1]
        # How many filter positions lie along each axis; the last axis counts images, without end.
        sides = zip(layout.sizes[1:-1], columns.lower, columns.upper, steps, strict=True)
        counts = [-(-(size + high - low) // step) for size, low, high, step in sides]
        most = 2 * CORNER_LIMITS[len(layout.sizes)]
        if any(offset >= most for offset in offsets):
            raise Fault("out-of-bounds", f"im2col offsets of {list(offsets)}: each must be less than {most}")
        starts = zip(coordinates[1:-1], columns.lower, steps, strict=True)
        firsts = [(start - low) // step for start, low, step in starts]
        if any(not 0 <= first < count for first, count in zip(firsts, counts, strict=True)):
            message = f"an im2col copy begins at {list(coordinates[1:-1])}, outside of the corners of its map"
            raise Fault("out-of-bounds", f"{message}, {list(columns.lower)} and {list(columns.upper)}")
        position = np.arange(columns.pixels)
        pixels: list[Array] = []
        for first, count, low, step, offset in zip(firsts, counts, columns.lower, steps, offsets, strict=True):
            position = position + first
            pixels.append(position % count * step + low + offset)
            position = position // count
        pixels.append(position + coordinates[-1])
        channels = coordinates[0] + np.arange(columns.channels)
        inside = (channels >= 0) & (channels < layout.sizes[0])
        rows = np.ones(columns.pixels, np.bool_)
        addresses = np.zeros(columns.pixels, np.int64)
        for axis, places in enumerate(pixels, start=1):
            rows &= (places >= 0) & (places < layout.sizes[axis])
            addresses += places * layout.strides[axis]
        self._inside = rows[:, None] & inside[None, :]
        self._addresses = layout.address + addresses[:, None] + channels[None, :] * layout.element_bytes

    def find_granules(self, size: int) -> Array:
        """Return the numbers of the granules of `size` bytes of global memory that the copy accesses."""
        return np.unique((self._addresses[self._inside] - self.memory.base) // size)

    def load(self) -> Array:
        """Return the bytes of the whole copy, as rows of 16, with elements outside the image filled."""
        layout = self.layout
        box = np.full(self._inside.shape, layout.fill_bits, layout.word)
        box[self._inside] = self.memory.load(self._addresses[self._inside], layout.element_bytes)
        return box.view(np.uint8).reshape(-1, 16)

    def store(self, data: Array) -> None:
        """Write the elements of the copy's bytes that lie inside the tensor to global memory."""
        box = np.ascontiguousarray(data).view(self.layout.word).reshape(self._inside.shape)
        self.memory.store(self._addresses[self._inside], self.layout.element_bytes, box[self._inside])
