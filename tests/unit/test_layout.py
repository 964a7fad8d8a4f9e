"""Layouts, element by element: fragments against the formulas of the PTX ISA, shared tiles against bank swizzles."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from evaluation import evaluate
from hypothesis import given, settings, strategies as st

from tilec.ir.layout import (
    Axis,
    Fragment,
    SharedLayout,
    column_major_fragment,
    mma_accumulator,
    row_major_fragment,
    swizzled_layout,
    unswizzled_layout,
    wgmma_accumulator,
)
from tilec.ir.tile import THREAD

Coordinates = tuple[int, ...]


def thread_parts(layout: Fragment) -> list[Coordinates]:
    """What each thread's digits add, from the expressions that the code generator uses."""
    threads = np.arange(layout.thread_count)
    columns = [np.broadcast_to(evaluate(e, {THREAD.name: threads}), threads.shape) for e in layout.thread_coordinates()]
    return [tuple(int(c[t]) for c in columns) for t in threads]


def places(layout: Fragment) -> Iterator[tuple[int, int, Coordinates]]:
    """(thread, register, coordinates) of every register that holds an element."""
    offsets = [layout.register_offset(r) for r in range(layout.register_count)]
    for thread, base in enumerate(thread_parts(layout)):
        for register, offset in enumerate(offsets):
            where = tuple(a + b for a, b in zip(base, offset, strict=True))
            if all(c < extent for c, extent in zip(where, layout.shape, strict=True)):
                yield thread, register, where


FRAGMENTS: dict[str, Fragment] = {
    "mma 16x8": mma_accumulator((16, 8), 1, 1),
    "mma 64x64 on 2x2 warps": mma_accumulator((64, 64), 2, 2),
    "mma 32x48 on 1x3 warps": mma_accumulator((32, 48), 1, 3),
    "mma 128x32 on 4x1 warps": mma_accumulator((128, 32), 4, 1),
    "wgmma 64x8": wgmma_accumulator((64, 8), 1, 1),
    "wgmma 128x32 on 2x1 groups": wgmma_accumulator((128, 32), 2, 1),
    "wgmma 64x32 on 1x2 groups": wgmma_accumulator((64, 32), 1, 2),
    "wgmma 256x16 on 2x1 groups": wgmma_accumulator((256, 16), 2, 1),
    "row-major 32": row_major_fragment((32,), 128, 4),
    "row-major 4x100": row_major_fragment((4, 100), 128, 8),
    "row-major 7x13": row_major_fragment((7, 13), 64, 4),
    "row-major 3x5x24": row_major_fragment((3, 5, 24), 96, 8),
    "row-major 1": row_major_fragment((1,), 128, 4),
    "row-major 37x1": row_major_fragment((37, 1), 32, 4),
    "row-major 2048": row_major_fragment((2048,), 256, 4),
    "rows of wgmma": wgmma_accumulator((128, 32), 2, 1).project((0,)),
    "columns of mma": mma_accumulator((64, 64), 2, 2).project((1,)),
    "rows of row-major": row_major_fragment((4, 100), 128, 8).project((0,)),
    "nothing left": row_major_fragment((4, 8), 32, 2).project(()),
}
fragments = pytest.mark.parametrize("layout", FRAGMENTS.values(), ids=FRAGMENTS.keys())


@fragments
def test_every_element_is_held_once_per_replica(layout: Fragment) -> None:
    replicas = int(np.prod([a.size for a in layout.threads if a.dim < 0], dtype=int))
    held = Counter(where for _, _, where in places(layout))
    assert held == dict.fromkeys(itertools.product(*map(range, layout.shape)), replicas)


