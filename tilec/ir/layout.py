"""Layouts: the thread and register, or the byte of shared memory, of each element of a tile."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilec.ir import tile
from tilec.ir.affine import add_exprs, scale_expr
from tilec.ir.groups import TENSOR_LANES, WARPGROUP_THREADS, WARPGROUP_WARPS
from tilec.ir.placement import contiguous_run
from tilec.ir.types import INT32
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """A digit of a mixed-radix number: each step of it moves `stride` elements along dimension `dim`. Dimension −1
    moves nowhere: the digit replicates."""

    size: int
    dim: int
    stride: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """A tile distributed over threads and registers.

    The thread index and the register index are mixed-radix numbers, least significant digit first; an element's
    coordinates are the sums of its digits' strides. Coordinates may run past `shape` where it does not divide evenly:
    those registers hold nothing.
    """

    shape: tuple[int, ...]
    threads: tuple[Axis, ...]
    registers: tuple[Axis, ...]

    @property
    def thread_count(self) -> int:
        """Return the number of threads: the product of the thread digits' sizes."""
        return math.prod(a.size for a in self.threads)

    @property
    def register_count(self) -> int:
        """Return the number of registers of a thread: the product of the register digits' sizes."""
        return math.prod(a.size for a in self.registers)

    def register_offset(self, register: int) -> tuple[int, ...]:
        """Return what the digits of this register number add to each coordinate of its element."""
        return self._offset(self.registers, register)

    def thread_offset(self, thread: int) -> tuple[int, ...]:
        """Return what the digits of this thread number add to each coordinate of its elements."""
        return self._offset(self.threads, thread)

    def _offset(self, axes: tuple[Axis, ...], number: int) -> tuple[int, ...]:
        """Return what a mixed-radix number over these axes adds to each coordinate: the sum of its digits' strides."""
        offset = [0] * len(self.shape)
        for axis in axes:
            number, digit = divmod(number, axis.size)
            if axis.dim >= 0:
                offset[axis.dim] += digit * axis.stride
        return tuple(offset)

    def thread_coordinates(self) -> tuple[tile.Expr, ...]:
        """Return what the thread's digits add to each coordinate, as expressions of `THREAD`."""
        total: list[tile.Expr] = [tile.int32_const(0)] * len(self.shape)
        below = 1
        for axis in self.threads:
            if axis.dim >= 0 and axis.size > 1:
                total[axis.dim] = add_exprs(total[axis.dim], scale_expr(self._digit(below, axis.size), axis.stride))
            below *= axis.size
        return tuple(total)

    def _digit(self, below: int, size: int) -> tile.Expr:
        """Return a thread digit of `size` values as an expression of `THREAD`; `below` is the product of the sizes
        below it."""
        value: tile.Expr = tile.THREAD
        if below > 1:
            value = tile.Binary("floordiv", value, tile.int32_const(below), INT32)
        if below * size < self.thread_count:
            value = tile.Binary("floormod", value, tile.int32_const(size), INT32)
        return value

    def replica_index(self, groups: int = 1) -> tile.Expr | None:
        """Return an expression that is 0 in exactly one of the threads that hold the same elements; None without
        replication. Where each of `groups` groups of threads has all elements: in one thread of each group."""
        total: tile.Expr | None = None
        below = 1
        for axis in self.threads:
            if axis.dim < 0 and axis.size > 1 and below < self.thread_count // groups:
                digit = self._digit(below, axis.size)
                total = digit if total is None else tile.Binary("add", total, digit, INT32)
            below *= axis.size
        return total

    def extent(self, dim: int) -> int:
        """Return one past the largest coordinate along `dim` that the digits reach, perhaps past the shape."""
        return 1 + sum((a.size - 1) * a.stride for a in (*self.threads, *self.registers) if a.dim == dim)

    def overhangs(self, dim: int) -> bool:
        """Return whether the digits reach past the shape along `dim`, so that some registers hold nothing."""
        return self.extent(dim) > self.shape[dim]

    def columns(self, width: int) -> Fragment | None:
        """Return the layout of `width` columns from a multiple of `width` on; None where threads hold unequally many of
        them."""
        last = len(self.shape) - 1
        across = 1 + sum((a.size - 1) * a.stride for a in self.threads if a.dim == last)
        kept: list[Axis] = []
        for axis in self.registers:
            if axis.dim == last and axis.stride * axis.size > width:
                size = max(width // axis.stride, 1)
                if (width % axis.stride and axis.stride % width) or axis.size % size:
                    return None
                axis = Axis(size, last, axis.stride)
            kept.append(axis)
        part = Fragment((*self.shape[:-1], width), self.threads, tuple(kept))
        return part if across <= width and part.extent(last) == width else None

    def project(self, keep: tuple[int, ...]) -> Fragment:
        """Return the layout of a tile with only the dimensions `keep`; thread digits of the others replicate, registers
        vanish."""
        place = {dim: i for i, dim in enumerate(keep)}
        threads = tuple(Axis(a.size, place.get(a.dim, -1), a.stride) for a in self.threads)
        registers = tuple(Axis(a.size, place[a.dim], a.stride) for a in self.registers if a.dim in place)
        return Fragment(tuple(self.shape[d] for d in keep), threads, registers)

    def grouped(self, dim: int, by: int) -> Fragment | None:
        """Return the layout of a tile with one element per group of `by` neighbours along `dim`, in the same threads,
        or None. It is None where a digit's steps do not fit such groups."""
        if by == 1:
            return self
        split = [
            tuple(_group_axis(a, by) if a.dim == dim else (a,) for a in axes) for axes in (self.threads, self.registers)
        ]
        if any(() in axes for axes in split):
            return None
        threads, registers = (tuple(a for parts in axes for a in parts) for axes in split)
        shape = (*self.shape[:dim], self.shape[dim] // by, *self.shape[dim + 1 :])
        return Fragment(shape, threads, tuple(a for a in registers if a.dim >= 0))

    def widened(self, dim: int, by: int) -> Fragment:
        """Return the layout of a tile in which each element becomes `by` neighbours along `dim`, all in the same
        thread."""
        if by == 1:
            return self

        def widen_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
            """Return the digits with the strides of those along `dim` multiplied by `by`."""
            return tuple(Axis(a.size, dim, a.stride * by) if a.dim == dim else a for a in axes)

        shape = (*self.shape[:dim], self.shape[dim] * by, *self.shape[dim + 1 :])
        return Fragment(shape, widen_axes(self.threads), (Axis(by, dim, 1), *widen_axes(self.registers)))

    def reshaped(self, shape: tuple[int, ...]) -> Fragment | None:
        """Return the layout of the same registers for the tile reshaped in row-major order; None where a digit would be
        split. Also None where some registers hold nothing."""
        strides, others = _row_major_strides(self.shape), _row_major_strides(shape)
        if any(self.overhangs(dim) for dim in range(len(self.shape))):
            return None

        def split_axis(axis: Axis) -> Iterator[Axis | None]:
            """Yield the digits of the new shape that an axis becomes; None, as the last, where it does not fit them."""
            size, step = axis.size, axis.stride * strides[axis.dim]
            while size > 1:
                dim = next(d for d, stride in enumerate(others) if stride <= step and shape[d] > 1)
                room, rest = divmod(shape[dim] * others[dim], step)
                fits = step % others[dim] == 0 and rest == 0 and (size % room == 0 or size < room)
                if not fits:
                    yield None
                    return
                yield Axis(min(size, room), dim, step // others[dim])
                step, size = step * room, -(-size // room)

        sides = [
            [part for a in axes for part in ((a,) if a.dim < 0 else split_axis(a))]
            for axes in (self.threads, self.registers)
        ]
        threads, registers = (tuple(a for a in side if a is not None) for side in sides)
        found = Fragment(shape, threads, registers)
        # Digits that fill each dimension exactly never carry from one to the next.
        exact = all(found.extent(dim) == extent for dim, extent in enumerate(shape))
        return found if exact and not any(None in side for side in sides) else None

    def shares_threads(self, other: Fragment) -> bool:
        """Return whether each thread holds the same elements in both layouts, in whatever order of registers."""
        if self.shape != other.shape or self.to_canonical().threads != other.to_canonical().threads:
            return False
        mine, others = ({of.register_offset(r) for r in range(of.register_count)} for of in (self, other))
        return mine == others

    def to_canonical(self) -> Fragment:
        """Return the layout in normal form: digits of size 1 and replicating registers dropped, continuing digits
        merged.
        """
        registers = tuple(a for a in self.registers if a.dim >= 0)
        return Fragment(self.shape, _merge_axes(self.threads), _merge_axes(registers))


def _row_major_strides(shape: tuple[int, ...]) -> list[int]:
    """Return the distance in elements between neighbours along each dimension of a row-major shape."""
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]


def per_thread_fragment(threads: int, extents: tuple[int, ...]) -> Fragment:
    """Return the layout of (thread, …): each thread has its own index and, in registers, all of `extents`,
    row-major."""
    registers = tuple(Axis(extent, 1 + dim, 1) for dim, extent in reversed(tuple(enumerate(extents))))
    return Fragment((threads, *extents), (Axis(threads, 0, 1),), registers)


def replicated_fragment(threads: int, shape: tuple[int, ...]) -> Fragment:
    """Return the layout of a tile of which every thread has a whole copy, row-major in its registers."""
    registers = tuple(Axis(extent, dim, 1) for dim, extent in reversed(tuple(enumerate(shape))))
    return Fragment(shape, (Axis(threads, -1, 0),), registers)


def _merge_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return the digits without those of size 1, with neighbours that continue one another merged into one."""
    merged: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if axis.dim < 0:
            axis = Axis(axis.size, -1, 0)
        last = merged[-1] if merged else None
        if last is not None and last.dim == axis.dim and last.stride * last.size == axis.stride:
            merged[-1] = Axis(last.size * axis.size, last.dim, last.stride)
        elif last is not None and last.dim == axis.dim == -1:
            merged[-1] = Axis(last.size * axis.size, -1, 0)
        else:
            merged.append(axis)
    return tuple(merged)


def _group_axis(axis: Axis, by: int) -> tuple[Axis, ...]:
    """Return an axis with coordinates counted in groups of `by`, replicating inside a group; empty where it does not
    fit."""
    size, stride = axis.size, axis.stride
    if stride % by == 0:
        return (Axis(size, axis.dim, stride // by),)
    if by % (size * stride) == 0:
        return (Axis(size, -1, 0),)
    inside = by // stride
    if by % stride or size % inside:
        return ()
    return (Axis(inside, -1, 0), Axis(size // inside, axis.dim, 1))


def _power_of_two_up_to(value: int) -> int:
    """Return the largest power of two that is at most `value`, at least 1."""
    return 1 << (max(value, 1).bit_length() - 1)


def row_major_fragment(shape: tuple[int, ...], threads: int, vector: int, most: int | None = None) -> Fragment:
    """Return the coalesced layout of a row-major tile: neighbouring threads hold neighbouring runs of `vector`
    elements. Runs lie along the last dimension, and are halved until they divide it; the rest repeats in registers.
    With `most`, a row lies in at most so many threads."""
    last = len(shape) - 1
    while shape[last] % vector:
        vector //= 2
    runs = shape[last] // vector
    across = min(_power_of_two_up_to(min(threads, most or threads)), 1 << (runs - 1).bit_length())
    while threads % across:
        across //= 2
    registers = [Axis(vector, last, 1), Axis(-(-runs // across), last, vector * across)]
    thread_axes = [Axis(across, last, vector)]
    left = threads // across
    for dim in range(last - 1, -1, -1):
        take = math.gcd(left, 1 << (shape[dim] - 1).bit_length())
        thread_axes.append(Axis(take, dim, 1))
        registers.append(Axis(-(-shape[dim] // take), dim, take))
        left //= take
    thread_axes.append(Axis(left, -1, 0))
    return Fragment(shape, tuple(thread_axes), tuple(registers))


def column_major_fragment(shape: tuple[int, int], threads: int, vector: int) -> Fragment:
    """Return a layout in which the threads of a warp hold runs of `vector` elements of neighbouring rows, at one
    swizzle. Runs are halved until they divide a row. Other warps hold other runs of a row as far as warps suffice; the
    rest repeats in registers down the rows."""
    rows, columns = shape
    while columns % vector:
        vector //= 2
    runs = columns // vector
    across = min(_power_of_two_up_to(threads // 32), _power_of_two_up_to(runs))
    while threads % across:
        across //= 2
    down = threads // across
    if down > rows:
        down = math.gcd(down, 1 << (rows - 1).bit_length())
    thread_axes = (Axis(down, 0, 1), Axis(across, 1, vector), Axis(threads // (down * across), -1, 0))
    registers = (Axis(vector, 1, 1), Axis(-(-runs // across), 1, vector * across), Axis(-(-rows // down), 0, down))
    return Fragment(shape, thread_axes, registers)


def mma_accumulator(shape: tuple[int, int], warps_m: int, warps_n: int) -> Fragment:
    """Return the layout of C of mma.sync m16n8 for warps_m × warps_n warps: warp (i, j) holds block (i, j) of C.
    Source: PTX ISA, m16n8k16 fragments."""
    rows, columns = shape[0] // warps_m, shape[1] // warps_n
    lanes = (Axis(4, 1, 2), Axis(8, 0, 1))
    warps = (Axis(warps_m, 0, rows), Axis(warps_n, 1, columns))
    registers = (Axis(2, 1, 1), Axis(2, 0, 8), Axis(columns // 8, 1, 8), Axis(rows // 16, 0, 16))
    return Fragment(shape, lanes + warps, registers)


def wgmma_accumulator(shape: tuple[int, int], groups_m: int, groups_n: int) -> Fragment:
    """Return the layout of D of wgmma m64nN: warpgroup (i, j) holds rows 64·i + 64·groups_m·k and the j-th N/groups_n
    columns. Source: PTX ISA, wgmma register fragments."""
    columns = shape[1] // groups_n
    lanes = (Axis(4, 1, 2), Axis(8, 0, 1), Axis(4, 0, 16))
    groups = (Axis(groups_m, 0, 64), Axis(groups_n, 1, columns))
    rows = Axis(shape[0] // (64 * groups_m), 0, 64 * groups_m)
    return Fragment(shape, lanes + groups, (Axis(2, 1, 1), Axis(2, 0, 8), Axis(columns // 8, 1, 8), rows))


def is_accumulator_layout(layout: Fragment) -> bool:
    """Return whether stmatrix can store the layout: lanes and registers as an mma accumulator's, whatever its warps
    hold."""
    lanes, registers = layout.threads[:2], layout.registers
    if len(layout.shape) != 2 or lanes != (Axis(4, 1, 2), Axis(8, 0, 1)) or len(registers) != 4:
        return False
    *word, columns, rows = registers
    return word == [Axis(2, 1, 1), Axis(2, 0, 8)] and (columns.dim, columns.stride, rows.dim) == (1, 8, 0)


def tensor_accumulator(shape: tuple[int, int], threads: int, run: int = 2) -> Fragment | None:
    """Return the register layout of a tensor memory tile, in blocks of 16 lanes × 4 · `run` elements; None if there is
    none. Whole warpgroups take part; the lanes of a warp share a block as those of mma.sync do. Runs of 2 are 2 columns
    of an accumulator (PTX ISA, tcgen05.ld .16x256b), or one column of a 16-bit operand, two elements to a column; a
    column of an 8-bit operand has 4 elements (.16x128b). With 64 rows each quarter of the lanes holds 16, with 128 all
    lanes are used (PTX ISA, tcgen05 "Data Path Layout Organization", layouts F and D). Warpgroups divide the columns,
    or have 128 rows each."""
    rows, columns = shape
    groups, rest = divmod(threads, WARPGROUP_THREADS)
    if rest or not groups or rows not in (64, TENSOR_LANES, TENSOR_LANES * groups):
        return None
    down = max(rows // TENSOR_LANES, 1)
    across = groups // down
    if columns % (4 * run * across):
        return None
    rows_per_warp = min(rows, TENSOR_LANES) // WARPGROUP_WARPS
    lanes = (Axis(4, 1, run), Axis(8, 0, 1), Axis(WARPGROUP_WARPS, 0, rows_per_warp))
    warpgroups = (Axis(down, 0, TENSOR_LANES), Axis(across, 1, columns // across))
    blocks = Axis(columns // across // (4 * run), 1, 4 * run)
    registers = (Axis(run, 1, 1), Axis(2, 0, 8), blocks, Axis(rows_per_warp // 16, 0, 16))
    return Fragment(shape, lanes + warpgroups, registers)


def operand_a_fragment(
    accumulator: Fragment, depth: int, element_bytes: int, as_accumulated: bool = False, run: int = 0
) -> Fragment:
    """Return the register layout of A, M × `depth`, for the mma.sync or wgmma that has this accumulator. Each thread
    holds 4 bytes (or one element) of a row; warps that share rows hold the same. For 16-bit elements it is an
    accumulator's layout. Bytes may be laid out `as_accumulated` too, if the other operand has the matching order along
    its depth (`accumulated_depth_order`). With a `run`, each thread of an mma.sync holds so many neighbours of a row: a
    product sums over the depth in any order, and B is read in the same one."""
    per = run or max(4 // element_bytes, 1)
    warps = tuple(a if a.dim == 0 else Axis(a.size, -1, 0) for a in accumulator.threads[2:])
    word = (Axis(2, 1, 1), Axis(2, 1, 8)) if as_accumulated else (Axis(per, 1, 1),)
    registers = (*word, Axis(2, 0, 8), Axis(depth // (4 * per), 1, 4 * per), accumulator.registers[3])
    lanes = (Axis(4, 1, 2 if as_accumulated else per), Axis(8, 0, 1))
    return Fragment((accumulator.shape[0], depth), (*lanes, *warps), registers)


def operand_b_fragment(
    accumulator: Fragment, depth: int, element_bytes: int, transposed: bool, run: int = 0
) -> Fragment:
    """Return the register layout of B, `depth` × N or `transposed` N × `depth`, for the mma.sync that has this
    accumulator. Each thread holds 4 bytes (or one element) along the depth, or a `run` of elements if A is read in this
    order; warps that share columns hold the same."""
    per = run or max(4 // element_bytes, 1)
    k, n = (1, 0) if transposed else (0, 1)
    columns = accumulator.registers[2]
    warps = tuple(Axis(a.size, n, a.stride) if a.dim == 1 else Axis(a.size, -1, 0) for a in accumulator.threads[2:])
    registers = (Axis(per, k, 1), Axis(depth // (4 * per), k, 4 * per), Axis(columns.size, n, columns.stride))
    shape = (depth, accumulator.shape[1])
    return Fragment(shape[::-1] if transposed else shape, (Axis(4, k, per), Axis(8, n, 1), *warps), registers)


ACCUMULATED_PERIOD = 16
"""The period of `accumulated_depth_order`."""


def accumulated_depth_order(place: int) -> int:
    """Return which element along the depth an 8-bit product reads at position `place`, where A has an accumulator's
    layout. Of each 16 columns a thread holds two pairs of neighbours, 8 apart; as operand A it holds four
    neighbours."""
    block, inside = divmod(place, ACCUMULATED_PERIOD)
    thread, byte = divmod(inside, 4)
    return ACCUMULATED_PERIOD * block + 8 * (byte // 2) + 2 * thread + byte % 2


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """The layout of a tile in shared memory.

    The last dimension is cut into panels of `panel` elements. Each panel is row-major and follows the one before, and
    16-byte chunks are permuted by the bank swizzle of `swizzle` bytes (0: none). TMA, wgmma and plain accesses share
    that swizzle: address bits 6:4, 5:4 or 4 ^= bits 9:7, 8:7 or 7.

    With a `placement`, which the author gives, there is one panel, and only accesses to single elements or contiguous
    runs reach the tile.

    Of a tile with `copies` each warpgroup has one, behind that of the warpgroup before it.
    """

    shape: tuple[int, ...]
    element_bytes: int
    panel: int
    swizzle: int = 0
    placement: tile.Placement | None = None
    copies: int = 1

    @property
    def run(self) -> int:
        """Return how many elements of a row are contiguous, apart from swizzled chunks: a panel, or a placement's
        run."""
        return self.panel if self.placement is None else contiguous_run(self.placement)

    @property
    def rows(self) -> int:
        """Return the number of rows: the product of all extents but the last."""
        return math.prod(self.shape[:-1])

    @property
    def panels(self) -> int:
        """Return the number of panels that the last dimension is cut into."""
        return self.shape[-1] // self.panel

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row of one panel."""
        return self.panel * self.element_bytes

    @property
    def panel_bytes(self) -> int:
        """Return the bytes of one panel: all its rows."""
        return self.rows * self.row_bytes

    @property
    def bytes(self) -> int:
        """Return the bytes of the whole tile, all copies together."""
        return self.copy_bytes * self.copies

    @property
    def copy_bytes(self) -> int:
        """Return the bytes of one copy; of several, rounded up to the swizzle's period, which is the distance between
        them."""
        if self.placement is not None:
            return self.placement.size * self.element_bytes
        one = self.panels * self.panel_bytes
        return one if self.copies == 1 else -(-one // self.repeat_bytes) * self.repeat_bytes

    @property
    def swizzle_mask(self) -> int:
        """Return the mask of chunk-number bits that the swizzle permutes: 0, 1, 3 or 7."""
        return {0: 0, 32: 1, 64: 3, 128: 7}[self.swizzle]

    @property
    def repeat_bytes(self) -> int:
        """Return the period of the swizzle pattern in bytes, at least 16; tiles start at a multiple of it."""
        return max(self.swizzle * 8, 16)


def placed_layout(given: tile.Placement, element_bytes: int) -> SharedLayout:
    """Return the unswizzled layout, one panel wide, with the placement that a kernel gives; elements have
    `element_bytes`."""
    return SharedLayout(given.shape, element_bytes, given.shape[-1], placement=given)


def unswizzled_layout(shape: tuple[int, ...], element_bytes: int) -> SharedLayout:
    """Return the row-major layout without a swizzle, of one panel as wide as the last dimension."""
    return SharedLayout(shape, element_bytes, shape[-1])


def swizzled_layout(shape: tuple[int, ...], element_bytes: int) -> SharedLayout:
    """Return the layout with the widest swizzle, 128, 64 or 32 bytes, that divides a row; unswizzled when none does."""
    row = shape[-1] * element_bytes
    for width in (128, 64, 32):
        if row % width == 0:
            return SharedLayout(shape, element_bytes, width // element_bytes, width)
    return unswizzled_layout(shape, element_bytes)
