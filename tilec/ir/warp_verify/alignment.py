"""The alignment of copies and products in shared memory: rule 14 of `ir.warp_verify.verify`. Addresses follow from the
layouts alone, for all versions and boxes at once: the greatest common divisor of all addresses, their "step"."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from tilec.ir import warp
from tilec.ir.affine import affine_form
from tilec.ir.layout import SharedLayout
from tilec.ir.tile import Buffer, Region
from tilec.ir.warp import Operation, Program, SharedTile
from tilec.ir.warp_verify.effects import op_name

BOX_ALIGNMENT = 128
"""In bytes: the shared address of cp.async.bulk.tensor and cp.reduce.async.bulk.tensor (PTX ISA)."""

ROW_ALIGNMENT = 16
"""In bytes: the rows of ldmatrix and stmatrix, the response of clusterlaunchcontrol.try_cancel, and the unit of
addresses in a matrix descriptor (PTX ISA)."""

ATOM_ROWS = 8
"""A bank swizzle of w bytes repeats after eight rows of w bytes (PTX ISA, "Swizzling modes"). It permutes by bits of
the address itself: a tile, and the target of a matrix descriptor with base offset 0, begins at a multiple of that."""


def check_alignment(program: Program) -> Iterator[str]:
    """Yield a message for each misaligned address in shared memory: of a copy, a product or a swizzled tile."""
    tiles = {tile.buffer.name: tile for tile in program.shared}
    for tile in program.shared:
        yield from _check_swizzle_atom(tile)
    for op in program.operations():
        for what, buffer, step, wanted in _list_addresses(op, tiles):
            if step % wanted:
                yield (
                    f"line {op.span.line}: {op_name(op)} of {buffer.name} reaches {what} at multiples of {step} bytes "
                    f"of shared memory, not of {wanted}"
                )


def _check_swizzle_atom(tile: SharedTile) -> Iterator[str]:
    """Yield a message if versions of a swizzled tile may begin inside the swizzle's pattern."""
    atom = ATOM_ROWS * tile.layout.swizzle
    step = _compute_version_step(tile)
    if atom and step % atom:
        yield (
            f"the swizzle of {tile.buffer.name} repeats after {atom} bytes, its versions begin at multiples of {step} "
            "bytes of shared memory"
        )


def _compute_version_step(tile: SharedTile) -> int:
    """Return the greatest common divisor in bytes of the addresses at which a tile's versions begin."""
    return gcd(tile.offset, tile.stride if tile.depth > 1 else 0)


def _compute_panel_step(layout: SharedLayout) -> int:
    """Return the bytes from one panel of a shared tile to the next; 0 if there is only one."""
    several = layout.shape[-1] > layout.panel
    return prod(layout.shape[:-1]) * layout.panel * layout.element_bytes if several else 0


def _list_addresses(op: Operation, tiles: dict[str, SharedTile]) -> Iterator[tuple[str, Buffer, int, int]]:
    """Yield each address that an operation uses in shared tiles: its name, buffer, known divisor, and required
    alignment. The divisor and the alignment are in bytes."""
    match op:
        case warp.TmaLoad(destination=buffer, four=four):
            yield (
                "a box",
                buffer,
                _compute_box_step(tiles[buffer.name], four, _compute_slice_bytes(op, tiles[buffer.name])),
                BOX_ALIGNMENT,
            )
        case warp.TmaStore(source=buffer, four=four, parts=parts):
            tile = tiles[buffer.name]
            each = warp.PART_ROWS * tile.layout.panel * tile.layout.element_bytes if parts > 1 else 0
            yield "a box", buffer, _compute_box_step(tile, four, each), BOX_ALIGNMENT
        case warp.TryCancel(answer=buffer):
            yield "its answer", buffer, _compute_version_step(tiles[buffer.name]), ROW_ALIGNMENT
        case warp.Wgmma(a=a, b=b):
            for part in (a, b):
                if part.buffer.name in tiles:
                    yield from _list_operand_addresses(part, tiles[part.buffer.name])
        case warp.TensorMma(a=a, b=b):
            for buffer in (a, b):
                if (held := tiles.get(buffer.name)) is not None:
                    atom = max(ATOM_ROWS * held.layout.swizzle, ROW_ALIGNMENT)
                    yield "a panel", buffer, gcd(_compute_version_step(held), _compute_panel_step(held.layout)), atom
        case warp.TensorCopy(source=buffer):
            yield "its scales", buffer, _compute_version_step(tiles[buffer.name]), ROW_ALIGNMENT
        case warp.LoadMatrix(source=part):
            yield "a row", part.buffer, _row_step(tiles[part.buffer.name], part), ROW_ALIGNMENT
        case warp.StoreMatrix(destination=buffer):
            yield "a row", buffer, _row_step(tiles[buffer.name], None), ROW_ALIGNMENT
        case warp.TransposeMatrix(source=source, destination=destination):
            for buffer in (source, destination):
                yield "a row", buffer, _row_step(tiles[buffer.name], None), ROW_ALIGNMENT
        case _:
            pass


def _compute_box_step(tile: SharedTile, four: warp.FourRows | None, part: int) -> int:
    """Return the greatest common divisor of a TMA copy's box addresses: panels, parts of `part` bytes, or four rows."""
    rows = 0 if four is None else affine_form(four.at).divisor * tile.layout.panel * tile.layout.element_bytes
    return gcd(_compute_version_step(tile), _compute_panel_step(tile.layout), rows, part)


def _compute_slice_bytes(load: warp.TmaLoad, tile: SharedTile) -> int:
    """Return the bytes of a panel's slice that one block of a multicast loads; 0 without one, or for slices of whole
    panels."""
    if not load.shared or load.sliced == len(load.start) - 1:
        return 0
    rows = prod(extent for dim, extent in enumerate(load.map.box) if dim < len(load.map.box) - 1)
    return rows * tile.layout.panel * tile.layout.element_bytes


def _list_operand_addresses(part: Region, tile: SharedTile) -> Iterator[tuple[str, Buffer, int, int]]:
    """Yield the addresses of a product's operand, with divisor and alignment: its first row, and its first column. The
    row begins a repetition of the swizzle, the column a descriptor's unit."""
    size, row = tile.layout.element_bytes, tile.layout.panel * tile.layout.element_bytes
    first = affine_form(part.start[-2]).divisor * row if len(part.start) > 1 else 0
    atom = max(ATOM_ROWS * tile.layout.swizzle, ROW_ALIGNMENT)
    yield "a panel", part.buffer, gcd(_compute_version_step(tile), _compute_panel_step(tile.layout), first), atom
    yield "a column", part.buffer, affine_form(part.start[-1]).divisor * size, ROW_ALIGNMENT


def _row_step(tile: SharedTile, part: Region | None) -> int:
    """Return the common divisor of the row addresses of a part of a tile (None: all of it); 16 for an author's
    placement.
    """
    if tile.layout.placement is not None:
        return ROW_ALIGNMENT  # `run` gives what is contiguous there, no address does
    column = 0 if part is None else affine_form(part.start[-1]).divisor * tile.layout.element_bytes
    row = tile.layout.panel * tile.layout.element_bytes
    return gcd(_compute_version_step(tile), _compute_panel_step(tile.layout), row, column)