@fragments
def test_one_thread_of_each_set_of_replicas_is_chosen(layout: Fragment) -> None:
    threads = np.arange(layout.thread_count)
    replica = layout.replica_index()
    digit = np.zeros_like(threads) if replica is None else evaluate(replica, {THREAD.name: threads})
    chosen: dict[Coordinates, list[int]] = defaultdict(list)
    for thread, base in enumerate(thread_parts(layout)):
        chosen[base].append(int(digit[thread]))
    for digits in chosen.values():
        assert digits.count(0) == 1
    assert (replica is None) == all(len(digits) == 1 for digits in chosen.values())


def test_one_thread_of_each_group_is_chosen() -> None:
    threads = np.arange(256)
    layout = Fragment((4,), (Axis(4, 0, 1), Axis(32, -1, 0), Axis(2, -1, 0)), ())
    chosen = [layout.replica_index(groups) for groups in (1, 2)]
    zeros = [np.flatnonzero(evaluate(digit, {THREAD.name: threads}) == 0) for digit in chosen if digit is not None]
    assert [found.tolist() for found in zeros] == [[0, 1, 2, 3], [0, 1, 2, 3, 128, 129, 130, 131]]


def test_groups_of_neighbours_that_digits_cut_across_have_no_layout() -> None:
    assert Fragment((6,), (Axis(6, 0, 1),), ()).grouped(0, 4) is None
    assert Fragment((8,), (Axis(8, 0, 1),), ()).grouped(0, 4) == Fragment((2,), (Axis(4, -1, 0), Axis(2, 0, 1)), ())


@fragments
def test_extent_is_one_past_the_largest_coordinate(layout: Fragment) -> None:
    offsets = [layout.register_offset(r) for r in range(layout.register_count)]
    for dim, extent in enumerate(layout.shape):
        reached = 1 + max(base[dim] for base in thread_parts(layout)) + max(o[dim] for o in offsets)
        assert layout.extent(dim) == reached
        assert layout.overhangs(dim) == (reached > extent)


