"""Choose how to hold and reach a tile: enumerate the ways, drop the illegal ones, take the cheapest of the rest.

Costs add up: shared-memory transactions, tensor-memory cycles and live registers, each times its weight (`[layout]` of
the target file). Ties go to fewer registers, then to fewer bank conflicts, then to the one enumerated first. Each alias
group chooses for itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal

from tilec.ir import tile
from tilec.ir.groups import WARP_THREADS
from tilec.ir.layout import Fragment, SharedLayout, mma_accumulator, unswizzled_layout
from tilec.ir.multicast import BOX_BYTES
from tilec.ir.placement import element_slots
from tilec.ops.copies.copy import Copy
from tilec.ops.copies.copy_lower import can_use_ldmatrix
from tilec.ops.copies.transpose import Transpose, find_matrix_rows, make_sweep_layout
from tilec.ops.products.block_scaled import ScaledGemm
from tilec.ops.products.gemm import Gemm
from tilec.passes.layout.element_accesses import find_element_accesses
from tilec.support.records import dataclass
from tilec.support.source import Span
from tilec.target.table import LayoutWeights


@dataclass(frozen=True, slots=True)
class Sweep:
    """Each thread reaches its elements in `layout`, whose dimension `dims[d]` is the tile's dimension d."""

    layout: Fragment
    dims: tuple[int, ...]


AccessPattern = Literal["rows", "columns", "accumulator", "matrix", "tma", "panels", "wgmma"] | Sweep
"""The way in which a statement reaches a tile.

rows         threads along the last dimension, 16 bytes each
columns      a thread per row
accumulator  a warp holds blocks of eight by eight elements
matrix       blocks of eight rows by 16 bytes, as ldmatrix and stmatrix take them
wgmma        the same, by a descriptor, as tcgen05.mma has it too
tma          boxes
panels       boxes that fill some of the tile's columns
"""
_BY_TMA = frozenset({"tma", "panels"})

BANKS, BANK_BYTES, CHUNK = 32, 4, 16
TRANSACTION_BYTES = BANKS * BANK_BYTES
SWIZZLE_WIDTHS = (128, 64, 32)
MAX_BOX_EXTENT = 256  # elements along any dimension of a TMA box
_SAMPLED_RUNS = 8  # of registers: every pattern occurs in so many
_SAMPLED_ROWS = 8  # rows after which banks and swizzles repeat; by columns, a warp has 32


@dataclass(frozen=True, slots=True)
class StorageCost:
    """The cost of holding a tile: shared-memory transactions of 128 bytes, tensor-memory cycles, registers per thread.
    `bank_conflicts` are the transactions beyond those that the bytes need."""

    smem_transactions: int
    tmem_cycles: int
    live_registers: int
    bank_conflicts: int = 0

    def score(self, weights: LayoutWeights) -> float:
        """Return the sum of transactions, tensor-memory cycles and registers, each times its weight."""
        return (
            weights.smem_transactions * self.smem_transactions
            + weights.tmem_cycles * self.tmem_cycles
            + weights.live_registers * self.live_registers
        )

    def rank(self, weights: LayoutWeights) -> tuple[float, int, int]:
        """Return the sort key that chooses between costs: the score, then registers, then bank conflicts."""
        return self.score(weights), self.live_registers, self.bank_conflicts


@dataclass(frozen=True, slots=True)
class SharedAccess:
    """A statement's access to a shared tile."""

    tile: str
    pattern: AccessPattern
    span: Span


def choose_shared_layout(
    buffer: tile.Buffer, accesses: Iterable[SharedAccess], weights: LayoutWeights, *, always_swizzle: bool
) -> SharedLayout:
    """Return the cheapest layout that a tile's accesses allow (`always_swizzle`: the widest swizzle); unswizzled if
    none."""
    patterns = [access.pattern for access in accesses]
    layouts = [layout for layout in list_candidate_layouts(buffer) if is_legal(layout, patterns)]
    if always_swizzle and len(layouts) > 1:
        return next(layout for layout in layouts if layout.swizzle)
    if len(layouts) < 2:
        return next(iter(layouts), unswizzled_layout(buffer.shape, buffer.dtype.bytes))
    return min(layouts, key=lambda layout: compute_storage_cost(layout, patterns).rank(weights))


