"""Tiles that the producer warp loads though no pipelined loop does: small ones that are read behind one, as a row of
biases, and those that all iterations of one read, as attention's queries.

Loaded by the consumers, such a tile makes all of them wait for one another between their last product and their store.
The producer loads it by TMA where it stands, ahead of them, into a ring of its own: of two versions where it is loaded
again and again, so that loads for the next tile of the output need not wait until this one's is done with it. Each
consumer waits for the tile before its first statement that reads it, and gives it back after its last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.ir.rewrite import map_nested_bodies, rewrite_statements
from tilec.ir.tile import Break, Buffer, For, If, Kernel, Load, Stmt, TileOp, While, walk_expr, walk_statements
from tilec.ops.copy import Copy
from tilec.ops.im2col import Im2col
from tilec.passes.analysis.box_starts import collect_coordinates
from tilec.passes.analysis.rings import find_pipelined_loops, is_load, is_pipelined
from tilec.passes.analysis.tensor_order import find_ordered_tensors
from tilec.passes.analysis.usage import find_reads, find_writes, list_expressions
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.layout.atoms import is_legal
from tilec.passes.layout.tensor_maps import is_tma_disabled, why_no_tensor_map
from tilec.support.records import dataclass
from tilec.target.table import Target

MOST_BYTES = 4096  # of a small tile with its versions: what is larger would take memory from the rings of the loops


def prefetched(assignment: LayoutAssignment, target: Target) -> LayoutAssignment:
    """The kernel, with these copies by TMA. Where nothing is scheduled, all copies by TMA are such."""
    if assignment.form == "serial":
        return replace(
            assignment,
            kernel=replace(assignment.kernel, body=rewrite_statements(assignment.kernel.body, _one_at_a_time)),
        )
    if assignment.form != "warp_specialised":
        return assignment
    ordered = find_ordered_tensors(assignment.kernel)
    room = _room(assignment, target)

    def body(stmts: tuple[Stmt, ...], versions: int) -> tuple[Stmt, ...]:
        nonlocal room
        found: dict[int, int] = {}
        for fetch in fetches(stmts):
            if not _may_be_prefetched(assignment, stmts, fetch, ordered):
                continue
            size = assignment.shared[fetch.tile.name].bytes
            if not any(fetch.tile in find_reads(loop) for loop in find_pipelined_loops(stmts)):
                is_small = size * versions <= MOST_BYTES and not assignment.shared[fetch.tile.name].swizzle
                if is_small and find_pipelined_loops(stmts[: fetch.first]):
                    found[fetch.copy] = versions
            elif room >= 0:  # it has its own memory already, and is given more for another version of it
                found[fetch.copy] = versions if room >= (versions - 1) * size else 1
                room -= (found[fetch.copy] - 1) * size
        return tuple(_by_tma(s, found[at]) if at in found else inside(s, versions) for at, s in enumerate(stmts))

    def inside(stmt: Stmt, versions: int) -> Stmt:
        match stmt:
            case For() if is_pipelined(stmt):
                return stmt
            case For() | While():
                return map_nested_bodies(stmt, lambda stmts: body(stmts, 2))
            case If():
                return map_nested_bodies(stmt, lambda stmts: body(stmts, versions))
            case _:
                return stmt

    return replace(assignment, kernel=replace(assignment.kernel, body=body(assignment.kernel.body, 1)))


def versions_of(kernel: Kernel) -> dict[str, int]:
    """Of each tile that is loaded so, how many there are."""
    loads = (s for s in walk_statements(kernel.body) if isinstance(s, TileOp))
    return {load.regions[1].buffer.name: load.prefetched for load in loads if load.prefetched is not None}


def is_prefetched(stmt: Stmt) -> bool:
    return isinstance(stmt, TileOp) and stmt.prefetched is not None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Which statement of a list copies a tile, and which ones are the first and the last to read it."""

    tile: Buffer
    copy: int
    first: int
    last: int


def fetches(stmts: tuple[Stmt, ...]) -> Iterator[Fetch]:
    """Each copy from a tensor to a shared tile that only statements behind it in the list read, and none else
    writes."""
    for at, stmt in enumerate(stmts):
        if not isinstance(stmt, TileOp) or not is_load(stmt):
            continue
        tile = stmt.regions[1].buffer
        reading = [n for n, other in enumerate(stmts) if tile in find_reads(other)]
        if reading and reading[0] > at and [n for n, other in enumerate(stmts) if tile in find_writes(other)] == [at]:
            yield Fetch(tile, at, reading[0], reading[-1])


def _room(assignment: LayoutAssignment, target: Target) -> int:
    """Bytes of shared memory that are left when pipelined loops have as many versions of what they fill as they ask,
    or two."""
    loops = find_pipelined_loops(assignment.kernel.body)
    stages = {b.name: loop.num_stages or 2 for loop in loops for s in loop.body for b in find_writes(s)}
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
        and not (copy.width is not None or copy.is_asynchronous or is_tma_disabled(copy))
        and destination.is_whole
        and source.buffer.name not in ordered
        and not any(isinstance(e, Load) for index in source.start for e in walk_expr(index))
        and why_no_tensor_map(source, tile, collect_coordinates(assignment.kernel), least_dimensions=1) is None
        and is_legal(layout, ["tma"])
        and bool(find_pipelined_loops(stmts[: fetch.last + 1]))
        and not any(_may_leave(stmt) for stmt in stmts[fetch.copy + 1 : fetch.last + 1])
        and _touching(stmts, tile) == _touching(assignment.kernel.body, tile)
    )


def _may_leave(stmt: Stmt) -> bool:
    """Whether the statement may leave the loop that it stands in: then its tile would not be given back."""
    match stmt:
        case Break():
            return True
        case If(then=then, orelse=orelse):
            return any(map(_may_leave, (*then, *orelse)))
        case _:
            return False


def _touching(body: tuple[Stmt, ...], tile: Buffer) -> int:
    """How many statements touch the tile, of which only nests hold others; a bound or a condition counts as one."""
    return sum(
        any(isinstance(e, Load) and e.buffer == tile for x in list_expressions(stmt) for e in walk_expr(x))
        if isinstance(stmt, For | While | If)
        else tile in (*find_reads(stmt), *find_writes(stmt))
        for stmt in walk_statements(body)
    )


def _one_at_a_time(stmt: Stmt) -> Stmt:
    """The statement, with the copies of its loops by TMA in rings of one version."""
    match stmt:
        case Copy() | Im2col() if is_load(stmt) and stmt.via == "tma":
            return replace(stmt, prefetched=1)
        case _:
            return stmt


def _by_tma(stmt: Stmt, versions: int) -> Stmt:
    assert isinstance(stmt, Copy)
    return replace(stmt, via="tma", prefetched=versions)
