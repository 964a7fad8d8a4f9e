"""Shared tiles that are never live together share memory, in a kernel that does not fit otherwise.

A tile is live from its first use to its last one, counted in the statements of the innermost statement list that has
all its uses; a statement with others inside counts as one. Two tiles can share memory if one list has all uses of both,
and those of one end before those of the other begin. In a loop the first use of each must overwrite all of it, so that
it carries nothing from one iteration to the next. A pipelined loop is one statement: its iterations overlap. A tile in
a ring is filled ahead of time, so a later tile may have its memory for good, and it never takes that of another one.

`lower.insert_sync` places barriers where memory changes hands, and rule 10 of the warp verifier checks them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import combinations

from tilec.analysis.copy_nests import find_filled_tiles
from tilec.analysis.rings import find_accesses, find_pipelined_loops, is_pipelined, plan_rings
from tilec.ir import tile
from tilec.ir.multicast import SWIZZLE_BYTES
from tilec.ops.synchronisation.sync import BlockBarrier
from tilec.passes.layout.assign_layouts import LayoutAssignment
from tilec.passes.memory.prefetch_tiles import count_prefetched_versions
from tilec.passes.memory.shared_reuse import (
    find_tiles_over_rings,
    has_loop_stores,
    is_ordered_elsewhere,
    is_written_first,
)
from tilec.support.identity import cache_by_identity
from tilec.support.records import dataclass
from tilec.target.table import Target

RESERVED_BYTES = 1024
"""What barriers take at least, rounded up to where a tile can begin."""

ReusedTiles = Mapping[str, frozenset[str]]
"""By tile, the tiles that end before it begins, or begin after it ends, and whose memory it may have."""


def align_bytes(size: int) -> int:
    """Return the size rounded up to a multiple of 1024 bytes, where the next tile can begin."""
    return -(-size // SWIZZLE_BYTES) * SWIZZLE_BYTES


@cache_by_identity(16)
def plan_reuse(assignment: LayoutAssignment, target: Target) -> ReusedTiles:
    """Return whose memory each shared tile may have; {} for a kernel that fits without, or with explicit roles."""
    versions, late = count_prefetched_versions(assignment.kernel), find_tiles_over_rings(assignment.kernel)
    sizes, in_rings = _list_sizes(assignment).items(), find_ring_tiles(assignment.kernel)
    with_rings = sum(size * versions.get(name, 1) for name, size in sizes if name not in late)
    with_late = sum(size for name, size in sizes if name not in in_rings)
    if assignment.roles or not is_too_much(max(with_rings, with_late), target):
        return {}
    return find_reusable_tiles(assignment.kernel)


def is_too_much(size: int, target: Target) -> bool:
    """Return whether tiles of so many bytes leave no room for barriers."""
    return size + RESERVED_BYTES > target.limit("smem_bytes_per_cta")


def count_tile_bytes(assignment: LayoutAssignment, target: Target, versions: Mapping[str, int]) -> int:
    """Return the bytes of shared memory that all tiles take with these numbers of versions, after reuse. Those in
    `versions` count as often as that says, others once."""
    reused, sizes = plan_reuse(assignment, target), _list_sizes(assignment)
    if not reused:
        late = find_tiles_over_rings(assignment.kernel)
        return sum(size * versions.get(name, 1) for name, size in sizes.items() if name not in late)
    in_rings = find_ring_tiles(assignment.kernel)
    _, height = place_tiles(sizes, in_rings, reused)
    return height + sum(sizes[name] * versions.get(name, 1) for name in in_rings)


def list_counted_tiles(assignment: LayoutAssignment, target: Target) -> tuple[str, ...]:
    """Return the names of the shared tiles to show in a sum of sizes: all that do not lie over the rings."""
    late = frozenset[str]() if plan_reuse(assignment, target) else find_tiles_over_rings(assignment.kernel)
    return tuple(name for name in assignment.shared if name not in late)


def place_tiles(sizes: Mapping[str, int], in_rings: Collection[str], reused: ReusedTiles) -> tuple[dict[str, int], int]:
    """Return offsets of the tiles in no ring, relative to the end of the rings, and the end of the highest one.

    A tile that may have the memory of all rings may begin before that end, by one version of each at most, so that all
    keep their distances if the rings get more versions."""
    below = -sum(sizes[name] for name in in_rings)
    beside = [name for name in sizes if name not in in_rings]

    def can_share(one: str, other: str) -> bool:
        """Return whether either of the two tiles may have the memory of the other."""
        return other in reused.get(one, ()) or one in reused.get(other, ())

    def place_in_order(names: list[str]) -> tuple[dict[str, int], int]:
        """Return the tiles' offsets, each as low as those before it in this order allow, and the end of the highest."""
        offsets: dict[str, int] = {}
        for name in names:
            others = [other for other in offsets if not can_share(name, other)]
            over_rings = all(other in reused.get(name, ()) for other in in_rings)
            ends = (offsets[other] + sizes[other] for other in others)
            starts = sorted({below if over_rings else 0, *(end for end in ends if over_rings or end >= 0)})
            offsets[name] = next(
                start
                for start in starts
                if all(
                    start + sizes[name] <= offsets[other] or offsets[other] + sizes[other] <= start for other in others
                )
            )
        return offsets, max((offsets[name] + sizes[name] for name in names), default=0)

    by_size = sorted(beside, key=lambda name: -sizes[name])
    offsets, end = min(place_in_order(by_size), place_in_order(beside), key=lambda placed: placed[1])
    return offsets, max(end, 0)


