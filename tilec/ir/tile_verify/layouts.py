"""Verifier of the layouts of a kernel's tiles, independent of the passes that choose them.

1. Every tile that a statement touches has one layout, of its own shape and element size: in registers or in shared
   memory, as its scope says.
2. The registers of a fragment hold each element in the same number of threads, once in each, and every thread has its
   part: the threads of a layout are those of the kernel.
3. No two elements of a shared tile share a byte; all lie within the tile's bytes, in whole chunks of 16 bytes where
   they are swizzled, and each copy begins where the swizzle pattern may begin.
4. A nest runs each of its iterations in equally many threads, by all threads of the kernel.
5. A fragment's element that a nest reads or sets by its own variables lies in the registers of the thread that does so.
6. Of a fragment stored by stmatrix each lane of a warp holds two neighbours in each block of eight rows by eight
   columns, the blocks of a thread row by row, alternating with those eight rows below (PTX ISA, stmatrix).

Layouts are made of digits, each of which moves along one dimension, so that these are questions about one dimension at
a time; no check enumerates all elements, except for an arbitrary placement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import product

from tilec.ir import tile
from tilec.ir.layout import Axis, Fragment, SharedLayout
from tilec.ir.placement import element_slots

SWIZZLES = (0, 32, 64, 128)
CHUNK_BYTES = 16
LANES, MATRIX_ROWS, MATRIX_REGISTERS = 32, 8, 4
"""Lanes of a warp; rows (and columns) of a matrix; registers of a lane for two matrices, one below the other."""
REGISTERS = ("fragment", "local", "reducer")
"""The scopes whose elements lie in registers."""


def layout_violations(
    kernel: tile.Kernel,
    fragments: Mapping[str, Fragment],
    shared: Mapping[str, SharedLayout],
    swept: Callable[[tile.Parallel], Fragment],
) -> Iterator[str]:
    """Yield every broken rule about layouts of tiles, nests and stmatrix stores, as a sentence. `swept` returns the
    layout of a nest's iterations."""
    for buffer in _touched_buffers(kernel):
        if buffer.scope in REGISTERS:
            found = fragments.get(buffer.name)
            if found is None or buffer.name in shared:
                yield f"{buffer.name} has no register layout"
            else:
                yield from _check_fragment(buffer, found, kernel.threads)
        elif buffer.scope == "shared":
            place = shared.get(buffer.name)
            if place is None or buffer.name in fragments:
                yield f"{buffer.name} has no shared layout"
            else:
                yield from _check_shared(buffer, place)
    for nest in tile.walk_statements(kernel.body):
        if isinstance(nest, tile.Parallel):
            for message in _check_nest(nest, swept(nest), fragments, kernel.threads):
                yield f"line {nest.span.line}: {message}"
        elif isinstance(nest, tile.TileOp) and nest.via == "stmatrix":
            held = fragments.get(nest.regions[0].buffer.name)
            if held is not None and not _is_stmatrix_layout(held):
                yield f"line {nest.span.line}: stmatrix stores {nest.regions[0].buffer.name}, which has another layout"


def _touched_buffers(kernel: tile.Kernel) -> dict[tile.Buffer, None]:
    """Return the buffers, tensors too, that statements read or write, in program order; the values are None."""
    found: dict[tile.Buffer, None] = {}
    for stmt in tile.walk_statements(kernel.body):
        if isinstance(stmt, tile.TileOp):
            found |= dict.fromkeys(region.buffer for region in stmt.regions)
        if isinstance(stmt, tile.Store):
            found[stmt.buffer] = None
        found |= dict.fromkeys(load.buffer for load in tile.walk_loads(stmt))
    return found


# ---- registers -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _digit_sums(axes: tuple[Axis, ...], dim: int) -> tuple[int, ...]:
    """Return the sums of all combinations of the digits that move along a dimension: the offsets reached, with
    repeats."""
    steps = (range(0, a.size * a.stride, a.stride) for a in axes if a.dim == dim and a.size > 1)
    return tuple(map(sum, product(*steps)))


def _check_fragment(buffer: tile.Buffer, layout: Fragment, threads: int) -> Iterator[str]:
    """Yield a message where a fragment's layout has another shape than the buffer, or digits that `_check_digits`
    refuses.
    """
    if layout.shape != buffer.shape:
        yield f"{buffer.name} is {buffer.shape}, its layout {layout.shape}"
    else:
        yield from (f"{buffer.name}: {message}" for message in _check_digits(layout, layout.shape, threads))


def _check_digits(layout: Fragment, extents: tuple[int, ...], threads: int) -> Iterator[str]:
    """Yield a message where a layout's digits reach no, or several, places of an element, or other threads than
    `threads`."""
    axes = (*layout.threads, *layout.registers)
    if any(a.size < 1 or (a.dim >= 0 and a.size > 1 and a.stride < 1) or a.dim >= len(extents) for a in axes):
        yield "a digit does not move along one of its dimensions"
        return
    if layout.thread_count != threads:
        yield f"its layout is for {layout.thread_count} threads, there are {threads}"
    if any(a.dim < 0 and a.size > 1 for a in layout.registers):
        yield "a thread has several registers for one element"
    for dim, extent in enumerate(extents):
        found = _digit_sums(axes, dim)
        if len(set(found)) < len(found):
            yield f"an element of dimension {dim} has two places"
        if not set(range(extent)) <= set(found):
            yield f"not all {extent} of dimension {dim} have a place"


