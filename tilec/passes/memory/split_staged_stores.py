"""Staged stores in chunks: an accumulator is stored through shared memory and TMA some columns at a time, through
reused buffers.

A chunk is as wide as a row of the widest bank swizzle, so that a tile has as many chunks as panels. If there is room
beside the requested versions of pipelined loops, each chunk has its own buffer. Otherwise there are as many as fit, and
a chunk waits until the earlier one in its buffer has been read. Where each warpgroup has whole rows, it stores its part
independently."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TypeGuard

from tilec.analysis.rings import count_scheduled_versions, find_pipelined_loops, is_pipelined, plan_rings
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ir.layout import Fragment
from tilec.ir.rewrite import map_nested_bodies
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32
from tilec.ir.warp import PART_ROWS
from tilec.ops.atomic import AtomicTile
from tilec.ops.copies.copy import Copy
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.fragments.convert_layouts import cover_buffer, slice_region
from tilec.passes.layout.select_mechanisms import STAGED_CHUNK_BYTES
from tilec.passes.layout.shared.atoms import ACCUMULATOR_LANES
from tilec.passes.memory.live_ranges import align_bytes
from tilec.passes.memory.prefetch_tiles import count_prefetched_versions
from tilec.passes.memory.shared_reuse import find_tiles_over_rings
from tilec.support.records import dataclass
from tilec.target.table import Target

DEFAULT_VERSIONS = 4  # of loops without num_stages: enough to hide a load (`sched` decides)
SYNC_BYTES = 1024  # an upper bound of what barriers take


StoreOperation = Copy | AtomicTile


def is_staged(stmt: tile.Stmt) -> TypeGuard[StoreOperation]:
    return isinstance(stmt, Copy | AtomicTile) and stmt.staged is not None


@dataclass(frozen=True, slots=True)
class StagedStore:
    """A staged store of one tile to another, by their names: its `chunks`, their `buffers`, and the `parts` of the
    block that store independently."""

    source: str
    destination: str
    chunks: int
    buffers: int
    buffer_bytes: int
    parts: int


def split_staged_stores(assignment: LayoutAssignment, target: Target) -> LayoutAssignment:
    """Split stores that pass through shared memory into chunks of columns, except in pipelined loops."""
    chunkings = _find_chunkings(assignment)
    if not chunkings:
        return assignment
    counts = _count_buffers(assignment, chunkings, target)
    buffers_of = {}
    for staged, chunking in chunkings.items():
        names = [staged.name, *(f"{staged.name}.{k}" for k in range(1, counts[staged]))]
        buffers_of[staged] = tuple(replace(chunking.chunk, name=name) for name in names)
    body = _rewrite_body(
        assignment.kernel.body, lambda into, out: _build_chunks(assignment, into, out, chunkings, buffers_of, target)
    )
    buffers = tuple(n for b in assignment.kernel.buffers for n in buffers_of.get(b, (b,)))
    shared = {}
    for old in (b for b in assignment.kernel.buffers if b.scope == "shared"):
        layout = assignment.shared[old.name]
        for new in buffers_of.get(old, (old,)):
            shared[new.name] = layout if new == old else replace(layout, shape=new.shape)
    return replace(assignment, kernel=replace(assignment.kernel, body=body, buffers=buffers), shared=shared)


def find_staged_stores(assignment: LayoutAssignment) -> Iterator[StagedStore]:
    """Yield the kernel's staged stores for reports, each with its chunks, buffers and independent parts."""
    found: dict[tuple[str, str], list[StoreOperation]] = {}
    for into, out in _find_store_pairs(tuple(tile.walk_statements(assignment.kernel.body))).values():
        found.setdefault((into.regions[0].buffer.name, out.regions[1].buffer.name), []).append(out)
    for (source, destination), outs in found.items():
        tiles = {out.regions[0].buffer.name for out in outs}
        parts = outs[0].parts
        yield StagedStore(source, destination, len(outs), len(tiles), assignment.shared[min(tiles)].bytes, parts)


@dataclass(frozen=True, slots=True)
class Chunking:
    """The chunks of a staged tile: one as an example, and the `parts` that store each."""

    chunk: tile.Buffer
    parts: int


