"""Staged stores in chunks: an accumulator is stored through shared memory and TMA some columns at a time, through
reused buffers.

A chunk is as wide as a row of the widest bank swizzle, so that a tile has as many chunks as panels. If there is room
beside the requested versions of pipelined loops, each chunk has its own buffer. Otherwise there are as many as fit, and
a chunk waits until the earlier one in its buffer has been read. Where each warpgroup has whole rows, it stores its part
independently.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TypeGuard

from tilec.ir import tile
from tilec.ir.affine import add
from tilec.ir.groups import WARPGROUP_THREADS
from tilec.ir.layout import Fragment, SharedLayout
from tilec.ir.multicast import SWIZZLE_BYTES
from tilec.ir.rewrite import with_bodies
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32
from tilec.ir.warp import PART_ROWS
from tilec.ops.atomic import AtomicTile
from tilec.ops.copy import Copy
from tilec.passes.analysis.rings import is_pipelined, pipelined_loops, rings, versions_asked
from tilec.passes.analysis.usage import reads, writes
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.atoms import ACCUMULATOR_LANES
from tilec.passes.layout.select_mechanisms import CHUNK_BYTES
from tilec.passes.memory.prefetch import versions_of
from tilec.passes.memory.shared_reuse import over_rings
from tilec.support.records import dataclass
from tilec.target.table import Target

VERSIONS = 4  # of loops without num_stages: enough to hide a load (`sched` decides)
SYNC_BYTES = 1024  # an upper bound of what barriers take


Stored = Copy | AtomicTile


def is_staged(stmt: tile.Stmt) -> TypeGuard[Stored]:
    return isinstance(stmt, Copy | AtomicTile) and stmt.staged is not None


@dataclass(frozen=True, slots=True)
class Staging:
    """A staged store of one tile to another, by their names: its `chunks`, their `buffers`, and the `parts` of the
    block that store independently."""

    source: str
    destination: str
    chunks: int
    buffers: int
    buffer_bytes: int
    parts: int


def chunked(assignment: LayoutAssignment, target: Target) -> LayoutAssignment:
    """Return the kernel with its staged stores in chunks, except in pipelined loops, which schedule them as
    statements."""
    chunkings = _chunkings(assignment)
    if not chunkings:
        return assignment
    counts = _buffers(assignment, chunkings, target)
    buffers_of = {
        staged: tuple(
            replace(chunking.chunk, name=f"{staged.name}.{k}" if k else staged.name) for k in range(counts[staged])
        )
        for staged, chunking in chunkings.items()
    }
    body = _rewritten(
        assignment.kernel.body, lambda into, out: _chunks(assignment, into, out, chunkings, buffers_of, target)
    )
    buffers = tuple(n for b in assignment.kernel.buffers for n in buffers_of.get(b, (b,)))
    shared = {
        new.name: assignment.shared[old.name] if new == old else replace(assignment.shared[old.name], shape=new.shape)
        for old in assignment.kernel.buffers
        if old.scope == "shared"
        for new in buffers_of.get(old, (old,))
    }
    return replace(assignment, kernel=replace(assignment.kernel, body=body, buffers=buffers), shared=shared)


def stagings(assignment: LayoutAssignment) -> Iterator[Staging]:
    """Yield the staged stores of a kernel, for reports."""
    found: dict[tuple[str, str], list[Stored]] = {}
    for into, out in _pairs(tuple(tile.walk(assignment.kernel.body))).values():
        found.setdefault((into.regions[0].buffer.name, out.regions[1].buffer.name), []).append(out)
    for (source, destination), outs in found.items():
        tiles = {out.regions[0].buffer.name for out in outs}
        parts = outs[0].parts
        yield Staging(source, destination, len(outs), len(tiles), assignment.shared[min(tiles)].bytes, parts)


# ---- tiles that can be split -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chunking:
    """The chunks of a staged tile: one as an example, and the `parts` that store each."""

    chunk: tile.Buffer
    parts: int


def _chunkings(assignment: LayoutAssignment) -> dict[tile.Buffer, Chunking]:
    """Return the staged tiles that can be split: they serve only stores, which are all alike."""
    statements = tuple(tile.walk(assignment.kernel.body))
    others = [s for s in statements if isinstance(s, tile.TileOp | tile.Parallel | tile.Store) and not is_staged(s)]
    used_otherwise = {buffer for s in others for buffer in (*reads(s), *writes(s))}
    sources: dict[tile.Buffer, list[tile.Buffer]] = {}
    for into in _stores(assignment.kernel.body):
        sources.setdefault(into.regions[1].buffer, []).append(into.regions[0].buffer)
    everywhere = [into.regions[1].buffer for into, _ in _pairs(statements).values()]
    found = {}
    for staged, fragments in sources.items():
        if staged in used_otherwise:
            continue
        width = _width(assignment.shared[staged.name])
        layouts = [assignment.fragments[fragment.name] for fragment in dict.fromkeys(fragments)]
        if everywhere.count(staged) == len(fragments) and all(layout.columns(width) is not None for layout in layouts):
            parts = {row_parts(layout, assignment.kernel.threads) for layout in layouts}
            chunk = replace(staged, extents=(*staged.extents[:-1], width))
            found[staged] = Chunking(chunk, parts.pop() if len(parts) == 1 else 1)
    return found


def _stores(body: tuple[tile.Stmt, ...]) -> Iterator[tile.TileOp]:
    """Yield the first halves of the staged stores outside pipelined loops."""
    for stmt in body:
        match stmt:
            case tile.For() if is_pipelined(stmt):
                pass
            case tile.For() | tile.While():
                yield from _stores(stmt.body)
            case tile.If():
                yield from _stores((*stmt.then, *stmt.orelse))
            case tile.TileOp(regions=(source, _)) if is_staged(stmt) and source.buffer.scope == "fragment":
                yield stmt
            case _:
                pass


def _width(layout: SharedLayout) -> int:
    """Return the columns of a chunk: a panel if that is as wide as the widest swizzle, else all."""
    return layout.panel if layout.row_bytes == CHUNK_BYTES else layout.shape[-1]


def row_parts(layout: Fragment, threads: int) -> int:
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


# ---- number of buffers -----------------------------------------------------------------------------------------------


def _buffers(
    assignment: LayoutAssignment, chunkings: dict[tile.Buffer, Chunking], target: Target
) -> dict[tile.Buffer, int]:
    """Return the number of buffers of each staged tile, one a chunk if they fit: beside the versions that loops
    request, or beside fewer of these, or over the rings, where these are free by then."""
    versions, late = _versions(assignment.kernel), over_rings(assignment.kernel)
    beside = {staged: chunking for staged, chunking in chunkings.items() if staged.name not in late}
    staged = {staged.name for staged in chunkings}
    kept = versions_of(assignment.kernel)

    def others(names: Collection[str]) -> int:
        return sum(_aligned(assignment.shared[name].bytes) * kept.get(name, 1) for name in names if name not in staged)

    room = target.limit("smem_bytes_per_cta") - SYNC_BYTES - others(assignment.shared.keys() - versions.keys() - late)
    least = sum(_aligned(chunking.chunk.bytes) for chunking in beside.values())

    def asked(most: int) -> int:
        return sum(_aligned(assignment.shared[name].bytes) * min(n, most) for name, n in versions.items())

    deepest = max(versions.values(), default=1)
    while deepest > 1 and asked(deepest) + least > room:
        deepest -= 1
    counts = _shared_out(beside, room - asked(deepest))
    room -= sum(_aligned(chunking.chunk.bytes) * counts[staged] for staged, chunking in beside.items())
    over = {staged: chunking for staged, chunking in chunkings.items() if staged.name in late}
    return counts | _shared_out(over, room - others(late))


def _shared_out(chunkings: dict[tile.Buffer, Chunking], room: int) -> dict[tile.Buffer, int]:
    """Distribute buffers over the tiles: at least one each, then one more in turn while there is room."""
    counts = dict.fromkeys(chunkings, 1)
    sizes = {staged: _aligned(chunking.chunk.bytes) for staged, chunking in chunkings.items()}
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


def _versions(kernel: tile.Kernel) -> dict[str, int]:
    """Return the versions that pipelined loops want of each shared tile."""
    versions: dict[str, int] = {}
    for loop in pipelined_loops(kernel.body):
        for staged in (b.name for ring in rings(kernel, loop) for b in ring.buffers):
            versions[staged] = max(versions.get(staged, 1), versions_asked(loop) or loop.num_stages or VERSIONS)
    return versions


def _aligned(size: int) -> int:
    return -(-size // SWIZZLE_BYTES) * SWIZZLE_BYTES


# ---- rewriting -------------------------------------------------------------------------------------------------------

Pair = tuple[Copy, Stored]


def _pairs(stmts: tuple[tile.Stmt, ...]) -> dict[int, Pair]:
    """Return the two halves of each staged store, by the index of the first."""
    found: dict[int, Pair] = {}
    for at, (into, out) in enumerate(pairwise(stmts)):
        if isinstance(into, Copy) and into.staged is not None and is_staged(out) and into.destination == out.source:
            found[at] = into, out
    return found


def _rewritten(
    body: tuple[tile.Stmt, ...], chunks: Callable[[Copy, Stored], tuple[tile.Stmt, ...]]
) -> tuple[tile.Stmt, ...]:
    new: list[tile.Stmt] = []
    pairs = _pairs(body)
    for at, stmt in enumerate(body):
        match stmt:
            case tile.For() if is_pipelined(stmt):
                new.append(stmt)
            case tile.For() | tile.While() | tile.If():
                new.append(with_bodies(stmt, lambda inside: _rewritten(inside, chunks)))
            case _ if at in pairs:
                new += chunks(*pairs[at])
            case _ if at - 1 not in pairs:
                new.append(stmt)
    return tuple(new)


def by_matrix(fragment: tile.Buffer, staged: tile.Buffer, assignment: LayoutAssignment) -> bool:
    """Return whether stmatrix can write the tile: eight lanes have a row of 16 bytes, in pairs of 16-bit floats or of
    floats converted to these."""
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


def _chunks(
    assignment: LayoutAssignment,
    into: Copy,
    out: Stored,
    chunkings: dict[tile.Buffer, Chunking],
    buffers_of: dict[tile.Buffer, tuple[tile.Buffer, ...]],
    target: Target,
) -> tuple[tile.Stmt, ...]:
    """Build the statements of the chunks, one after the other, each to shared memory and then to the tensor."""
    staged, source, destination = into.regions[1].buffer, into.regions[0], out.regions[1]
    if staged not in chunkings:
        return into, out
    width, parts, buffers = chunkings[staged].chunk.shape[-1], chunkings[staged].parts, buffers_of[staged]
    if target.has("stmatrix") and by_matrix(source.buffer, staged, assignment):
        into = replace(into, via="stmatrix")
    chunks: list[tile.Stmt] = []
    for k, column in enumerate(range(0, source.buffer.shape[-1], width)):
        staged = buffers[k % len(buffers)]
        whole = tile.Region(staged, tuple(tile.integer(0) for _ in staged.shape), staged.shape, into.span)
        chunks.append(replace(into, source=_columns(source, column, width), destination=whole))
        stored = replace(out, source=whole, destination=_columns(destination, column, width))
        chunks.append(replace(stored, parts=parts) if parts > 1 else stored)
    return tuple(chunks)


def _columns(region: tile.Region, first: int, width: int) -> tile.Region:
    start = (*region.start[:-1], add(region.start[-1], tile.integer(first)))
    return replace(region, start=start, extent=(*region.extent[:-1], width))