def score_layouts(
    buffer: tile.Buffer, patterns: Iterable[AccessPattern], weights: LayoutWeights
) -> dict[int, tuple[StorageCost, float]]:
    """Return, by swizzle width, the cost and the weighted score of each layout of a tile that the patterns allow."""
    pattern_list = list(patterns)
    legal = (layout for layout in list_candidate_layouts(buffer) if is_legal(layout, pattern_list))
    costs = {layout.swizzle: compute_storage_cost(layout, pattern_list) for layout in legal}
    return {swizzle: (one, one.score(weights)) for swizzle, one in costs.items()}


def list_candidate_layouts(buffer: tile.Buffer) -> tuple[SharedLayout, ...]:
    """Return the layouts that a tile's row length allows: without a swizzle, then with the widest swizzle first."""
    size = buffer.dtype.bytes
    swizzled = (SharedLayout(buffer.shape, size, width // size, width) for width in list_swizzle_widths(buffer))
    return (unswizzled_layout(buffer.shape, size), *swizzled)


def find_swizzled_layout(buffer: tile.Buffer, width: int) -> SharedLayout:
    """Return the tile's layout with a bank swizzle of `width` bytes (0: none)."""
    return next(layout for layout in list_candidate_layouts(buffer) if layout.swizzle == width)


def list_swizzle_widths(buffer: tile.Buffer) -> tuple[int, ...]:
    """Return the swizzle widths in bytes that divide the tile's rows, the widest first."""
    row = buffer.shape[-1] * buffer.dtype.bytes // buffer.dtype.per_byte
    return tuple(width for width in SWIZZLE_WIDTHS if row % width == 0)


def can_hold_boxes(buffer: tile.Buffer) -> bool:
    """Return True if some layout of the tile allows TMA to copy it."""
    return any(is_legal(layout, ("tma",)) for layout in list_candidate_layouts(buffer))


def is_legal(layout: SharedLayout, patterns: Iterable[AccessPattern]) -> bool:
    """Return True if the layout allows all these access patterns. wgmma needs swizzled rows whose pattern begins anew
    in each panel. A TMA box is bounded, and each panel begins at a multiple of `BOX_BYTES`. ldmatrix and stmatrix need
    16 contiguous bytes of a row. A box that fills some columns of a tile fills whole panels, at most 128 bytes wide."""
    pattern_set = set(patterns)
    if layout.placement is not None:
        return not pattern_set & {"wgmma", *_BY_TMA} and not (
            "matrix" in pattern_set and layout.run * layout.element_bytes < CHUNK
        )
    panel_stride = layout.panel_bytes if layout.panels > 1 else 0
    if "wgmma" in pattern_set and (not layout.swizzle or panel_stride % layout.repeat_bytes):
        return False
    if "panels" in pattern_set and not layout.swizzle:
        return False
    return not (pattern_set & _BY_TMA and (layout.panel > MAX_BOX_EXTENT or panel_stride % BOX_BYTES))


def compute_storage_cost(layout: SharedLayout, patterns: Iterable[AccessPattern]) -> StorageCost:
    """Return the cost of all accesses in these patterns together, given the tile's layout. A swizzled address takes
    each thread one more register."""
    needed = -(-layout.bytes // TRANSACTION_BYTES)
    transactions = conflicts = registers = 0
    for pattern in patterns:
        taken, _ = _count_transactions(layout, pattern)
        transactions += taken
        conflicts += max(0, taken - needed) if pattern not in _BY_TMA else 0
        if layout.swizzle and pattern not in ("tma", "panels", "wgmma"):
            registers = 1
    return StorageCost(transactions, 0, registers, conflicts)


def compute_conflict_factor(layout: SharedLayout, pattern: AccessPattern) -> float:
    """Return how many times longer the pattern takes than without bank conflicts."""
    taken, needed = _count_transactions(layout, pattern)
    return taken / max(needed, 1)  # none is needed where nothing of the tile is reached


@lru_cache(maxsize=1024)
def _count_transactions(layout: SharedLayout, pattern: AccessPattern) -> tuple[int, int]:
    """Return how many shared-memory transactions the pattern takes, and how many it would without bank conflicts."""
    if pattern in _BY_TMA:
        row = -(-layout.panel * layout.element_bytes // TRANSACTION_BYTES)
        # Each row of a box takes its own transactions; each panel is a box, and an instruction.
        boxes = layout.rows * layout.panels * row + layout.panels
        return boxes, boxes
    if isinstance(pattern, Sweep):
        return _count_sweep_transactions(layout, pattern)
    rows = min(layout.rows, BANKS if pattern == "columns" else _SAMPLED_ROWS)
    sampled = count_phase_transactions(_list_phases(layout, pattern, rows))
    return _scale_sample(sampled, layout.rows, rows)


def count_phase_transactions(phases: Iterable[list[int]]) -> tuple[int, int]:
    """Return how many transactions all phases take together, and how many they would without bank conflicts. A phase
    lists the bytes of the words that are reached at once."""
    transactions = [(_count_bank_transactions(phase), _count_least_transactions(phase)) for phase in phases]
    return sum(taken for taken, _ in transactions), sum(needed for _, needed in transactions)


def _scale_sample(sampled: tuple[int, int], whole: int, part: int) -> tuple[int, int]:
    """Return both counts of a sample of `part` rows or runs, scaled to `whole` of them and rounded up."""
    taken, needed = (-(-count * whole // part) for count in sampled)
    return taken, needed


def _count_sweep_transactions(layout: SharedLayout, sweep: Sweep) -> tuple[int, int]:
    """Return the transactions of a sweep, taken and needed, from a sample of the first warp's first registers."""
    spread, size = sweep.layout, layout.element_bytes
    vector = next((a for a in spread.registers if a.size > 1), None)
    is_run = vector is not None and vector.stride == 1 and vector.dim == sweep.dims[-1]
    run = math.gcd(vector.size, max(CHUNK // size, 1)) if vector is not None and is_run else 1
    at_once = min(BANKS, TRANSACTION_BYTES // max(run * size, BANK_BYTES))
    lanes = [spread.thread_offset(lane) for lane in range(BANKS)]
    runs = range(0, spread.register_count, run)
    phases = []
    for register in runs[:_SAMPLED_RUNS]:
        shift = spread.register_offset(register)
        places = [tuple(lane[d] + shift[d] for d in sweep.dims) for lane in lanes]
        inside = [p if all(c < extent for c, extent in zip(p, layout.shape, strict=True)) else None for p in places]
        for first in range(0, BANKS, at_once):
            reached = [_find_byte(layout, p) for p in inside[first : first + at_once] if p is not None]
            phases += [list_word_offsets(reached, run * size)] if reached else []
    return _scale_sample(
        count_phase_transactions(phases), len(runs) * spread.thread_count, min(len(runs), _SAMPLED_RUNS) * BANKS
    )


def _find_byte(layout: SharedLayout, place: tuple[int, ...]) -> int:
    """Return the byte offset of an element, given its indices in the tile."""
    row = 0
    for index, extent in zip(place[:-1], layout.shape[:-1], strict=True):
        row = row * extent + index
    return find_byte_offset(layout, row, place[-1] * layout.element_bytes)


def _list_phases(layout: SharedLayout, pattern: AccessPattern, rows: int) -> Iterator[list[int]]:
    """Yield, for each phase of a pattern on the first `rows` rows, the byte offsets of the words reached at once."""
    size = layout.element_bytes
    row_bytes = layout.shape[-1] * size
    if pattern == "columns":
        for column in range(layout.shape[-1]):
            offsets = [find_byte_offset(layout, row, column * size) for row in range(rows)]
            # Threads of a warp that read one word share its transaction.
            yield from (offsets[first : first + BANKS] for first in range(0, rows, BANKS))
        return
    if pattern == "accumulator":
        for first in range(0, rows, 8):
            for byte in range(0, row_bytes, 8 * size):
                yield [
                    find_byte_offset(layout, row, byte + inside)
                    for row in range(first, min(first + 8, rows))
                    for inside in range(0, min(8 * size, row_bytes - byte), size)
                ]
        return
    chunk = CHUNK if row_bytes % CHUNK == 0 else size
    if pattern == "rows":
        chunks = [find_byte_offset(layout, row, byte) for row in range(rows) for byte in range(0, row_bytes, chunk)]
        at_once = TRANSACTION_BYTES // chunk
        for first in range(0, len(chunks), at_once):
            yield list_word_offsets(chunks[first : first + at_once], chunk)
        return
    for first in range(0, rows, 8):
        for byte in range(0, row_bytes, chunk):
            yield list_word_offsets(
                [find_byte_offset(layout, row, byte) for row in range(first, min(first + 8, rows))], chunk
            )


def list_word_offsets(offsets: list[int], chunk: int) -> list[int]:
    """Return the byte offsets of all 4-byte words in chunks of `chunk` bytes at these offsets."""
    return [offset + byte for offset in offsets for byte in range(0, max(chunk, 1), BANK_BYTES)]


def _count_bank_transactions(offsets: list[int]) -> int:
    """Return the transactions of a phase: the largest number of different words in one bank."""
    words = {offset // BANK_BYTES for offset in offsets}
    counts = [0] * BANKS
    for word in words:
        counts[word % BANKS] += 1
    return max(counts)


def _count_least_transactions(offsets: list[int]) -> int:
    """Return the transactions of a phase if its words were spread evenly over the banks."""
    return -(-len({offset // BANK_BYTES for offset in offsets}) // BANKS)


def find_byte_offset(layout: SharedLayout, row: int, byte: int) -> int:
    """Return the offset in the tile of a byte of a row, by the layout's panels and swizzle or its placement."""
    if layout.placement is not None:
        column, inner = divmod(byte, layout.element_bytes)
        return element_slots(layout.placement)[row * layout.shape[-1] + column] * layout.element_bytes + inner
    panel_row = layout.panel * layout.element_bytes
    panel, inner = divmod(byte, panel_row)
    offset = panel * layout.panel_bytes + row * panel_row + inner
    return offset ^ (offset >> 3 & layout.swizzle_mask << 4)


# ---- what reaches a tile ---------------------------------------------------------------------------------------------

_COPY_PATTERNS: dict[str, AccessPattern] = {"tma": "tma", "tma_store": "tma", "stmatrix": "matrix"}
ACCUMULATOR_LANES = mma_accumulator((16, 8), 1, 1).threads[:2]
"""The lanes of a warp that share a block of an accumulator, the same for all instructions."""


def find_shared_accesses(
    kernel: tile.Kernel, fragments: Mapping[str, Fragment], nest_layout: Callable[[tile.Parallel], Fragment]
) -> Iterator[SharedAccess]:
    """Yield the pattern of every access to a shared tile in program order, by mechanisms and register layouts."""
    scattered = frozenset(name for name, fragment in fragments.items() if fragment.threads[:2] == ACCUMULATOR_LANES)
    placed = {given.buffer for given in kernel.layouts if isinstance(given.layout, tile.Placement)}
    for stmt in tile.walk_statements(kernel.body):
        if isinstance(stmt, tile.TileOp):
            via = stmt.via
            for place, region in enumerate(stmt.regions):
                if region.buffer.scope == "shared":
                    is_operand = isinstance(stmt, Gemm | ScaledGemm) and place < 2
                    operand: AccessPattern = "wgmma" if via in ("wgmma", "tcgen05") else "matrix"
                    by_thread = _find_copy_pattern(stmt, place, fragments, scattered)
                    if region.buffer not in placed and _is_ldmatrix_copy(stmt, fragments):
                        by_thread = "matrix"
                    pattern = operand if is_operand else _COPY_PATTERNS.get(str(via), by_thread)
                    if pattern == "tma" and isinstance(stmt, Copy) and not region.is_whole:
                        pattern = "panels"
                    if isinstance(stmt, Transpose):
                        by_matrices = find_matrix_rows(stmt, kernel.threads // WARP_THREADS) is not None
                        is_matrix = by_matrices and region.buffer not in placed
                        pattern = (
                            "matrix"
                            if is_matrix
                            else Sweep(make_sweep_layout(stmt, kernel.threads), (0, 1) if place else (1, 0))
                        )
                    yield SharedAccess(region.buffer.name, pattern, stmt.span)
        elif isinstance(stmt, tile.Parallel):
            yield from _find_nest_accesses(stmt, scattered, fragments, nest_layout)


def _is_ldmatrix_copy(op: tile.TileOp, fragments: Mapping[str, Fragment]) -> bool:
    """Return True if ldmatrix can make this copy of a shared tile to a fragment."""
    if not isinstance(op, Copy):
        return False
    source, destination = op.regions
    layout = fragments.get(destination.buffer.name)
    return layout is not None and can_use_ldmatrix(source, destination, layout)


def _find_copy_pattern(
    op: tile.TileOp, place: int, fragments: Mapping[str, Fragment], scattered: frozenset[str]
) -> AccessPattern:
    """Return the pattern in which threads access region `place`: the other side's layout, else rows or accumulator."""
    by_default: AccessPattern = "accumulator" if {region.buffer.name for region in op.regions} & scattered else "rows"
    own, others = op.regions[place], [r for i, r in enumerate(op.regions) if i != place]
    other = fragments.get(others[0].buffer.name) if len(others) == 1 else None
    if other is None or not own.is_whole or other.shape != own.buffer.shape:
        return by_default
    return Sweep(other, tuple(range(len(other.shape))))


def _find_nest_accesses(
    nest: tile.Parallel,
    scattered: frozenset[str],
    fragments: Mapping[str, Fragment],
    nest_layout: Callable[[tile.Parallel], Fragment],
) -> Iterator[SharedAccess]:
    """Yield a nest's accesses to shared tiles: sweeps in its layout, or else by rows, by columns or as an
    accumulator."""
    fastest = nest.vars[-1]
    found = list(find_element_accesses(nest.body))
    used = {access.buffer.name for _, access in found}
    along: AccessPattern = "accumulator" if scattered & used else "rows"
    layout = nest_layout(nest) if used & fragments.keys() else None
    for stmt, access in found:
        if access.buffer.scope == "shared":
            sweep = _find_sweep(nest, access.buffer, access.indices, layout)
            pattern = sweep or _find_direction(access.indices, fastest, along)
            yield SharedAccess(access.buffer.name, pattern, stmt.span)


def _find_sweep(
    nest: tile.Parallel, buffer: tile.Buffer, indices: tuple[tile.Expr, ...], layout: Fragment | None
) -> Sweep | None:
    """Return the sweep of a nest in this layout over a whole tile, each index a variable or, as `j // 2`, its quotient;
    None for other indices."""
    place = {var: i for i, var in enumerate(nest.vars)}
    dims: list[int] = []
    for index in indices:
        var, by = index, 1
        if isinstance(index, tile.Binary) and index.op == "floordiv" and isinstance(index.b, tile.Const):
            var, by = index.a, int(index.b.value)
        if layout is None or not isinstance(var, tile.Var) or var not in place:
            return None
        layout = layout.grouped(place[var], by)
        dims.append(place[var])
    if layout is None or sorted(dims) != list(range(len(nest.vars))):
        return None
    return Sweep(layout, tuple(dims)) if tuple(layout.shape[d] for d in dims) == buffer.shape else None


def _find_direction(indices: tuple[tile.Expr, ...], fastest: tile.Var, along: AccessPattern) -> AccessPattern:
    """Return "columns" where the fastest variable indexes another dimension than the last, else `along`."""
    *others, last = (any(part == fastest for part in tile.walk_expr(index)) for index in indices)
    return "columns" if any(others) and not last else along
