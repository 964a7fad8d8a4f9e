"""The copies from shared memory to registers that ldmatrix can make."""

from __future__ import annotations

from tilec.ir.affine import affine_form
from tilec.ir.layout import Axis, Fragment
from tilec.ir.tile import Region

_BLOCK = 8  # rows, and elements of a row


def can_use_ldmatrix(source: Region, destination: Region, layout: Fragment) -> bool:
    """Return whether ldmatrix can load the fragment of this layout (PTX ISA, ldmatrix). The fragment must consist of
    blocks of 8 × 8 elements of 16 bits, of which each thread holds two neighbours of a row, or with .trans of a column.
    A row of a block must be 16 aligned bytes of a row of the shared tile."""
    tile, fragment = source.buffer, destination.buffer
    if (tile.scope, fragment.scope) != ("shared", "fragment") or tile.dtype != fragment.dtype or tile.dtype.bits != 16:
        return False
    if not destination.is_whole or source.extent[-2:] != layout.shape or any(e != 1 for e in source.extent[:-2]):
        return False
    if len(layout.shape) != 2 or any(map(layout.overhangs, (0, 1))):
        return False
    if tile.shape[-1] % _BLOCK or affine_form(source.start[-1]).divisor % _BLOCK:
        return False
    along = layout.registers[0].dim if layout.registers else -1
    lanes = (Axis(4, along, 2), Axis(8, 1 - along, 1))
    if along not in (0, 1) or layout.registers[0] != Axis(2, along, 1) or layout.threads[:2] != lanes:
        return False
    return all(axis.stride % _BLOCK == 0 for axis in (*layout.threads[2:], *layout.registers[1:]) if axis.size > 1)