def _is_stmatrix_layout(layout: Fragment) -> bool:
    """Return whether a layout is as stmatrix stores it: lanes with two neighbours in a row, registers in pairs 8 rows
    apart."""
    lanes, registers = _digit_offsets(layout.threads, layout)[:LANES], _digit_offsets(layout.registers, layout)
    if len(layout.shape) != 2 or len(registers) % MATRIX_REGISTERS:
        return False
    if list(lanes) != [(lane // 4, 2 * (lane % 4)) for lane in range(LANES)]:
        return False
    rows = dict.fromkeys(row for row, _ in registers[::MATRIX_REGISTERS])
    across = len(registers) // MATRIX_REGISTERS // max(len(rows), 1)
    wanted = [
        (row + down, MATRIX_ROWS * block + column)
        for row in rows
        for block in range(across)
        for down in (0, MATRIX_ROWS)
        for column in (0, 1)
    ]
    return list(registers) == wanted


# ---- shared memory ---------------------------------------------------------------------------------------------------


def _check_shared(buffer: tile.Buffer, layout: SharedLayout) -> Iterator[str]:
    """Yield a message where a shared tile's layout has another shape or size, overlapping elements, or a bad
    swizzle."""
    name = buffer.name
    if layout.shape != buffer.shape or layout.element_bytes * 8 != max(buffer.dtype.bits, 8):
        yield f"{name} is {buffer.dtype}{list(buffer.shape)}, its layout {layout.element_bytes} bytes × {layout.shape}"
        return
    if layout.copies < 1 or layout.swizzle not in SWIZZLES:
        yield f"{name} has {layout.copies} copies, swizzled by {layout.swizzle} bytes"
    elements = layout.rows * layout.shape[-1]
    if layout.placement is not None:
        given = layout.placement
        found = element_slots(given)
        if given.shape != layout.shape or layout.swizzle or layout.panel != layout.shape[-1]:
            yield f"{name} has a placement, and also a swizzle or panels"
        elif len(set(found)) < len(found) or min(found) < 0 or max(found) >= given.size:
            yield f"{name}: two elements have the same offset, or one has an offset outside {given.size}"
        return
    if layout.panel < 1 or layout.shape[-1] % layout.panel:
        yield f"{name}: rows of {layout.shape[-1]} elements are not made of panels of {layout.panel}"
    elif layout.copy_bytes < elements * layout.element_bytes:
        yield f"{name}: {elements} elements do not fit {layout.copy_bytes} bytes"
    elif layout.swizzle and (layout.row_bytes % CHUNK_BYTES or layout.panel_bytes % layout.swizzle):
        yield f"{name}: a swizzle of {layout.swizzle} bytes leaves rows of {layout.row_bytes}"
    elif layout.copies > 1 and layout.swizzle and layout.copy_bytes % (8 * layout.swizzle):
        yield f"{name}: a copy begins inside a swizzle pattern of the previous copy"


# ---- nests -----------------------------------------------------------------------------------------------------------


def _check_nest(
    nest: tile.Parallel, layout: Fragment, fragments: Mapping[str, Fragment], threads: int
) -> Iterator[str]:
    """Yield a message where a nest's layout has another shape or bad digits, or a thread uses elements that it does not
    hold."""
    extents = (threads, *nest.extents[1:]) if nest.is_per_thread else nest.extents
    if layout.shape != extents:
        yield f"a nest over {extents} is swept as {layout.shape}"
        return
    yield from (f"the nest: {message}" for message in _check_digits(layout, extents, threads))
    seen: set[tuple[tile.Buffer, tuple[tile.Expr, ...]]] = set()
    for stmt in tile.walk_statements(nest.body):
        uses = [(load.buffer, load.indices) for load in tile.walk_loads(stmt)]
        if isinstance(stmt, tile.Store) and stmt.atomic is None:
            uses.append((stmt.buffer, stmt.indices))
        for buffer, indices in uses:
            if buffer.scope == "fragment" and buffer.name in fragments and (buffer, indices) not in seen:
                seen.add((buffer, indices))
                yield from _check_own_registers(buffer, indices, nest, layout, fragments[buffer.name])


def _check_own_registers(
    buffer: tile.Buffer, indices: tuple[tile.Expr, ...], nest: tile.Parallel, layout: Fragment, held: Fragment
) -> Iterator[str]:
    """Yield a message where a thread of the nest uses an element of a fragment that it does not hold. Only indices that
    are a variable, or one divided by a constant, are checked."""
    for dim, index in enumerate(indices):
        match index:
            case tile.Var():
                var, by = index, 1
            case tile.Binary(op="floordiv", a=tile.Var() as var, b=tile.Const(value=number)):
                by = int(number)
            case _:
                return
        if var not in nest.vars or var == tile.THREAD:
            return
        along = nest.vars.index(var)
        needed, mine = _digit_sums(layout.registers, along), frozenset(_digit_sums(held.registers, dim))
        pairs = {
            (there[along], here[dim])
            for there, here in zip(
                _digit_offsets(layout.threads, layout), _digit_offsets(held.threads, held), strict=False
            )
        }
        last = nest.extents[along]
        if any((at + step) // by - here not in mine for at, here in pairs for step in needed if at + step < last):
            yield f"{buffer.name} is used in a thread that does not hold it"
            return


@lru_cache(maxsize=256)
def _digit_offsets(axes: tuple[Axis, ...], layout: Fragment) -> tuple[tuple[int, ...], ...]:
    """Return the coordinate offsets of all combinations of the digits, in order of the mixed-radix number that they
    form."""
    found: list[tuple[int, ...]] = [(0,) * len(layout.shape)]
    for axis in axes:
        found = [
            tuple(c + digit * axis.stride if d == axis.dim else c for d, c in enumerate(one))
            for digit in range(axis.size)
            for one in found
        ]
    return tuple(found)
