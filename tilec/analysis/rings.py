"""Rings: the shared tiles of a pipelined loop that may have several versions, so that filling one overlaps reading
another.

A version belongs to one iteration. So the first statement of the loop that touches the tile must overwrite it; later
ones may read it, fill a part of it or change it, in program order.

Several consecutive loops may have versions of one tile: in the same ring, which continues in the next loop where the
one before ended.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.analysis.copy_nests import find_filled_tiles
from tilec.analysis.fragment_prefetch import find_last_use, is_fragment_prefetch
from tilec.analysis.scalar_definitions import find_scheduled_statements
from tilec.analysis.usage import find_reads, find_writes
from tilec.ir import tile
from tilec.support.identity import cache_by_identity
from tilec.support.records import dataclass


@dataclass(frozen=True, slots=True)
class RingPlan:
    """Shared tiles of one lifetime: statements `producers` fill them, `consumers` are all others that touch them; some
    of these may write, too."""

    buffers: tuple[tile.Buffer, ...]
    producers: tuple[int, ...]
    consumers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Accesses:
    """Names of the buffers that a statement touches."""

    reads: frozenset[str]
    writes: frozenset[str]

    @property
    def all_names(self) -> frozenset[str]:
        """Return the names of all buffers that the statement reads or writes."""
        return self.reads | self.writes


@cache_by_identity(1 << 14)
def find_accesses(stmt: tile.Stmt) -> Accesses:
    """Return the names of the buffers that a statement and all nested in it read, and of those they write."""
    return Accesses(frozenset(b.name for b in find_reads(stmt)), frozenset(b.name for b in find_writes(stmt)))


@dataclass(frozen=True, slots=True)
class LoopBody:
    """The scheduled statements of a pipelined loop, what each touches, and what is touched outside the loop."""

    statements: tuple[tile.Stmt, ...]
    touched: tuple[Accesses, ...]
    outside: frozenset[str]

    def find_users(self, buffer: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the indices of statements that touch a tile: a first TMA load, or those before the first reader;
        and the rest. A TMA load is alone in the first part, since a role of its own may issue it."""
        using = tuple(i for i, a in enumerate(self.touched) if buffer in a.all_names)
        if using and _is_tma_load(self.statements[using[0]]):
            return using[:1], using[1:]
        first = next((i for i in using if buffer in self.touched[i].reads), len(self.touched))
        return tuple(i for i in using if i < first), tuple(i for i in using if i >= first)

    def why_not_versioned(self, buffer: tile.Buffer) -> str | None:
        """Return why a shared tile of the loop cannot have several versions, as text; None if it can."""
        name = buffer.name
        producers, consumers = self.find_users(name)
        if name in self.outside:
            return f"{name} is also used outside the loop"
        if not producers:
            return f"{name} is read before it is filled"  # its value comes from the iteration before
        first = self.statements[producers[0]]
        if buffer not in find_filled_tiles(first):
            return f"{first.span.place} may not overwrite all of {name}, so elements of the iteration before remain"
        if not any(name in self.touched[i].reads for i in consumers):
            return f"nothing in the loop reads {name}"
        return None

    def why_not_fed(self, copy: tile.TileOp) -> str | None:
        """Return why a producer role could not fill the copy's destination tile, as text; None if it could."""
        buffer = copy.regions[1]
        if not buffer.is_whole:
            return f"it fills only a part of {buffer.buffer.name}"
        reason = self.why_not_versioned(buffer.buffer)
        if reason is None and self.statements[self.find_users(buffer.buffer.name)[0][0]] is not copy:
            return f"an earlier statement of the loop also fills {buffer.buffer.name}"
        return reason


@cache_by_identity(1 << 10)
def analyse_loop_body(kernel: tile.Kernel, loop: tile.For, to_be_fed: bool = False) -> LoopBody:
    """Return the loop's scheduled statements, what each touches, and the buffers used outside, except shared rings.
    `to_be_fed`: as if TMA made all copies from tensors."""
    outside = find_touched_outside(kernel, loop) - find_sharing_loops(kernel, loop, to_be_fed).keys()
    return replace(_analyse_alone(loop), outside=outside)


@cache_by_identity(1 << 10)
def _analyse_alone(loop: tile.For) -> LoopBody:
    """Return the loop's scheduled statements and what each touches, as if no buffer were used outside the loop."""
    statements = find_scheduled_statements(loop)
    return LoopBody(statements, tuple(find_accesses(s) for s in statements), frozenset())