def _find_chunkings(assignment: LayoutAssignment) -> dict[tile.Buffer, Chunking]:
    """Return staged tiles to store in chunks of columns: an example chunk, and how many warpgroups store it apart."""
    statements = tuple(tile.walk_statements(assignment.kernel.body))
    others = [s for s in statements if isinstance(s, tile.TileOp | tile.Parallel | tile.Store) and not is_staged(s)]
    used_otherwise = {buffer for s in others for buffer in (*find_reads(s), *find_writes(s))}
    sources: dict[tile.Buffer, list[tile.Buffer]] = {}
    for into in _find_staged_copies(assignment.kernel.body):
        sources.setdefault(into.regions[1].buffer, []).append(into.regions[0].buffer)
    everywhere = [into.regions[1].buffer for into, _ in _find_store_pairs(statements).values()]
    found = {}
    for staged, fragments in sources.items():
        if staged in used_otherwise:
            continue
        whole = assignment.shared[staged.name]  # a chunk is a panel as wide as the widest swizzle, or all columns
        width = whole.panel if whole.row_bytes == STAGED_CHUNK_BYTES else whole.shape[-1]
        layouts = [assignment.fragments[fragment.name] for fragment in dict.fromkeys(fragments)]
        if everywhere.count(staged) == len(fragments) and all(layout.columns(width) is not None for layout in layouts):
            parts = {count_row_parts(layout, assignment.kernel.threads) for layout in layouts}
            chunk = replace(staged, extents=(*staged.extents[:-1], width))
            found[staged] = Chunking(chunk, parts.pop() if len(parts) == 1 else 1)
    return found


def _find_staged_copies(body: tuple[tile.Stmt, ...]) -> Iterator[tile.TileOp]:
    """Yield the copies from a fragment to a staging tile outside pipelined loops."""
    for stmt in body:
        match stmt:
            case tile.For() if is_pipelined(stmt):
                pass
            case tile.For() | tile.While():
                yield from _find_staged_copies(stmt.body)
            case tile.If():
                yield from _find_staged_copies((*stmt.then, *stmt.orelse))
            case tile.TileOp(regions=(source, _)) if is_staged(stmt) and source.buffer.scope == "fragment":
                yield stmt


