"""Names for the addresses in a fault's message: an element of an argument, or an offset in shared memory.

A message writes an address as `global address 0x10000000004` or `shared address 0x400`, sometimes with the nearest
allocation. `replace_addresses` puts a name in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from tilec.emu.fault import MemoryLocation
from tilec.emu.memory.arguments import Allocator, list_arrays
from tilec.emu.memory.memory import SHARED_RANK_SHIFT
from tilec.emu.numbers import Array

_ADDRESS = re.compile(r"(global|shared) address (0x[0-9a-f]+)(; the nearest allocation is '[^']*', 0x\w+ to 0x\w+)?")
_BYTES = re.compile(r"(global|shared) bytes (0x[0-9a-f]+) to 0x[0-9a-f]+(; the nearest allocation is .*)?")


def find_memory_locations(
    message: str, args: Sequence[object], allocator: Allocator, shared: Iterable[tuple[str, int, int]]
) -> dict[str, MemoryLocation]:
    """Return where in an argument or in dynamic shared memory the addresses in a fault's message lie, by address as
    written. Static shared memory has none.

    `shared` lists the variables of shared memory: name, first address, size.
    """
    dynamic = next(((start, size) for name, start, size in shared if name == "dynamic shared memory"), (0, 0))
    places: dict[str, MemoryLocation] = {}
    for pattern in (_ADDRESS, _BYTES):
        for found in pattern.finditer(message):
            space, written = found[1], found[2]
            address = int(written, 16)
            if space == "shared":
                inside = address & (1 << SHARED_RANK_SHIFT) - 1
                start, size = dynamic
                if 0 <= inside - start < size:
                    places[written] = MemoryLocation(None, inside - start)
            elif (place := _locate_in_arguments(address, args, allocator)) is not None:
                places[written] = place
    return places


def _locate_in_arguments(address: int, args: Sequence[object], allocator: Allocator) -> MemoryLocation | None:
    """Return an address's offset and index in the array argument that contains it, or the nearest; None without arrays.
    Outside of all arrays the index is None."""
    best: tuple[int, MemoryLocation] | None = None
    given = ((number, first, array) for number, value in enumerate(args) for first, array in list_arrays(value))
    for number, first, array in given:
        offset = address - allocator.find_address(array)
        size = sum((n - 1) * abs(step) for n, step in zip(array.shape, array.strides, strict=True)) + array.itemsize
        size = size if array.size else 0
        is_inside = 0 <= offset < size
        distance = 0 if is_inside else -offset if offset < 0 else offset - size + 1
        if best is None or distance < best[0]:
            index = _find_element_index(array, offset) if is_inside else None
            index = None if index is None else (*first, *index)
            best = distance, MemoryLocation(number, offset, index, array.shape, size)
    return None if best is None else best[1]


def _find_element_index(array: Array, offset: int) -> tuple[int, ...] | None:
    """Return the index of the element at a byte offset; None for a byte outside or between the elements of a strided
    array."""
    index = [0] * array.ndim
    for axis in sorted(range(array.ndim), key=lambda axis: -array.strides[axis]):
        step = array.strides[axis]
        if step > 0 and array.shape[axis] > 1:
            index[axis] = min(offset // step, array.shape[axis] - 1)
            offset -= index[axis] * step
    return tuple(index) if 0 <= offset < array.itemsize else None


def replace_addresses(message: str, name: Callable[[str], str | None]) -> tuple[str, list[str]]:
    """Return the message with names for addresses that have one, and a note for each, such as `S[0] is shared address
    0x400`.

    `name` maps an address, as written, to its name; where it returns None, the text stays.
    """
    notes: list[str] = []

    def replace_match(found: re.Match[str]) -> str:
        """Return the name of a matched address and note it once; return the text unchanged if it has no name."""
        new_name = name(found[2])
        if new_name is None:
            return found[0]
        note = f"{new_name} is {found[0]}"
        if note not in notes:
            notes.append(note)
        return new_name

    for pattern in (_ADDRESS, _BYTES):
        message = pattern.sub(replace_match, message)
    return message, notes