def find_sharing_loops(kernel: tile.Kernel, loop: tile.For, to_be_fed: bool = False) -> dict[str, tuple[tile.For, ...]]:
    """Return, by tile in one ring with other loops, those loops (`to_be_fed`: as if TMA made all copies from
    tensors)."""
    users = find_shared_ring_tiles(kernel, to_be_fed).items()
    return {
        buffer: tuple(one for one in of if one is not loop) for buffer, of in users if any(one is loop for one in of)
    }


@cache_by_identity(16)
def find_shared_ring_tiles(kernel: tile.Kernel, to_be_fed: bool = False) -> dict[str, tuple[tile.For, ...]]:
    """Return tiles that several innermost pipelined loops can have in one ring, and these (`to_be_fed`: if TMA
    loaded all). Each loop overwrites the tile before it reads it, and nothing else touches it. TMA, which counts
    bytes, fills it in all of the loops or in none."""
    loops = [s for s in find_pipelined_loops(kernel.body) if not find_pipelined_loops(s.body)]
    if len(loops) < 2:
        return {}
    bodies_of = [(loop, _analyse_alone(loop)) for loop in loops]
    elsewhere = find_touched_outside(kernel, *loops)
    found: dict[str, tuple[tile.For, ...]] = {}
    for buffer in (b for b in kernel.buffers if b.scope == "shared" and b.name not in elsewhere):
        users = [
            (loop, inside) for loop, inside in bodies_of if any(buffer.name in a.all_names for a in inside.touched)
        ]
        if len(users) < 2 or any(inside.why_not_versioned(buffer) is not None for _, inside in users):
            continue
        if len({_is_filled_by_tma(inside, buffer, to_be_fed) for _, inside in users}) == 1:
            found[buffer.name] = tuple(loop for loop, _ in users)
    return found


def _is_filled_by_tma(inside: LoopBody, buffer: tile.Buffer, to_be_fed: bool) -> bool:
    """Return True if TMA fills the tile in this loop; with `to_be_fed`, for any copy from a tensor."""
    first = inside.statements[inside.find_users(buffer.name)[0][0]]
    return _is_tma_load(first) or (to_be_fed and isinstance(first, tile.TileOp) and is_load(first))


def count_scheduled_versions(loop: tile.For) -> int | None:
    """Return how many versions each tile has by a loop's manual schedule; None if the loop has no such schedule."""
    return None if loop.stage is None else loop.num_stages or max(loop.stage) + 1


def count_ring_versions(loop: tile.For, plan: RingPlan) -> int:
    """Return how many versions a ring's tiles have by a loop's manual schedule; 0 if the loop has no such schedule.
    Hardware loads may be in flight while the statements of one stage run; what threads compute is not."""
    if loop.stage is None:
        return 0
    statements, stages = find_scheduled_statements(loop), loop.stage
    loaded = all(isinstance(s, tile.TileOp) and is_load(s) for s in (statements[p] for p in plan.producers))
    stays = len({stages[i] for i in (*plan.producers, *plan.consumers)}) == 1
    return 1 if stays and not loaded else count_scheduled_versions(loop) or 1


RingGroup = int | tuple[tuple[int, ...], object]


def plan_rings(kernel: tile.Kernel, loop: tile.For) -> tuple[RingPlan, ...]:
    """Group the loop's tiles that may have several versions into rings, by their producers and consumers. Copies from
    tensors by one mechanism fill one ring, each other producer its own; producers of one group of the loop fill one
    ring alone. Tiles with versions in several loops are in one ring in all of these, or in none."""
    inside = analyse_loop_body(kernel, loop)
    shared = find_sharing_loops(kernel, loop)
    groups: dict[object, list[tuple[tile.Buffer, tuple[int, ...]]]] = {}
    for i, stmt in enumerate(inside.statements):
        for buffer in find_filled_tiles(stmt):
            producers, _ = inside.find_users(buffer.name)
            if producers[:1] != (i,) or inside.why_not_versioned(buffer) is not None:
                continue
            elsewhere = tuple(
                (other.var, _choose_group(other, _analyse_alone(other), buffer))
                for other in shared.get(buffer.name, ())
            )
            group = _choose_group(loop, inside, buffer), elsewhere
            groups.setdefault(group, []).append((buffer, producers))
    place = {buffer: number for number, buffer in enumerate(kernel.buffers) if buffer.name in shared}
    return tuple(
        RingPlan(
            tuple(sorted((buffer for buffer, _ in members), key=lambda buffer: place.get(buffer, -1))),
            tuple(dict.fromkeys(i for _, producers in members for i in producers)),
            tuple(sorted({j for buffer, _ in members for j in inside.find_users(buffer.name)[1]})),
        )
        for members in groups.values()
    )