def count_row_parts(layout: Fragment, threads: int) -> int:
    """Return how many warpgroups alternate in whole rows of a fragment, `PART_ROWS` at a time; 1 if they do not."""
    groups = threads // WARPGROUP_THREADS
    if threads % WARPGROUP_THREADS or groups < 2 or len(layout.shape) != 2:
        return 1
    below = {layout.register_offset(register)[0] for register in range(layout.register_count)}
    for thread in range(threads):
        row = layout.thread_offset(thread)[0]
        if any((row + more) // PART_ROWS % groups != thread // WARPGROUP_THREADS for more in below):
            return 1
    return groups


def _count_buffers(
    assignment: LayoutAssignment, chunkings: dict[tile.Buffer, Chunking], target: Target
) -> dict[tile.Buffer, int]:
    """Return how many chunk buffers each staged tile gets: one for each chunk, or fewer where shared memory has no
    room."""
    versions, late = _count_loop_versions(assignment.kernel), find_tiles_over_rings(assignment.kernel)
    beside = {staged: chunking for staged, chunking in chunkings.items() if staged.name not in late}
    staged = {staged.name for staged in chunkings}
    kept = count_prefetched_versions(assignment.kernel)

    def count_other_bytes(names: Collection[str]) -> int:
        """Return the aligned bytes of these tiles without staged ones, prefetched tiles with all versions."""
        others = (name for name in names if name not in staged)
        return sum(align_bytes(assignment.shared[name].bytes) * kept.get(name, 1) for name in others)

    besides = count_other_bytes(assignment.shared.keys() - versions.keys() - late)
    room = target.limit("smem_bytes_per_cta") - SYNC_BYTES - besides
    least = sum(align_bytes(chunking.chunk.bytes) for chunking in beside.values())

    def count_loop_bytes(most: int) -> int:
        """Return the aligned bytes of the loops' tiles with their wanted versions, but at most `most` each."""
        return sum(align_bytes(assignment.shared[name].bytes) * min(n, most) for name, n in versions.items())

    deepest = max(versions.values(), default=1)
    while deepest > 1 and count_loop_bytes(deepest) + least > room:
        deepest -= 1
    counts = _distribute_buffers(beside, room - count_loop_bytes(deepest))
    room -= sum(align_bytes(chunking.chunk.bytes) * counts[staged] for staged, chunking in beside.items())
    over = {staged: chunking for staged, chunking in chunkings.items() if staged.name in late}
    return counts | _distribute_buffers(over, room - count_other_bytes(late))


def _distribute_buffers(chunkings: dict[tile.Buffer, Chunking], room: int) -> dict[tile.Buffer, int]:
    """Return how many chunk buffers each tile gets in `room` bytes: at least one, then in turn as many as it has
    chunks."""
    counts = dict.fromkeys(chunkings, 1)
    sizes = {staged: align_bytes(chunking.chunk.bytes) for staged, chunking in chunkings.items()}
    room -= sum(sizes.values())
    wanting = list(chunkings)
    while wanting:
        for staged in tuple(wanting):
            if counts[staged] * chunkings[staged].chunk.shape[-1] >= staged.shape[-1] or sizes[staged] > room:
                wanting.remove(staged)
            else:
                counts[staged] += 1
                room -= sizes[staged]
    return counts


def _count_loop_versions(kernel: tile.Kernel) -> dict[str, int]:
    """Return how many versions pipelined loops want of each shared tile in a ring, by name."""
    versions: dict[str, int] = {}
    for loop in find_pipelined_loops(kernel.body):
        wanted = count_scheduled_versions(loop) or loop.num_stages or DEFAULT_VERSIONS
        for staged in (b.name for ring in plan_rings(kernel, loop) for b in ring.buffers):
            versions[staged] = max(versions.get(staged, 1), wanted)
    return versions


StorePair = tuple[Copy, StoreOperation]


def _find_store_pairs(stmts: tuple[tile.Stmt, ...]) -> dict[int, StorePair]:
    """Return the two halves of each staged store, neighbours in this list, by the index of the first."""
    found: dict[int, StorePair] = {}
    for at, (into, out) in enumerate(pairwise(stmts)):
        if isinstance(into, Copy) and into.staged is not None and is_staged(out) and into.destination == out.source:
            found[at] = into, out
    return found


def _rewrite_body(
    body: tuple[tile.Stmt, ...], chunks: Callable[[Copy, StoreOperation], tuple[tile.Stmt, ...]]
) -> tuple[tile.Stmt, ...]:
    """Replace each staged store outside of pipelined loops by what `chunks` returns for its halves."""
    new: list[tile.Stmt] = []
    pairs = _find_store_pairs(body)
    for at, stmt in enumerate(body):
        match stmt:
            case tile.For() if is_pipelined(stmt):
                new.append(stmt)
            case tile.For() | tile.While() | tile.If():
                new.append(map_nested_bodies(stmt, lambda inside: _rewrite_body(inside, chunks)))
            case _ if at in pairs:
                new += chunks(*pairs[at])
            case _ if at - 1 not in pairs:
                new.append(stmt)
    return tuple(new)


def can_use_stmatrix(fragment: tile.Buffer, staged: tile.Buffer, assignment: LayoutAssignment) -> bool:
    """Return whether stmatrix can write the fragment to the staging tile, by its layout, types and swizzle."""
    layout, halves = assignment.fragments[fragment.name], (FLOAT16, BFLOAT16)
    lies_so = layout.threads[:2] == ACCUMULATOR_LANES and [(a.dim, a.stride) for a in layout.registers[:3]] == [
        (1, 1), (0, 8), (1, 8),
    ]  # fmt: skip
    return (
        lies_so
        and len(layout.registers) == 4
        and staged.dtype in halves
        and fragment.dtype in (FLOAT32, staged.dtype)
        and bool(assignment.shared[staged.name].swizzle)
        and staged.shape[-1] % 16 == 0
    )


def _build_chunks(
    assignment: LayoutAssignment,
    into: Copy,
    out: StoreOperation,
    chunkings: dict[tile.Buffer, Chunking],
    buffers_of: dict[tile.Buffer, tuple[tile.Buffer, ...]],
    target: Target,
) -> tuple[tile.Stmt, ...]:
    """Return a staged store's statements, chunk by chunk: a copy to a buffer and its store; whole if it is not
    split."""
    staged, source, destination = into.regions[1].buffer, into.regions[0], out.regions[1]
    if staged not in chunkings:
        return into, out
    width, parts, buffers = chunkings[staged].chunk.shape[-1], chunkings[staged].parts, buffers_of[staged]
    if target.has("stmatrix") and can_use_stmatrix(source.buffer, staged, assignment):
        into = replace(into, via="stmatrix")
    chunks: list[tile.Stmt] = []
    for k, column in enumerate(map(tile.int32_const, range(0, source.buffer.shape[-1], width))):
        staged = buffers[k % len(buffers)]
        whole = cover_buffer(staged, into.span)
        chunks.append(replace(into, source=slice_region(source, -1, column, width), destination=whole))
        stored = replace(out, source=whole, destination=slice_region(destination, -1, column, width))
        chunks.append(replace(stored, parts=parts) if parts > 1 else stored)
    return tuple(chunks)
