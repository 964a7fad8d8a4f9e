"""Replace addresses in faults of the emulator by the elements of tensors and shared tiles there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilec.emu.fault import Fault, MemoryLocation
from tilec.emu.memory.places import replace_addresses
from tilec.ir.layout import SharedLayout
from tilec.ir.manifest import ScalarParam
from tilec.ir.placement import element_slots
from tilec.ir.types import TYPES_BY_NAME

if TYPE_CHECKING:
    from tilec.ir.manifest import Manifest
    from tilec.ir.warp import Program, SharedTile


def name_elements(fault: Fault, manifest: Manifest, program: Program) -> tuple[str, list[str]]:
    """Return a fault's message with tensor and tile elements in place of addresses, and notes with the addresses."""

    def name_address(address: str) -> str | None:
        """Return the element of a tensor or shared tile at an address of the fault; None if it is unknown."""
        place = fault.places.get(address)
        if place is None:
            return None
        if place.argument is None:
            return _name_shared_element(place.offset, program.shared)
        param = manifest.params[place.argument]
        if isinstance(param, ScalarParam):
            return None
        dtype = TYPES_BY_NAME[manifest.tensor(param.tensor).dtype]
        return name_global_element(param.tensor, place, dtype.per_byte)

    return replace_addresses(fault.message, name_address)


def name_global_element(tensor: str, place: MemoryLocation, per_byte: int = 1) -> str | None:
    """Return the element's name, or how far the address is outside the tensor; None inside without an element."""
    shape = list(place.shape)
    if shape:
        shape[-1] *= per_byte
    if place.element is not None:
        index = list(place.element)
        index[-1] *= per_byte
        return f"{tensor}[{', '.join(map(str, index))}]"
    if 0 <= place.offset < place.bytes:
        return None
    side = f"{place.offset - place.bytes:,} bytes after the end of"
    if place.offset < 0:
        side = f"{-place.offset:,} bytes before"
    return f"{side} {tensor}, whose shape is ({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def _name_shared_element(offset: int, tiles: Sequence[SharedTile]) -> str | None:
    """Return the tile element at a shared-memory offset, or several if tiles share memory; None if no tile has it."""
    names = [name for tile in tiles if (name := _name_tile_element(offset - tile.offset, tile)) is not None]
    if not names:
        return None
    return names[0] if len(names) == 1 else f"{names[0]} (or {', '.join(names[1:])}, in the same memory)"


def _name_tile_element(offset: int, tile: SharedTile) -> str | None:
    """Return the name of the element at an offset of a tile, with its version; None if there is none."""
    if not 0 <= offset < tile.bytes:
        return None
    version, offset = divmod(offset, tile.stride)
    index = find_element(offset % tile.layout.copy_bytes, tile.layout)
    if offset >= tile.layout.bytes or index is None:
        return None
    *rows, column = index
    column *= tile.buffer.shape[-1] // tile.layout.shape[-1]  # the first of two 4-bit elements in a byte
    name = f"{tile.buffer.name}[{', '.join(map(str, (*rows, column)))}]"
    return name if tile.depth == 1 else f"{name} of version {version}"


def find_element(offset: int, layout: SharedLayout) -> tuple[int, ...] | None:
    """Return the index of the element at a byte offset of one copy of a tile, swizzle undone; None between elements."""
    if layout.placement is not None:
        try:
            number = element_slots(layout.placement).index(offset // layout.element_bytes)
        except ValueError:
            return None
        return _unravel_index(number, layout.shape)
    # The bank swizzle changes only address bits that it does not read, so it is its own inverse.
    offset ^= (offset >> 7 & layout.swizzle_mask) << 4
    panel, inside = divmod(offset, layout.panel_bytes)
    row, byte = divmod(inside, layout.row_bytes)
    if panel >= layout.panels:
        return None
    *rows, _ = layout.shape
    return (*_unravel_index(row, tuple(rows)), panel * layout.panel + byte // layout.element_bytes)


def _unravel_index(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of the element with this number in row-major order."""
    return tuple(number // math.prod(shape[axis + 1 :]) % extent for axis, extent in enumerate(shape))