def _choose_group(loop: tile.For, inside: LoopBody, buffer: tile.Buffer) -> RingGroup:
    """Return the key of the tile's ring: its producer's hinted group, else its readers and how it is filled. A prefetch
    to registers counts as its last use: factors of one product are in one ring."""
    producers, consumers = inside.find_users(buffer.name)
    statements = inside.statements
    hint_groups = (loop.scheduling_hints and loop.scheduling_hints.groups) or (-1,) * len(statements)
    if hint_groups[producers[0]] >= 0:
        return hint_groups[producers[0]]
    consumers = tuple(find_last_use(statements, i) if is_fragment_prefetch(statements[i]) else i for i in consumers)
    first = inside.statements[producers[0]]
    loaded = isinstance(first, tile.TileOp) and is_load(first) and len(producers) == 1
    return consumers, _is_tma_load(first) if loaded else producers


def is_load(op: tile.TileOp) -> bool:
    """Return True for a copy from a tensor to a shared tile."""
    return op.is_load


def is_pipelined(loop: tile.For) -> bool:
    """Return True for T.Pipelined without `num_stages=0`; one around a pipelined loop must have loads or stages of its
    own. Otherwise there is nothing to prefetch."""
    if loop.kind != "pipelined" or loop.num_stages == 0:
        return False
    if loop.stage is not None or loop.num_stages is not None:
        return True
    return any(isinstance(s, tile.TileOp) and is_load(s) for s in loop.body) or not find_pipelined_loops(loop.body)


def find_pipelined_loops(body: tuple[tile.Stmt, ...]) -> tuple[tile.For, ...]:
    """Return the pipelined loops among these statements at any depth, in program order: a loop before those in it."""
    return tuple(s for s in tile.walk_statements(body) if isinstance(s, tile.For) and is_pipelined(s))


def _is_tma_load(stmt: tile.Stmt) -> bool:
    """Return True if the statement is a copy from a tensor to a shared tile by TMA."""
    return isinstance(stmt, tile.TileOp) and is_load(stmt) and stmt.via == "tma"


def why_not_fed(kernel: tile.Kernel, loop: tile.For, copy: tile.TileOp | None = None) -> str | None:
    """Return why a producer role could not issue this load of the loop (None: the first it could not), None if it
    could."""
    inside = analyse_loop_body(kernel, loop, True)
    for stmt in inside.statements:
        if isinstance(stmt, tile.TileOp) and is_load(stmt) and (copy is None or copy is stmt):
            reason = inside.why_not_fed(stmt)
            if reason is not None:
                return f"in {stmt.span.place}, {reason}"
    return None


def find_outside_use(kernel: tile.Kernel, loop: tile.For, buffer: str) -> tile.Stmt | None:
    """Return the first and innermost statement but the loop that touches the buffer, itself or by what is in it, or
    None."""

    def find_use(stmts: tuple[tile.Stmt, ...]) -> tile.Stmt | None:
        """Return the first and innermost of these statements that touches the buffer, passing over the loop."""
        for stmt in stmts:
            if stmt is not loop and buffer in find_accesses(stmt).all_names:
                return next((s for inner in tile.nested_bodies(stmt) if (s := find_use(inner)) is not None), stmt)
        return None

    return find_use(kernel.body)


def find_touched_outside(kernel: tile.Kernel, *loops: tile.For) -> frozenset[str]:
    """Return the names of buffers used anywhere but in these loops' bodies; the loops' own bounds count as outside."""
    names: set[str] = set()
    ours = {loop.var for loop in loops}

    def visit_statements(stmts: tuple[tile.Stmt, ...]) -> None:
        """Add the names that the statements touch to `names`, without the bodies of these loops."""
        for stmt in stmts:
            if not any(isinstance(s, tile.For) and s.var in ours for s in tile.walk_statements((stmt,))):
                names.update(find_accesses(stmt).all_names)
                continue
            names.update(load.buffer.name for load in tile.walk_loads(stmt))
            if not isinstance(stmt, tile.For) or stmt.var not in ours:
                for inner in tile.nested_bodies(stmt):
                    visit_statements(inner)

    visit_statements(kernel.body)
    return frozenset(names)
