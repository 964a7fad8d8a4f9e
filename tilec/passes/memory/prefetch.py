"""Tiles outside pipelined loops that the producer warp prefetches: small ones read behind a loop, such as a row of
biases, and those that all iterations of a loop read, such as attention's queries.

Loaded by the consumers, such a tile makes all of them wait for one another between their last product and their store.
The producer loads it early by TMA, into a ring of its own. The ring has two versions if the tile is loaded repeatedly,
so that the load for the next output tile need not wait for the end of this one. Each consumer waits for the tile before
its first read, and releases it after its last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.ir.rewrite import rewrite, with_bodies
from tilec.ir.tile import Break, Buffer, For, If, Kernel, Load, Stmt, TileOp, While, walk, walk_expr
from tilec.ops.copy import Copy
from tilec.ops.im2col import Im2col
from tilec.passes.analysis.box_starts import coordinates_of
from tilec.passes.analysis.rings import is_load, is_pipelined, pipelined_loops
from tilec.passes.analysis.tensor_order import ordered_tensors
from tilec.passes.analysis.usage import expressions, reads, writes
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.atoms import is_legal
from tilec.passes.layout.tensor_maps import why_no_tensor_map, without_tma
from tilec.support.records import dataclass
from tilec.target.table import Target

MOST_BYTES = 4096  # with all versions; larger tiles would take memory from the rings


def prefetched(assignment: LayoutAssignment, target: Target) -> LayoutAssignment:
    """Return the kernel with these copies done by TMA. In a serial kernel, all copies by TMA are such."""
    if assignment.form == "serial":
        return replace(
            assignment, kernel=replace(assignment.kernel, body=rewrite(assignment.kernel.body, _one_at_a_time))
        )
    if assignment.form != "warp_specialised":
        return assignment
    ordered = ordered_tensors(assignment.kernel)
    room = _room(assignment, target)

    def body(stmts: tuple[Stmt, ...], versions: int) -> tuple[Stmt, ...]:
        nonlocal room
        found: dict[int, int] = {}
        for fetch in fetches(stmts):
            if not _may_be_prefetched(assignment, stmts, fetch, ordered):
                continue
            size = assignment.shared[fetch.tile.name].bytes
            if not any(fetch.tile in reads(loop) for loop in pipelined_loops(stmts)):
                is_small = size * versions <= MOST_BYTES and not assignment.shared[fetch.tile.name].swizzle
                if is_small and pipelined_loops(stmts[: fetch.first]):
                    found[fetch.copy] = versions
            elif room >= 0:  # its first version has memory already
                found[fetch.copy] = versions if room >= (versions - 1) * size else 1
                room -= (found[fetch.copy] - 1) * size
        return tuple(_by_tma(s, found[at]) if at in found else inside(s, versions) for at, s in enumerate(stmts))

    def inside(stmt: Stmt, versions: int) -> Stmt:
        match stmt:
            case For() if is_pipelined(stmt):
                return stmt
            case For() | While():
                return with_bodies(stmt, lambda stmts: body(stmts, 2))
            case If():
                return with_bodies(stmt, lambda stmts: body(stmts, versions))
            case _:
                return stmt

    return replace(assignment, kernel=replace(assignment.kernel, body=body(assignment.kernel.body, 1)))


def versions_of(kernel: Kernel) -> dict[str, int]:
    """Return the number of versions of each prefetched tile, by name."""
    loads = (s for s in walk(kernel.body) if isinstance(s, TileOp))
    return {load.regions[1].buffer.name: load.prefetched for load in loads if load.prefetched is not None}


def is_prefetched(stmt: Stmt) -> bool:
    return isinstance(stmt, TileOp) and stmt.prefetched is not None


@dataclass(frozen=True, slots=True)
class Fetch:
    """A tile, and the indices in a statement list of its copy, its first reader and its last one."""

    tile: Buffer
    copy: int
    first: int
    last: int


def fetches(stmts: tuple[Stmt, ...]) -> Iterator[Fetch]:
    """Yield each copy from a tensor to a shared tile that only later statements of the list read, and no other one
    writes."""
    for at, stmt in enumerate(stmts):
        if not isinstance(stmt, TileOp) or not is_load(stmt):
            continue
        tile = stmt.regions[1].buffer
        reading = [n for n, other in enumerate(stmts) if tile in reads(other)]
        if reading and reading[0] > at and [n for n, other in enumerate(stmts) if tile in writes(other)] == [at]:
            yield Fetch(tile, at, reading[0], reading[-1])


def _room(assignment: LayoutAssignment, target: Target) -> int:
    """Return the bytes of shared memory that are left if tiles of pipelined loops have the requested versions, or
    two."""
    loops = pipelined_loops(assignment.kernel.body)
    stages = {b.name: loop.num_stages or 2 for loop in loops for s in loop.body for b in writes(s)}
    taken = sum(layout.bytes * stages.get(name, 1) for name, layout in assignment.shared.items())
    return target.limit("smem_bytes_per_cta") - taken


def _may_be_prefetched(
    assignment: LayoutAssignment, stmts: tuple[Stmt, ...], fetch: Fetch, ordered: frozenset[str]
) -> bool:
    copy, tile = stmts[fetch.copy], fetch.tile
    if not isinstance(copy, Copy):
        return False
    source, destination, layout = copy.source, copy.destination, assignment.shared[tile.name]
    return (
        copy.via in ("cp_async", "registers")
        and not (copy.width is not None or copy.is_asynchronous or without_tma(copy))
        and destination.is_whole
        and source.buffer.name not in ordered
        and not any(isinstance(e, Load) for index in source.start for e in walk_expr(index))
        and why_no_tensor_map(source, tile, coordinates_of(assignment.kernel), least_dimensions=1) is None
        and is_legal(layout, ["tma"])
        and bool(pipelined_loops(stmts[: fetch.last + 1]))
        and not any(_may_leave(stmt) for stmt in stmts[fetch.copy + 1 : fetch.last + 1])
        and _touching(stmts, tile) == _touching(assignment.kernel.body, tile)
    )


def _may_leave(stmt: Stmt) -> bool:
    """Return whether the statement may leave its loop: then its tile would not be released."""
    match stmt:
        case Break():
            return True
        case If(then=then, orelse=orelse):
            return any(map(_may_leave, (*then, *orelse)))
        case _:
            return False


def _touching(body: tuple[Stmt, ...], tile: Buffer) -> int:
    """Count the statements that access the tile; a compound one counts by its bounds or condition."""
    return sum(
        any(isinstance(e, Load) and e.buffer == tile for x in expressions(stmt) for e in walk_expr(x))
        if isinstance(stmt, For | While | If)
        else tile in (*reads(stmt), *writes(stmt))
        for stmt in walk(body)
    )


def _one_at_a_time(stmt: Stmt) -> Stmt:
    """Give a copy by TMA a ring of one version."""
    match stmt:
        case Copy() | Im2col() if is_load(stmt) and stmt.via == "tma":
            return replace(stmt, prefetched=1)
        case _:
            return stmt


def _by_tma(stmt: Stmt, versions: int) -> Stmt:
    assert isinstance(stmt, Copy)
    return replace(stmt, via="tma", prefetched=versions)
