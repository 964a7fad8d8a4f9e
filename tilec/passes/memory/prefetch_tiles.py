"""Tiles outside pipelined loops that the producer warp prefetches: small ones read behind a loop, such as a row of
biases, and those that all iterations of a loop read, such as attention's queries.

Loaded by the consumers, such a tile makes all of them wait for one another between their last product and their store.
The producer loads it early by TMA, into a ring of its own. The ring has two versions if the tile is loaded repeatedly,
so that the load for the next output tile need not wait for the end of this one. Each consumer waits for the tile before
its first read, and releases it after its last one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.analysis.box_starts import collect_coordinates
from tilec.analysis.rings import find_pipelined_loops, is_load, is_pipelined
from tilec.analysis.tensor_order import find_ordered_tensors
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.ir.affine import reads_elements
from tilec.ir.rewrite import map_nested_bodies, rewrite_statements
from tilec.ops.copies.copy import Copy
from tilec.ops.copies.im2col import Im2col
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.mechanisms.tensor_maps import is_tma_disabled, why_no_tensor_map
from tilec.passes.layout.shared.atoms import is_legal
from tilec.support.records import dataclass
from tilec.target.table import Target

MAX_SMALL_TILE_BYTES = 4096  # with all versions; larger tiles would take memory from the rings


def prefetch_tiles(assignment: LayoutAssignment, target: Target) -> LayoutAssignment:
    """Load tiles that loops only read, and small ones read behind loops, early by TMA, in rings of one or two versions.
    In a serial kernel, all copies by TMA are such."""
    if assignment.form == "serial":
        body = rewrite_statements(assignment.kernel.body, _use_single_version)
        return replace(assignment, kernel=replace(assignment.kernel, body=body))
    if assignment.form != "warp_specialised":
        return assignment
    ordered = find_ordered_tensors(assignment.kernel)
    room = _count_free_bytes(assignment, target)

    def rewrite_body(stmts: tuple[tile.Stmt, ...], versions: int) -> tuple[tile.Stmt, ...]:
        """Return a statement list with its prefetchable copies made TMA loads of up to `versions` versions. Takes
        further versions from `room`."""
        nonlocal room
        found: dict[int, int] = {}
        for fetch in find_tile_loads(stmts):
            if not _can_prefetch(assignment, stmts, fetch, ordered):
                continue
            size = assignment.shared[fetch.buffer.name].bytes
            if not any(fetch.buffer in find_reads(loop) for loop in find_pipelined_loops(stmts)):
                is_small = size * versions <= MAX_SMALL_TILE_BYTES and not assignment.shared[fetch.buffer.name].swizzle
                if is_small and find_pipelined_loops(stmts[: fetch.first]):
                    found[fetch.copy] = versions
            elif room >= 0:  # its first version has memory already
                found[fetch.copy] = versions if room >= (versions - 1) * size else 1
                room -= (found[fetch.copy] - 1) * size
        return tuple(
            _load_by_tma(s, found[at]) if at in found else rewrite_inside(s, versions) for at, s in enumerate(stmts)
        )

    def rewrite_inside(stmt: tile.Stmt, versions: int) -> tile.Stmt:
        """Return a statement with prefetches in the lists inside it; pipelined loops stay, others get two versions."""
        match stmt:
            case tile.For() if is_pipelined(stmt):
                return stmt
            case tile.For() | tile.While():
                return map_nested_bodies(stmt, lambda stmts: rewrite_body(stmts, 2))
            case tile.If():
                return map_nested_bodies(stmt, lambda stmts: rewrite_body(stmts, versions))
            case _:
                return stmt

    return replace(assignment, kernel=replace(assignment.kernel, body=rewrite_body(assignment.kernel.body, 1)))


def count_prefetched_versions(kernel: tile.Kernel) -> dict[str, int]:
    """Return the number of versions of each prefetched tile of the kernel, by name."""
    loads = (s for s in tile.walk_statements(kernel.body) if isinstance(s, tile.TileOp))
    return {load.regions[1].buffer.name: load.prefetched for load in loads if load.prefetched is not None}


def is_prefetched(stmt: tile.Stmt) -> bool:
    return isinstance(stmt, tile.TileOp) and stmt.prefetched is not None


@dataclass(frozen=True, slots=True)
class TileLoad:
    """A tile, and the indices in a statement list of its copy, its first reader and its last one."""

    buffer: tile.Buffer
    copy: int
    first: int
    last: int


def find_tile_loads(stmts: tuple[tile.Stmt, ...]) -> Iterator[TileLoad]:
    """Yield each copy from a tensor to a shared tile that only later statements of the list read and none else
    writes."""
    for at, stmt in enumerate(stmts):
        if not isinstance(stmt, tile.TileOp) or not is_load(stmt):
            continue
        buffer = stmt.regions[1].buffer
        reading = [n for n, other in enumerate(stmts) if buffer in find_reads(other)]
        if reading and reading[0] > at and [n for n, other in enumerate(stmts) if buffer in find_writes(other)] == [at]:
            yield TileLoad(buffer, at, reading[0], reading[-1])


def _count_free_bytes(assignment: LayoutAssignment, target: Target) -> int:
    """Return the free bytes of shared memory, with tiles of pipelined loops in their requested versions, or two."""
    loops = find_pipelined_loops(assignment.kernel.body)
    stages = {b.name: loop.num_stages or 2 for loop in loops for s in loop.body for b in find_writes(s)}
    taken = sum(layout.bytes * stages.get(name, 1) for name, layout in assignment.shared.items())
    return target.limit("smem_bytes_per_cta") - taken


def _can_prefetch(
    assignment: LayoutAssignment, stmts: tuple[tile.Stmt, ...], fetch: TileLoad, ordered: frozenset[str]
) -> bool:
    """Return whether the producer can load a tile by TMA, all uses are in this list, and the last follows a
    pipelined loop. That loop may be the last reader itself, and nothing between copy and last reader may leave a
    loop."""
    copy, buffer = stmts[fetch.copy], fetch.buffer
    if not isinstance(copy, Copy):
        return False
    source, destination, layout = copy.source, copy.destination, assignment.shared[buffer.name]
    return (
        copy.via in ("cp_async", "registers")
        and not (copy.width is not None or copy.is_asynchronous or is_tma_disabled(copy))
        and destination.is_whole
        and source.buffer.name not in ordered
        and not any(map(reads_elements, source.start))
        and why_no_tensor_map(source, buffer, collect_coordinates(assignment.kernel), least_dimensions=1) is None
        and is_legal(layout, ["tma"])
        and bool(find_pipelined_loops(stmts[: fetch.last + 1]))
        and not any(_can_leave_loop(stmt) for stmt in stmts[fetch.copy + 1 : fetch.last + 1])
        and count_tile_uses(stmts, buffer) == count_tile_uses(assignment.kernel.body, buffer)
    )


def _can_leave_loop(stmt: tile.Stmt) -> bool:
    """Return whether the statement is a break, or an `if` with one, so that it may leave the loop around."""
    match stmt:
        case tile.Break():
            return True
        case tile.If(then=then, orelse=orelse):
            return any(map(_can_leave_loop, (*then, *orelse)))
        case _:
            return False


def count_tile_uses(body: tuple[tile.Stmt, ...], buffer: tile.Buffer) -> int:
    """Return how many statements access the tile; loops and ifs count only by their bounds or condition."""
    return sum(
        any(load.buffer == buffer for load in tile.walk_loads(stmt))
        if isinstance(stmt, tile.For | tile.While | tile.If)
        else buffer in (*find_reads(stmt), *find_writes(stmt))
        for stmt in tile.walk_statements(body)
    )


def _use_single_version(stmt: tile.Stmt) -> tile.Stmt:
    """Return a TMA load as one prefetched in a ring of one version; any other statement as it is."""
    match stmt:
        case Copy() | Im2col() if is_load(stmt) and stmt.via == "tma":
            return replace(stmt, prefetched=1)
        case _:
            return stmt


def _load_by_tma(stmt: tile.Stmt, versions: int) -> tile.Stmt:
    """Return the copy as a TMA load that is prefetched in this many versions."""
    assert isinstance(stmt, Copy)
    return replace(stmt, via="tma", prefetched=versions)