# ---- the formulas of the PTX ISA, written out again ------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "warps"), [((16, 8), (1, 1)), ((64, 64), (2, 2)), ((96, 32), (3, 2))], ids=str)
def test_mma_accumulator(shape: tuple[int, int], warps: tuple[int, int]) -> None:
    """c0, c1 at (g, 2t) and (g, 2t + 1), c2 and c3 eight rows below; then the next eight columns, then 16 rows on."""
    rows, columns = shape[0] // warps[0], shape[1] // warps[1]
    layout = mma_accumulator(shape, *warps)
    found = {(thread, r): where for thread, r, where in places(layout)}
    assert len(found) == shape[0] * shape[1]
    for (thread, r), where in found.items():
        lane, warp = thread % 32, thread // 32
        block, c = divmod(r, 4)
        down, right = divmod(block, columns // 8)
        row = warp % warps[0] * rows + 16 * down + lane // 4 + 8 * (c // 2)
        column = warp // warps[0] * columns + 8 * right + 2 * (lane % 4) + c % 2
        assert where == (row, column)


@pytest.mark.parametrize(("shape", "groups"), [((64, 8), (1, 1)), ((256, 32), (2, 1)), ((128, 48), (2, 2))], ids=str)
def test_wgmma_accumulator(shape: tuple[int, int], groups: tuple[int, int]) -> None:
    """Row 16w + g + 8·((r/2) % 2), column 8·(r/4) + 2t + r % 2 in each block of 64 rows."""
    columns = shape[1] // groups[1]
    layout = wgmma_accumulator(shape, *groups)
    found = {(thread, r): where for thread, r, where in places(layout)}
    assert len(found) == shape[0] * shape[1]
    for (thread, register), where in found.items():
        lane, warp, group = thread % 32, thread // 32 % 4, thread // 128
        block, r = divmod(register, columns // 2)
        row = 64 * (group % groups[0] + groups[0] * block) + 16 * warp + lane // 4 + 8 * (r // 2 % 2)
        column = group // groups[0] * columns + 8 * (r // 4) + 2 * (lane % 4) + r % 2
        assert where == (row, column)


@pytest.mark.parametrize("threads", [32, 96, 128, 256])
@pytest.mark.parametrize("columns", [1, 2, 24, 100, 1000])
def test_row_major_runs_are_aligned_and_whole(columns: int, threads: int) -> None:
    """A run of `vector` elements starts on a multiple of it and lies inside the tile or outside as a whole."""
    layout = row_major_fragment((3, columns), threads, 8)
    vector = layout.registers[0].size
    assert columns % vector == 0
    for base in thread_parts(layout):
        for r in range(0, layout.register_count, vector):
            first = base[1] + layout.register_offset(r)[1]
            assert first % vector == 0
            assert layout.register_offset(r + vector - 1)[1] == layout.register_offset(r)[1] + vector - 1


# ---- projections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [(0,), (1,), (0, 1), ()], ids=str)
@pytest.mark.parametrize(
    "layout", [wgmma_accumulator((128, 16), 2, 1), mma_accumulator((32, 32), 2, 2), row_major_fragment((5, 12), 32, 4)]
)
def test_a_projection_is_where_the_rows_are(layout: Fragment, keep: tuple[int, ...]) -> None:
    """Each thread holds exactly the elements of the rows that it has a part of."""
    projected = layout.project(keep)
    wanted: dict[int, set[Coordinates]] = defaultdict(set)
    for thread, _, where in places(layout):
        wanted[thread].add(tuple(where[d] for d in keep))
    found: dict[int, list[Coordinates]] = defaultdict(list)
    for thread, _, where in places(projected):
        found[thread].append(where)
    for thread, rows in wanted.items():
        assert rows <= set(found[thread])
        assert len(found[thread]) == len(set(found[thread]))


# ---- canonical form --------------------------------------------------------------------------------------------------


def random_axes(rank: int, *, replicate: bool) -> st.SearchStrategy[tuple[Axis, ...]]:
    dims = st.integers(-1 if replicate else 0, rank - 1)
    axis = st.builds(Axis, st.sampled_from([1, 2, 3, 4]), dims, st.sampled_from([1, 2, 4, 8]))
    return st.lists(axis, max_size=4).map(tuple)


random_fragments = st.builds(
    Fragment, st.just((64, 64)), random_axes(2, replicate=True), random_axes(2, replicate=False)
)


def function(layout: Fragment) -> tuple[object, ...]:
    """The layout as a plain table."""
    return tuple(thread_parts(layout)), tuple(layout.register_offset(r) for r in range(layout.register_count))


@given(random_fragments, random_fragments)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_canonical_forms_are_equal_where_the_functions_are(a: Fragment, b: Fragment) -> None:
    assert function(a.to_canonical()) == function(a)
    assert (a.to_canonical() == b.to_canonical()) == (function(a) == function(b))


@given(random_fragments, st.integers(0, 3))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_splitting_a_digit_changes_nothing(layout: Fragment, which: int) -> None:
    def split(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        parts: list[Axis] = []
        for i, axis in enumerate(axes):
            if i == which and axis.size == 4:
                parts += [Axis(2, axis.dim, axis.stride), Axis(2, axis.dim, 2 * axis.stride)]
            else:
                parts.append(axis)
        return tuple(parts)

    again = Fragment(layout.shape, split(layout.threads), split(layout.registers))
    assert again.to_canonical() == layout.to_canonical()


# ---- shared memory ---------------------------------------------------------------------------------------------------


def test_the_widest_swizzle_that_divides_a_row() -> None:
    assert [swizzled_layout((8, n), 2).swizzle for n in (64, 128, 32, 96, 48, 16, 24, 8)] == [
        128,
        128,
        64,
        64,
        32,
        32,
        0,
        0,
    ]
    assert swizzled_layout((4, 8, 128), 2) == SharedLayout((4, 8, 128), 2, 64, 128)
    assert unswizzled_layout((8, 24), 2) == SharedLayout((8, 24), 2, 24)


def test_each_copy_of_a_tile_begins_with_the_pattern() -> None:
    small = replace(swizzled_layout((4, 64), 2), copies=2)
    assert (small.repeat_bytes, small.copy_bytes, small.bytes) == (1024, 1024, 2048)
    assert replace(small, copies=1).bytes == 512


def byte(layout: SharedLayout, row: int, column: int) -> int:
    """Panels of `swizzle` bytes a row, one after the other. 16-byte chunks change places by the number of the 128-byte
    line that they lie in: rows of 128 bytes by row mod 8, two rows of 64 bytes or four of 32 together."""
    panel, inside = divmod(column, layout.panel)
    width = layout.panel * layout.element_bytes
    chunk, rest = divmod(inside * layout.element_bytes, 16)
    start = (panel * layout.rows + row) * width
    chunk ^= start // 128 % {128: 8, 64: 4, 32: 2, 0: 1}[layout.swizzle]
    return start + 16 * chunk + rest


SHARED = [
    swizzled_layout((16, 64), 2),
    swizzled_layout((16, 128), 2),
    swizzled_layout((16, 96), 2),
    swizzled_layout((32, 48), 2),
    swizzled_layout((16, 64), 1),
    swizzled_layout((8, 32), 4),
    swizzled_layout((4, 4, 64), 2),
    unswizzled_layout((8, 24), 2),
    unswizzled_layout((40,), 4),
    swizzled_layout((256,), 2),
]
shared = pytest.mark.parametrize("layout", SHARED, ids=lambda s: f"{s.shape}x{s.element_bytes}-{s.swizzle}")


@shared
def test_swizzled_tiles_are_bijective(layout: SharedLayout) -> None:
    taken = sorted(byte(layout, r, c) for r in range(layout.rows) for c in range(layout.shape[-1]))
    assert taken == list(range(0, layout.bytes, layout.element_bytes))


@shared
def test_the_mask_moves_chunks_as_the_pattern_does(layout: SharedLayout) -> None:
    """Emitted addresses are those of rows without a pattern, with bits of the line in place of bits of the chunk."""
    for row, column in itertools.product(range(layout.rows), range(layout.shape[-1])):
        panel, inside = divmod(column, layout.panel)
        plainly = ((panel * layout.rows + row) * layout.panel + inside) * layout.element_bytes
        assert plainly ^ (plainly >> 3 & layout.swizzle_mask << 4) == byte(layout, row, column)


def conflicts(address: Callable[[int, int], int], row: int, column: int) -> int:
    """How often the busiest of the eight 16-byte bank groups is asked for by the rows of one 8 × 8 matrix."""
    return max(Counter(address(row + i, column) // 16 % 8 for i in range(8)).values())


@pytest.mark.parametrize("columns", [64, 128, 32, 96, 16, 48])
def test_eight_rows_of_a_matrix_lie_in_eight_bank_groups(columns: int) -> None:
    """ldmatrix and stmatrix, stored either way round, and TMA's rows: no bank conflicts in any swizzled tile."""
    layout = swizzled_layout((64, columns), 2)
    for row, column in itertools.product(range(0, 64, 8), range(0, columns, 8)):
        assert conflicts(lambda r, c: byte(layout, r, c), row, column) == 1
    unswizzled = unswizzled_layout((64, 64), 2)
    assert conflicts(lambda r, c: byte(unswizzled, r, c), 0, 0) == 8


@pytest.mark.parametrize("threads", [32, 96, 128, 384])
@pytest.mark.parametrize("shape", [(1, 8), (3, 8), (16, 64), (17, 24), (200, 6)])
def test_threads_go_down_the_rows_as_far_as_there_are_any(shape: tuple[int, int], threads: int) -> None:
    """As many rows at once as there are, rounded up to a power of two; who is left over has copies."""
    layout = column_major_fragment(shape, threads, 4)
    down, across, copies = (axis.size for axis in layout.threads)
    assert down * across * copies == threads
    least = 1 << (shape[0] - 1).bit_length()
    assert down <= least or threads // across <= shape[0]