def find_ring_tiles(kernel: tile.Kernel) -> frozenset[str]:
    """Return the names of the tiles that pipelined loops or prefetches may put into rings."""
    loops = find_pipelined_loops(kernel.body)
    planned = {b.name for loop in loops for ring in plan_rings(kernel, loop) for b in ring.buffers}
    return frozenset(planned | count_prefetched_versions(kernel).keys())


@dataclass(frozen=True, slots=True)
class LiveRange:
    """The first and the last statement, of one statement list, that use a tile. `may_carry`: its first use may not
    overwrite all of it, so that in a loop it may keep elements of the iteration before. `may_read_first`: its first use
    may read it."""

    first: int
    last: int
    may_carry: bool
    may_read_first: bool


def find_reusable_tiles(kernel: tile.Kernel) -> ReusedTiles:
    """Return, for each shared tile, the tiles whose memory it may have because they are never live together. None
    may in a kernel with tensor memory, sends or waits of its own."""
    if any(is_ordered_elsewhere(s) and not isinstance(s, BlockBarrier) for s in tile.walk_statements(kernel.body)):
        return {}
    in_rings, scalars = find_ring_tiles(kernel), frozenset(find_scalar_uses(kernel.body))
    names = [b.name for b in kernel.buffers if b.scope == "shared" and b.name not in scalars]
    ranges = {name: dict(_find_ranges(kernel.body, name, ())) for name in names}
    ends_known = not has_loop_stores(kernel)
    found: dict[str, set[str]] = {}
    for one, other in combinations(names, 2):
        place = max(ranges[one].keys() & ranges[other].keys(), key=len, default=None)
        if place is None:
            continue
        first, second = sorted((one, other), key=lambda name: ranges[name][place].first)
        early, late = ranges[first][place], ranges[second][place]
        if early.last >= late.first or late.may_read_first or second in in_rings:
            continue
        if first in in_rings:
            is_free = not place and ends_known
        else:
            is_free = not _is_in_loop(kernel.body, place) or not (early.may_carry or late.may_carry)
        if is_free:
            found.setdefault(second, set()).add(first)
    return {name: frozenset(others) for name, others in found.items()}


Place = tuple[int, ...]
"""A statement list: the number of a statement and of the list inside it, for each level."""


def _find_ranges(body: tuple[tile.Stmt, ...], name: str, place: Place) -> Iterator[tuple[Place, LiveRange]]:
    """Yield the live range of a tile in each statement list that has all its uses, from the outermost one on."""
    using = [at for at, stmt in enumerate(body) if name in find_accesses(stmt).all_names]
    if not using:
        return
    stmts = tuple(body[at] for at in using)
    first = stmts[0]
    may_carry = name not in {buffer.name for buffer in find_filled_tiles(first)}
    yield place, LiveRange(using[0], using[-1], may_carry, is_written_first(name, stmts) is False)
    is_one = len(using) > 1 or not isinstance(first, tile.For | tile.While | tile.If)
    if is_one or (isinstance(first, tile.For) and is_pipelined(first)):
        return
    lists = list(enumerate(tile.nested_bodies(first)))
    inner = [n for n, nested in lists if any(name in find_accesses(stmt).all_names for stmt in nested)]
    if len(inner) == 1 and name not in {load.buffer.name for load in tile.walk_loads(first)}:
        yield from _find_ranges(lists[inner[0]][1], name, (*place, using[0], inner[0]))


def _is_in_loop(body: tuple[tile.Stmt, ...], place: Place) -> bool:
    """Return whether the statement list at this place is inside a loop."""
    if not place:
        return False
    at, number, *deeper = place
    return not isinstance(body[at], tile.If) or _is_in_loop(tile.nested_bodies(body[at])[number], tuple(deeper))


def find_scalar_uses(body: tuple[tile.Stmt, ...]) -> Iterator[str]:
    """Yield the names of buffers that statements outside nests access by single elements, as in conditions."""
    for stmt in body:
        if isinstance(stmt, tile.Parallel):
            continue
        yield from (load.buffer.name for load in tile.walk_loads(stmt))
        if isinstance(stmt, tile.Store):
            yield stmt.buffer.name
        for nested in tile.nested_bodies(stmt):
            yield from find_scalar_uses(nested)


def _list_sizes(assignment: LayoutAssignment) -> dict[str, int]:
    """Return the bytes of one version of each shared tile by name, rounded up to where a tile can begin."""
    return {name: align_bytes(layout.bytes) for name, layout in assignment.shared.items()}
