"""im2col boxes: the pixels that one filter tap reads, as the rows of a matrix.

Filter positions run over a region inset from the edges of an image by the corners of the map: along the rows, down the
image, and on into the next image. Each gives one row of channels, at its position plus the filter tap's offset;
elements outside the image are filled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilec.emu.fault import Fault
from tilec.emu.memory import Memory
from tilec.emu.numbers import Array
from tilec.emu.tensormap import CORNER_LIMITS, MapLayout, nan_bits


class Im2colBox:
    """The elements of one copy. Dimensions run from the fastest: channels, then space, then images."""

    def __init__(self, layout: MapLayout, coordinates: Sequence[int], offsets: Sequence[int], memory: Memory) -> None:
        columns = layout.columns
        if columns is None:
            raise Fault("bad-descriptor", "an im2col copy through a tensor map for tiles")
        self.layout = layout
        self.memory = memory
        space = range(1, len(layout.sizes) - 1)
        steps = [layout.element_strides[axis] for axis in space]
        # How many filter positions lie along each axis; the last axis counts images, without end.
        counts = [
            -(-(layout.sizes[axis] + high - low) // step)
            for axis, low, high, step in zip(space, columns.lower, columns.upper, steps, strict=True)
        ]
        most = 2 * CORNER_LIMITS[len(layout.sizes)]
        if any(offset >= most for offset in offsets):
            raise Fault("out-of-bounds", f"im2col offsets of {list(offsets)}: each must be less than {most}")
        firsts = [
            (coordinates[axis] - low) // step for axis, low, step in zip(space, columns.lower, steps, strict=True)
        ]
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
        """Return the granules of `size` bytes of global memory that the copy accesses."""
        return np.unique((self._addresses[self._inside] - self.memory.base) // size)

    def load(self) -> Array:
        """Return the bytes of the whole copy, as rows of 16."""
        size = self.layout.element_bytes
        fill = nan_bits(self.layout) if self.layout.fill == "nan" else 0
        box = np.full(self._inside.shape, fill, np.dtype(f"u{size}"))
        box[self._inside] = self.memory.load(self._addresses[self._inside], size)
        return box.view(np.uint8).reshape(-1, 16)

    def store(self, data: Array) -> None:
        size = self.layout.element_bytes
        box = np.ascontiguousarray(data).view(np.dtype(f"u{size}")).reshape(self._inside.shape)
        self.memory.store(self._addresses[self._inside], size, box[self._inside])
